"""The input topics on Kafka, as a scheduler reads them: the `Inbox` on aiokafka.

A leader reads every partition of the four topics by `assign`, from the positions of the log and from nowhere else: there is
no consumer group, and a position that the broker no longer has is never skipped (`auto_offset_reset=none`) but ends the
term with `OffsetsLost`. Reading goes on beside the loop into bounded queues; where one is full its partitions are paused.
What nodes and operators say is given before jobs, and of jobs no more at once than some cycles take, so that a long queue
of jobs delays no report.

A follower reads one partition of `muster.nodes` from its end and counts the beats of a leader in it. A beat is a small
message that says nothing new: it moves the position, so that a topic whose old messages were forgotten is not held to
have lost any.

Kafka's transactions are not looked at: a message that stands in a topic counts, whatever became of the transaction.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from aiokafka.structs import ConsumerRecord

from muster.events.cloudevents import open_message
from muster.log.bus import Bus
from muster.log.errors import LogError, OffsetsLost
from muster.log.kafka import connect, give_up, make_consumer, make_producer, stop_consumer
from muster.scheduler.messages import BEAT, JOBS, NODES, TOPICS, Message

QUEUE_MAX: Final = 20_000
QUEUE_MAX_BYTES: Final = 64 * 1024 * 1024
JOBS_OUT_MAX: Final = 6000
"""So many jobs are handed on and not recorded at most: some cycles take no more."""
FETCH_MAX: Final = 4000
"""So many messages are taken from the client at once, so that the loop is not held up."""
CATCH_UP_S: Final = 1.0
"""So long reports are waited for before a beat is made without them."""
ASK_S: Final = 10.0
WATCH_S: Final = 10.0
"""So often a leader asks whether what it has not read is still there."""
STUCK_MAX: Final = 3
"""So often in a row a partition may have messages that are not read before this client is given up."""
RETRY_S: Final = 0.2
REREAD_US: Final = 60_000_000
BEAT_HEADER: Final = "muster-beat"
BEAT_S: Final = 3.0

logger = logging.getLogger(__name__)


class InboxStuck(LogError):
    """Reading does not go on although there is something to read: the process starts again."""


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one source that the log has not taken and nobody can read any more."""

    source: str
    position: int
    """The next one that was to be read."""
    begin: int
    """The first that there is."""
    end: int
    """Behind the last that there is; -1 where there is no such partition any more."""

    def __str__(self) -> str:
        if self.end < 0:
            return f"{self.source} is gone, and {self.position} was to be read next"
        if self.position < self.begin:
            return f"{self.source} begins at {self.begin}: offsets {self.position} to {self.begin - 1} were not read and are gone"
        return f"{self.source} ends at {self.end}, and {self.position} was to be read next: it was cut or made anew"


class KafkaInbox:
    """One scheduler's view of the topics. See `muster.scheduler.inbox.Inbox`."""

    def __init__(self, bus: Bus, cell: str, identity: str) -> None:
        """`identity` tells this scheduler from the others of its cell."""
        self._bus = bus
        self._cell = cell
        self._identity = identity
        self._partitions: dict[TopicPartition, str] = {}
        """All of them, and the sources that they are."""
        self._beat_partition = TopicPartition(NODES, 0)
        self._consumer: AIOKafkaConsumer
        self._asker: AIOKafkaConsumer
        """Asks for offsets: on the connections of the other one an answer waits for the fetch before it."""
        self._producer: AIOKafkaProducer
        self._task: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._leading = False
        self._failure: Exception | None = None
        self._jobs = _Queue()
        self._others = _Queue()
        self._out: deque[tuple[str, int]] = deque()
        """Source and offset of the jobs that were handed on and do not stand in a cycle yet."""
        self._next: dict[str, int] = {}
        """The next offset to read of each source."""
        self._paused: dict[TopicPartition, None] = {}
        self._beats = 0
        self._arrived = asyncio.Event()
        self._progress = asyncio.Event()

    async def start(self) -> None:
        """Connect, learn the partitions, and begin to follow.

        Raises:
            LogUnreachable: no broker answers.
        """
        # a beat that is not taken soon is given up
        self._producer = make_producer(
            self._bus, acks=1, enable_idempotence=False, compression_type=None, request_timeout_ms=int(1000 * BEAT_S)
        )
        self._consumer = make_consumer(self._bus)
        self._asker = make_consumer(self._bus)
        try:
            for client in (self._producer, self._consumer, self._asker):
                await connect(client, self._bus)
            for topic in TOPICS:
                for partition in sorted(await self._producer.partitions_for(topic)):
                    self._partitions[TopicPartition(topic, partition)] = f"{topic}/{partition}"
        except BaseException:
            await self.close()
            raise
        self._follow()

    async def lost(self, positions: Mapping[str, int]) -> list[Lost]:
        """Where `beginning <= position <= end` does not hold. Partitions that nobody can ask about now are left out."""
        partitions = list(self._partitions)
        positions = dict(positions)  # reading goes on while the ends are asked for
        begins, ends = await asyncio.gather(self._offsets(partitions, begin=True), self._offsets(partitions, begin=False))
        found: list[Lost] = []
        for partition, source in self._partitions.items():
            begin, end = begins.get(partition), ends.get(partition)
            position = positions.get(source, 0)
            if begin is not None and end is not None and not begin <= position <= end:
                found.append(Lost(source=source, position=position, begin=begin, end=end))
        for source in positions:
            if source not in self._partitions.values() and positions[source]:
                found.append(Lost(source=source, position=positions[source], begin=0, end=-1))
        return found

    async def check(self, positions: Mapping[str, int]) -> None:
        """See that everything is there that was not read.

        Raises:
            OffsetsLost: it is not; names what is gone.
        """
        if found := await self.lost(positions):
            raise lost_error(found)

    async def resumed(self, lost: Lost, at_us: int) -> int:
        """Where reading goes on without what was lost. `at_us` is when the log's last cycle was made.

        What comes next is the first message that is left; of a partition that was cut or made anew, the first that was
        appended in the minute before the last cycle or after it: earlier ones were read, or stand where nobody wrote to.
        """
        if lost.end < 0:
            return 0
        if lost.position < lost.begin:
            return lost.begin
        partition = next(each for each, source in self._partitions.items() if source == lost.source)
        found = await self._asker.offsets_for_times({partition: max(0, at_us - REREAD_US) // 1000})
        return lost.end if found[partition] is None else int(found[partition].offset)

    async def seek(self, positions: Mapping[str, int]) -> None:
        """See `Inbox`.

        Raises:
            OffsetsLost: some of what was not read is gone.
        """
        await self._stop_reading()
        self._forget()
        await self.check(positions)
        self._next = {source: positions.get(source, 0) for source in self._partitions.values()}
        self._leading = True
        self._consumer.assign(list(self._partitions))
        for partition, source in self._partitions.items():
            self._consumer.seek(partition, self._next[source])
        self._task = asyncio.create_task(self._read())
        self._watching = asyncio.create_task(self._watch())

    def first(self) -> Message | None:
        """See `Inbox`.

        Raises:
            OffsetsLost: what comes next is gone.
        """
        if self._failure is not None:
            raise self._failure
        return self._others.first() or (self._jobs.first() if len(self._out) < JOBS_OUT_MAX else None)

    def pop(self) -> None:
        """See `Inbox`."""
        if self._others.first() is not None:
            self._others.pop()
        else:
            message = self._jobs.pop()
            self._out.append((message.source, message.offset))
        if self._paused:
            self._throttle()

    async def wait(self, timeout_s: float) -> None:
        """See `Inbox`."""
        if self.first() is not None:
            await asyncio.sleep(0)
            return
        self._arrived.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()

    async def catch_up(self) -> frozenset[str]:
        """See `Inbox`. Takes about a second at most."""
        nodes = [partition for partition in self._partitions if partition.topic == NODES]
        limit = asyncio.get_running_loop().time() + CATCH_UP_S
        ends = await self._offsets(nodes, begin=False, timeout_s=CATCH_UP_S / 2)
        unread = {partition: None for partition in nodes if partition not in ends or partition in self._paused}
        waiting = [partition for partition in nodes if partition not in unread]
        while True:
            waiting = [partition for partition in waiting if not await self._has_read(partition, ends[partition])]
            left_s = limit - asyncio.get_running_loop().time()
            if not waiting or left_s <= 0 or self._failure is not None:
                break
            self._progress.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, 0.05)):  # the end may be a mark of a transaction, which never arrives
                    await self._progress.wait()
        return frozenset([self._partitions[partition] for partition in (*unread, *waiting)])

    def moved(self, positions: Mapping[str, int]) -> None:
        """See `Inbox`."""
        out = self._out
        while out and out[0][1] < positions.get(out[0][0], 0):
            out.popleft()

    async def beat(self) -> None:
        """See `Inbox`. Nobody waits for it, and of several that cannot be sent only one is kept."""
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._send_beat())

    def beats(self) -> int:
        """See `Inbox`. Whoever asks for them follows."""
        if self._leading:
            self._follow()
        return self._beats

    async def close(self) -> None:
        """Stop reading, and let go of the connections."""
        await self._stop_reading()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        for client in (self._consumer, self._asker):
            await stop_consumer(client)
        await give_up(self._producer)

    # Reading as a leader

    async def _read(self) -> None:
        consumer = self._consumer
        while True:
            self._throttle()
            try:
                batches = await consumer.getmany(timeout_ms=1000, max_records=FETCH_MAX)
            except OffsetOutOfRangeError as error:
                partition, position = next(iter(error.args[0].items()))
                self._fail(await self._describe(partition, position))
                return
            except KafkaError as error:
                logger.warning("cell %s: the input topics cannot be read: %r", self._cell, error)
                await asyncio.sleep(RETRY_S)
                continue
            for partition, records in batches.items():
                self._take(partition, records)
            if batches:
                self._progress.set()
                self._arrived.set()
                await asyncio.sleep(0)

    def _take(self, partition: TopicPartition, records: Iterable[ConsumerRecord[bytes, bytes]]) -> None:
        topic, source = partition.topic, self._partitions[partition]
        queue = self._jobs if topic == JOBS else self._others
        offset = self._next[source] - 1
        for record in records:
            offset = record.offset
            if topic == NODES and (sender := _beat_of(record, self._cell)):
                self._beats += sender != self._identity
                data, event = BEAT, ""
            else:
                opened = open_message(topic, record.headers, record.value)
                data, event = opened.data, opened.id
            key = record.key.decode(errors="replace") if record.key else ""
            queue.put(Message(source, offset, data, max(0, 1000 * record.timestamp), key, event))
        self._next[source] = offset + 1

    def _throttle(self) -> None:
        """Pause what is full, and go on with what has been emptied by half."""
        for queue, jobs in ((self._jobs, True), (self._others, False)):
            mine = [partition for partition in self._partitions if (partition.topic == JOBS) == jobs]
            if queue.full and mine[0] not in self._paused:
                self._consumer.pause(*mine)
                self._paused.update(dict.fromkeys(mine))
            elif mine[0] in self._paused and queue.half_empty:
                self._consumer.resume(*mine)
                for partition in mine:
                    del self._paused[partition]

    async def _watch(self) -> None:
        """See now and then that everything is there that was not read: a topic that is gone is not read and raises nothing."""
        missing = stuck = 0
        before: dict[str, int] = {}
        while True:
            await asyncio.sleep(WATCH_S if not missing else 1.0)
            try:
                topics = await self._asker.topics()
                found = await self.lost(self._next)
                ends = await self._offsets(self._partitions, begin=False)
            except KafkaError:
                continue
            waiting = [source for partition, source in self._partitions.items() if ends.get(partition, 0) > self._next[source]]
            still = not self._paused and any(before.get(source) == self._next[source] for source in waiting)
            stuck = stuck + 1 if still else 0
            before = dict(self._next)
            if stuck >= STUCK_MAX:
                self._fail(InboxStuck(f"the broker has messages of {', '.join(waiting)}, and this client does not read them"))
                return
            gone = [topic for topic in TOPICS if topic not in topics]
            missing = missing + 1 if gone else 0
            if missing > 1:
                sources = [source for partition, source in self._partitions.items() if partition.topic in gone]
                found = [Lost(source=source, position=self._next[source], begin=0, end=-1) for source in sources]
            if found:
                self._fail(lost_error(found))
                return

    async def _has_read(self, partition: TopicPartition, end: int) -> bool:
        if self._next[self._partitions[partition]] >= end:
            return True
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(0.1):
                return int(await self._consumer.position(partition)) >= end
        return False

    async def _describe(self, partition: TopicPartition, position: int) -> OffsetsLost:
        begins, ends = await asyncio.gather(self._offsets([partition], begin=True), self._offsets([partition], begin=False))
        begin, end = begins.get(partition, 0), ends.get(partition, -1)
        return lost_error([Lost(source=self._partitions[partition], position=position, begin=begin, end=end)])

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._arrived.set()
        self._progress.set()

    # Following

    def _follow(self) -> None:
        earlier, self._leading = (self._task, self._watching), False
        for task in earlier:
            if task is not None:
                task.cancel()
        self._watching = None
        self._forget()
        self._task = asyncio.create_task(self._count(earlier))

    async def _count(self, earlier: tuple[asyncio.Task[None] | None, ...]) -> None:
        """Count beats, from now on."""
        await asyncio.gather(*[task for task in earlier if task is not None], return_exceptions=True)
        consumer = self._consumer
        consumer.assign([self._beat_partition])
        known = False
        while True:
            try:
                if not known:
                    await consumer.seek_to_end(self._beat_partition)
                    known = True
                batches = await consumer.getmany(timeout_ms=1000, max_records=FETCH_MAX)
            except OffsetOutOfRangeError:
                known = False
                continue
            except KafkaError as error:
                logger.warning("cell %s: the beats cannot be read: %r", self._cell, error)
                await asyncio.sleep(RETRY_S)
                continue
            for records in batches.values():
                self._beats += sum(_beat_of(record, self._cell) not in ("", self._identity) for record in records)

    # Both

    async def _send_beat(self) -> None:
        headers = [(BEAT_HEADER, self._cell.encode()), ("muster-from", self._identity.encode())]
        with contextlib.suppress(KafkaError):
            where = self._beat_partition
            sent = await self._producer.send(where.topic, b"{}", partition=where.partition, headers=headers)
            await sent

    async def _offsets(
        self, partitions: Iterable[TopicPartition], *, begin: bool, timeout_s: float = ASK_S / 2
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition, or the one behind the last; those that nobody can be asked about are left out."""

        async def ask(partition: TopicPartition) -> int | None:
            with contextlib.suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(timeout_s):
                    if begin:
                        return int((await self._asker.beginning_offsets([partition]))[partition])
                    return int((await self._asker.end_offsets([partition]))[partition])
            return None

        asked = list(partitions)
        answers = await asyncio.gather(*[ask(partition) for partition in asked])
        return {partition: answer for partition, answer in zip(asked, answers, strict=True) if answer is not None}

    async def _stop_reading(self) -> None:
        tasks = [task for task in (self._task, self._watching) if task is not None]
        self._task = self._watching = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self) -> None:
        """What was read before is nothing."""
        self._jobs, self._others = _Queue(), _Queue()
        self._out.clear()
        self._paused = {}
        self._failure = None


def lost_error(found: list[Lost]) -> OffsetsLost:
    """All of it in one sentence."""
    text = "; ".join(map(str, found[:8])) + (f"; and {len(found) - 8} more" if len(found) > 8 else "")
    return OffsetsLost(f"messages were lost that nobody had read: {text}. To go on without them: muster recover --accept-loss")


class _Queue:
    """Messages that were read and not taken."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether no more should be read."""
        return len(self._messages) >= QUEUE_MAX or self._bytes >= QUEUE_MAX_BYTES

    @property
    def half_empty(self) -> bool:
        """Whether reading can go on after it was full."""
        return 2 * len(self._messages) <= QUEUE_MAX and 2 * self._bytes <= QUEUE_MAX_BYTES

    def put(self, message: Message) -> None:
        """At the end."""
        self._messages.append(message)
        self._bytes += len(message.data)

    def first(self) -> Message | None:
        """The next, without taking it."""
        return self._messages[0] if self._messages else None

    def pop(self) -> Message:
        """Take it."""
        message = self._messages.popleft()
        self._bytes -= len(message.data)
        return message


def _beat_of(record: ConsumerRecord[bytes, bytes], cell: str) -> str:
    """Who sent this beat of the cell's leader; empty if it is none."""
    headers = record.headers
    if not headers or headers[0][0] != BEAT_HEADER:
        return ""
    said = dict(headers)
    if said[BEAT_HEADER] != cell.encode():
        return ""
    return str((said.get("muster-from") or b"?").decode(errors="replace"))
