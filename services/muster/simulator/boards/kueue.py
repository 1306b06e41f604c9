"""Kueue's scheduler loads: cohorts of queues with a quota each, what it lends and borrows, and small, medium and large work.

Source: kubernetes-sigs/kueue, test/performance/scheduler/configs. A cohort is a queue with six (or a hundred) below it; each has
a quota of 20 units and borrows up to 100. A unit is a core; the nodes have as many as the quotas. In the load of topology-aware
scheduling each is a gang, of which a third each must stand in one rack, should, or stands in slices balanced over racks;
its nodes have far more than the quotas. What is published there as one stream a kind comes here as one, its forms taking turns.
"""

import time
from collections.abc import Callable, Iterator

import msgspec
from msgspec import UNSET

from muster.events.base import Event
from muster.events.jobs import Constraints, GroupRequest, JobRequest, JobSubmitted, Spread, Within
from muster.events.nodes import NodeRegistered, NodeSpec
from muster.events.operations import Policy
from muster.events.queues import Amounts, QueueSet
from muster.log.sqlite import SqliteFile
from muster.simulator.boards.play import Played, Player, Submission
from muster.simulator.openb.loader import job_id

MS_US = 1000
CORE = 1000


class Kind(msgspec.Struct, frozen=True):
    """One class of work: how many a queue gets, of how many units, for how long, how often, of which priority."""

    name: str
    count: int
    units: int
    runtime_ms: int
    every_ms: int
    priority: int
    pods: int = 1


class Load(msgspec.Struct, frozen=True):
    """A load of the published configurations."""

    cohorts: int
    queues: int
    kinds: tuple[Kind, ...]
    quota: int = 20
    borrow: int = 100
    racks: int = 0
    """Of 64 nodes with 96 cores each; 0 is one node that has just the quotas, where places do not matter."""


BASELINE = Load(
    5, 6, (Kind("large", 50, 20, 1000, 1200, 200), Kind("medium", 100, 5, 500, 500, 100), Kind("small", 350, 1, 200, 100, 50))
)
LARGE_SCALE = Load(
    10, 100, (Kind("large", 4, 20, 700, 700, 200), Kind("medium", 11, 5, 350, 300, 100), Kind("small", 35, 1, 150, 60, 50))
)
TAS = Load(
    5,
    6,
    (
        Kind("large", 50, 20, 1000, 1200, 200, pods=8),
        Kind("medium", 100, 5, 500, 500, 100, pods=4),
        Kind("small", 350, 1, 200, 100, 50, pods=2),
    ),
    racks=10,
)
FORMS = 3
"""A gang must stand in one rack, should, or half of it at most stands in one rack more than in another."""


class Outcome(msgspec.Struct, kw_only=True):
    """What came of a load: seconds from the first submission to the last end, and from submission to admission on the mean."""

    makespan_s: float
    admission_s: dict[str, float]
    real_s: float
    played: Played


def cut(load: Load, cohorts: int, part: int) -> Load:
    """The load with fewer cohorts, and one `part`-th of each kind."""
    kinds = [msgspec.structs.replace(kind, count=max(1, kind.count // part)) for kind in load.kinds]
    return msgspec.structs.replace(load, cohorts=cohorts, kinds=tuple(kinds))


def queues(load: Load) -> Iterator[Event]:
    """The cohorts, and their queues."""
    all_of = load.quota * load.queues
    for cohort in range(load.cohorts):
        whole = Amounts(cpu_milli=all_of * CORE)
        yield QueueSet(queue=f"cohort{cohort}", limit=whole, guarantee=whole)
        for queue in range(load.queues):
            most = Amounts(cpu_milli=min(all_of, load.quota + load.borrow) * CORE)
            own = Amounts(cpu_milli=load.quota * CORE)
            yield QueueSet(queue=f"c{cohort}q{queue}", parent=f"cohort{cohort}", guarantee=own, limit=most)


def submissions(load: Load) -> list[tuple[str, Submission]]:
    """What comes, with its kind, in the order of time."""
    found = []
    for cohort in range(load.cohorts):
        for queue in range(load.queues):
            for kind in load.kinds:
                found += [(turn * kind.every_ms, cohort, queue, kind, turn) for turn in range(kind.count)]
    found.sort(key=lambda each: (each[0], each[1], each[2], -each[3].priority))
    made = []
    for number, (at_ms, cohort, queue, kind, turn) in enumerate(found):
        at_us = at_ms * MS_US
        group = GroupRequest(count=kind.pods, min=kind.pods, cpu_milli=kind.units * CORE // kind.pods)
        name = job_id(at_us, number)
        request = JobRequest(
            groups=(group,),
            priority=kind.priority,
            time_limit_us=kind.runtime_ms * MS_US,
            constraints=_form(kind, turn) if load.racks else UNSET,
        )
        job = JobSubmitted(
            job=name, name=kind.name, user="kueue", queue=f"c{cohort}q{queue}", submitted_us=at_us, request=request
        )
        made.append((kind.name, Submission(at_us, job, kind.runtime_ms * MS_US)))
    return made


def play(load: Load, policy: Policy, file: SqliteFile, clock: Callable[[], float] = time.perf_counter) -> Outcome:
    """The load, once."""
    player = Player(file, policy, queues(load), _nodes(load), clock=clock)
    come = submissions(load)
    player.submit([each for _, each in come])
    played = player.run()
    waits: dict[str, list[int]] = {}
    for kind, each in come:
        waits.setdefault(kind, []).append(played.bound_us[each.job.job] - each.at_us)
    return Outcome(
        makespan_s=max(played.ended_us.values()) / 1_000_000,
        admission_s={kind: sum(each) / len(each) / 1_000_000 for kind, each in waits.items()},
        real_s=played.elapsed_s,
        played=played,
    )


def _form(kind: Kind, turn: int) -> Constraints:
    form = turn % FORMS
    if form < FORMS - 1:
        return Constraints(within=(Within(level="rack", required=form == 0),))
    return Constraints(spread=(Spread(level="rack", skew=kind.pods // 2),))


def _nodes(load: Load) -> list[NodeRegistered]:
    if not load.racks:
        cores = load.quota * load.queues * load.cohorts
        specs = [NodeSpec(cpu_milli=cores * CORE, memory_mib=2**24, tasks_max=100_000)]
    else:
        rack = [NodeSpec(cpu_milli=96 * CORE, memory_mib=2**18, block="b0", rack=f"r{row}") for row in range(load.racks)]
        specs = [each for each in rack for _ in range(64)]
    return [NodeRegistered(node=f"n{row}", uid=f"n{row}-uid", boot="boot-1", spec=each) for row, each in enumerate(specs)]
