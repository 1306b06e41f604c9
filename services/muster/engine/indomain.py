"""Whose places a job takes that has to stay within one domain: the cheapest domain, not the cheapest attempts of the cell.

An estimate from below orders the domains: the highest rank that has to go from each at least, by the devices that its
victims have, and how many attempts. The best `EXACT_MAX` are worked out, each as if the cell had no other node; the best plan
by the order of `muster.engine.preempt` is taken, ties by the name of the domain.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from muster.cluster.jobs import Attempt, Job
from muster.cluster.nodes import Node
from muster.cluster.rules import Rules
from muster.cluster.state import State
from muster.engine.nodeindex import rows_of

if TYPE_CHECKING:
    from muster.engine.preempt import Finder

EXACT_MAX: Final = 8

On = Callable[[State, Node, Job], tuple[list[Attempt], list[Attempt]]]
"""The attempts on a node that stop anyway, and those that may be victims, in the order in which they are taken."""

Estimate = tuple[Any, int]
"""A rank, and how many attempts."""


def in_one_domain(
    state: State,
    placer: "Finder",
    job: Job,
    rules: Rules,
    on: On,
    cost: Callable[[State, Sequence[Attempt]], Any],
    search: Callable[[State, "Finder", Job], Any],
) -> Any:
    """What `search` finds in the best domain, or None."""
    estimates = []
    for values, rows in placer.bound.parts(job, rules):
        least = _estimate(state, job, rows, on)
        if least is not None:
            estimates.append((*least, values, rows))
    estimates.sort()
    best: tuple[Any, Any] | None = None
    before = placer.bound.only
    for *_, values, rows in estimates[:EXACT_MAX]:
        placer.bound.only = rows & before
        try:
            found = search(state, placer, job)
        finally:
            placer.bound.only = before
        if found is not None:
            key = (cost(state, [attempt for attempt in found[1] if attempt.phase != "stop"]), values)
            if best is None or key < best[0]:
                best = key, found
    return None if best is None else best[1]


def _estimate(state: State, job: Job, rows: int, on: On) -> Estimate | None:
    """What has to go from these rows at least, by whole devices and by tasks; None if all would not be enough."""
    gang = job.gang
    devices = sum([shape.gpus * least for shape, least in zip(gang.shapes, gang.minima, strict=True)])
    tasks = sum(gang.minima)
    attempts: dict[tuple[Any, ...], Attempt] = {}
    gives: dict[Attempt, list[int]] = {}
    for row in rows_of(rows):
        node = state.ledger.node(row)
        devices -= node.whole_free
        tasks -= max(0, node.tasks_free)
        stopping, victims = on(state, node, job)
        for attempt in (*stopping, *victims):
            here = [task for task in attempt.tasks.values() if task.holding and task.node is node]
            if attempt.phase == "stop":
                devices -= sum([len(task.devices) for task in here])
                tasks -= len(here)
            else:
                key = (attempt.instance.job.rank, int(attempt.phase == "run"), attempt.instance.place)
                attempts[key] = attempt
                given = gives.setdefault(attempt, [0, 0])
                given[0] += sum([len(task.devices) for task in here])
                given[1] += len(here)
    last: tuple[int, int] = (-(2**62), 0)
    count = 0
    for key in sorted(attempts):
        if devices <= 0 and tasks <= 0:
            break
        last = key[0], key[1]
        count += 1
        devices -= gives[attempts[key]][0]
        tasks -= gives[attempts[key]][1]
    return (last, count) if devices <= 0 and tasks <= 0 else None
