"""The topics of a bus: what they must be (`topics.toml`), making them, and naming what is wrong with those that are there.

A scheduler does not start on topics that `check` finds fault with: each fault is one that would lose or alter records that
were taken to be safe, and be noticed long after. Nothing here changes a topic that is there; a person decides that.
"""

import asyncio
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from aiokafka.protocol.metadata import MetadataRequest

from muster.log.bus import Bus, reasons
from muster.log.errors import LogError, LogUnreachable
from muster.log.kafka import make_consumer, stop_consumer

COPIES: Final = 3
IN_SYNC: Final = 2
REQUEST_TIMEOUT_MS: Final = 20_000
ASK_S: Final = 30.0
"""So long all questions of one command together may take."""
UNLIMITED: Final = -1

_MADE_OF: Final = ("flush.messages", "min.insync.replicas")
"""What depends on the number of copies; told with the rest."""


class Topic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One topic as it must be."""

    name: str
    what: str
    partitions: int
    ordered: bool = False
    """Whether another number of partitions is wrong, or only a smaller one."""
    essential: bool = True
    """Whether a cell needs it. Else its programs run without it, and its last records may go with a machine."""
    settings: dict[str, str]


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as it is."""

    partition: int
    leader: int
    """The broker's id; -1 where none leads."""
    copies: list[int]
    in_sync: list[int]
    begin: int | None = None
    """The first offset that there is; None where nobody could say."""
    end: int | None = None
    """The offset after the last."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One topic as it is."""

    name: str
    what: str
    missing: bool
    partitions: list[Partition]
    settings: dict[str, str]
    """Those that matter here."""
    unreadable: str = ""
    """Why the settings could not be read."""
    wrong: list[str]
    """One sentence each."""


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A bus as it is."""

    address: str
    brokers: list[str]
    """HOST:PORT."""
    topics: list[Found]


class BusUnfit(LogError):
    """The topics are not as they must be. Its text names each thing that is wrong."""


@cache
def declared() -> tuple[Topic, ...]:
    """The topics as they must be, the log first."""
    told = tomllib.loads(Path(__file__).with_name("topics.toml").read_text())
    topics = msgspec.convert(told["topic"], tuple[Topic, ...])
    return tuple(msgspec.structs.replace(topic, settings={**told["every"], **topic.settings}) for topic in topics)


async def check(bus: Bus, topics: Sequence[Topic] | None = None) -> list[str]:
    """What is wrong with the topics, one sentence each that begins with the topic's name; empty where all is well.

    Raises:
        LogUnreachable: no broker answers.
    """
    async with _administrator(bus) as client:
        return [sentence for found in await _found(bus, client, topics or declared()) for sentence in found.wrong]


async def require_fit(bus: Bus, topics: Sequence[Topic] | None = None) -> None:
    """Return where nothing is wrong with the topics; if not said otherwise, with those that a cell needs.

    Raises:
        BusUnfit: something is; names all of it.
        LogUnreachable: no broker answers.
    """
    if wrong := await check(bus, topics or [topic for topic in declared() if topic.essential]):
        raise BusUnfit(f"the bus {bus.address} is not fit to be used: {'; '.join(wrong)}")


async def create(bus: Bus, topics: Sequence[Topic] | None = None, *, copies: int | None = None) -> list[str]:
    """Make the topics that are missing, and leave the others as they are; the names of those made.

    `copies` is how many each has: three where there are three brokers, else one, unless said otherwise.

    Raises:
        BusUnfit: the cluster refuses to make one.
        LogUnreachable: no broker answers.
    """
    made = []
    async with _administrator(bus) as client:
        wanted = copies or (COPIES if len((await client.describe_cluster())["brokers"]) >= COPIES else 1)
        there = await client.list_topics()
        for topic in topics or declared():
            if topic.name in there:
                continue
            settings = settings_of(topic, copies=wanted)
            answer = await client.create_topics([NewTopic(topic.name, topic.partitions, wanted, topic_configs=settings)])
            for name, code, *said in answer.topic_errors:
                error = for_code(code)
                if code and error is not TopicAlreadyExistsError:  # somebody else may have been quicker
                    raise BusUnfit(f"the topic {name} could not be made: {next(filter(None, said), error.__name__)}")
                made.append(name)
        await await_topics(client, made)
    return made


async def describe(bus: Bus, topics: Sequence[Topic] | None = None) -> Described:
    """The bus as it is: its brokers, and each topic with its partitions, the settings that matter, and what is wrong.

    Raises:
        LogUnreachable: no broker answers.
    """
    async with _administrator(bus) as client:
        brokers = sorted(f"{each['host']}:{each['port']}" for each in (await client.describe_cluster())["brokers"])
        topics_found = await _found(bus, client, topics or declared())
    return Described(address=bus.address, brokers=brokers, topics=await _with_offsets(bus, topics_found))


def settings_of(topic: Topic, *, copies: int) -> dict[str, str]:
    """What a topic is made with that has so many copies."""
    each = _for_copies(copies)
    if not topic.essential:
        each.pop("flush.messages", None)
    return {**topic.settings, **each}


async def await_topics(client: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    """Return once each broker knows these topics and that each of their partitions is led."""
    for broker in (await client.describe_cluster())["brokers"]:
        left = set(names)
        while left:
            answer = await client._send_request(MetadataRequest(None), broker["node_id"])  # the client asks whom it likes
            for topic in answer.to_object()["topics"]:
                if (
                    topic["topic"] in left
                    and not topic["error_code"]
                    and all(part["leader"] >= 0 for part in topic["partitions"])
                ):
                    left.remove(topic["topic"])
            await asyncio.sleep(0.02)


def judge(topic: Topic, partitions: Sequence[Partition], settings: dict[str, str]) -> list[str]:
    """What is wrong with a topic that is there, one sentence each."""
    wrong = []
    count = len(partitions)
    if topic.ordered and count != topic.partitions:
        wrong.append(f"has {_partitions(count)} and must have {topic.partitions}: order is kept in a partition only")
    elif count < topic.partitions:
        wrong.append(f"has {_partitions(count)} and must have at least {topic.partitions}")
    for name, right in topic.settings.items():
        value = settings.get(name, "")
        if not _is_right(name, value, right):
            wrong.append(
                f"has {name}={value or '(unknown)'} and must have {_right(right)}: {_WHY.get(name, 'it is declared so')}"
            )
    if topic.essential:
        wrong += _judge_copies(min((len(each.copies) for each in partitions), default=0), settings)
    return [f"{topic.name} {sentence}" for sentence in wrong]


_WHY: Final = {
    "cleanup.policy": "a compacted topic drops records that are not the last of their key",
    "unclean.leader.election.enable": "a copy that missed records could lead, and they would be gone",
    "message.timestamp.type": "only the broker's own time says when a message arrived",
    "retention.bytes": "records would go when it is full, read or not",
    "retention.ms": "records would go before they are done with",
    "max.message.bytes": "the largest records would be refused",
}


def _is_right(name: str, value: str, right: str) -> bool:
    if not _is_number(right):
        return value.strip().lower() == right.lower()
    if not _is_number(value):
        return False
    actual, least = int(value), int(right)
    if name.startswith("retention."):
        return actual == UNLIMITED or (least != UNLIMITED and actual >= least)
    return actual >= least


def _right(right: str) -> str:
    return f"at least {right}" if _is_number(right) and int(right) != UNLIMITED else right


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def _judge_copies(copies: int, settings: dict[str, str]) -> list[str]:
    """A record that counts must outlive any one machine, or at least stand on its disk."""
    if copies == 0:
        return []
    in_sync, flush = settings.get("min.insync.replicas", ""), settings.get("flush.messages", "")
    if copies == 1:
        if flush == "1":
            return []
        return [
            f"has one copy and flush.messages={flush or '(unknown)'} and must have 1: else a crash of its machine loses records"
        ]
    if copies < COPIES:
        return [
            f"has {copies} copies and must have {COPIES} with min.insync.replicas={IN_SYNC}, or one with flush.messages=1: "
            "two protect from no loss that one does not"
        ]
    if not _is_number(in_sync) or int(in_sync) < IN_SYNC:
        return [
            f"has min.insync.replicas={in_sync or '(unknown)'} and must have {IN_SYNC}: records would count that one machine has"
        ]
    if int(in_sync) >= copies:
        return [f"has min.insync.replicas={in_sync} of {copies} copies and must have less: no machine could be away"]
    return []


def _for_copies(copies: int) -> dict[str, str]:
    if copies >= COPIES:
        return {"min.insync.replicas": str(IN_SYNC)}
    return {"min.insync.replicas": "1", "flush.messages": "1"}


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


@asynccontextmanager
async def _administrator(bus: Bus) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client for questions about topics. Whatever goes wrong with it is said as one sentence."""
    client = AIOKafkaAdminClient(**bus.client_options(), request_timeout_ms=REQUEST_TIMEOUT_MS)
    with reasons() as heard:
        try:
            async with asyncio.timeout(ASK_S):
                await client.start()
                yield client
        except (KafkaError, TimeoutError, OSError) as error:
            why = "".join(heard) or str(error) or type(error).__name__
            raise LogUnreachable(f"the bus {bus.address} does not answer: {why}") from error
        finally:
            await client.close()


async def _found(bus: Bus, client: AIOKafkaAdminClient, topics: Sequence[Topic]) -> list[Found]:
    # All topics are asked for: a broker may make one that is asked for by name.
    there = {each["topic"]: each for each in await client.describe_topics() if not each["error_code"]}
    names = [topic.name for topic in topics if topic.name in there]
    settings, unreadable = await _settings(client, names)
    found = []
    for topic in topics:
        if topic.name not in there:
            wrong = [f"{topic.name} is missing{bus.hidden}: `muster bus create` makes it"]
            found.append(Found(name=topic.name, what=topic.what, missing=True, partitions=[], settings={}, wrong=wrong))
            continue
        partitions = [
            Partition(
                partition=part["partition"], leader=part["leader"], copies=list(part["replicas"]), in_sync=list(part["isr"])
            )
            for part in sorted(there[topic.name]["partitions"], key=lambda part: int(part["partition"]))
        ]
        have = settings.get(topic.name, {})
        shown = {name: have[name] for name in sorted((*topic.settings, *_MADE_OF)) if name in have}
        why = unreadable.get(topic.name, "")
        wrong = [f"{topic.name} keeps its settings to itself ({why}): this client needs the right DescribeConfigs"] if why else []
        found.append(
            Found(
                name=topic.name,
                what=topic.what,
                missing=False,
                partitions=partitions,
                settings=shown,
                unreadable=why,
                wrong=wrong or judge(topic, partitions, have),
            )
        )
    return found


async def _settings(client: AIOKafkaAdminClient, names: Sequence[str]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The settings of each topic, and why those of others could not be read."""
    settings: dict[str, dict[str, str]] = {}
    unreadable: dict[str, str] = {}
    if not names:
        return settings, unreadable
    for answer in await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names]):
        for code, said, _, name, entries in answer.resources:
            if code:
                unreadable[name] = said or for_code(code).__name__
            else:
                settings[name] = {entry[0]: entry[1] or "" for entry in entries}
    return settings, unreadable


async def _with_offsets(bus: Bus, topics: list[Found]) -> list[Found]:
    """The same, with where each partition begins and ends."""
    consumer = make_consumer(bus)
    wanted = [TopicPartition(topic.name, part.partition) for topic in topics for part in topic.partitions if part.leader >= 0]
    try:
        async with asyncio.timeout(ASK_S):
            await consumer.start()
            begins: dict[TopicPartition, int] = await consumer.beginning_offsets(wanted)
            ends: dict[TopicPartition, int] = await consumer.end_offsets(wanted)
    except (KafkaError, TimeoutError, OSError):
        return topics
    finally:
        await stop_consumer(consumer)
    placed = []
    for topic in topics:
        partitions = []
        for part in topic.partitions:
            at = TopicPartition(topic.name, part.partition)
            partitions.append(msgspec.structs.replace(part, begin=begins.get(at), end=ends.get(at)))
        placed.append(msgspec.structs.replace(topic, partitions=partitions))
    return placed
