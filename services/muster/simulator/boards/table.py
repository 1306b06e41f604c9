"""All boards: how each is played, and ours beside what was published.

A figure holds where it is at least as good as its mark. Figures of time depend on the machine. All is played through
the core, with a log of each run.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Literal

import msgspec

from muster.events.operations import Policy
from muster.log.sqlite import SqliteFile
from muster.scheduler.shipped import named
from muster.simulator.boards import armada, kai, kueue, lublin, shapes
from muster.simulator.openb.loader import TraceError

Better = Literal["less", "more", "same"]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """How boards are played. `quick` plays a small cut of each; `log` opens a log by the name of its run."""

    log: Callable[[str], SqliteFile]
    data: Path | None = None
    quick: bool = False
    clock: Callable[[], float] = time.perf_counter


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a board."""

    board: str
    figure: str
    policy: str
    ours: float
    published: float
    """What was published, or the least that is possible."""
    mark: float
    """What it must reach."""
    better: Better = "less"
    holds: bool
    timed: bool = False


def figure(
    board: str,
    what: str,
    policy: Policy,
    ours: float,
    published: float,
    mark: float,
    better: Better = "less",
    timed: bool = False,
) -> Figure:
    """A figure of which less is better, or more, or that must be the same to two decimals."""
    holds = ours <= mark if better == "less" else ours >= mark if better == "more" else round(ours, 2) == mark
    return Figure(
        board=board,
        figure=what,
        policy=f"{policy.name}/{policy.version}",
        ours=round(ours, 3),
        published=published,
        mark=mark,
        better=better,
        holds=holds,
        timed=timed,
    )


def policy_of(name: str) -> Policy:
    """A shipped policy."""
    found = named(name)
    if found is None:
        raise KeyError(name)
    return found.policy


def lublin_1(run: Run) -> Iterator[Figure]:
    """The first list, with backfilling and without."""
    return _lublin(run, "lublin-1", "lublin_256.swf.gz", 7273.77, (58.64, 54.0), (254.67, 254.0))


def lublin_2(run: Run) -> Iterator[Figure]:
    """The second list."""
    return _lublin(run, "lublin-2", "lublin_256_new2.swf.gz", 7842.47, (91.99, 91.9), (698.34, 698.0))


def _lublin(
    run: Run, board: str, file: str, first_come: float, filled: tuple[float, float], plain: tuple[float, float]
) -> Iterator[Figure]:
    if run.data is None:
        raise TraceError(f"the board {board} needs the file {file}: say its folder with --data")
    inside = run.data / "batch_swf" / file
    jobs = lublin.read_swf(inside if inside.exists() else run.data / file)
    starts = lublin.STARTS[1:2] if run.quick else lublin.STARTS
    for name, what, (published, mark) in (
        ("fifo", "bounded slowdown, first come", (first_come, first_come)),
        ("default", "bounded slowdown, with backfilling", filled),
        ("smallest-first", "bounded slowdown, without", plain),
    ):
        policy = policy_of(name)
        ours = mean(lublin.play(jobs, policy, run.log, starts))
        yield figure(board, what, policy, ours, published, mark, "same" if published == mark else "less")


def kueue_baseline(run: Run) -> Iterator[Figure]:
    """Five cohorts of six queues, 15,000 workloads; quick: one cohort, an eighth of the work."""
    load = kueue.cut(kueue.BASELINE, 1, 8) if run.quick else kueue.BASELINE
    marks = {"large": (16.5, 0.25), "medium": (76.8, 11.5), "small": (215.5, 45.0)}
    return _kueue(run, "kueue-baseline", load, (351.1, 66.2), marks, 20.0)


def kueue_tas(run: Run) -> Iterator[Figure]:
    """The same as gangs on 640 nodes in 10 racks. Published are the means of those that must stand in one rack."""
    load = kueue.cut(kueue.TAS, 1, 8) if run.quick else kueue.TAS
    marks = {"large": (39.6, 0.25), "medium": (107.1, 11.5), "small": (246.8, 45.0)}
    return _kueue(run, "kueue-tas", load, (401.5, 66.2), marks, 30.0)


def kueue_large(run: Run) -> Iterator[Figure]:
    """Ten cohorts of a hundred queues, 50,000 workloads, of which 4.025 s is the least that is possible."""
    load = kueue.cut(kueue.LARGE_SCALE, 1, 5) if run.quick else kueue.LARGE_SCALE
    marks = {"large": (105.6, 0.25), "medium": (256.4, 11.5), "small": (700.4, 45.0)}
    return _kueue(run, "kueue-large-scale", load, (1179.4, 66.2), marks, 60.0)


def _kueue(
    run: Run,
    board: str,
    load: kueue.Load,
    makespan: tuple[float, float],
    admissions: dict[str, tuple[float, float]],
    decided_s: float,
) -> Iterator[Figure]:
    policy = policy_of("fifo")
    outcome = kueue.play(load, policy, run.log(board), run.clock)
    yield figure(board, "makespan, s (virtual)", policy, outcome.makespan_s, *makespan)
    for kind, (mean_s, most_s) in admissions.items():
        yield figure(board, f"mean admission of {kind}, s (virtual)", policy, outcome.admission_s[kind], mean_s, most_s)
    yield figure(board, "decided in, s", policy, outcome.real_s, makespan[0], decided_s, timed=True)


def kai_reclaim(run: Run) -> Iterator[Figure]:
    """One gang that takes back what its queue is promised. What is published is what KAI's own check allows."""
    policy = policy_of("default")
    for size in kai.SIZES[:1] if run.quick else kai.SIZES:
        outcome = kai.play(size, policy, run.log(f"kai-{size}"), run.clock)
        ratio = outcome.evicted / outcome.least if outcome.started else float("inf")
        yield figure("kai-reclaim", f"evictions / minimum, {size} nodes", policy, ratio, 5.0, 1.0)


def armada_sequences(run: Run) -> Iterator[Figure]:
    """What happens at which instant; a figure is the number of events that differ."""
    policy = policy_of("default")
    for number, sequence in enumerate(armada.SEQUENCES):
        outcome = armada.play(sequence, policy, run.log(f"sequence-{number}"))
        yield figure("armada", f"{sequence.name}: events that differ", policy, outcome.differ, 0, 0)


def scheduler_perf(run: Run) -> Iterator[Figure]:
    """Pods a second on 5,000 nodes; quick: on 100. Where its CI has no floor, the mark is 0."""
    policy = policy_of("default")
    for number, shape in enumerate(shapes.SHAPES):
        played = shapes.cut(shape, 50) if run.quick else shape
        outcome = shapes.play(played, policy, run.log(f"perf-{number}"), run.clock)
        whole = outcome.bound == played.measured and not outcome.partial
        rate = outcome.bound / outcome.real_s if whole else 0.0
        yield figure("scheduler-perf", f"{shape.name}, pods/s", policy, round(rate), shape.floor, shape.floor, "more", timed=True)


BOARDS: dict[str, Callable[[Run], Iterator[Figure]]] = {
    "lublin-1": lublin_1,
    "lublin-2": lublin_2,
    "kai-reclaim": kai_reclaim,
    "armada": armada_sequences,
    "kueue-baseline": kueue_baseline,
    "kueue-tas": kueue_tas,
    "kueue-large-scale": kueue_large,
    "scheduler-perf": scheduler_perf,
}
NEED_DATA = ("lublin-1", "lublin-2")
