"""A gateway's own view of the log: it shows what was admitted, and says how far behind it is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from muster.gateway import follower as followers
from muster.gateway.follower import Follower
from muster.log.errors import LogDamaged, LogHalted, LogUnreachable
from muster.log.memory import MemoryBroker, MemoryLog
from muster.log.port import Record
from muster.scheduler.recovery import recover
from tests.simulation.small_world import job_id, submission
from tests.unit.scheduler.driving import JOBS, SECOND, Driver


class HandClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.us = 1_000_000

    def monotonic_us(self) -> int:
        return self.us

    def wall_us(self) -> int:
        return self.us


class Away(MemoryLog):
    """A log whose end nobody can be asked about while `away`."""

    away = False

    async def end(self) -> int:
        if self.away:
            raise LogUnreachable("nobody answers")
        return await super().end()


class Growing(MemoryLog):
    """A log to which somebody appends whenever its end is asked for, just before it is told."""

    left: list[bytes]

    async def end(self) -> int:
        if self.left:
            self.broker.land(self.left.pop(0))
        return await super().end()


@pytest.fixture
def broker() -> MemoryBroker:
    """A log with a term and two jobs."""
    driver = Driver()
    for number in (1, 2):
        driver.put(JOBS, submission(job_id(number)))
        driver.turn(after_s=1)
    made = MemoryBroker()
    made.records = list(driver.records)
    return made


@asynccontextmanager
async def following(log: MemoryLog, clock: HandClock) -> AsyncIterator[tuple[Follower, list[Record]]]:
    """A follower at work, and the records that it tells of."""
    follower = Follower(await recover(log, "main"), log, clock=clock)
    told: list[Record] = []
    follower.admitted = told.append
    task = asyncio.create_task(follower.run())
    try:
        yield follower, told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(what: object) -> None:
    async with asyncio.timeout(10):
        while not what():  # type: ignore[operator]  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.005)


async def test_it_tells_of_each_admitted_record_once_and_of_no_void_one(broker: MemoryBroker) -> None:
    records, broker.records = broker.records, broker.records[:1]
    async with following(MemoryLog(broker), HandClock()) as (follower, told):
        for data in (records[1], b"no record", records[1], records[2]):
            broker.land(data)
        await until(lambda: follower.position == 5)
        assert [record.data for record in told] == records[1:]
        assert (follower.core.head.number, follower.head_position) == (3, 5)
        assert list(follower.core.state.jobs) == [job_id(1), job_id(2)]


async def test_log_time_goes_on_from_the_last_cycle(broker: MemoryBroker) -> None:
    clock = HandClock()
    records, broker.records = broker.records, broker.records[:2]
    async with following(MemoryLog(broker), clock) as (follower, told):
        at_us = follower.core.state.at_us
        clock.us += 7 * SECOND
        assert follower.now_us() == at_us + 7 * SECOND
        broker.land(records[2])
        await until(lambda: told)
        assert follower.now_us() == follower.core.state.at_us
        clock.us += 3
        assert follower.now_us() == follower.core.state.at_us + 3


async def test_it_says_for_how_long_it_has_not_seen_the_end(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(followers, "ASK_EVERY_S", 0.01)
    clock = HandClock()
    log = Away(broker)
    async with following(log, clock) as (follower, _):
        clock.us += 60 * SECOND
        await until(lambda: not follower.behind_us())
        log.away = True
        await asyncio.sleep(0.05)
        clock.us += 60 * SECOND
        assert follower.behind_us() >= 60 * SECOND
        await until(lambda: "is behind the end" in caplog.text)
        log.away = False
        await until(lambda: not follower.behind_us())
        await until(lambda: "is at the end" in caplog.text)


async def test_it_is_not_behind_where_the_log_grows_each_time_its_end_is_asked_for(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "ASK_EVERY_S", 60.0)  # it is asked for once
    clock = HandClock()
    records, broker.records = broker.records, broker.records[:1]
    log = Growing(broker)
    log.left = [records[1]]
    async with following(log, clock) as (follower, told):
        clock.us += 600 * SECOND
        assert follower.behind_us()
        await until(lambda: told)
        await until(lambda: not follower.behind_us())


async def test_it_stops_where_the_log_was_cut(broker: MemoryBroker) -> None:
    records, broker.records = broker.records, broker.records[:1]
    log = MemoryLog(broker)
    follower = Follower(await recover(log, "main"), log, clock=HandClock())
    broker.land(records[2])
    with pytest.raises(LogHalted, match="cycle 3 stands here; 2 would be right"):
        await follower.run()


class Ending(MemoryLog):
    """A log whose end comes to an end: asking for it fails in this way."""

    fails: BaseException

    async def end(self) -> int:
        raise self.fails


@pytest.mark.parametrize(
    ("fails", "raised"),
    [
        (LogDamaged("it was cut"), LogDamaged),
        (asyncio.CancelledError(), LogUnreachable),
        (RuntimeError("something else"), LogUnreachable),
    ],
    ids=["damaged", "stray", "other"],
)
async def test_it_ends_where_the_end_of_the_log_is_not_asked_for_any_more(
    broker: MemoryBroker, fails: BaseException, raised: type[Exception]
) -> None:
    log = Ending(broker)
    log.fails = fails
    async with asyncio.timeout(10):
        with pytest.raises(raised):
            await Follower(await recover(MemoryLog(broker), "main"), log, clock=HandClock()).run()


class Stuck(MemoryLog):
    """A log that goes on, and of which nothing arrives."""

    clock: HandClock

    async def end(self) -> int:
        self.clock.us += 20 * SECOND
        return await super().end() + 1


async def test_it_ends_where_the_log_goes_on_and_nothing_arrives(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "ASK_EVERY_S", 0.01)
    log = Stuck(broker)
    log.clock = HandClock()
    async with asyncio.timeout(10):
        with pytest.raises(LogUnreachable, match="goes on to position 4, and nothing after 3 arrives here"):
            await Follower(await recover(MemoryLog(broker), "main"), log, clock=log.clock).run()
