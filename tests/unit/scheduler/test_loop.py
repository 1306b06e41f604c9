"""The loop: when it leads, what it does in doubt, and that nobody acts on what was not read back."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from muster.cluster import snapshot
from muster.events.codec import decode_cycle
from muster.log.admit import LATE_START, REPLACED
from muster.log.errors import AppendDoubt, LogFull
from muster.log.port import Record
from muster.scheduler.core import Core, Replaced
from muster.scheduler.loop import EXIT_BROKEN, EXIT_DOUBT, EXIT_HALTED, EXIT_REPLACED, Scheduler, Settings
from muster.scheduler.recovery import recover
from muster.scheduler.snapshots import Snapshots
from muster.scheduler.terms import takeover_delay_us
from tests.simulation.small_world import (
    CELL,
    WALL_US,
    Exited,
    TopicsInbox,
    World,
    WorldClock,
    WorldLog,
    leave,
    report,
    spec,
    submission,
)
from tests.unit.scheduler.driving import Driver

ALONE = Settings(takeover_after_us=0, takeover_spread_us=0)
TOGETHER = Settings()


class Answers(WorldLog):
    """A log that answers an append as the test says: once."""

    def __init__(self, world: World, clock: WorldClock, answer: str = "", at: int = 0) -> None:
        super().__init__(world, clock)
        self.answer = answer
        self.at = at
        self.appends = 0

    async def append(self, data: bytes) -> None:
        self.appends += 1
        if self.appends != self.at:
            await super().append(data)
            return
        if self.answer in ("landed", "silent"):
            await super().append(data)
        if self.answer == "silent":
            await asyncio.sleep(60)
        if self.answer == "full":
            raise LogFull("no room")
        raise AppendDoubt("not answered")


class Seat:
    """A scheduler with its clock and log."""

    def __init__(self, scheduler: Scheduler, log: WorldLog, clock: WorldClock) -> None:
        self.scheduler = scheduler
        self.log = log
        self.clock = clock


async def seat(world: World, settings: Settings = ALONE, *, answer: str = "", at: int = 0, **options: Any) -> Seat:
    """One scheduler in the world, recovered and not running yet."""
    clock = WorldClock(world)
    log = Answers(world, clock, answer, at)
    recovered = await recover(log, CELL)
    world.incarnations += 1
    nonce = f"{world.incarnations:032x}"
    inbox = TopicsInbox(world, clock)
    scheduler = Scheduler(recovered, log, inbox, settings, clock=clock, exit=leave, nonce=lambda: nonce, **options)
    world.schedulers.append(scheduler)
    return Seat(scheduler, log, clock)


async def exit_code(seated: Seat) -> int:
    """How a scheduler leaves by itself."""
    with pytest.raises(Exited) as left:
        await seated.scheduler.run()
    return left.value.code


async def test_a_scheduler_alone_leads_and_runs_what_arrives() -> None:
    world = World(nodes=1)
    world.submit(1)
    await (await seat(world)).scheduler.run()
    assert world.left() == []
    assert world.view.state.term == 1
    assert world.moved == world.view.state.positions


@pytest.mark.parametrize(("answer", "landed"), [("lost", False), ("landed", True)])
async def test_an_unanswered_append_ends_the_process_and_the_next_one_finds_out_by_reading(answer: str, landed: bool) -> None:
    world = World(nodes=1)
    job = world.submit(1)
    seated = await seat(world, answer=answer, at=3)
    assert await exit_code(seated) == EXIT_DOUBT
    records = len(world.broker.records)
    assert records == 3 - (not landed)
    clock = WorldClock(world)
    recovered = await recover(WorldLog(world, clock), CELL)
    assert recovered.core.head.number == records
    world.schedulers.clear()
    await (await seat(world)).scheduler.run()
    assert world.left() == []
    assert [key[0] for key in world.agents[0].started] == [job]


async def test_an_append_that_is_late_ends_the_process() -> None:
    world = World(nodes=1)
    world.submit(1)
    settings = Settings(takeover_after_us=0, takeover_spread_us=0, append_deadline_us=20_000)
    assert await exit_code(await seat(world, settings, answer="silent", at=2)) == EXIT_DOUBT


async def test_an_append_that_failed_ends_the_process() -> None:
    world = World(nodes=1)
    world.submit(1)
    assert await exit_code(await seat(world, answer="full", at=2)) == EXIT_DOUBT


async def test_a_record_that_is_never_shown_ends_the_process() -> None:
    world = World(nodes=1)
    settings = Settings(takeover_after_us=0, takeover_spread_us=0, append_deadline_us=20_000)
    seated = await seat(world, settings)

    async def hidden(after: int, limit: int = 1000) -> list[Record]:
        return []

    seated.log.read = hidden  # type: ignore[method-assign]
    assert await exit_code(seated) == EXIT_DOUBT


async def test_a_follower_waits_for_takeover_after_without_a_sign_and_for_its_delay() -> None:
    world = World(nodes=1)
    world.submit(1)
    seated = await seat(world, Settings(identity="a"))
    began_us = seated.clock.mono_us
    delay_us = takeover_delay_us("a", 0, TOGETHER.takeover_spread_us)

    class Led(Exception):
        pass

    async def first_append(data: bytes) -> None:
        raise Led

    seated.log.append = first_append  # type: ignore[method-assign]
    assert await exit_code(seated) == EXIT_DOUBT
    waited_us = seated.clock.mono_us - began_us
    assert 3_000_000 + delay_us <= waited_us < 3_000_000 + delay_us + TOGETHER.poll_us


def test_equals_draw_different_delays_and_another_one_for_each_term() -> None:
    delays = [takeover_delay_us(identity, term, 1_000_000) for identity in "abc" for term in range(3)]
    assert len(dict.fromkeys(delays)) == 9
    assert all(0 <= delay < 1_000_000 for delay in delays)
    assert takeover_delay_us("a", 1, 0) == 0


async def test_a_follower_does_not_start_a_term_while_it_sees_beats_or_records() -> None:
    world = World(nodes=1)
    seated = await seat(world)
    signs = 0

    def act() -> None:
        nonlocal signs
        signs += 1
        world.beats += 1
        if signs == 100:
            seated.scheduler.stop()

    world.act = act  # type: ignore[method-assign]
    seated.scheduler.settings = TOGETHER
    await seated.scheduler.run()
    assert world.broker.records == []
    assert seated.clock.mono_us > 20_000_000


async def test_a_leader_with_nothing_to_say_shows_that_it_is_there() -> None:
    world = World(nodes=0)
    seated = await seat(world)
    turns = 0

    def act() -> None:
        nonlocal turns
        turns += 1
        if turns == 20:
            seated.scheduler.stop()

    world.act = act  # type: ignore[method-assign]
    await seated.scheduler.run()
    assert len(world.broker.records) == 1
    assert 18 <= world.beats <= 20


async def test_a_leader_whose_place_another_took_stops() -> None:
    """A starts a term; B starts the next one; A's next cycle is void and A leaves."""
    world = World(nodes=1)
    world.jobs.append("never")
    first = await seat(world)
    act = world.act

    def stop_soon() -> None:
        act()
        if world.acts == 2:
            first.scheduler.stop()

    world.act = stop_soon  # type: ignore[method-assign]
    await first.scheduler.run()
    records = len(world.broker.records)
    assert records >= 2
    usurper = Core(CELL)
    for data in world.broker.records:
        usurper.follow(data)
    world.broker.land(usurper.start_term(WALL_US, "f" * 32, "other", "", 0))
    world.act = act  # type: ignore[method-assign]
    world.topics.put("muster.jobs/0", submission("late"), WALL_US)
    first.scheduler._stopping = False
    assert await exit_code(first) == EXIT_REPLACED
    world.view.follow()
    assert world.view.state.term == 2
    assert "late" not in world.view.state.jobs
    assert world.view.voids == {REPLACED: 1}


async def test_a_start_that_lost_its_race_makes_a_follower_again() -> None:
    """B's TermStarted lands before A's: A's is void and A follows B, whose cycles it folds."""
    world = World(nodes=1)
    world.jobs.append("never")
    seated = await seat(world, TOGETHER)
    other = Core(CELL)
    append = seated.log.append

    async def beaten(data: bytes) -> None:
        other.start_term(WALL_US, "f" * 32, "other", "", 0)
        assert other.pending is not None
        world.broker.land(other.pending)
        await append(data)
        seated.scheduler.stop()

    seated.log.append = beaten  # type: ignore[method-assign]
    await seated.scheduler.run()
    core = seated.scheduler.core
    assert not core.leads
    assert core.head.term == 1
    assert core.voids == {LATE_START: 1}
    assert snapshot.digest(core.state) == snapshot.digest(world.view.follow())


def test_a_leader_that_reads_anothers_start_follows() -> None:
    driver = Driver()
    driver.put("muster.nodes/0", report("n1", spec=spec("n1")))
    driver.turn()
    assert driver.core.beat_due_us() is not None
    rival = Core(CELL)
    for data in driver.records:
        rival.follow(data)
    data = rival.start_term(WALL_US, "f" * 32, "other", "", 0)
    rival.read_back(data)
    assert rival.leads
    driver.core.follow(data)
    assert not driver.core.leads
    assert driver.core.term == 0
    assert driver.core.beat_due_us() is None
    assert snapshot.digest(driver.core.state) == snapshot.digest(rival.state)


async def test_a_log_that_was_cut_stops_the_scheduler_for_good() -> None:
    world = World(nodes=1)
    world.submit(1)
    await (await seat(world)).scheduler.run()
    whole = world.broker.records[:]
    world.broker.records[:] = whole[:2]
    seated = await seat(world)
    world.broker.records[:] = whole[:2] + whole[3:]
    assert await exit_code(seated) == EXIT_HALTED


async def test_a_broken_invariant_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    world = World(nodes=1)
    world.submit(1)
    seated = await seat(world)

    def broken(*arguments: Any) -> Any:
        raise AssertionError("something that always holds does not")

    seated.scheduler.core.engine.step = broken  # type: ignore[method-assign, assignment]
    assert await exit_code(seated) == EXIT_BROKEN
    assert "something that always holds does not" in caplog.text


async def test_log_time_goes_on_from_the_last_record_when_the_wall_clock_went_back() -> None:
    world = World(nodes=1)
    world.submit(1)
    await (await seat(world)).scheduler.run()
    last_us = world.view.state.at_us
    world.wall_us = WALL_US - 3_600_000_000
    world.schedulers.clear()
    world.submit(2)
    await (await seat(world)).scheduler.run()
    starts = [envelope for envelope, _ in world.view.admitted if envelope.started is not None]
    assert [envelope.term for envelope in starts] == [1, 2]
    assert starts[1].at_us == last_us
    assert starts[1].started is not None
    assert starts[1].started.gap_us == 0


async def test_a_cold_start_says_for_how_long_nobody_led() -> None:
    world = World(nodes=1)
    world.submit(1)
    await (await seat(world)).scheduler.run()
    last_us = world.view.state.at_us
    world.wall_us = last_us + 7_000_000
    world.schedulers.clear()
    world.submit(2)
    await (await seat(world)).scheduler.run()
    start = [envelope for envelope, _ in world.view.admitted if envelope.started is not None][-1]
    assert start.at_us == world.wall_us
    assert start.started is not None
    assert start.started.gap_us == 7_000_000


async def test_a_takeover_goes_on_from_the_moment_the_last_record_was_read_whatever_the_wall_clock_says() -> None:
    world = World(nodes=1)
    clock = WorldClock(world)
    follower = await seat(world, Settings(identity="b"))
    leader = Driver()
    told = False

    def act() -> None:
        nonlocal told
        if not told and follower.clock.mono_us > 2_000_000:
            told = True
            world.broker.land(leader.records[0])
        if world.broker.records[1:]:
            follower.scheduler.stop()

    world.act = act  # type: ignore[method-assign]
    world.wall_us = WALL_US + 99_000_000
    await follower.scheduler.run()
    start = decode_cycle(world.broker.records[1])
    delay_us = takeover_delay_us("b", 1, 1_000_000)
    assert start.term == 2
    assert start.started is not None
    assert 3_000_000 + delay_us <= start.at_us - WALL_US < 4_000_000 + delay_us
    assert start.started.gap_us == start.at_us - WALL_US
    assert clock.wall_us() == WALL_US + 99_000_000


async def test_a_leader_that_overslept_starts_a_term_that_says_so() -> None:
    world = World(nodes=1)
    seated = await seat(world)
    act = world.act
    slept = False

    def oversleep() -> None:
        nonlocal slept
        act()
        if world.acts == 5:
            seated.clock.mono_us += 60_000_000
            slept = True
        if world.acts == 12:
            seated.scheduler.stop()

    world.act = oversleep  # type: ignore[method-assign]
    world.jobs.append("never")
    await seated.scheduler.run()
    assert slept
    starts = [envelope.started for envelope, _ in world.view.admitted if envelope.started is not None]
    assert len(starts) == 2
    assert starts[1] is not None
    assert 59_000_000 <= starts[1].gap_us <= 62_000_000
    node = world.view.state.node("n1")
    assert node is not None
    assert node.liveness == "heard", "nobody listened, so nobody was silent"


async def test_a_follower_writes_snapshots_and_recovery_begins_there(tmp_path: Path) -> None:
    world = World(nodes=1)
    world.submit(1)
    await (await seat(world)).scheduler.run()
    cycles = world.view.head.number
    snapshots = Snapshots(tmp_path, CELL, every=3)
    world.schedulers.clear()
    world.submit(2)
    await (await seat(world, snapshots=snapshots)).scheduler.run()
    assert [name[: len(CELL) + 17] for name in os.listdir(tmp_path)] == [f"{CELL}-{cycles:016d}"]
    recovered = await recover(WorldLog(world, WorldClock(world)), CELL, Snapshots(tmp_path, CELL))
    assert recovered.folded == world.view.head.number - cycles
    assert snapshot.digest(recovered.core.state) == snapshot.digest(world.view.state)


def test_a_record_in_flight_cannot_be_passed() -> None:
    driver = Driver()
    driver.put("muster.jobs/0", submission("a"))
    ours = driver.core.cycle(driver.at_us)
    assert ours is not None
    rival = Core(CELL)
    rival.follow(driver.records[0])
    with pytest.raises(Replaced):
        driver.core.follow(rival.start_term(WALL_US, "f" * 32, "other", "", 0))
