"""Where a worker begins to read: further back than it had come, so far that it knows again what it knew.

Faust goes on from the offset that its group committed. That may stand behind a message whose handling was not done (see
`Faust #606`), and says nothing of what was folded before it. So its consumer here takes that offset only as a hint of where
it had come: `LookingBack` seeks to the first message that the broker took `reach_s` and a margin before that one, and at least
`MESSAGES_BACK` messages before it. Faust's own count of what is committed stays as it was, and never goes back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.transport.drivers import aiokafka as driver

from muster.events.cloudevents import GPU_HEALTH, TELEMETRY
from muster.log.bus import Bus
from muster.log.kafka import connect, make_consumer, stop_consumer
from muster.telemetry.proposals import SOURCE

MARGIN_S: Final = 60
MESSAGES_BACK: Final = 1000
ASK_S: Final = 45.0
"""So long looking back may take."""
READ_S: Final = 5.0

logger = logging.getLogger(__name__)

Began = Callable[[dict[int, int]], Awaitable[dict[int, int]]]
"""From where each partition was committed (-1: nowhere) to where it is read from."""


class Begun(msgspec.Struct):
    """Where one partition is read from."""

    start: int
    committed: int
    """What stands before it was read before."""
    begins_us: int
    """What the broker took before this is not read; 0 where there is nothing."""
    due: bool = False
    """Whether what comes now is what was sought: until then, it may have been fetched before the seek."""

    def is_due(self, offset: int) -> bool:
        """Whether the message at this offset is to be folded. They are given in the order in which they come."""
        self.due = self.due or self.start <= offset < self.committed or self.committed <= self.start <= offset
        return self.due


class LookingBack(driver.Consumer):
    """Faust's consumer, but for where it begins."""

    began: Began

    @staticmethod
    def made_for(app: Any, began: Began) -> driver.Transport:
        """A transport whose consumers begin where `began` says."""
        said_by = {"__module__": driver.__name__}  # what it logs is Faust's to say, and is kept as quiet
        consumer = type("Consumer", (LookingBack,), {"began": staticmethod(began), **said_by})
        kind = type("Transport", (driver.Transport,), {"Consumer": consumer, **said_by})
        made: driver.Transport = kind(app.conf.broker_consumer, app)
        return made

    async def perform_seek(self) -> None:
        """Seek every partition that this worker has; called when they are given to it, before anything is fetched."""
        try:
            found = await self.seek_to_committed()
            committed = {tp: -1 if offset is None else offset for tp, offset in found.items() if tp.topic == TELEMETRY}
            starts = await self.began({tp.partition: offset for tp, offset in committed.items()})
            await self.seek_wait({tp: starts[tp.partition] for tp in committed})
            self._committed_offset.update({tp: offset for tp, offset in committed.items() if offset > 0})
        except Exception as error:
            logger.error("the worker ends: %s", error or type(error).__name__)
            await self.app.crash(error)
            raise


async def look_back(bus: Bus, committed: dict[int, int], reach_s: int, topic: str = TELEMETRY) -> dict[int, Begun]:
    """By partition, from where it is to be read. `committed` is how far each was read, -1 where it was not.

    Raises:
        LogUnreachable, KafkaError, TimeoutError: nobody can be asked.
    """
    begun: dict[int, Begun] = {}
    if not committed:
        return begun
    async with asyncio.timeout(ASK_S):
        consumer = make_consumer(bus)
        try:
            await connect(consumer, bus)
            for part, offset in sorted(committed.items()):
                begun[part] = await _begin(consumer, TopicPartition(topic, part), offset, reach_s)
        finally:
            await stop_consumer(consumer)
    return begun


async def _begin(consumer: AIOKafkaConsumer, at: TopicPartition, committed: int, reach_s: int) -> Begun:
    first: int = (await consumer.beginning_offsets([at]))[at]
    if committed <= first:
        return await _from_first(consumer, at, first, max(committed, first))
    last = await _taken_ms(consumer, at, committed - 1)
    if last is None:
        return await _from_first(consumer, at, first, committed)
    from_ms = max(0, last - 1000 * (reach_s + MARGIN_S))
    found: Any = (await consumer.offsets_for_times({at: from_ms}))[at]
    start = min(committed if found is None else int(found.offset), max(first, committed - MESSAGES_BACK))
    if start <= first:
        return await _from_first(consumer, at, first, committed)
    taken_ms = await _taken_ms(consumer, at, start)
    return Begun(start=start, committed=committed, begins_us=1000 * (taken_ms if taken_ms is not None else last))


async def _from_first(consumer: AIOKafkaConsumer, at: TopicPartition, first: int, committed: int) -> Begun:
    """From the first message that there is. Where it is the first that ever was, nothing stood before it."""
    taken_ms = await _taken_ms(consumer, at, first) if first else None
    return Begun(start=first, committed=committed, begins_us=1000 * (taken_ms or 0))


async def _taken_ms(consumer: AIOKafkaConsumer, at: TopicPartition, offset: int) -> int | None:
    """When the broker took the message at this offset or the next one, in milliseconds; None where none is there."""
    if offset >= int((await consumer.end_offsets([at]))[at]):
        return None
    consumer.assign([at])
    consumer.seek(at, offset)
    batches = await consumer.getmany(at, timeout_ms=int(1000 * READ_S), max_records=1)
    for records in batches.values():
        for record in records:
            return int(record.timestamp)
    return None


async def said_since(bus: Bus, since_us: int, most: int) -> dict[str, None]:
    """The ids of the proposals that stand on `muster.gpu-health` since then, in their order, the last so many.

    Raises:
        LogUnreachable, KafkaError, TimeoutError: nobody can be asked.
    """
    said: dict[str, None] = {}
    async with asyncio.timeout(ASK_S):
        consumer = make_consumer(bus)
        try:
            await connect(consumer, bus)
            known = (await consumer._client.fetch_all_metadata()).partitions_for_topic(GPU_HEALTH) or ()
            parts = [TopicPartition(GPU_HEALTH, part) for part in sorted(known)]
            ends = await consumer.end_offsets(parts)
            found: Any = await consumer.offsets_for_times(dict.fromkeys(parts, since_us // 1000))
            left = {part: ends[part] for part in parts if found[part] is not None and found[part].offset < ends[part]}
            consumer.assign(list(left))
            for part in left:
                consumer.seek(part, found[part].offset)
            while left:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=4000)).values():
                    for record in records:
                        headers = dict(record.headers)
                        if headers.get("ce_source") == SOURCE.encode():
                            said[headers.get("ce_id", b"").decode(errors="replace")] = None
                    while len(said) > most:
                        del said[next(iter(said))]
                for part in list(left):
                    if await consumer.position(part) >= left[part]:
                        del left[part]
        finally:
            await stop_consumer(consumer)
    return said
