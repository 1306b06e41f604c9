"""Who may be told to stop for a job, and on what grounds, where queues stand in a tree.

    priority   those of lower priority in its own queue; in all queues below one that says so
    tier       what a sibling of a lower tier borrowed
    reclaim    what others borrowed, for an ask within the guarantee

The last two compare the queues where their paths part: `child` on the job's side, the victim's on the other. The job's ask
must be within the guarantee of every queue from its own up to `child` (for a tier, the tier of `child` is the higher one), and
every queue from the victim's own up to there must have more than it is promised: before each of the victims goes, the
last one too. So the last may take its queue below the guarantee, by a part of what that one has, and no other may.

What a queue was charged with for the victims is not charged any more once they are told to stop, so what was taken back
cannot be taken again: bound anew, it would be beyond the guarantee.
"""

from collections.abc import Iterable, Sequence

from muster.cluster.jobs import Attempt, Job
from muster.cluster.plans import standing
from muster.cluster.queuetree import Charge, Queue, QueueTree
from muster.cluster.state import State
from muster.engine.members import whole_of
from muster.engine.shares import borrowed, within
from muster.engine.yielding import those_for

Levels = tuple[Queue, ...]


def levels(tree: QueueTree, queue: Queue, asks: Charge) -> Levels:
    """The queues from the job's own up within whose guarantee the ask is, without a gap."""
    if tree.stale:
        tree.settle()
    found = []
    for each in queue.path:
        if not within(each, asks):
            break
        found.append(each)
    return tuple(found)


def crosses(state: State, tree: QueueTree, queue: Queue, asks: Charge) -> bool:
    """Whether somebody of another queue could be a victim for a job of this one that asks for so much."""
    return tree.tiered or tree.subtrees or (state.policy.reclaim and bool(queue.guarantee) and within(queue, asks))


class Grounds:
    """The victims that a job may have, one by one, and whether it may have some of them together."""

    __slots__ = ("_base", "_crossing", "_job", "_levels", "_queue", "_state", "_stopping", "_tree", "victims")

    def __init__(self, state: State, tree: QueueTree, job: Job, found: Levels) -> None:
        self._state = state
        self._tree = tree
        self._stopping: Iterable[Attempt] = tree.stopping
        self._job = job
        self._queue = tree.of(job.queue)
        self._levels = found
        self._base: dict[Queue, Charge] = {}
        """What the queues were charged with when this began."""
        self._crossing: dict[Attempt, Levels] = {}
        """For each victim that must be borrowed, the queues that must have borrowed it."""
        self.victims: dict[Attempt, None] = {}
        if state.policy.preemption:
            self._add_lower(self._queue)
        self._add_others()
        self.victims.update(those_for(state, job))

    def _add_lower(self, queue: Queue) -> None:
        """Those of lower priority in a queue."""
        state, job = self._state, self._job
        if any(each.spared for each in queue.path):
            return
        least_us = state.policy.min_runtime_us
        for attempt in queue.attempts:
            other = attempt.instance.job
            if (
                other.priority < job.priority
                and standing(state.policy, other, attempt.bound_us) < job.priority
                and _may_go(state, queue, attempt, least_us)
            ):
                self.victims[attempt] = None

    def _add_others(self) -> None:
        """Those of other queues."""
        state, tree = self._state, self._tree
        policy = state.policy
        reclaims = bool(self._levels) and policy.reclaim
        tiers = tree.tiered and policy.preemption
        subtrees = tree.subtrees and policy.preemption
        if not (reclaims or tiers or subtrees):
            return
        mine = {each: number for number, each in enumerate(self._queue.path)}
        for name in sorted(tree.queues):
            queue = tree.queues[name]
            if queue is self._queue or not queue.attempts or any(each.spared for each in queue.path):
                continue
            common = next((each for each in queue.path if each in mine), None)
            theirs = queue.path[: queue.path.index(common)] if common is not None else queue.path
            ours = self._queue.path[: mine[common]] if common is not None else self._queue.path
            if subtrees and common is not None and any(_subtree(each) for each in common.path):
                self._add_lower(queue)
            by_guarantee = reclaims and bool(ours) and len(self._levels) >= len(ours)
            by_tier = tiers and bool(ours) and bool(theirs) and ours[-1].tier > theirs[-1].tier
            if by_guarantee or by_tier:
                self._add_borrowed(queue, theirs, by_guarantee, by_tier)

    def _add_borrowed(self, queue: Queue, theirs: Levels, by_guarantee: bool, by_tier: bool) -> None:
        state = self._state
        policy = state.policy
        spans = [policy.reclaim_min_runtime_us] if by_guarantee else []
        least_us = min([*spans, policy.min_runtime_us] if by_tier else spans)
        if not all(_beyond(each) for each in theirs):
            return
        for each in theirs:
            if each not in self._base:
                self._base[each] = dict(each.charged)
        gpus = all(each.charged.get("gpus", 0) > each.guarantee.get("gpus", 0) for each in theirs)
        for attempt in queue.attempts:
            charge = attempt.charge
            if charge is None or attempt in self.victims or not _may_go(state, queue, attempt, least_us):
                continue
            if (gpus and charge.get("gpus")) or all(borrowed(each.charged, each.guarantee, charge) for each in theirs):
                self.victims[attempt] = None
                self._crossing[attempt] = theirs

    def together(self, some: Iterable[Attempt]) -> bool:
        """Whether all these may go: of each queue, the last one too takes what is borrowed."""
        if not self._crossing:
            return True
        gone: dict[Queue, list[Charge]] = {}
        for attempt in some:
            for queue in self._crossing.get(whole_of(attempt), ()):
                charge = attempt.charge
                assert charge is not None
                gone.setdefault(queue, []).append(charge)
        return all(_in_some_order(self._base[queue], queue.guarantee, charges) for queue, charges in gone.items())

    def as_many(self, ordered: Sequence[Attempt]) -> list[Attempt]:
        """Of these, in their order, all that may go after those before them."""
        if not self._crossing:
            return list(ordered)
        left = {queue: dict(charge) for queue, charge in self._base.items()}
        taken = []
        for attempt in ordered:
            charge = attempt.charge
            queues = self._crossing.get(whole_of(attempt), ())
            if charge is None or all(borrowed(left[queue], queue.guarantee, charge) for queue in queues):
                taken.append(attempt)
                for queue in queues:
                    for what, amount in (charge or {}).items():
                        left[queue][what] = left[queue].get(what, 0) - amount
        return taken

    def reclaims(self, attempt: Attempt) -> bool:
        """Whether it may go because it was borrowed."""
        return attempt in self._crossing

    def on(self, bits: int) -> tuple[list[Attempt], list[Attempt]]:
        """What stops anyway, and the victims, that hold something on these rows."""
        rows = bits.to_bytes(len(self._state.ledger.nodes) // 8 + 1, "little")

        def there(attempt: Attempt) -> bool:
            for task in attempt.tasks.values():
                row = task.node.row
                if task.holding and rows[row >> 3] >> (row & 7) & 1:
                    return True
            return False

        return [each for each in self._stopping if there(each)], [each for each in self.victims if there(each)]

    def rows(self) -> int:
        """The rows on which a victim holds something, or what stops anyway, as bits."""
        places = bytearray(len(self._state.ledger.nodes) // 8 + 1)
        for attempt in (*self.victims, *self._stopping, *self._state.shrinking):
            for task in attempt.tasks.values():
                if task.holding:
                    row = task.node.row
                    places[row >> 3] |= 1 << (row & 7)
        return int.from_bytes(places, "little")


def _in_some_order(charged: Charge, guarantee: Charge, charges: Sequence[Charge]) -> bool:
    """Whether these can go one after the other so that each takes something that is borrowed.

    Those with GPUs are told by these, the others by CPU and memory: so the two do not hinder each other.
    """
    for gpus in (True, False):
        some = [charge for charge in charges if bool(charge.get("gpus")) is gpus]
        total: Charge = {}
        for charge in some:
            for what, amount in charge.items():
                total[what] = total.get(what, 0) + amount
        if len(some) > 1 and not any(borrowed(_before(charged, total, last), guarantee, last) for last in some):
            return False
    return True


def _before(charged: Charge, total: Charge, last: Charge) -> Charge:
    """What is left to be charged with when all but the last are gone."""
    return {what: amount - total.get(what, 0) + last.get(what, 0) for what, amount in charged.items()}


def _beyond(queue: Queue) -> bool:
    """Whether the queue has more of anything than it is promised."""
    guarantee = queue.guarantee
    return any(amount > guarantee.get(what, 0) for what, amount in queue.charged.items() if what != "jobs")


def _subtree(queue: Queue) -> bool:
    return queue.spec is not None and queue.spec.preemption == "subtree"


def _may_go(state: State, queue: Queue, attempt: Attempt, least_us: int) -> bool:
    """Whether the attempt may be told to stop for anybody."""
    job = attempt.instance.job
    spec = queue.spec
    if job.headroom:
        return attempt.phase != "stop"
    return (
        attempt.phase != "stop"
        and job.request.preemptible
        and not (spec is not None and spec.protected_from is not None and job.priority >= spec.protected_from)
        and not (attempt.phase == "run" and state.at_us < attempt.started_us + least_us)
    )
