"""The contract of `muster.log.port.Log`, held against every engine.

An engine joins by one line in `ENGINES`: a function that makes a fresh log, in a folder where it needs one, whose handles it
then opens.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest

from muster.log.bus import Bus
from muster.log.errors import AppendDoubt, LogClosed, RecordTooLarge
from muster.log.kafka import KafkaLog
from muster.log.memory import WEAK, MemoryBroker, MemoryLog
from muster.log.port import RECORD_MAX_BYTES, Log, Record
from muster.log.sqlite import SqliteLog
from tests.support.kafka import Kafka
from tests.support.topics import make_log_topic


class Engine(Protocol):
    """One log of one engine, and handles on it. Everything that is opened here is closed after the test."""

    async def writer(self) -> Log: ...
    async def reader(self) -> Log: ...
    async def close(self) -> None: ...


class _Memory:
    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def writer(self) -> Log:
        return MemoryLog(self._broker)

    async def reader(self) -> Log:
        return MemoryLog(self._broker)

    async def close(self) -> None:
        pass


class _Sqlite:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handles: list[SqliteLog] = []

    async def writer(self) -> Log:
        return self._opened(SqliteLog.open(self._folder, writer=True))

    async def reader(self) -> Log:
        return self._opened(SqliteLog.open(self._folder, writer=False))

    def _opened(self, log: SqliteLog) -> SqliteLog:
        self._handles.append(log)
        return log

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()


class _Kafka:
    """A topic of its own on a broker that all tests share."""

    def __init__(self, kafka: Kafka) -> None:
        self._bus = Bus.parse(kafka.address)
        self._topic = kafka.topic("conformance")
        self._made = False
        self._handles: list[KafkaLog] = []

    async def writer(self) -> Log:
        return await self._opened(writer=True)

    async def reader(self) -> Log:
        return await self._opened(writer=False)

    async def _opened(self, *, writer: bool) -> KafkaLog:
        if not self._made:
            await make_log_topic(self._bus, self._topic)
            self._made = True
        log = await KafkaLog.open(self._bus, self._topic, writer=writer)
        self._handles.append(log)
        return log

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()


ENGINES: dict[str, Callable[[pytest.FixtureRequest, Path], Engine]] = {
    "memory": lambda request, folder: _Memory(MemoryBroker()),
    "memory, weak": lambda request, folder: _Memory(MemoryBroker(seed=7, faults=WEAK)),
    "sqlite": lambda request, folder: _Sqlite(folder),
    "kafka": lambda request, folder: _Kafka(request.getfixturevalue("kafka")),
}


@pytest.fixture(params=list(ENGINES))
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    made = ENGINES[request.param](request, tmp_path)
    yield made
    await made.close()


async def _append(log: Log, data: bytes) -> bool:
    """Whether it was answered."""
    try:
        await log.append(data)
    except AppendDoubt:
        return False
    return True


async def _all(log: Log, limit: int = 1000) -> list[Record]:
    """Every record, read until the tail shows nothing more."""
    found: list[Record] = []
    quiet = 0
    while quiet < 100:
        records = await log.read(found[-1].position if found else 0, limit)
        quiet = 0 if records else quiet + 1
        found.extend(records)
    return found


def _distinct(records: list[Record]) -> list[bytes]:
    return list(dict.fromkeys(record.data for record in records))


async def test_an_empty_log_has_its_end_at_zero_and_nothing_to_read(engine: Engine) -> None:
    writer = await engine.writer()
    assert await writer.end() == 0
    assert await writer.read(0) == []


async def test_what_was_answered_is_read_by_everybody_in_one_order(engine: Engine) -> None:
    writer = await engine.writer()
    sent = [b"record %d" % number for number in range(300)]
    answered = [data for data in sent if await _append(writer, data)]
    assert len(answered) > 200
    own, other = await _all(writer), await _all(await engine.reader())
    assert own == other
    assert set(answered) <= set(_distinct(own)) <= set(sent)


async def test_answered_appends_of_one_writer_stand_in_the_order_of_their_calls(engine: Engine) -> None:
    writer = await engine.writer()
    answered = [data for data in (b"record %d" % number for number in range(300)) if await _append(writer, data)]
    kept = set(answered)
    assert [data for data in _distinct(await _all(writer)) if data in kept] == answered


async def test_positions_are_positive_and_increase(engine: Engine) -> None:
    writer = await engine.writer()
    for number in range(50):
        await _append(writer, b"%d" % number)
    positions = [record.position for record in await _all(writer)]
    assert positions[0] > 0
    assert all(before < after for before, after in itertools.pairwise(positions))


async def test_a_read_gives_what_stands_after_the_position_and_no_more_than_its_limit(engine: Engine) -> None:
    writer = await engine.writer()
    for number in range(100):
        await _append(writer, b"%d" % number)
    records = await _all(writer)
    assert await _all(writer, limit=7) == records
    middle = records[len(records) // 2].position
    after = await writer.read(middle, 5)
    assert after == [record for record in records if record.position > middle][:5]
    assert await writer.read(records[-1].position) == []


async def test_bytes_come_back_as_they_went_in(engine: Engine) -> None:
    writer = await engine.writer()
    sent = [b"", b"\x00", bytes(range(256)), b"[1,2]", b"\xff" * 100_000, "ü\n".encode()]
    answered = [data for data in sent if await _append(writer, data)]
    assert set(answered) <= {record.data for record in await _all(writer)} <= set(sent)


async def test_the_largest_record_is_taken_and_one_byte_more_is_not(engine: Engine) -> None:
    writer = await engine.writer()
    largest = b"x" * RECORD_MAX_BYTES
    while not await _append(writer, largest):
        pass
    with pytest.raises(RecordTooLarge):
        await writer.append(largest + b"x")
    assert set(_distinct(await _all(writer))) == {largest}


async def test_what_a_handle_has_seen_it_sees_for_good(engine: Engine) -> None:
    writer, reader = await engine.writer(), await engine.reader()
    seen: list[Record] = []
    end = 0
    for number in range(200):
        await _append(writer, b"%d" % number)
        assert await reader.end() >= end
        seen.extend(await reader.read(seen[-1].position if seen else 0))
        end = max(end, seen[-1].position if seen else 0)
        assert await reader.end() >= end
    assert (await _all(reader))[: len(seen)] == seen


async def test_a_reader_that_waits_is_told_of_a_record(engine: Engine) -> None:
    writer, reader = await engine.writer(), await engine.reader()

    async def write() -> None:
        await asyncio.sleep(0.02)
        while not await _append(writer, b"news"):
            pass

    task = asyncio.create_task(write())
    async with asyncio.timeout(5):
        while not await reader.read(0):
            await reader.wait(0, 10)
    await task


async def test_a_wait_ends_at_its_time_limit_and_at_once_where_there_is_something(engine: Engine) -> None:
    writer = await engine.writer()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await writer.wait(0, 0.05)
    assert 0.04 <= loop.time() - began < 2
    while not await _append(writer, b"one"):
        pass
    async with asyncio.timeout(2):
        await writer.wait(0, 60)


async def test_appends_in_flight_together_all_land_whole(engine: Engine) -> None:
    writer = await engine.writer()
    sent = [b"record %d " % number * 100 for number in range(50)]
    answers = await asyncio.gather(*(_append(writer, data) for data in sent))
    answered = {data for data, answer in zip(sent, answers, strict=True) if answer}
    assert answered <= set(_distinct(await _all(writer))) <= set(sent)


async def test_records_outlive_their_writer(engine: Engine) -> None:
    writer = await engine.writer()
    answered = [data for data in (b"%d" % number for number in range(20)) if await _append(writer, data)]
    await writer.close()
    second = await engine.writer()
    before = await _all(second)
    assert set(answered) <= {record.data for record in before}
    while not await _append(second, b"later"):
        pass
    assert (await _all(second))[: len(before)] == before
    assert b"later" in {record.data for record in await _all(second)}


async def test_a_closed_handle_is_refused_by_name_and_closes_twice(engine: Engine) -> None:
    writer = await engine.writer()
    await writer.close()
    await writer.close()
    with pytest.raises(LogClosed):
        await writer.append(b"late")
    with pytest.raises(LogClosed):
        await writer.read(0)
    with pytest.raises(LogClosed):
        await writer.end()


async def test_an_append_that_is_cancelled_leaves_a_whole_record_or_none(engine: Engine) -> None:
    writer = await engine.writer()
    for number in range(30):
        task = asyncio.create_task(writer.append(b"cancelled %d" % number))
        for _ in range(number % 3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    while not await _append(writer, b"last"):
        pass
    found = {record.data for record in await _all(writer)}
    assert b"last" in found
    assert found <= {b"last", *(b"cancelled %d" % number for number in range(30))}
