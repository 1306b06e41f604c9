"""What goes into the cell where the scheduler is another process: messages put on Kafka's topics.

A message is answered once Kafka has it for good (every replica that counts). Whatever is not a node's report is then waited
for a little longer, until a cycle has taken it, so that who asks next is told of it; where no scheduler leads that is not so
for a while, and the answer says that it waits. Messages are CloudEvents; those about one job or one node have one key, so
nothing overtakes anything about the same.

A producer that fails for good cannot be mended, and one in doubt cannot be stopped: then the process is to leave (`broken`).
"""

import asyncio
import heapq
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from muster.cluster.state import State
from muster.events.base import Event
from muster.events.cloudevents import key_of
from muster.events.codec import encode_entry
from muster.gateway.intake import Intake
from muster.gateway.live import Live
from muster.gateway.problems import Refused
from muster.log.bus import Bus
from muster.log.kafka import connect, give_up, make_producer
from muster.scheduler.messages import JOBS, NODES, OPERATIONS

ANSWER_S: Final = 10.0
"""So long Kafka may take to answer; then whoever sent it has to ask again."""
SEEN_S: Final = 3.0
"""So much longer a message is waited for that Kafka has and no cycle has taken."""
OPEN_MAX: Final = 20_000
OPEN_MAX_BYTES: Final = 128 * 1024 * 1024
"""So much is on its way to Kafka at most."""
WAITING_MAX: Final = 20_000
SUBMITTED: Final = b'["JobSubmitted",'
BATCH_BYTES: Final = 256 * 1024

logger = logging.getLogger(__name__)


class KafkaIntake(Intake):
    """The way in, by Kafka. See `Intake`."""

    def __init__(self, bus: Bus, source: str, live: Live, broken: Callable[[str], None]) -> None:
        """`source` says in each message which gateway took it."""
        self._source = source.encode()
        self._live = live
        self._broken = broken
        self._bus = bus
        self._producer: AIOKafkaProducer
        self._open = 0
        self._open_bytes = 0
        self._unseen: dict[str, list[tuple[int, int, asyncio.Future[None]]]] = {}
        """For each partition, who waits for what was put there to be taken; a heap by offset."""
        self._order = count()
        self._unrecorded: dict[str, None] = {}
        """Jobs that Kafka has and no cycle had taken when they were answered, the oldest first."""
        live.on_change(self._admitted)

    async def start(self) -> None:
        """Connect.

        Raises:
            LogUnreachable: no broker answers.
        """
        self._producer = make_producer(self._bus, max_batch_size=BATCH_BYTES)
        try:
            await connect(self._producer, self._bus)
        except BaseException:
            await give_up(self._producer)
            raise

    async def report(self, data: bytes, node: str) -> bool:
        """See `Intake`. Answered when Kafka has it, whether anybody has read it or not."""
        return await self.durable((self._send(NODES, data, node, seen=False),))

    async def operation(self, event: Event) -> bool:
        """See `Intake`."""
        return await self.durable((self._send(OPERATIONS, encode_entry(event), key_of(event), seen=True),))

    async def durable(self, waiting: Sequence[asyncio.Future[Any]]) -> bool:
        """See `Intake`."""
        recorded = True
        for each in waiting:
            recorded = await each and recorded
        return recorded

    def waits(self, job: str) -> bool:
        """See `Intake`."""
        return job in self._unrecorded

    async def close(self) -> None:
        """Let go of Kafka, also where it owes us an answer."""
        await give_up(self._producer)

    def _begin(self, topic: str, data: bytes, key: str) -> asyncio.Future[Any]:
        if data.startswith(SUBMITTED) and self._live.recorded(key) is not None:  # a repeat says nothing new
            done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            done.set_result(True)
            return done
        return self._send(topic, data, key, seen=True)

    def _send(self, topic: str, data: bytes, key: str, *, seen: bool) -> asyncio.Future[bool]:
        if self._open >= OPEN_MAX or self._open_bytes + len(data) > OPEN_MAX_BYTES:
            raise Refused(503, f"{self._open} messages wait for Kafka; try again later", headers={"Retry-After": "2"})
        return asyncio.ensure_future(self._put_one(topic, data, key, seen))

    async def _put_one(self, topic: str, data: bytes, key: str, seen: bool) -> bool:
        """Put one message; whether a cycle has taken it (of a report: whether Kafka has it)."""
        limit = time.monotonic() + ANSWER_S
        value, headers = self._message(topic, data, key)
        try:
            async with asyncio.timeout(ANSWER_S):
                sent = await self._producer.send(topic, value, key=key.encode(), headers=headers)
            self._open += 1
            self._open_bytes += len(value)
            sent.add_done_callback(lambda _: self._close_one(len(value)))
            await asyncio.wait([sent], timeout=max(0.0, limit - time.monotonic()))
            if not sent.done():
                raise TimeoutError
            where = sent.result()
        except MessageSizeTooLargeError:
            raise Refused(413, f"the message has {len(value)} bytes, and Kafka takes fewer") from None
        except (TimeoutError, KafkaTimeoutError):
            detail = "Kafka does not answer, and may have it or not; ask again, with the same id: nothing is taken twice"
            raise Refused(503, detail, headers={"Retry-After": "5"}) from None
        except KafkaError as error:
            self._broken(f"the producer failed: {error!r}")
            raise Refused(503, "the connection to Kafka failed; ask again", headers={"Retry-After": "2"}) from error
        if not seen:
            return True
        recorded = await self._taken(f"{where.topic}/{where.partition}", where.offset)
        if topic == JOBS and self._live.recorded(key) is None and key not in self._live.books.refused:
            recorded = False  # offsets of a topic that was made anew begin below what was taken of the old one
        if not recorded and topic == JOBS:
            self._unrecorded[key] = None
            if len(self._unrecorded) > WAITING_MAX:
                del self._unrecorded[next(iter(self._unrecorded))]
        return recorded

    def _close_one(self, size: int) -> None:
        self._open -= 1
        self._open_bytes -= size

    async def _taken(self, source: str, offset: int) -> bool:
        """Whether a cycle takes this message soon. A broker that knew it already does not say where it stands."""
        if offset < 0:
            return False
        if self._live.taken(source) > offset:
            return True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._unseen.setdefault(source, []), (offset, next(self._order), done))
        await asyncio.wait([done], timeout=SEEN_S)
        if done.done():
            return True
        done.cancel()
        return False

    def _admitted(self, state: State, _: dict[str, None]) -> None:
        """A cycle was admitted: what it took is taken, for those who wait for it."""
        for source, unseen in self._unseen.items():
            position = state.positions.get(source, 0)
            while unseen and unseen[0][0] < position:
                done = heapq.heappop(unseen)[2]
                if not done.done():
                    done.set_result(None)
        if self._unrecorded:
            for job in [job for job in self._unrecorded if job in state.jobs]:
                del self._unrecorded[job]

    def _message(self, topic: str, data: bytes, key: str) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Value and headers of a CloudEvent in binary mode, from an entry or a report."""
        if topic == NODES:
            kind, version, value = b"NodeReport", b"1", data
        else:
            head, version, rest = data.split(b",", 2)
            kind, value = head[2:-1], rest[:-1]
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return value, [
            ("ce_specversion", b"1.0"),
            ("ce_id", key.encode() if kind == b"JobSubmitted" else uuid.uuid4().hex.encode()),
            ("ce_type", b"muster.%b.v%b" % (kind, version)),
            ("ce_source", self._source),
            ("ce_time", now.encode()),
            ("content-type", b"application/json"),
        ]
