"""The check finds every row that is not as the log says, and a rebuild makes it right again. On a real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest

from muster.events.codec import decode_cycle, digest, encode_cycle
from muster.events.jobs import JobSubmitted
from muster.history import writer as writing
from muster.history.check import check, lines
from muster.history.follow import FileSource, follow
from muster.history.rebuild import Progress, rebuild
from muster.history.rows import TABLES
from muster.history.schema import HistoryError, connect, current, make_build, migrate
from muster.history.sink import Outrun, Position, Sink, Switched
from muster.history.writer import Writer
from muster.log.errors import LogHalted
from muster.log.sqlite import SqliteFile
from tests.golden.recorded import LOGS, read
from tests.support.history import MemorySource, checked
from tests.support.postgres import Postgres

NAME = "story-14"
CELL = "main"


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    """A story of chaos: every kind of input, late, doubled and foreign ones too."""
    return read(LOGS, NAME)


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Any]:
    """Connections to an empty database."""
    async with asyncpg.create_pool(database, min_size=1, max_size=3) as made:
        yield made


async def ready(database: str) -> str:
    """Make the tables; the build."""
    connection = await connect(database)
    schema = await migrate(connection)
    await connection.close()
    return schema


async def written(pool: Any, database: str, records: list[bytes]) -> Writer:
    """Write the history of these records."""
    writer = Writer(Sink(pool, await ready(database), CELL), CELL)
    source = MemorySource(records)
    await writer.start(source)
    await follow(source, writer, until=len(records))
    return writer


async def test_the_rows_equal_the_fold_whatever_the_batches(pool: Any, database: str, records: list[bytes]) -> None:
    writer = Writer(Sink(pool, await ready(database), CELL), CELL)
    source = MemorySource(records)
    await writer.start(source)
    at = 0
    for size in (1, 2, 3, 50, 1, 30, 1000):
        await writer.take(await source.read(at, size))
        at = min(at + size, len(records))
        assert (await checked(source, database, CELL)).number == at
    assert writer.number == len(records)


async def test_a_writer_goes_on_from_a_checkpoint_and_without_one(
    pool: Any, database: str, records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHECKPOINT_CYCLES", 20)
    monkeypatch.setattr(writing, "READ_AT_ONCE", 10)
    schema = await ready(database)
    source = MemorySource(records)
    for at in range(0, len(records), 7):
        if at > 100:
            await pool.execute(f"update {schema}.checkpoints set data = '\\x00'")
        writer = Writer(Sink(pool, schema, CELL), CELL)
        source.reads = 0
        await writer.start(source)
        assert writer.number == at
        assert source.reads <= (3 if at <= 100 else 100), "from the checkpoint it is not far"
        await writer.take(await source.read(at, 7))
    await checked(source, database, CELL)


async def test_of_two_writers_the_slower_changes_no_row(pool: Any, database: str, records: list[bytes]) -> None:
    schema = await ready(database)
    source = MemorySource(records)
    quick, slow = [Writer(Sink(pool, schema, CELL), CELL) for _ in range(2)]
    await quick.start(source)
    await slow.start(source)
    await quick.take(await source.read(0, 50))
    before = await everything(pool, schema)
    with pytest.raises(Outrun):
        await slow.take(await source.read(0, 60))
    assert await everything(pool, schema) == before
    both = [Writer(Sink(pool, schema, CELL), CELL) for _ in range(2)]
    for each in both:
        await each.start(source)
    rest = await source.read(50, 1000)
    results = await asyncio.gather(*[each.take(rest) for each in both], return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "Outrun"]
    await checked(source, database, CELL)


async def everything(pool: Any, schema: str) -> list[Any]:
    """Every row of a build, and the transaction that wrote it."""
    return [await pool.fetch(f"select xmin::text, ctid::text, * from {schema}.{table.name}") for table in TABLES]


async def test_rows_and_position_are_written_together_or_not_at_all(pool: Any, database: str, records: list[bytes]) -> None:
    schema = await ready(database)
    writer = await written(pool, database, records[:20])
    source = MemorySource(records)
    await pool.execute(f"alter table {schema}.decisions add constraint planted check (number < 40)")
    with pytest.raises(HistoryError, match="could not be written after cycle 20"):
        await writer.take(await source.read(20, 60))
    assert (await checked(source, database, CELL)).number == 20


PLANTS = {
    "cycles": "update {s}.cycles set size_bytes = size_bytes + 1 where number = 7",
    "jobs": "update {s}.jobs set user_name = 'mallory' where job = (select min(job) from {s}.jobs)",
    "instances": "delete from {s}.instances where ctid = (select max(ctid) from {s}.instances)",
    "attempts": "update {s}.attempts set started_us = null where started_us = (select max(started_us) from {s}.attempts)",
    "placements": "update {s}.placements set devices = '[\"x\"]' where ctid = (select min(ctid) from {s}.placements)",
    "nodes": "insert into {s}.nodes select cell, 'ghost', uid, 99, state, boot, boots, cordoned, drained, fenced, "
    "quarantined_until_us, cpu_milli, memory_mib, disk_mib, gpus, zone, block, rack, nvlink_domain, labels, taints, "
    "registered_us, changed_us from {s}.nodes limit 1",
    "devices": "update {s}.devices set health = 'failed' where health <> 'failed'",
    "shares": "update {s}.shares set gpu_milli = gpu_milli + 1",
    "decisions": "delete from {s}.decisions where number = (select max(number) from {s}.decisions)",
}


@pytest.mark.parametrize("table", PLANTS)
async def test_a_row_that_was_altered_by_hand_is_found(pool: Any, database: str, records: list[bytes], table: str) -> None:
    assert set(PLANTS) == {each.name for each in TABLES}
    await written(pool, database, records)
    source = MemorySource(records)
    await checked(source, database, CELL)
    done = await pool.execute(PLANTS[table].format(s=await ready(database)))
    altered = int(done.split()[-1])
    assert altered, "the plant must alter something"
    found = await check(source, database, CELL)
    assert [each.table for each in found.tables if each.right_digest != each.found_digest] == [table]
    (compared,) = [each for each in found.tables if each.table == table]
    assert compared.differing == altered
    assert len(compared.differences) == min(altered, 5)
    said = "\n".join(lines(found))
    expected = {"jobs": "user_name is 'mallory'", "instances": "is missing", "nodes": "ghost", "devices": "health is 'failed'"}
    assert expected.get(table, "would be right" if table != "decisions" else "is missing") in said


async def test_a_rebuild_makes_it_right_and_drops_what_was(pool: Any, database: str, records: list[bytes]) -> None:
    writer = await written(pool, database, records[:100])
    old = await ready(database)
    await pool.execute(f"delete from {old}.jobs")
    await pool.execute("create view public.mine as select job, name from history.jobs")
    left = await connect(database)
    broken_off = await make_build(left)
    await left.execute(f"insert into {broken_off}.positions values ('main', 7, 'x', 1, 7)")
    await left.close()
    told: list[Progress] = []
    source = MemorySource(records)
    done = await rebuild(source, database, CELL, tell=told.append)
    assert (done.number, set(done.dropped)) == (len(records), {old})
    assert done.schema != old
    assert done.rows == told[-1].rows, "what was left of a rebuild that was broken off is not in it"
    assert told[-1].number == len(records)
    assert told[-1].position == told[-1].end
    assert await pool.fetchval("select count(*) from public.mine") == len(await pool.fetch("select 1 from history.jobs")), (
        "what people built upon the views shows the new build"
    )
    assert await current(pool) == done.schema
    await checked(source, database, CELL)
    with pytest.raises(Switched, match=f"{old} is not the current build"):
        await writer.take(await source.read(100, 10))
    assert await pool.fetchval("select count(*) from pg_namespace where nspname like 'history_v%'") == 1


async def test_a_rebuild_that_would_lose_another_cell_is_refused(pool: Any, database: str, records: list[bytes]) -> None:
    await written(pool, database, records)
    with pytest.raises(HistoryError, match="has the history of main too, which a rebuild of other would lose"):
        await rebuild(MemorySource([]), database, "other")


async def test_another_log_is_told_from_this_one(
    pool: Any, database: str, records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "BEHIND_S", 0.0)
    await written(pool, database, records[:30])
    other = MemorySource(read(LOGS, "story-3"))
    writer = Writer(Sink(pool, await ready(database), CELL), CELL)
    with pytest.raises(HistoryError, match=r"it is another log; `muster history rebuild`"):
        await writer.start(other)
    with pytest.raises(HistoryError, match="another log"):
        await check(other, database, CELL)
    with pytest.raises(HistoryError, match="goes to cycle 30, and the log ends after cycle 20"):
        await writer.start(MemorySource(records[:20]))
    with pytest.raises(HistoryError, match="no history of the cell 'elsewhere'"):
        await check(other, database, "elsewhere")


async def test_a_log_that_was_cut_in_the_middle_ends_the_writer(pool: Any, database: str, records: list[bytes]) -> None:
    writer = await written(pool, database, records[:30])
    with pytest.raises(LogHalted):
        await writer.take(await MemorySource(records[:30] + records[31:]).read(30))
    assert (await checked(MemorySource(records), database, CELL)).number == 30


async def test_records_that_are_void_are_passed_over(pool: Any, database: str, records: list[bytes]) -> None:
    foreign = encode_cycle(decode_cycle(records[3])).replace(b'"main"', b'"else"')
    mixed = [b"no record", *records[:10], records[9], foreign, *records[10:]]
    await written(pool, database, mixed)
    found = await checked(MemorySource(mixed), database, CELL)
    assert found.number == len(records)


async def test_a_file_is_followed_as_a_bus_is(pool: Any, database: str, records: list[bytes], tmp_path: Any) -> None:
    with SqliteFile.open(tmp_path, CELL, writer=True) as file:
        file.append_many(records[:80])
        source = await FileSource.open(tmp_path)
        writer = Writer(Sink(pool, await ready(database), source.cell), source.cell)
        await writer.start(source)
        following = asyncio.create_task(follow(source, writer, until=len(records)))
        for record in records[80:]:
            await asyncio.to_thread(file.append, record)
        await following
    await checked(source, database, CELL)
    await source.close()


async def test_a_position_that_is_not_there_is_the_beginning(pool: Any, database: str) -> None:
    assert await Sink(pool, await ready(database), CELL).position() == Position(cell=CELL)


def test_the_server_is_named_where_it_is_not_there(postgres: Postgres) -> None:
    with pytest.raises(HistoryError, match="PostgreSQL cannot be reached"):
        asyncio.run(connect(postgres.dsn_of("no_such_database")))


async def test_text_that_postgres_cannot_hold_is_written_all_the_same(pool: Any, database: str, records: list[bytes]) -> None:
    planted = records_that_say_nul(records)
    await written(pool, database, planted)
    assert (await checked(MemorySource(planted), database, CELL)).number == len(planted)
    assert await pool.fetchval("select count(*) from history.jobs where image = $1", "a\ufffdb") > 0
    assert (
        await pool.fetchval("select count(*) from history.jobs where labels @> $1::jsonb", '{"k\ufffd": "\\\\u0000 v\ufffd"}') > 0
    )


def records_that_say_nul(records: list[bytes]) -> list[bytes]:
    """The same log, its jobs having text with NUL characters wherever somebody may choose it."""
    made: list[bytes] = []
    for data in records:
        cycle = decode_cycle(data)
        inputs = []
        for event in cycle.inputs:
            if isinstance(event, JobSubmitted):
                run = msgspec.structs.replace(event.run, image="a\0b", directory="\0", command=("\0", "\\u0000"))
                request = msgspec.structs.replace(event.request, labels={"k\0": "\\u0000 v\0"})
                event = msgspec.structs.replace(event, run=run, request=request)
            inputs.append(event)
        previous = digest(made[-1]) if made else cycle.previous
        made.append(encode_cycle(msgspec.structs.replace(cycle, inputs=tuple(inputs), previous=previous)))
    return made
