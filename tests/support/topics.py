"""For tests on Kafka: topics with whatever settings a test wants, and what the broker's administrator may do to them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code

from muster.log.bus import Bus
from muster.log.kafka import MESSAGE_MAX_BYTES
from muster.log.topics import await_topics

LOG_SETTINGS = {"max.message.bytes": str(MESSAGE_MAX_BYTES), "retention.ms": "-1", "retention.bytes": "-1"}


@asynccontextmanager
async def administrator(bus: Bus) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client that may make and unmake topics."""
    client = AIOKafkaAdminClient(**bus.client_options(), request_timeout_ms=20_000)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def make_topic(bus: Bus, name: str, settings: Mapping[str, str], *, partitions: int = 1, replicas: int = 1) -> None:
    """Make a topic, and return once every broker knows who leads its partitions."""
    async with administrator(bus) as client:
        answer: Any = await client.create_topics([NewTopic(name, partitions, replicas, topic_configs=dict(settings))])
        for told in answer.topic_errors:
            assert told[1] == 0, f"{told[0]}: {for_code(told[1])} {told[2:]}"
        await await_topics(client, [name])


async def make_log_topic(bus: Bus, name: str, *, replicas: int = 1) -> None:
    """Make a topic that a log can stand in."""
    await make_topic(bus, name, LOG_SETTINGS, replicas=replicas)
