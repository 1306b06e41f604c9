"""Budgets of disruption: of whom no more may be told to stop where that can be avoided, and who leaves a drained node when.

A victim that has started disrupts as many tasks as it holds. Plans are compared by the tasks beyond budgets first (semantics 1):
a budget is kept where others will do, whatever their rank, and where none will do it is broken as little as can be.

A drain is not for anybody, so it can wait: attempts with a budget leave a drained node one after the other, in the order of
their places, as far as the budget allows. One with fewer tasks in its budget than it has itself waits for a person.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

from muster.cluster.disruption import left, waits_to_drain
from muster.cluster.jobs import Attempt, Job
from muster.cluster.state import State
from muster.engine.emit import Emitter
from muster.engine.lifecycle import leave


def breaches(victims: Iterable[Attempt]) -> int:
    """How many tasks of these are beyond the budgets of their jobs, if all of them go."""
    going: dict[Job, int] = {}
    for attempt in victims:
        if attempt.phase == "run" and attempt.instance.job.budgeted:
            job = attempt.instance.job
            going[job] = going.get(job, 0) + attempt.held
    return sum([max(0, tasks - left(job)) for job, tasks in going.items()]) if going else 0


def budgeted(victims: Iterable[Attempt]) -> bool:
    """Whether the going of one of these may break a budget."""
    return any(attempt.phase == "run" and attempt.instance.job.budgeted for attempt in victims)


def last(ordered: Sequence[Attempt]) -> list[Attempt]:
    """The same victims, those after all others who would go beyond a budget if all before them went."""
    if not budgeted(ordered):
        return list(ordered)
    room: dict[Job, int] = {}
    within: list[Attempt] = []
    beyond: list[Attempt] = []
    for attempt in ordered:
        job = attempt.instance.job
        if attempt.phase != "run" or not job.budgeted:
            within.append(attempt)
            continue
        if job not in room:
            room[job] = left(job)
        (within if attempt.held <= room[job] else beyond).append(attempt)
        if attempt.held <= room[job]:
            room[job] -= attempt.held
    return [*within, *beyond]


def subsets(among: Sequence[Attempt]) -> Iterable[tuple[Attempt, ...]]:
    """All sets of these, the smaller ones first."""
    for size in range(1, len(among) + 1):
        yield from combinations(among, size)


def drain(state: State, emitter: Emitter) -> None:
    """Tell those to leave drained nodes whose budgets allow it now."""
    for attempt in sorted(state.draining, key=lambda attempt: attempt.instance.place):
        if emitter.full:
            return
        if waits_to_drain(attempt) and attempt.held <= left(attempt.instance.job):
            nodes = [task.node.name for _, task in sorted(attempt.tasks.items()) if task.holding and task.node.drained]
            emitter.emit(leave(state, attempt, "drained", nodes[0], 0))
