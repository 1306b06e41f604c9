"""How elastic instances that run grow up to their count.

Twice in a pass. First, where queues stand in a tree, those of a queue that has less than it is promised: within that, and
with what others borrowed and can do without (parts of elastic attempts, nobody whole). At the end of a round everybody, by
priority and place, into what is idle: never into what is nominated or planned, and on no node where a task of somebody who
waits would fit. So what one gives up another takes, and nobody takes it back: it comes to rest.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.cluster.evolve_elastic import is_open, staying
from muster.cluster.jobs import Attempt, Instance
from muster.cluster.queues import PendingClass
from muster.cluster.queuetree import Charge, QueueTree, task_amounts
from muster.engine.limits import Limits
from muster.engine.members import going, is_part, shrinks, split_all
from muster.engine.nodeindex import rows_of
from muster.engine.plan import Plan
from muster.engine.preempt import order as taking_order
from muster.engine.reclaim import Grounds, levels
from muster.engine.room import fits
from muster.engine.rows import devices_for
from muster.engine.shares import amounts, below, within
from muster.events.decisions import InstanceGrown, Placement

if TYPE_CHECKING:
    from muster.engine.passes import Pass


def grow(asked: "Pass", first: bool) -> None:
    """Let those grow whose turn it is. `first`: within what their queues are promised, before anybody else is asked."""
    state = asked.state
    tree = state.tree
    if first and tree is None:
        return
    running = [state.jobs[job].instances[index] for job, index in state.running_elastic]
    running = [instance for instance in running if is_open(instance) and any(missing(instance))]
    if first and tree is not None:
        running = [instance for instance in running if below(tree.of(instance.job.queue)) and not _waits(asked, instance)]
    running.sort(key=lambda instance: (-instance.job.priority, instance.place))
    for instance in running:
        if asked.emitter.full:
            return
        _grow(asked, instance, first)
        if first and tree is not None and state.policy.reclaim:
            _reclaim(asked, tree, instance)


def missing(instance: Instance) -> list[list[int]]:
    """By group, the ranks of the members that it could have more; the lowest that are free."""
    attempt, gang = instance.attempt, instance.job.gang
    assert attempt is not None
    have = [0] * len(gang.counts)
    for task in staying(attempt):
        have[task.group] += 1
    found: list[list[int]] = []
    for count, offset, there in zip(gang.counts, gang.offsets, have, strict=True):
        free = [rank for rank in range(offset, offset + count) if rank not in attempt.tasks]
        found.append(free[: max(0, count - there)])
    return found


def _waits(asked: "Pass", instance: Instance) -> bool:
    """Whether somebody of its own queue waits, who comes before it."""
    return any(
        waiting.count and waiting.queue == instance.job.queue and waiting.head() is not None
        for waiting in asked.state.pending.classes.values()
    )


def _grow(asked: "Pass", instance: Instance, first: bool) -> None:
    placer = asked.placer
    lost = missing(instance)
    if placer.backfill is not None:
        placer.backfill.ask_for(instance)
    places = placer.refill(instance, lost, least=0, kept=_wanted(asked, instance, first))
    if places:
        places = _allowed(asked, instance, places, first)
    if places and asked.emitter.room_for(len(places)):
        attempt = instance.attempt
        assert attempt is not None
        asked.emitter.placed(len(places))
        asked.emitter.emit(InstanceGrown(job=instance.job.id, instance=instance.index, attempt=attempt.number, placements=places))


def _wanted(asked: "Pass", instance: Instance, first: bool) -> int:
    """The rows on which others come first, as bits: where a task of somebody who waits fits, and what is given up for others."""
    state = asked.state
    tree = state.tree
    bits = 0
    for waiting in state.pending.classes.values():
        head = waiting.head() if waiting.count else None
        if head is None or head.key in state.nominations or head.key in state.plans.by_key:
            continue
        if tree is not None:
            queue = tree.of(waiting.queue)
            if first and not below(queue):
                continue
            if Limits(state, tree).why(head.job) is not None:
                continue
        bits |= _room_for(asked, waiting)
    if tree is not None and not first and not below(tree.of(instance.job.queue)):
        for attempt in state.shrinking:
            for task in attempt.tasks.values():
                if task.going:
                    bits |= 1 << task.row
    return bits


def _room_for(asked: "Pass", waiting: PendingClass) -> int:
    """The rows on which one task of a class fits, as bits."""
    state = asked.state
    bits = 0
    for shape in waiting.gang.shapes:
        candidates = asked.placer.cache.of(shape).bits
        for row in rows_of(candidates & ~bits):
            node = state.ledger.node(row)
            if fits(node, shape) and devices_for(node.device_free, shape, row, state) is not None:
                bits |= 1 << row
    return bits


def _allowed(asked: "Pass", instance: Instance, places: tuple[Placement, ...], first: bool) -> tuple[Placement, ...]:
    """As many of the places as the limits allow; `first`: and as are promised."""
    tree = asked.state.tree
    if tree is None:
        return places
    queue = tree.of(instance.job.queue)
    limits = Limits(asked.state, tree)
    low, high = 0, len(places)
    while low < high:
        middle = (low + high + 1) // 2
        more = _charge(asked, instance, places[:middle])
        if limits.exceeded(queue, instance.job.user, more) is None and (not first or within(queue, more)):
            low = middle
        else:
            high = middle - 1
    return places[:low]


def _charge(asked: "Pass", instance: Instance, places: Sequence[Placement]) -> Charge:
    """What so many members more are charged with."""
    gang, more = instance.job.gang, Charge()
    for place in places:
        node = asked.state.ledger.node(place.row)
        for what, amount in task_amounts(gang.shapes[gang.group_of(place.rank)], node, place.devices).items():
            more[what] = more.get(what, 0) + amount
    return more


def _reclaim(asked: "Pass", tree: QueueTree, instance: Instance) -> None:
    """Take back, for more members within what is promised, what others borrowed: parts of elastic attempts, one by one."""
    state = asked.state
    lost = missing(instance)
    if not any(lost):
        return
    counts = [0] * len(lost)
    counts[[bool(ranks) for ranks in lost].index(True)] = 1
    one = amounts(instance.job.gang, tuple(counts), tree.largest_mib)
    found = levels(tree, tree.of(instance.job.queue), one)
    if not found:
        return
    grounds = Grounds(state, tree, instance.job, found)
    others = [attempt for attempt in grounds.victims if grounds.reclaims(attempt)]
    parts = [part for part in split_all(others, lambda task: True) if is_part(part)]
    parts = grounds.as_many(sorted(parts, key=taking_order))
    victims: list[Attempt] = []
    with Plan(state) as plan:
        for attempt in (*tree.stopping, *going(state.shrinking, lambda task: True)):
            plan.without(attempt)
        had = _places(asked, instance, lost)
        most = had
        for part in parts:
            if most == sum([len(ranks) for ranks in lost]):
                break
            plan.without(part)
            victims.append(part)
            most = _places(asked, instance, lost)
        for part in reversed(list(victims)):
            mark = plan.mark()
            plan.again(part)
            if most > had and _places(asked, instance, lost) < most:
                plan.undo(mark)
            else:
                victims.remove(part)
    told = shrinks(state, victims, instance.key)
    if told and asked.emitter.room_for(0, len(told)):
        for decision in told:
            asked.emitter.emit(decision)


def _places(asked: "Pass", instance: Instance, lost: list[list[int]]) -> int:
    """How many members more it could have within what its queue is promised, as the plan has it."""
    if asked.placer.backfill is not None:
        asked.placer.backfill.ask_for(instance)
    places = asked.placer.refill(instance, lost, least=0)
    return len(_allowed(asked, instance, places, first=True)) if places else 0
