"""What a worker does with its partition, whatever Faust brings it and whoever else writes: the rows equal the fold."""

import asyncio
from random import Random
from typing import Any

import pytest

from muster.events.codec import decode_cycle, digest
from muster.history.fold import Changes, Fold, Store
from muster.history.sink import Outrun, Position
from muster.history.worker import Tail
from muster.history.writer import Writer
from muster.log.errors import LogHalted
from muster.log.port import Record
from tests.golden.recorded import LOGS, read
from tests.support.history import MemorySource

CELL = "main"
RECORDS = read(LOGS, "story-3")


class MemorySink:
    """Rows and a position in memory, moved by comparing as PostgreSQL's are; each write takes its time."""

    def __init__(self, chance: Random) -> None:
        self.at = Position(cell=CELL)
        self.store = Store()
        self.saved: bytes | None = None
        self.outrun = 0
        self._chance = chance

    async def position(self) -> Position:
        await self._take_time()
        return self.at

    async def checkpoint(self) -> bytes | None:
        await self._take_time()
        return self.saved

    async def write(self, old: Position, new: Position, changes: Changes, checkpoint: bytes | None = None) -> None:
        await self._take_time()
        if self.at != old:
            self.outrun += 1
            raise Outrun("outrun")
        self.store.take(changes)
        self.at = new
        self.saved = checkpoint or self.saved
        await self._take_time()

    async def _take_time(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)


class GrowingSource(MemorySource):
    """A log of which a part is there."""

    def __init__(self, records: list[bytes], there: int) -> None:
        super().__init__(records)
        self.there = there

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        await asyncio.sleep(0)
        return [record for record in await super().read(after, limit) if record.position <= self.there]

    async def end(self) -> int:
        return self.there

    async def wait(self, after: int, timeout_s: float) -> None:
        await asyncio.sleep(0)


def right(count: int) -> Store:
    """The rows of so many records."""
    store, fold = Store(), Fold(CELL)
    for position, data in enumerate(RECORDS[:count], 1):
        store.take(fold.take(decode_cycle(data), digest(data), position, len(data)))
    return store


def assert_right(sink: MemorySink, count: int) -> None:
    assert sink.at.number == count
    assert sink.store.tables == right(count).tables


def brought(first: int, last: int) -> list[Record]:
    """What Faust brings: the records at these positions."""
    return [Record(position, RECORDS[position - 1]) for position in range(first, last + 1)]


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink(Random(1))


def tail(sink: MemorySink, there: int) -> tuple[Tail, GrowingSource]:
    """A tail of a log of which so much is there."""
    source = GrowingSource(RECORDS, there)
    return Tail(source, Writer(sink, CELL)), source


async def test_what_is_known_is_ignored_and_what_is_missing_is_read(sink: MemorySink) -> None:
    given, source = tail(sink, 12)
    await given.take(brought(11, 12))  # the group's offset was ahead of the rows
    assert_right(sink, 12)
    await given.take(brought(5, 9))
    source.there = 15
    await given.take(brought(8, 15))
    assert_right(sink, 15)
    source.there = 21
    await given.take([*brought(16, 17), *brought(20, 21)])
    assert_right(sink, 21)
    source.there = 30
    await given.begin()
    assert_right(sink, 30)
    reads = source.reads
    await given.take(brought(25, 30))
    source.there = 35
    await given.take(brought(31, 35))
    assert_right(sink, 35)
    assert source.reads == reads, "nothing was missing"


async def test_who_was_outrun_starts_again_from_where_the_rows_are(sink: MemorySink) -> None:
    first, early = tail(sink, 10)
    second, late = tail(sink, 20)
    await first.take(brought(1, 10))
    await second.take(brought(1, 20))
    assert_right(sink, 20)
    early.there = 30
    await first.take(brought(11, 30))
    assert sink.outrun == 1
    assert_right(sink, 30)
    late.there = 40
    await second.take(brought(31, 40))
    assert_right(sink, 40)


async def test_two_who_both_believe_to_have_the_partition_write_each_row_once() -> None:
    outrun = [await both_write(seed) for seed in range(20)]
    print(f"outrun {sum(outrun)} times, in {sum(map(bool, outrun))} of {len(outrun)} stories")
    assert sum(map(bool, outrun)) > 10, "most of these stories have a conflict in them"


async def both_write(seed: int) -> int:
    """Two tails of one log and one sink, at once; how often one was outrun."""
    chance = Random(seed)
    sink = MemorySink(chance)
    source = GrowingSource(RECORDS, 0)
    tails = [Tail(source, Writer(sink, CELL)) for _ in range(2)]

    async def lead(mine: Tail) -> None:
        at = 0
        while at < len(RECORDS):
            last = min(len(RECORDS), at + chance.randrange(1, 30))
            source.there = max(source.there, last)
            action = chance.randrange(5)
            if action == 0:
                await mine.begin()
            elif action == 1:
                await mine.take(brought(max(1, at - chance.randrange(20)), last))
            else:
                await mine.take(brought(min(last, at + 1 + chance.randrange(3)), last))
            at = last

    await asyncio.gather(*[lead(each) for each in tails])
    assert_right(sink, len(RECORDS))
    return sink.outrun


async def test_a_log_that_was_cut_is_no_gap(sink: MemorySink) -> None:
    given, _ = tail(sink, 10)
    await given.begin()
    with pytest.raises(LogHalted):
        await given.take([Record(11, RECORDS[12])])
    assert_right(sink, 10)


async def test_the_plant_a_sink_that_does_not_compare_is_found() -> None:
    class Careless(MemorySink):
        async def write(self, old: Position, new: Position, changes: Changes, checkpoint: Any = None) -> None:
            await super().write(self.at, new, changes, checkpoint)

    sink = Careless(Random(1))
    first, _ = tail(sink, 10)
    second, _ = tail(sink, 40)
    await first.take(brought(1, 10))
    await second.take(brought(1, 40))
    await first.take(brought(11, 20))
    assert sink.at.number == 20, "the position went back"
    assert sink.store.tables != right(20).tables
