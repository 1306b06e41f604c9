"""The members of elastic attempts: who can be done without, and what such an attempt gives up by itself.

An elastic attempt falls apart into *parts*, members above the minima of their groups, one by one, and the *core*, all the
rest. A search for victims takes parts before anybody whole, whatever their ranks (issue: shrunk before anybody is evicted);
with the core the whole attempt goes. Parts and core are attempts to the search: disjoint, each with what it holds and what is
charged for it.
"""

from collections.abc import Callable, Iterable, Sequence

from muster.cluster.evolve_elastic import elastic, excess, staying, unwell
from muster.cluster.jobs import Attempt, Task
from muster.cluster.queuetree import tasks_amounts
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.decisions import AttemptRef, InstanceShrunk, MembersRef, ShrinkReason

LOSSES: tuple[ShrinkReason, ...] = (
    "device-failed",
    "node-lost",
    "node-removed",
    "node-rebooted",
    "drained",
    "taint",
    "task-missing",
)
"""What a member may be lost by without the whole having to end."""


class Members(Attempt, eq=False):
    """Some tasks of an attempt, as if they were one."""

    whole: Attempt | None = None
    core: bool = False
    """Without these the whole attempt has to go."""


def members(attempt: Attempt, tasks: Iterable[Task], core: bool = False) -> Members:
    """These tasks of the attempt. Those that are going stop, as far as anybody asks."""
    found = Members(attempt.instance, attempt.number, attempt.bound_us, attempt.bound_cycle)
    found.whole, found.core = attempt, core
    found.tasks = {task.rank: task for task in tasks}
    some = list(found.tasks.values())
    going = bool(some) and all(task.going for task in some)
    found.phase = "stop" if going or attempt.phase == "stop" else attempt.phase
    found.started_us, found.saved_us = attempt.started_us, attempt.saved_us
    found.kill_at_us = max([task.kill_at_us for task in some], default=0) if going else attempt.kill_at_us
    found.held = sum([task.holding for task in some])
    if attempt.charge is not None and not going:
        found.charge = tasks_amounts([task for task in some if task.holding])
        if not core:
            del found.charge["jobs"]
    return found


def whole_of(attempt: Attempt) -> Attempt:
    """The attempt that it is, or is a part of."""
    return attempt.whole if isinstance(attempt, Members) and attempt.whole is not None else attempt


def is_part(attempt: Attempt) -> bool:
    """Whether its attempt goes on without it."""
    return isinstance(attempt, Members) and not attempt.core


def spare(attempt: Attempt) -> list[int]:
    """By group, how many members there are above the minimum."""
    gang = attempt.instance.job.gang
    left = [-least for least in gang.minima]
    for task in attempt.tasks.values():
        left[task.group] += not task.going
    return [max(0, many) for many in left]


def split(attempt: Attempt, here: Callable[[Task], bool]) -> list[Attempt]:
    """The parts of an elastic attempt that are here, the highest ranks first, as many as can be done without; and the core."""
    if not elastic(attempt.instance.job):
        return [attempt]
    left = spare(attempt)
    parts: list[Attempt] = []
    taken: dict[int, None] = {}
    for task in reversed(staying(attempt)):
        if left[task.group] and task.holding and here(task):
            left[task.group] -= 1
            taken[task.rank] = None
            parts.append(members(attempt, [task]))
    rest = [task for task in staying(attempt) if task.rank not in taken]
    return [*parts, members(attempt, rest, core=True)]


def split_all(attempts: Iterable[Attempt], here: Callable[[Task], bool]) -> list[Attempt]:
    """All of them, the elastic ones in parts."""
    return [each for attempt in attempts for each in split(attempt, here)]


def going(attempts: Iterable[Attempt], here: Callable[[Task], bool]) -> list[Attempt]:
    """Of each of these attempts, which go on, the members here that are going."""
    found: list[Attempt] = []
    for attempt in attempts:
        some = [task for task in attempt.tasks.values() if task.going and here(task)]
        if some and attempt.phase != "stop":
            found.append(members(attempt, some))
    return found


def in_whole(victims: Sequence[Attempt]) -> list[Attempt]:
    """The same victims: where the core of one goes, all of it does."""
    whole = {whole_of(each): None for each in victims if not is_part(each)}
    return [*whole, *[each for each in victims if is_part(each) and whole_of(each) not in whole]]


def refs(victims: Sequence[Attempt]) -> tuple[tuple[AttemptRef, ...], tuple[MembersRef, ...]]:
    """The names of victims: attempts, and members of those that go on."""
    attempts = [AttemptRef(*each.instance.key, each.number) for each in victims if not is_part(each)]
    ranks: dict[tuple[str, int, int], list[int]] = {}
    for each in victims:
        if is_part(each):
            ranks.setdefault((*each.instance.key, each.number), []).extend(each.tasks)
    return tuple(attempts), tuple([MembersRef(*key, tuple(sorted(some))) for key, some in ranks.items()])


def shrinks(state: State, victims: Sequence[Attempt], by: tuple[str, int]) -> list[Event]:
    """The decisions that tell these members to go."""
    _, found = refs([each for each in victims if is_part(each) and each.phase != "stop"])
    grace = {each.instance.key: each.instance.job.request.grace_us for each in victims}
    return [
        InstanceShrunk(
            job=some.job,
            instance=some.instance,
            attempt=some.attempt,
            ranks=some.ranks,
            reason="preempted",
            kill_at_us=state.at_us + grace[some.job, some.instance],
            by_job=by[0],
            by_instance=by[1],
        )
        for some in found
    ]


# What it gives up by itself


def shrink_due(state: State, attempt: Attempt) -> Event | None:
    """The members that it has to do without now, if it can: lost ones, and those beyond the count that it was resized to."""
    fault = attempt.fault
    if fault is not None and fault.reason in LOSSES:
        reason: ShrinkReason = fault.reason
        bad = [task for task in staying(attempt) if unwell(task)]
        fine = _enough(attempt, bad)
        if bad and not fine:
            bad = _beyond_the_minimum(attempt, bad) if attempt.instance.job.request.degraded_grace_us else []
        return _shrunk(state, attempt, bad, reason) if bad else None
    many = excess(attempt)
    if many > 0 and fault is None:
        return _shrunk(state, attempt, [task for task in staying(attempt) if task.phase != "exited"][-many:], "resized")
    return None


def without_the_late(state: State, attempt: Attempt) -> Event | None:
    """Those that are not ready in time, where the others are enough to start (semantics 16)."""
    late = [task for task in staying(attempt) if task.phase == "preparing"]
    return _shrunk(state, attempt, late, "ready-timeout") if late and _enough(attempt, late) else None


def _enough(attempt: Attempt, gone: Sequence[Task]) -> bool:
    """Whether each group has its minimum without these."""
    gang = attempt.instance.job.gang
    left = [-least for least in gang.minima]
    for task in staying(attempt):
        left[task.group] += task not in gone
    return all(many >= 0 for many in left) and len(gone) < len(staying(attempt))


def _beyond_the_minimum(attempt: Attempt, bad: Sequence[Task]) -> list[Task]:
    """Of the lost members, those that need not be replaced before it is at its minimum again."""
    left = spare(attempt)
    found = []
    for task in reversed(bad):
        if left[task.group]:
            left[task.group] -= 1
            found.append(task)
    return found


def _shrunk(state: State, attempt: Attempt, tasks: Sequence[Task], reason: ShrinkReason) -> Event:
    instance = attempt.instance
    return InstanceShrunk(
        job=instance.job.id,
        instance=instance.index,
        attempt=attempt.number,
        ranks=tuple(sorted([task.rank for task in tasks])),
        reason=reason,
        kill_at_us=state.at_us + instance.job.request.grace_us,
    )
