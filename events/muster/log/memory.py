"""The log in memory: for tests, and as weak as Kafka wherever a seed tells it to be.

A `MemoryBroker` holds the records and outlives its writers; a `MemoryLog` is one process's handle on it. Without faults
it is a plain list. With them an append may be lost, land late, land and not be answered, land twice or be overtaken, and
the tail may be behind. Nothing here reads a clock: late records land as further operations are made, so that one seed and
one order of operations give one history.
"""

import asyncio
import random

import msgspec

from muster.log.errors import AppendDoubt, LogClosed, LogFull, RecordTooLarge
from muster.log.port import READ_MAX_BYTES, RECORD_MAX_BYTES, Record


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How often what goes wrong: chances in thousandths of an append, each drawn anew."""

    lost: int = 0
    """Not answered and never lands."""
    late: int = 0
    """Not answered and lands after other operations, in any order, or never."""
    unanswered: int = 0
    """Lands and is not answered."""
    doubled: int = 0
    """Lands twice: its copy comes after other operations."""
    overtaken: int = 0
    """Answered, but appends made after it may land before it."""
    delay_max: int = 20
    """After so many operations at most what is late lands. Well under 64, which bounds how far a copy may stray."""
    lag_max: int = 0
    """So many records at most the tail is behind."""


NO_FAULTS = Faults()

WEAK = Faults(lost=40, late=60, unanswered=60, doubled=60, overtaken=200, lag_max=3)
"""A bad day: each fault several times in a hundred appends."""


class MemoryBroker:
    """The records, and what is in flight to them."""

    def __init__(self, seed: int = 0, faults: Faults = NO_FAULTS, capacity: int | None = None) -> None:
        self.records: list[bytes] = []
        self.faults = faults
        self.capacity = capacity
        self.counts: dict[str, int] = dict.fromkeys(("lost", "late", "unanswered", "doubled", "overtaken", "behind"), 0)
        """How often each fault was drawn."""
        self.random = random.Random(seed)
        self._operation = 0
        self._flight: list[tuple[int, bytes]] = []
        self._waiters: list[asyncio.Future[None]] = []

    def tick(self) -> None:
        """One operation was made: what is due in flight lands."""
        self._operation += 1
        if self._flight:
            due = [data for at, data in self._flight if at <= self._operation]
            if due:
                self._flight = [(at, data) for at, data in self._flight if at > self._operation]
                self.random.shuffle(due)
                for data in due:
                    self.land(data)

    def land(self, data: bytes) -> None:
        """The record stands in the log from now on."""
        self.records.append(data)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def delay(self, data: bytes) -> None:
        """The record lands some operations from now."""
        self._flight.append((self._operation + self.random.randint(1, self.faults.delay_max), data))

    def draw(self, fault: str, chance: int) -> bool:
        """Whether this fault happens now."""
        if chance and self.random.randrange(1000) < chance:
            self.counts[fault] += 1
            return True
        return False

    def settle(self) -> None:
        """The faults end: of what is in flight each record lands or is lost, as the seed says, and no more goes wrong."""
        self.faults = NO_FAULTS
        flight, self._flight = self._flight, []
        self.random.shuffle(flight)
        for _, data in flight:
            if self.random.randrange(2):
                self.land(data)

    def waiter(self) -> asyncio.Future[None]:
        """Done when the next record lands."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future

    def forget(self, waiter: asyncio.Future[None]) -> None:
        """Nobody waits for it any more."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)


class MemoryLog:
    """One handle on a broker. The positions are those of the broker's list, from 1."""

    def __init__(self, broker: MemoryBroker | None = None, *, seed: int = 0, faults: Faults = NO_FAULTS) -> None:
        self.broker = broker if broker is not None else MemoryBroker(seed, faults)
        self._seen = 0
        self._closed = False

    async def append(self, data: bytes) -> None:
        """See `muster.log.port.Log`."""
        broker = self.broker
        self._check()
        if len(data) > RECORD_MAX_BYTES:
            raise RecordTooLarge(f"the record has {len(data)} bytes; the log takes {RECORD_MAX_BYTES}")
        if broker.capacity is not None and len(broker.records) >= broker.capacity:
            raise LogFull(f"the log is full with {broker.capacity} records")
        faults = broker.faults
        if faults is NO_FAULTS:
            broker.land(data)
            return
        broker.tick()
        if broker.draw("lost", faults.lost):
            raise AppendDoubt("the append was not answered")
        if broker.draw("late", faults.late):
            broker.delay(data)
            raise AppendDoubt("the append was not answered")
        if broker.draw("overtaken", faults.overtaken):
            for _ in range(broker.random.randint(1, 5)):
                await asyncio.sleep(0)
        broker.land(data)
        if broker.draw("doubled", faults.doubled):
            broker.delay(data)
        if broker.draw("unanswered", faults.unanswered):
            raise AppendDoubt("the append was not answered")

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        """See `muster.log.port.Log`."""
        end = self._visible()
        found: list[Record] = []
        size = 0
        for index in range(after, min(end, after + limit)):
            data = self.broker.records[index]
            found.append(Record(index + 1, data))
            size += len(data)
            if size >= READ_MAX_BYTES:
                break
        return found

    async def end(self) -> int:
        """See `muster.log.port.Log`."""
        return self._visible()

    async def wait(self, after: int, timeout_s: float) -> None:
        """See `muster.log.port.Log`. Returns too when a record has landed that the tail does not show yet."""
        self._check()
        self.broker.tick()
        if len(self.broker.records) > after:
            return
        waiter = self.broker.waiter()
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self.broker.forget(waiter)

    async def close(self) -> None:
        """See `muster.log.port.Log`. The broker and its records stay."""
        self._closed = True

    def _visible(self) -> int:
        self._check()
        self.broker.tick()
        end = len(self.broker.records)
        lag_max = self.broker.faults.lag_max
        if lag_max and end > self._seen:
            behind = min(self.broker.random.randint(0, lag_max), end - self._seen)
            if behind:
                self.broker.counts["behind"] += 1
                end -= behind
        self._seen = max(self._seen, end)
        return end

    def _check(self) -> None:
        if self._closed:
            raise LogClosed("the log was closed")
