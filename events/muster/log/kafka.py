"""The log on Kafka: one partition of one topic a cell, any number of writers and readers.

A position is the record's offset plus one. The engine is dumb: who may write is said by `muster.log.admit`, and nothing here
knows of terms. An append is idempotent and waits for every copy in sync; where no answer comes by the deadline it is in doubt
(`AppendDoubt`), and aiokafka goes on trying: the record may land as long as this process lives. So a scheduler in doubt leaves
with `os._exit`, and `close` gives a producer up that waits for an answer, as its `stop()` would wait for ever. The offset that
an append is answered with is never used: for a record that landed twice it is wrong.

Reading goes on in the background, in aiokafka's fetcher: a request for what comes next always waits at the broker, and is
answered when something comes. Other questions (where does the log end) go by connections of their own, since a broker answers
the requests of a connection one after the other. Kafka's group offsets and its transactions play no part.

Nothing here loads NumPy or a stream processor: clients import the producer from here.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CorruptRecordException,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    ProducerClosed,
    TopicAuthorizationFailedError,
)

from muster.log.bus import Bus, reasons
from muster.log.errors import AppendDoubt, LogClosed, LogDamaged, LogMissing, LogUnreachable, RecordTooLarge
from muster.log.port import READ_MAX_BYTES, RECORD_MAX_BYTES, Record

LOG_TOPIC: Final = "muster.log"
MESSAGE_MAX_BYTES: Final = RECORD_MAX_BYTES + 1024 * 1024
"""What a topic must take so that the largest record goes into it: Kafka counts what it wraps around a record too."""
REQUEST_TIMEOUT_MS: Final = 3_000
"""What a broker has not answered by then is asked again, of whoever leads the partition then. Connecting has as long."""
PRODUCE_TIMEOUT_MS: Final = 5_000
"""The same for what is appended, which waits for disks."""
METADATA_AGE_MS: Final = 3_000
"""So often a client asks who leads: it is to know another leader by the time that it gives the old one up."""
RETRY_BACKOFF_MS: Final = 50
FETCH_WAIT_MS: Final = 250
"""So long a request for records waits at the broker when there is none. What comes meanwhile is sent at once."""
SHORT_S: Final = 15.0
"""A broker that has just begun to lead may for a moment name an end before what another one has shown already."""
ASK_S: Final = 10.0
"""So long the end of the log is asked for before the bus counts as not to be reached."""
ASK_TIMEOUT_MS: Final = 2_000
"""So long each time: the answer is small."""
REFUSED_S: Final = 1.0
"""A failure to connect that comes sooner is a refusal, and no silence."""
START_S: Final = 30.0
"""So long connecting may take: brokers that say nothing are tried for some seconds each."""
READ_WAIT_S: Final = 1.0
"""So long a read waits for records that are known to stand in the log."""
CLOSE_S: Final = 5.0
TAKEN_AT_ONCE: Final = (8, 1024)
"""So few and so many records are unpacked at once: few where they are large."""


def make_producer(bus: Bus, **changed: Any) -> AIOKafkaProducer:
    """A producer whose every answered message is durable and stands once, in order; not started.

    To be made in the loop that uses it. `changed` are options of aiokafka's that differ.
    """
    options: dict[str, Any] = {
        "request_timeout_ms": PRODUCE_TIMEOUT_MS,
        "retry_backoff_ms": RETRY_BACKOFF_MS,
        "acks": "all",
        "enable_idempotence": True,
        "compression_type": "zstd",  # a third of the time that aiokafka's lz4 takes, at level 9, and two thirds of its size
        "linger_ms": 0,
        "max_batch_size": 64 * 1024,
        "max_request_size": MESSAGE_MAX_BYTES,
    }
    return AIOKafkaProducer(**{"metadata_max_age_ms": METADATA_AGE_MS, **bus.client_options(), **options, **changed})


def make_consumer(bus: Bus, **changed: Any) -> AIOKafkaConsumer:
    """A consumer of partitions that it is told (`assign`) from where it is told (`seek`), and from nowhere else; not started.

    To be made in the loop that uses it. `changed` are options of aiokafka's that differ.
    """
    options: dict[str, Any] = {
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "retry_backoff_ms": RETRY_BACKOFF_MS,
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_uncommitted",
        "fetch_min_bytes": 1,
        "fetch_max_wait_ms": FETCH_WAIT_MS,
        "fetch_max_bytes": 2 * MESSAGE_MAX_BYTES,
        "max_partition_fetch_bytes": MESSAGE_MAX_BYTES,
    }
    return AIOKafkaConsumer(**{"metadata_max_age_ms": METADATA_AGE_MS, **bus.client_options(), **options, **changed})


async def connect(client: AIOKafkaConsumer | AIOKafkaProducer, bus: Bus) -> None:
    """Start a client. Who refuses is not there; who is slow to answer may be busy, and is asked again.

    Raises:
        LogUnreachable: no broker answers.
        KafkaError: one does, and refuses.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + START_S
    with reasons() as heard:
        while True:
            began = loop.time()
            try:
                async with asyncio.timeout_at(until):
                    await client.start()
                return
            except (KafkaConnectionError, TimeoutError, OSError) as error:
                now = loop.time()
                if now - began < REFUSED_S or now >= until:
                    why = "".join(heard) or _said(error)
                    raise LogUnreachable(f"no broker answers at {bus.address}: {why}") from error


async def give_up(producer: AIOKafkaProducer) -> None:
    """Stop a producer that may wait for an answer, and do not wait with it: what it has not sent stays unsent, what was not
    answered stays in doubt.
    """
    stopping = asyncio.ensure_future(producer.stop())
    await asyncio.wait([stopping], timeout=0.05)
    if stopping.done() and not stopping.cancelled() and stopping.exception() is None:
        return
    # Its connections fail and its sender ends; then whoever waits for an answer is told that none comes.
    await producer.client.close()
    sender = producer._sender.sender_task
    if sender is not None:
        sender.cancel()
    producer._message_accumulator.fail_all(ProducerClosed())
    await asyncio.wait([stopping], timeout=CLOSE_S)
    if not stopping.done():
        stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer, whatever state it is in.

    Its own `stop()` ends halfway where its fetcher has died, and with a `CancelledError` that nobody sent where the fetcher
    waits to try a broker again.
    """
    stopping = asyncio.ensure_future(consumer.stop())
    await asyncio.wait([stopping], timeout=CLOSE_S)
    if not stopping.done():
        stopping.cancel()
    for result in await asyncio.gather(stopping, return_exceptions=True):
        if isinstance(result, BaseException):
            await consumer._client.close()


class KafkaLog:
    """One partition as a `muster.log.port.Log`. One task at a time reads; others may append meanwhile."""

    def __init__(self, bus: Bus, topic: str, partition: int, *, writer: bool, append_deadline_s: float) -> None:
        """Use `open`."""
        self._name = f"{topic}/{partition} at {bus.address}"
        self._at = TopicPartition(topic, partition)
        self._bus = bus
        self._append_deadline_s = append_deadline_s
        self._producer = make_producer(bus) if writer else None
        self._consumer = make_consumer(bus)
        self._asker = make_consumer(bus, request_timeout_ms=ASK_TIMEOUT_MS)
        self._closed = False
        self._buffer: deque[Record] = deque()
        """What was unpacked and not yet read; it follows `_next` without a gap."""
        self._next = 0
        """The position after which the next read goes on without a seek."""
        self._seen = 0
        """The highest position that was unpacked."""
        self._end = 0
        """The log ends here or later."""
        self._end_unsure = True
        self._short_s = 0.0
        """Since when the broker names an end before `_seen`; 0 where it does not."""
        """Whether more may stand in the log than any answer so far says, because something was appended here since."""
        self._at_once = TAKEN_AT_ONCE[0]

    @classmethod
    async def open(
        cls,
        bus: Bus,
        topic: str = LOG_TOPIC,
        partition: int = 0,
        *,
        writer: bool,
        append_deadline_s: float = 10.0,
    ) -> Self:
        """Connect to the log. The topic must be there; whether it is fit to hold a log is `muster.log.topics.check`'s to say.

        Raises:
            LogUnreachable: no broker answers.
            LogMissing: there is no such topic, or it has no such partition, or this client may not see it.
            LogClosed: this client may not write.
        """
        log = cls(bus, topic, partition, writer=writer, append_deadline_s=append_deadline_s)
        try:
            await log._start()
        except BaseException as error:
            await log.close()
            if isinstance(error, (ClusterAuthorizationFailedError, TopicAuthorizationFailedError)):
                raise LogClosed(f"this client may not write to {log._name}: it needs the right Write") from error
            if isinstance(error, (KafkaError, OSError)):
                raise LogUnreachable(f"{log._name} does not answer: {_said(error)}") from error
            raise
        return log

    async def append(self, data: bytes) -> None:
        """See `muster.log.port.Log`.

        A broker whose disk is full answers nothing that would prove the record absent, so that is a doubt and no `LogFull`.
        """
        self._check()
        if self._producer is None:
            raise LogClosed(f"{self._name} was opened for reading only")
        if len(data) > RECORD_MAX_BYTES:
            raise RecordTooLarge(f"the record has {len(data)} bytes; the log takes {RECORD_MAX_BYTES}")
        seen = max(self._seen, self._end)
        try:
            async with asyncio.timeout(self._append_deadline_s):
                answer = await self._producer.send(self._at.topic, data, partition=self._at.partition)
                answer.add_done_callback(_heard)
                await asyncio.shield(answer)
        except MessageSizeTooLargeError as error:
            raise RecordTooLarge(
                f"the record has {len(data)} bytes, {self._name} takes less: its max.message.bytes must be {MESSAGE_MAX_BYTES}"
            ) from error
        except TimeoutError as error:
            raise AppendDoubt(f"the append to {self._name} was not answered within {self._append_deadline_s:g} s") from error
        except (KafkaError, OSError) as error:
            self._check()
            raise AppendDoubt(f"the append to {self._name} was not answered: {_said(error)}") from error
        finally:
            self._end_unsure = True
        self._end = max(self._end, seen + 1)  # it stands behind all that had been seen

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        """See `muster.log.port.Log`.

        Raises:
            LogDamaged: the log does not reach to `after`, or no longer begins there: it was cut.
        """
        self._check()
        self._go_to(after)
        found: list[Record] = []
        size = 0
        while len(found) < limit and size < READ_MAX_BYTES:
            if not self._buffer and not await self._more(wait=not found):
                break
            record = self._buffer.popleft()
            self._next = record.position
            found.append(record)
            size += len(record.data)
        return found

    async def end(self) -> int:
        """See `muster.log.port.Log`; asked of the broker.

        Raises:
            LogUnreachable: the broker does not answer.
            LogDamaged: the log ends before what was read from it: it was cut.
        """
        self._check()
        try:
            async with asyncio.timeout(ASK_S):
                end: int = (await self._asker._fetcher.end_offsets([self._at], None))[
                    self._at
                ]  # asks again, of whoever leads then
        except (KafkaError, TimeoutError, OSError) as error:
            self._check()
            raise LogUnreachable(f"the end of {self._name} could not be asked for: {_said(error)}") from error
        if end < self._seen:
            what = f"{self._name} ends at position {end}, and was read up to {self._seen}"
            now_s = time.monotonic()
            self._short_s = self._short_s or now_s
            if now_s - self._short_s < SHORT_S:
                raise LogUnreachable(f"{what}: whoever leads it may not know yet how far it goes")
            raise LogDamaged(f"{what}: it was cut, or made anew")
        self._short_s = 0.0
        self._end = max(self._end, end)
        self._end_unsure = False
        return self._end

    async def wait(self, after: int, timeout_s: float) -> None:
        """See `muster.log.port.Log`. Returns as soon as the broker has sent something."""
        self._check()
        self._go_to(after)
        if not self._buffer:
            await self._take(timeout_s)

    async def close(self) -> None:
        """See `muster.log.port.Log`. An append in flight stays in doubt."""
        if self._closed:
            return
        self._closed = True
        if self._producer is not None:
            await give_up(self._producer)
        for consumer in (self._consumer, self._asker):
            await stop_consumer(consumer)

    async def _start(self) -> None:
        await connect(self._asker, self._bus)
        # All topics are asked for: a broker may make one that is asked for by name.
        partitions = (await self._asker._client.fetch_all_metadata()).partitions_for_topic(self._at.topic)
        if partitions is None:
            raise LogMissing(f"there is no topic {self._at.topic}{self._bus.hidden}: `muster bus create` makes it")
        if self._at.partition not in partitions:
            raise LogMissing(f"the topic {self._at.topic} has no partition {self._at.partition}")
        await connect(self._consumer, self._bus)
        self._consumer.assign([self._at])
        self._consumer.seek(self._at, 0)
        if self._producer is not None:
            await connect(self._producer, self._bus)

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"{self._name} was closed")

    def _check_fetcher(self) -> None:
        """Nobody else notices where aiokafka's background task has died: nothing would ever come again."""
        fetcher = self._consumer._fetcher.error_future
        if fetcher.done():
            self._check()
            raise LogClosed(f"{self._name} is read no more, as its reader ended") from fetcher.exception()

    def _go_to(self, after: int) -> None:
        """Have the buffer follow the position `after`."""
        buffer = self._buffer
        if self._next < after and buffer and after <= buffer[-1].position:
            while buffer and buffer[0].position <= after:
                buffer.popleft()
        elif after != self._next:
            buffer.clear()
            self._consumer.seek(self._at, after)
        self._next = after

    async def _more(self, *, wait: bool) -> bool:
        """Whether there is more in the buffer now; waits for what is known to stand in the log."""
        await self._take(0)
        if self._buffer or not wait:
            return bool(self._buffer)
        if self._end_unsure and self._next >= self._known_end():
            with contextlib.suppress(LogUnreachable):  # the tail may be behind
                await self.end()
        # At the tail this only lets the fetcher go on, which a caller that reads again and again would keep from it.
        await (self._take(READ_WAIT_S) if self._next < self._known_end() else asyncio.sleep(0))
        return bool(self._buffer)

    def _known_end(self) -> int:
        """Where the log ends, or later."""
        return max(self._end, self._consumer.highwater(self._at) or 0)

    async def _take(self, timeout_s: float) -> None:
        """Put what has come into the buffer; where nothing has, wait for it."""
        try:
            batches = await self._consumer.getmany(self._at, timeout_ms=math.ceil(timeout_s * 1000), max_records=self._at_once)
        except OffsetOutOfRangeError as error:
            raise LogDamaged(await self._cut()) from error
        except CorruptRecordException as error:
            raise LogDamaged(f"{self._name} cannot be read after position {self._next}: {_said(error)}") from error
        except TopicAuthorizationFailedError as error:
            raise LogClosed(f"this client may not read {self._name}: it needs the right Read") from error
        except KafkaError as error:
            self._check()
            raise LogUnreachable(f"{self._name} could not be read: {_said(error)}") from error
        self._check_fetcher()
        size = 0
        for message in batches.get(self._at, ()):
            data = message.value or b""
            self._buffer.append(Record(message.offset + 1, data))
            size += len(data)
        if self._buffer:
            self._seen = max(self._seen, self._buffer[-1].position)
            fewest, most = TAKEN_AT_ONCE
            self._at_once = min(2 * self._at_once, most) if size < READ_MAX_BYTES // 64 else max(self._at_once // 2, fewest)

    async def _cut(self) -> str:
        """What is wrong where the broker does not have what is to be read next."""
        begin, end = "?", "?"
        with contextlib.suppress(KafkaError, TimeoutError, OSError):
            async with asyncio.timeout(ASK_S):
                begin = (await self._asker._fetcher.beginning_offsets([self._at], None))[self._at] + 1
                end = (await self._asker._fetcher.end_offsets([self._at], None))[self._at]
        return (
            f"{self._name} holds the positions {begin} to {end}, and what stands after position {self._next} was to be read: "
            "it was cut, or made anew"
        )


def _heard(answer: asyncio.Future[Any]) -> None:
    """Whoever waits for an answer is told of a failure; where nobody waits any more, it is no news."""
    if not answer.cancelled():
        answer.exception()


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
