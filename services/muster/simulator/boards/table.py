"""All boards: how each is played, and ours beside what was published.

A figure holds where it is at least as good as its mark. Figures of real time have a mark too, but depend on the machine. Whatever
comes out is played through the core with its log kept, in a folder of its own for each run.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

import msgspec

from muster.events.operations import Policy, Weight
from muster.log.sqlite import SqliteFile
from muster.scheduler.shipped import named
from muster.simulator.boards import kai, kueue, lublin, shapes
from muster.simulator.openb.loader import TraceError

Log = Callable[[str], SqliteFile]


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
    better: str = "less"
    holds: bool
    timed: bool = False


def figure(board: str, what: str, policy: Policy, ours: float, published: float, mark: float, **more: bool) -> Figure:
    """A figure of which less is better, or, with `larger`, more."""
    larger = more.pop("larger", False)
    holds = ours >= mark if larger else ours <= mark
    return Figure(
        board=board,
        figure=what,
        policy=f"{policy.name}/{policy.version}",
        ours=round(ours, 3),
        published=published,
        mark=mark,
        better="more" if larger else "less",
        holds=holds,
        timed=more.pop("timed", False),
    )


def policy_of(name: str) -> Policy:
    """A shipped policy."""
    found = named(name)
    if found is None:
        raise KeyError(name)
    return found.policy


def lublin_1(data: Path | None, quick: bool, log: Log) -> Iterator[Figure]:
    """The first list, with backfilling and without."""
    return _lublin("lublin-1", "lublin_256.swf.gz", (58.64, 54.0), (254.67, 254.0), data, quick, log)


def lublin_2(data: Path | None, quick: bool, log: Log) -> Iterator[Figure]:
    """The second list."""
    return _lublin("lublin-2", "lublin_256_new2.swf.gz", (91.99, 91.9), (698.34, 698.0), data, quick, log)


def _lublin(
    board: str,
    file: str,
    filled: tuple[float, float],
    plain: tuple[float, float],
    data: Path | None,
    quick: bool,
    log: Log,
) -> Iterator[Figure]:
    if data is None:
        raise TraceError(f"the board {board} needs the file {file}: say its folder with --data")
    inside = data / "batch_swf" / file
    jobs = lublin.read_swf(inside if inside.exists() else data / file)
    starts = lublin.STARTS[1:2] if quick else lublin.STARTS
    for name, what, (published, mark) in (
        ("default", "bounded slowdown, with backfilling", filled),
        ("smallest-first", "bounded slowdown, without", plain),
    ):
        policy = policy_of(name)
        yield figure(board, what, policy, mean(lublin.play(jobs, policy, log, starts)), published, mark)


def kueue_baseline(data: Path | None, quick: bool, log: Log) -> Iterator[Figure]:
    """Five cohorts of six queues, 15,000 workloads; quick: one cohort, an eighth of the work."""
    load = kueue.cut(kueue.BASELINE, 1, 8) if quick else kueue.BASELINE
    marks = (351.1, 66.2, {"large": (16.5, 0.25), "medium": (76.8, 11.5), "small": (215.5, 45.0)}, 20.0)
    return _kueue("kueue-baseline", load, marks, log)


def kueue_large(data: Path | None, quick: bool, log: Log) -> Iterator[Figure]:
    """Ten cohorts of a hundred queues, 50,000 workloads."""
    load = kueue.cut(kueue.LARGE_SCALE, 1, 5) if quick else kueue.LARGE_SCALE
    marks = (1179.4, 1179.4, {"large": (105.6, 105.6), "medium": (256.4, 256.4), "small": (700.4, 700.4)}, 60.0)
    return _kueue("kueue-large-scale", load, marks, log)


def _kueue(
    board: str, load: kueue.Load, marks: tuple[float, float, dict[str, tuple[float, float]], float], log: Log
) -> Iterator[Figure]:
    policy = policy_of("fifo")
    outcome = kueue.play(load, policy, log(board))
    published, mark, admissions, real_s = marks
    yield figure(board, "makespan, s (virtual)", policy, outcome.makespan_s, published, mark)
    for kind, (mean_s, most_s) in admissions.items():
        yield figure(board, f"mean admission of {kind}, s (virtual)", policy, outcome.admission_s[kind], mean_s, most_s)
    yield figure(board, "decided in, s (real)", policy, outcome.real_s, published, real_s, timed=True)


def kai_reclaim(data: Path | None, quick: bool, log: Log) -> Iterator[Figure]:
    """One gang that takes back what its queue is promised."""
    policy = policy_of("default")
    for size in kai.SIZES[:1] if quick else kai.SIZES:
        outcome = kai.play(size, policy, log(f"kai-{size}"))
        ratio = outcome.evicted / outcome.least if outcome.started else float("inf")
        yield figure("kai-reclaim", f"evictions / minimum, {size} nodes", policy, ratio, 5.0, 1.0)


def scheduler_perf(data: Path | None, quick: bool, log: Log) -> Iterator[Figure]:
    """Pods a second on 5,000 nodes; quick: on 100."""
    policy = msgspec.structs.replace(policy_of("default"), scores=(Weight(name="best-fit"),))
    for name, shape in (("SchedulingBasic", shapes.BASIC), ("GangScheduling 3 x 3000", shapes.GANGS)):
        played = msgspec.structs.replace(shape, nodes=100, before=10, measured=300) if quick else shape
        outcome = shapes.play(played, policy, log(f"perf-{shape.gang}"))
        whole = outcome.bound == played.measured and not outcome.partial
        rate = outcome.bound / outcome.real_s if whole else 0.0
        yield figure("scheduler-perf", f"{name}, pods/s", policy, rate, 680.0, 680.0, larger=True, timed=True)


BOARDS: dict[str, Callable[[Path | None, bool, Log], Iterator[Figure]]] = {
    "lublin-1": lublin_1,
    "lublin-2": lublin_2,
    "kueue-baseline": kueue_baseline,
    "kueue-large-scale": kueue_large,
    "kai-reclaim": kai_reclaim,
    "scheduler-perf": scheduler_perf,
}
NEED_DATA = ("lublin-1", "lublin-2")
