"""By the bus: what a client says becomes a CloudEvent on an input topic, and a job is followed in the log itself.

What was sent is durable when every copy in sync has it; in which cycle it was recorded, and whether it was refused, the log
says later. A producer that does not answer in time is given up and another one sends the same again: to whoever reads the
topics a message that comes twice says nothing new.

A job is looked for from a little before its id was made: the log is not read from its beginning, unless the id says nothing.
"""

import asyncio
import contextlib
import getpass
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)

from muster.client.channel import Reported
from muster.client.errors import ClientError, NotKnown, Refused, Unavailable
from muster.client.ids import made_ms, new_id
from muster.client.joining import Joining
from muster.client.life import Entry, Life, Outcome
from muster.events.cloudevents import JOBS, KINDS, NODES, Input, key_of, to_message
from muster.events.codec import UnknownKind, decode_entry
from muster.events.jobs import JobSubmitted
from muster.events.levels import NodeReport
from muster.events.operations import InputRefused
from muster.events.record import Envelope
from muster.log.admit import RECENT
from muster.log.bus import Bus, reasons
from muster.log.errors import LogUnreachable, OperatingError
from muster.log.kafka import LOG_TOPIC, KafkaLog, give_up, make_consumer, make_producer

DENIED: Final = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)
ATTEMPT_S: Final = 10.0
"""So long one producer is waited for."""
PAUSE_S: Final = 0.2
STRAY_MS: Final = 120_000
"""So far the clock of whoever made an id may be ahead of the broker's."""
BEFORE: Final = 3 * RECENT
"""So many records before that place are read too, to find out which are admitted."""
TAIL_S: Final = 1.0
SENT_MAX: Final = 10_000


class _About(msgspec.Struct, frozen=True):
    """Whom an entry is about: the fields that any kind says it with."""

    job: str = ""
    by_job: str = ""
    id: str = ""


_about = msgspec.json.Decoder(_About).decode
_open_entry = msgspec.json.Decoder(tuple[str, int, msgspec.Raw]).decode


class KafkaChannel:
    """See `muster.client.channel.Channel`."""

    def __init__(self, address: str, config: str | Path | None, cell: str, partition: int, patience_s: float) -> None:
        try:
            self._bus = Bus.parse(address, config)
        except OperatingError as error:
            raise ClientError(str(error)) from None
        self._cell = cell
        self._partition = partition
        self._patience_s = patience_s
        self._producer: AIOKafkaProducer | None = None
        self._topics: dict[str, None] = {}
        """Those that are there and that this client may see."""
        self._starting = asyncio.Lock()
        self._sent: dict[str, int] = {}
        """When the broker took a job of ours, in milliseconds by its clock."""
        self._source = f"muster:client/{_user()}@{socket.gethostname()}"

    async def open(self) -> None:
        """See `Channel`. An address that leads nowhere is told here. A client that only follows needs no right to write."""
        until = _now() + self._patience_s
        while True:
            consumer = make_consumer(self._bus)
            with reasons() as heard:
                try:
                    async with asyncio.timeout(max(0.1, min(ATTEMPT_S, until - _now()))):
                        await consumer.start()
                        await self._look(consumer._client)
                    break
                except (KafkaError, TimeoutError, OSError) as error:
                    if _now() + PAUSE_S > until:
                        raise self._away(error, "".join(heard)) from None
                finally:
                    with contextlib.suppress(KafkaError, OSError):
                        await consumer.stop()
            await asyncio.sleep(PAUSE_S)
        if not any(topic in self._topics for topic in (*KINDS, LOG_TOPIC)):
            raise self._missing(JOBS)

    async def put(self, topic: str, event: Input) -> int:
        """See `Channel`. Always 0."""
        id = event.job if isinstance(event, JobSubmitted) else new_id()
        headers, value = to_message(topic, event, self._source, id, time.time_ns() // 1000)
        at_ms = await self._send(topic, key_of(event).encode(), value, headers)
        if isinstance(event, JobSubmitted) and at_ms is not None:
            self._sent.setdefault(event.job, at_ms)
            while len(self._sent) > SENT_MAX:
                del self._sent[next(iter(self._sent))]
        return 0

    async def report(self, report: NodeReport) -> Reported:
        """See `Channel`."""
        await self.put(NODES, report)
        return Reported()

    async def follow(self, job: str) -> AsyncGenerator[Entry, None]:
        """See `Channel`."""
        async with contextlib.aclosing(self._entries((job,))) as entries:
            async for _, entry in entries:
                yield entry

    async def outcomes(self, jobs: Sequence[str]) -> dict[str, Outcome]:
        """See `Channel`. The log is read once for all of them."""
        lives = {job: Life(job) for job in jobs}
        left = dict.fromkeys(jobs)
        if left:
            async with contextlib.aclosing(self._entries(tuple(lives))) as entries:
                async for job, entry in entries:
                    lives[job].take(entry)
                    if lives[job].over:
                        left.pop(job, None)
                        if not left:
                            break
        return {job: life.outcome() for job, life in lives.items()}

    async def close(self) -> None:
        """See `Channel`."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await give_up(producer)

    # Sending

    async def _send(self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> int | None:
        """When the broker took it, in milliseconds; None where an earlier try may have been taken too."""
        first = True
        until = _now() + self._patience_s
        while True:
            producer = None
            try:
                producer = await self._ready(until)
                async with asyncio.timeout(max(0.1, min(ATTEMPT_S, until - _now()))):
                    if topic not in self._topics:
                        await self._look(producer.client)  # it may be new
                    if topic not in self._topics:
                        raise self._missing(topic)
                    answer = await producer.send(topic, value, key, headers=headers)
                    answer.add_done_callback(_heard)
                    taken = await asyncio.shield(answer)
                return int(taken.timestamp) if first and taken.timestamp > 0 else None
            except MessageSizeTooLargeError:
                raise Refused(f"the message has {len(value)} bytes, more than the topic {topic} takes") from None
            except DENIED:
                raise Refused(f"this client may not write to {topic} at {self._bus.address}: it needs the right Write") from None
            except (KafkaError, TimeoutError, OSError, Unavailable) as error:
                if producer is not None:
                    first = False
                    await self._forget(producer)
                if _now() + PAUSE_S > until:
                    raise self._away(error) from None
            await asyncio.sleep(PAUSE_S)

    async def _ready(self, until: float) -> AIOKafkaProducer:
        """A producer that has met a broker.

        Raises:
            Unavailable: no broker answers.
            One of `DENIED`: this client may write nothing.
        """
        async with self._starting:
            if self._producer is not None:
                return self._producer
            producer = make_producer(self._bus)
            with reasons() as heard:
                try:
                    async with asyncio.timeout(max(0.1, min(ATTEMPT_S, until - _now()))):
                        await producer.start()
                except DENIED:
                    await give_up(producer)
                    raise
                except (KafkaError, TimeoutError, OSError) as error:
                    await give_up(producer)
                    raise self._away(error, "".join(heard)) from None
                except BaseException:
                    await give_up(producer)
                    raise
            self._producer = producer
            return producer

    async def _look(self, client: Any) -> None:
        """Which topics there are. All are asked for: a broker may make one that is asked for by name."""
        self._topics = dict.fromkeys(sorted((await client.fetch_all_metadata()).topics()))

    async def _forget(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
            await give_up(producer)

    # Following

    async def _entries(self, jobs: tuple[str, ...]) -> AsyncGenerator[tuple[str, Entry], None]:
        """The entries about these jobs, in their order. It ends when the reader has enough.

        Raises:
            Refused: one of them was.
            NotKnown: at the tail of the log one of them is not recorded, for as long as the client is patient.
        """
        first = await self._place(jobs)
        joining = Joining(self._cell, from_beginning=first == 0)
        wanted = dict.fromkeys(jobs)
        unknown = dict.fromkeys(jobs)
        refused: dict[str, str] = {}
        after = first
        until = 0.0
        log: KafkaLog | None = None
        away = _now() + self._patience_s
        try:
            while True:
                try:
                    if log is None:
                        log = await KafkaLog.open(self._bus, LOG_TOPIC, self._partition, writer=False)
                    records = await log.read(after)
                    if not records and unknown:
                        _hopeless(unknown, refused, bool(until) and _now() > until)
                        until = until or _now() + self._patience_s
                    if not records:
                        await log.wait(after, TAIL_S)
                except LogUnreachable as error:
                    if _now() + PAUSE_S > away:
                        raise Unavailable(str(error)) from None
                    if log is not None:
                        await log.close()
                        log = None
                    await asyncio.sleep(PAUSE_S)
                    continue
                away = _now() + self._patience_s
                for record in records:
                    after = record.position
                    for envelope in joining.take(record.position, record.data):
                        for job, entry in _told(envelope, wanted):
                            if isinstance(entry.event, InputRefused):
                                refused[job] = entry.event.reason
                                continue
                            if isinstance(entry.event, JobSubmitted):
                                unknown.pop(job, None)
                            if job not in unknown:
                                yield job, entry
        except OperatingError as error:
            raise ClientError(str(error)) from None
        finally:
            if log is not None:
                await log.close()

    async def _place(self, jobs: tuple[str, ...]) -> int:
        """The position after which the log is read to meet these jobs; 0 is its beginning."""
        times = [self._sent.get(job, made_ms(job)) for job in jobs]
        known = [at for at in times if at is not None]
        if len(known) < len(times):
            return 0
        return max(0, await self._at(max(0, min(known) - STRAY_MS)) - BEFORE)

    async def _at(self, ms: int) -> int:
        """The position of the last record before this instant, by the broker's clock."""
        partition = TopicPartition(LOG_TOPIC, self._partition)
        until = _now() + self._patience_s
        while True:
            consumer = make_consumer(self._bus)
            try:
                async with asyncio.timeout(max(0.1, min(ATTEMPT_S, until - _now()))):
                    await consumer.start()
                    found: Any = (await consumer.offsets_for_times({partition: ms}))[partition]
                    offset: int = found.offset if found is not None else (await consumer.end_offsets([partition]))[partition]
                    return offset
            except (KafkaError, TimeoutError, OSError) as error:
                if _now() + PAUSE_S > until:
                    raise self._away(error) from None
            finally:
                with contextlib.suppress(KafkaError, OSError):
                    await consumer.stop()
            await asyncio.sleep(PAUSE_S)

    def _missing(self, topic: str) -> ClientError:
        where = f"there is no topic {topic} at {self._bus.address}{self._bus.hidden}"
        return ClientError(f"{where}: `muster bus create` makes it")

    def _away(self, error: BaseException, why: str = "") -> Unavailable:
        if isinstance(error, Unavailable):
            return error
        return Unavailable(f"no broker answers at {self._bus.address}: {why or str(error) or type(error).__name__}")


def _told(envelope: Envelope, wanted: dict[str, None]) -> list[tuple[str, Entry]]:
    """What a cycle says about these jobs."""
    found: list[tuple[str, Entry]] = []
    for raw in (*envelope.inputs, *envelope.decisions):
        kind, _, body = _open_entry(raw)
        try:
            about = _about(body)
        except msgspec.DecodeError:
            continue  # it is quarantined, or its `id` or `job` is no text
        named = (about.id,) if kind == "InputRefused" else dict.fromkeys((about.job, about.by_job))
        for job in named:
            if job and job in wanted:
                try:
                    event = decode_entry(raw)
                except UnknownKind as error:
                    raise ClientError(str(error)) from None
                found.append((job, Entry(cycle=envelope.number, at_us=envelope.at_us, event=event)))
    return found


def _hopeless(unknown: dict[str, None], refused: dict[str, str], late: bool) -> None:
    """At the tail of the log: whether a job that was not submitted so far will never be.

    Raises:
        Refused: it was refused.
        NotKnown: it was waited for in vain.
    """
    for job in unknown:
        if job in refused:
            raise Refused(refused[job])
    if late:
        raise NotKnown(f"no job {next(iter(unknown))[:64]!r} is in the log: it never came, or is not of this cell")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "nobody"


def _heard(answer: asyncio.Future[Any]) -> None:
    """Whoever waits for an answer is told of a failure; where nobody waits any more, it is no news."""
    if not answer.cancelled():
        answer.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
