"""The world's processes live in virtual time: they are stopped, killed at awaits, and run fast or slow."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from muster.simulator.world.network import Network, Unanswered, Weather
from muster.simulator.world.process import MILLION, Exited, HostClock, Process, Timeline


def process_of(
    timeline: Timeline, main: Callable[[Process], Coroutine[Any, Any, None]], drift_ppm: int = 0, name: str = "p1"
) -> Process:
    """A process that runs this."""
    process = Process(timeline, Random(1), Counter(), name, HostClock(timeline, drift_ppm, 5 * MILLION))
    process.main = main
    return process


async def ticking(process: Process, seen: list[int]) -> None:
    """Once a second."""
    while True:
        await process.pause(MILLION)
        await process.point("a tick")
        seen.append(process.timeline.now_us)


def test_what_is_due_at_one_instant_keeps_its_order() -> None:
    timeline, seen = Timeline(), list[str]()
    timeline.at(5, lambda: seen.append("b"))
    timeline.at(3, lambda: seen.append("a"))
    timeline.at(5, lambda: seen.append("c"))
    timeline.run(4)
    assert (seen, timeline.now_us) == (["a"], 4)
    timeline.run(9)
    assert (seen, timeline.now_us) == (["a", "b", "c"], 9)


def test_a_process_runs_when_its_timers_are_due() -> None:
    timeline, seen = Timeline(), list[int]()
    process = process_of(timeline, lambda process: ticking(process, seen))
    process.start()
    timeline.run(3 * MILLION + 1000)
    assert [at // MILLION for at in seen] == [1, 2, 3]
    process.kill()


def test_a_clock_that_runs_fast_makes_timers_come_early() -> None:
    timeline, seen = Timeline(), list[int]()
    process = process_of(timeline, lambda process: ticking(process, seen), drift_ppm=100_000)
    process.start()
    timeline.run(10 * MILLION)
    assert len(seen) == 10 or len(seen) == 11
    assert seen[0] < 920_000
    process.kill()


def test_a_stopped_process_finds_when_it_goes_on_what_has_come_due() -> None:
    timeline, seen = Timeline(), list[int]()

    async def waiting(process: Process) -> None:
        try:
            async with asyncio.timeout(2):
                await asyncio.sleep(1)
        finally:
            seen.append(timeline.now_us)

    process = process_of(timeline, waiting)
    process.start()
    timeline.run(MILLION // 2)
    process.stop()
    timeline.run(60 * MILLION)
    assert seen == []
    process.resume()
    timeline.run(61 * MILLION)
    assert [at // MILLION for at in seen] == [60]


def test_a_process_dies_at_the_await_that_is_chosen_and_its_supervisor_is_told() -> None:
    for chosen in (1, 2, 3):
        timeline, seen, ended = Timeline(), list[int](), list[str]()
        process = process_of(timeline, lambda process, seen=seen: ticking(process, seen))  # type: ignore[misc]
        process.on_end = ended.append
        process.kill_in = chosen
        process.start()
        timeline.run(9 * MILLION)
        assert len(seen) == chosen - 1
        assert ended == ["killed"]
        assert not process.alive


def test_whoever_leaves_by_itself_is_told_from_whoever_breaks() -> None:
    timeline = Timeline()

    async def leaves(process: Process) -> None:
        raise Exited(75)

    async def breaks(process: Process) -> None:
        raise ValueError("no")

    for main, how, broken in ((leaves, "left with 75", 0), (breaks, "broken", 1)):
        process = process_of(timeline, main)
        process.start()
        timeline.run(timeline.now_us + 1000)
        assert process.ended == [how]
        assert len(process.broken) == broken


class Party:
    """A party that counts what it is asked."""

    name = "counter"

    def __init__(self) -> None:
        self.asked = 0

    def handle(self, work: Callable[[], Any], reply: Callable[[Any], None]) -> None:
        self.asked += 1
        reply(work())


@pytest.mark.parametrize(
    ("weather", "asked", "answered"),
    [(Weather(), 1, True), (Weather(lost=1000), 0, False), (Weather(doubled=1000), 2, True)],
    ids=["fair", "lost", "doubled"],
)
def test_a_question_is_answered_as_the_weather_allows(weather: Weather, asked: int, answered: bool) -> None:
    timeline = Timeline()
    network = Network(timeline, Random(1), Counter())
    network.weather = weather
    party, got = Party(), list[Any]()

    async def asking(process: Process) -> None:
        try:
            got.append(await network.ask(process, party, lambda: "yes"))
        except Unanswered:
            got.append(None)

    process = process_of(timeline, asking)
    process.start()
    timeline.run(30 * MILLION)
    assert party.asked == asked
    assert got == (["yes"] if answered else [None])


def test_nothing_gets_through_a_cut_until_each_of_its_causes_is_mended() -> None:
    network = Network(Timeline(), Random(1), Counter())
    network.cut("b", "a")
    network.cut("a", "b")
    network.cut("b", "*")
    for one, other in (("a", "b"), ("b", "*")):
        network.mend(one, other)
        assert not network.up("a", "b")
    assert network.up("a", "c")
    assert network.up("b", "c")
    network.mend("a", "b")
    assert network.up("a", "b")
