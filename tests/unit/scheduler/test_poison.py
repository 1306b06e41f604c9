"""An input at which the scheduler dies stops the cell three times, and not a fourth time."""

import os
from pathlib import Path
from typing import Any

import pytest

from muster.engine.step import Engine
from muster.events.base import Event
from muster.events.codec import digest, open_envelope
from muster.events.jobs import JobSubmitted
from muster.events.operations import InputRefused
from muster.scheduler.loop import Settings
from muster.scheduler.messages import Message
from muster.scheduler.poison import Deaths
from tests.simulation.small_world import Killed, World, job_id

JOBS = "muster.jobs/0"
SETTINGS = Settings(takeover_after_us=0, takeover_spread_us=0)


def deadly(monkeypatch: pytest.MonkeyPatch, *poison: str) -> list[int]:
    """The process dies in the engine, without a word, whenever one of these jobs is an input.

    Returns how many inputs each such cycle had.
    """
    step = Engine.step
    deaths: list[int] = []

    def dying(self: Engine, number: int, term: int, at_us: int, inputs: Any, positions: dict[str, int]) -> list[Event]:
        if any(isinstance(event, JobSubmitted) and event.job in poison for event in inputs):
            deaths.append(len(inputs))
            raise Killed
        return step(self, number, term, at_us, inputs, positions)

    monkeypatch.setattr(Engine, "step", dying)
    return deaths


async def run(world: World, mark: Path) -> int:
    """Incarnations until all jobs but the poison are over."""
    while await world.incarnation(SETTINGS, deaths=mark) is None:
        assert world.incarnations < 20
    return world.incarnations


def refusals(world: World) -> list[InputRefused]:
    """What was refused, by the log."""
    found = []
    for envelope, _ in world.view.admitted:
        found += [event for event in open_envelope(envelope).inputs if isinstance(event, InputRefused)]
    return found


async def test_a_poison_input_is_refused_after_the_third_death_and_the_cell_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = World(nodes=1)
    deaths = deadly(monkeypatch, job_id(3))
    for number in range(1, 7):
        world.submit(number)
    world.jobs.remove(job_id(3))
    for job, data in world.script:
        world.topics.put(JOBS, data, world.wall_us, job)
    world.script.clear()
    assert await run(world, tmp_path / "main.deaths") == 4
    assert deaths == [6, 6, 1], "twice with all, then alone"
    (refused,) = refusals(world)
    assert (refused.source, refused.offset, refused.id) == (JOBS, 2, job_id(3))
    assert world.left() == []
    assert job_id(3) not in world.view.state.jobs


async def test_two_poison_inputs_cost_one_death_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = World(nodes=1)
    deaths = deadly(monkeypatch, job_id(2), job_id(4))
    for number in range(1, 6):
        world.submit(number)
    world.jobs = [job_id(1), job_id(3), job_id(5)]
    for job, data in world.script:
        world.topics.put(JOBS, data, world.wall_us, job)
    world.script.clear()
    await run(world, tmp_path / "main.deaths")
    assert deaths == [5, 5, 1, 1]
    assert [refused.offset for refused in refusals(world)] == [1, 3]


async def test_deaths_that_no_input_causes_refuse_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine dies in every cycle, also in one without inputs: nothing is laid to a message."""
    world = World(nodes=1)
    world.submit(1)
    mark = tmp_path / "main.deaths"
    with monkeypatch.context() as patch:

        def dying(*arguments: Any) -> Any:
            raise Killed

        patch.setattr(Engine, "step", dying)
        patch.setattr(Engine, "next_wake_us", lambda self: 0)
        for _ in range(6):
            assert await world.incarnation(SETTINGS, deaths=mark) is None
    await run(world, mark)
    assert refusals(world) == []
    assert world.left() == []


def test_a_clean_run_leaves_no_death_behind(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    first = Deaths(path, {})
    first.enter({}, {JOBS: 3})
    first.leave()
    first.close()
    second = Deaths(path, {})
    assert (second.deaths, second.careful({}), second.refused) == (0, False, ())


def test_deaths_count_while_the_same_messages_are_ahead(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    for died in range(3):
        mark = Deaths(path, {JOBS: 1})
        assert mark.deaths == died
        assert mark.careful({JOBS: 2}) == (died >= 2)
        mark.enter({JOBS: 1}, {JOBS: 3 if died == 0 else 9})
        mark.close()
    beyond = Deaths(path, {JOBS: 3})
    assert beyond.deaths == 1, "the messages of the first death are behind: this is another death"


def test_only_the_message_that_was_taken_alone_is_suspected(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    message = Message(JOBS, 1, b"deadly", 0)
    for suspect in (None, None, message):
        mark = Deaths(path, {})
        assert mark.refused == ()
        mark.enter({}, {JOBS: 3}, suspect)
        mark.close()
    mark = Deaths(path, {})
    assert mark.refused == ((JOBS, 1, digest(b"deadly")),)
    assert mark.careful({JOBS: 2})
    assert not mark.careful({JOBS: 3})


@pytest.mark.parametrize("content", [b"", b"1", b"1[", b"1[1,2,3]\n", b"\x00" * 50, b"1\xd2X\x04;\xba\x15"])
def test_a_mark_that_cannot_be_read_means_that_nobody_died(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mark"
    path.write_bytes(content)
    assert Deaths(path, {}).deaths == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full to stand for a full disk")
def test_a_full_disk_takes_the_mark_and_not_the_cycle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in (Path("/dev/full"), tmp_path / "missing" / "deaths"):
        caplog.clear()
        deaths = Deaths(path, {})
        for _ in range(3):
            deaths.enter({JOBS: 0}, {JOBS: 1}, Message(JOBS, 0, b"x", 0))
            deaths.leave()
        assert deaths.deaths == 0
        assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["the mark of deaths cannot be written"]
        deaths.close()
