"""The live view: nobody sees what has not happened, and only those are told whom a cycle concerns."""

import asyncio
from typing import Any

import msgspec
import pytest

from muster.agent.protocol import AgentAssignment, Wanted
from muster.events.base import Event
from muster.events.jobs import JobCancelRequested
from muster.events.nodes import NodeRegistered
from muster.gateway.assigning import Assigner
from muster.gateway.feed import BACKLOG_MAX
from muster.gateway.live import Live
from muster.gateway.polls import Polls
from muster.gateway.problems import Refused
from muster.log.admit import Admitted
from muster.log.port import Record
from tests.support.build import exited, group, job, node, ready, started
from tests.unit.scheduler.driving import JOBS, NODES, OPERATIONS, Driver


class World:
    """A core driven by hand, and a live view of it."""

    def __init__(self, nodes: int = 2) -> None:
        self.driver = Driver()
        self.core = self.driver.core
        self.live = Live(self.core, lambda: self.driver.at_us)
        self.polls = Polls(self.live)
        for number in range(nodes):
            self.say(node(f"n{number}"))

    def begin(self, *inputs: Event) -> bytes:
        """Make a record of these and leave it in flight."""
        for event in inputs:
            source = NODES if isinstance(event, NodeRegistered) or not hasattr(event, "name") else JOBS
            if type(event).__module__.endswith("operations"):
                source = OPERATIONS
            if isinstance(event, JobCancelRequested):
                source = JOBS
            self.driver.put(source, event)
        data = self.core.cycle(self.driver.at_us)
        assert data is not None
        return data

    def finish(self, data: bytes) -> None:
        """Read it back."""
        verdict = self.core.follow(data)
        assert isinstance(verdict, Admitted)
        self.live.admitted(Record(verdict.head.number, data))

    def say(self, *inputs: Event) -> None:
        """A whole cycle, and those that follow from it."""
        self.finish(self.begin(*inputs))
        while (data := self.core.cycle(self.driver.at_us)) is not None:
            self.finish(data)

    async def poll(self, name: str, after: int, wait_s: float = 0.0) -> AgentAssignment | None:
        data = await self.polls.poll(name, after, f"uid-{name}", wait_s)
        return None if data is None else msgspec.json.decode(data, type=AgentAssignment)


async def test_a_read_waits_until_the_record_in_flight_was_read_back() -> None:
    world = World()
    data = world.begin(job("a"))
    assert "a" in world.core.state.jobs, "the state is ahead of the log, or this tests nothing"
    reading = asyncio.ensure_future(world.live.read(lambda state: (state.number, "a" in state.jobs)))
    await asyncio.sleep(0)
    assert not reading.done()
    assert world.live.recorded("a") is None
    world.finish(data)
    assert await reading == (world.core.head.number, True)
    assert world.live.recorded("a") is not None


async def test_what_a_read_raises_is_told_to_whoever_asked_and_to_nobody_else() -> None:
    world = World()
    data = world.begin(job("a"))

    def fail(state: Any) -> None:
        raise Refused(404, "nothing of that name")

    bad = asyncio.ensure_future(world.live.read(fail))
    good = asyncio.ensure_future(world.live.read(lambda state: state.number))
    gone = asyncio.ensure_future(world.live.read(lambda state: state.number))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    world.finish(data)
    with pytest.raises(Refused):
        await bad
    assert await good == world.core.head.number


async def test_a_cycle_wakes_the_polls_of_the_nodes_whose_assignment_it_changed_and_no_others() -> None:
    world = World(nodes=50)
    number = world.core.head.number
    polls = [asyncio.ensure_future(world.poll(f"n{index}", number, 5.0)) for index in range(50)]
    await asyncio.sleep(0)
    assert len(world.polls) == 50
    for _ in range(20):
        world.say(job(f"idle-{_}", group(gpus=9)))  # fits nowhere
    assert world.polls.woken == 0
    world.say(job("gang", group(count=4, gpus=1)))
    await asyncio.sleep(0)
    answered = [index for index, poll in enumerate(polls) if poll.done()]
    held = {task.node.name for task in world.core.state.jobs["gang"].instances[0].attempt.tasks.values()}  # type: ignore[union-attr]
    assert [f"n{index}" for index in answered] == sorted(held)
    assert world.polls.woken == len(held)
    for poll in polls:
        poll.cancel()


async def test_every_change_of_what_a_node_is_to_hold_is_told_to_it() -> None:
    world = World(nodes=1)

    async def changed(*inputs: Event) -> list[str]:
        number = world.core.head.number
        world.say(*inputs)
        told = await world.poll("n0", number)
        assert told is not None, f"nothing was told of {inputs}"
        return [task.phase for task in told.tasks]

    assert await changed(job("a", group(count=2), grace_us=60_000_000)) == ["prepare", "prepare"]
    assert await changed(ready("a", 0, port=4000), ready("a", 1)) == ["run", "run"]
    world.say(started("a", 0), started("a", 1))
    assert await changed(JobCancelRequested(job="a")) == ["stop", "stop"]
    assert await changed(exited("a", 0, code=-15)) == ["stop"]
    assert await changed(exited("a", 1, code=-15)) == []
    assert await changed(job("b")) == ["run"]
    assert await changed(node("n0", boot="b2"))


async def test_the_meeting_point_is_rank_0_once_the_gang_was_started() -> None:
    world = World(nodes=2)
    world.say(job("gang", group(count=4, gpus=1)))
    before = await world.poll("n1", 0)
    assert before is not None
    assert all(task.master is None for task in before.tasks)
    world.say(*[ready("gang", rank, port=4000 if rank == 0 else 0) for rank in range(4)])
    for name in ("n0", "n1"):
        told = await world.poll(name, 0)
        assert told is not None
        first = world.core.state.jobs["gang"].instances[0].attempt.tasks[0].node.name  # type: ignore[union-attr]
        assert {(task.master.addr, task.master.port) for task in told.tasks if task.master} == {(first, 4000)}


async def test_wanted_output_wakes_the_node_once_and_reminds_an_agent_that_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(nodes=1)
    number = world.core.head.number
    waiting = asyncio.ensure_future(world.poll("n0", number, 5.0))
    await asyncio.sleep(0)
    world.polls.want("n0", Wanted(id="w1", job="a"))
    told = await waiting
    assert told is not None
    assert [wanted.id for wanted in told.wanted] == ["w1"]
    assert await world.poll("n0", number) is None
    monkeypatch.setattr("muster.gateway.polls.REMIND_S", 0.0)
    assert await world.poll("n0", number) is not None
    world.polls.forget("n0", "w1")
    assert await world.poll("n0", number) is None


async def test_a_slow_follower_is_told_that_it_missed_something_instead_of_being_told_a_part() -> None:
    world = World()
    subscription = world.live.feed.follow()
    for number in range(BACKLOG_MAX + 1):
        world.say(job(f"j{number}"))
    assert subscription.overflowed
    assert await subscription.next(0.01) is None
    fresh = world.live.feed.follow("late")
    world.say(job("other"))
    world.say(job("late", group(gpus=9)))
    batch = await fresh.next(1.0)
    assert batch is not None
    assert all(b'"late"' in entry for _, entry in batch.entries)
    fresh.close()
    subscription.close()
    assert len(world.live.feed) == 0


async def test_the_books_count_open_jobs_by_user_and_forget_those_that_are_over() -> None:
    world = World(nodes=1)
    world.say(job("a", user="ada"), job("b", user="ada"), job("c", user="bob"))
    assert world.live.books.open == {"ada": 2, "bob": 1}
    world.say(JobCancelRequested(job="b"))
    world.say(ready("a"), started("a"))
    world.say(exited("a"))
    held = world.core.state.jobs["b"].open + world.core.state.jobs["a"].open
    assert world.live.books.open == ({"bob": 1} if not held else {"ada": held, "bob": 1})
    anew = Live(world.core, lambda: 0)
    assert anew.books.open == world.live.books.open


async def test_what_is_remembered_of_an_assignment_is_what_would_be_made_anew() -> None:
    world = World(nodes=3)
    remembered = world.polls._assigner
    seen: dict[str, None] = {}

    def agrees() -> None:
        state = world.core.state
        for number in range(3):
            row = state.node_rows[f"n{number}"]
            told = remembered.assign(state, row, 7)
            assert told == Assigner().assign(state, row, 7)
            seen[told.decode()] = None

    steps: list[list[Event]] = [
        [job("alone"), job("gang", group(count=2, gpus=2))],
        [ready("gang", rank=0, port=4711)],
        [ready("gang", rank=1, port=4712)],
        [started("gang", rank=0), started("gang", rank=1), started("alone")],
        [JobCancelRequested(job="gang", by="ada")],
        [exited("gang", rank=0)],
        [exited("alone")],
        [exited("gang", rank=1)],
    ]
    for step in steps:
        world.say(*step)
        agrees()
    assert len(seen) >= 3 * 4, "the assignments hardly change, and nothing is tested"


async def test_who_waits_is_served_between_cycles_and_what_several_cycles_changed_is_told_then() -> None:
    world = World()
    remembered = world.polls._assigner
    row = world.core.state.node_rows["n0"]
    after = world.core.head.number
    world.say(job("a"), job("b"))
    remembered.assign(world.core.state, row, 7)
    polling = asyncio.ensure_future(world.poll("n0", world.core.head.number, 5))
    await asyncio.sleep(0)
    for step in ([started("a"), started("b")], [exited("a")]):
        data = world.begin(*step)
        verdict = world.core.follow(data)
        assert isinstance(verdict, Admitted)
        world.live.fold(Record(verdict.head.number, data))
    await asyncio.sleep(0)
    assert not polling.done(), "it was answered in the middle"
    world.live.serve()
    found = await polling
    assert found is not None
    assert found.number == world.core.head.number > after
    assert remembered.assign(world.core.state, row, 7) == Assigner().assign(world.core.state, row, 7)
