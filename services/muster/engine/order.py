"""One pass where queues stand in a tree: whose turn it is.

At each queue, from the root down, the turn is given to the first of those below it that have somebody to ask, in order of:

    1. who has less than it is promised, before who has not
    2. the higher tier
    3. a weight above 0
    4. where a history is kept, who used less of late for its weight (`muster.engine.fairtree`); then the smaller share of
       all there is, for its weight (`muster.engine.shares`)
    5. the name

What a queue that has others below it was asked for itself stands among these as one without a guarantee, of weight 1.
Within the queue whose turn it is: the higher priority (with aging); running gangs that lost a member; in a fair queue the
user who has less in it; the place. Whom it asks, and what comes of that, is as in `muster.engine.passes`.

Where the policy plans starts, those who do not fit are considered for a plan in the order in which their turns come; which
plans keep whom off is as in `muster.engine.backfill`, by priority and place, whatever the queues.

Nobody's key depends on who waits, only on what is charged; so whoever would be asked in vain can be left out. After a
binding only the keys on the way up from that queue are made anew; after a preemption all are.
"""

import heapq
from collections.abc import Iterable, Iterator

from muster.cluster import plans
from muster.cluster.jobs import Attempt, Instance, Job
from muster.cluster.plans import standing
from muster.cluster.queues import PendingClass, Waiting
from muster.cluster.queuetree import Charge, Queue, QueueTree
from muster.cluster.state import Nomination, State
from muster.engine import preempt, spare
from muster.engine.emit import Emitter
from muster.engine.fairtree import own_ordered_by, user_ordered_by
from muster.engine.hope import Hope, Key
from muster.engine.limits import LimitedPlacer, Limits
from muster.engine.passes import Asked, Pass
from muster.engine.place import Placer
from muster.engine.plan import Plan
from muster.engine.reclaim import Grounds, Levels, crosses, levels
from muster.engine.shares import share
from muster.engine.yielding import outranked
from muster.events.decisions import Placement

Turn = tuple[int, int, int, plans.Where, int, PendingClass | Instance]
"""Minus the standing, 0 for who runs or the turn, the share of the user, where it stands, a number."""


class AskedInQueue(Asked):
    """When a class was last asked in vain, and what its queue and the others were charged with then."""

    __slots__ = ("crossed", "drops", "widened")

    def __init__(self, state: State, freed: int, drops: tuple[int, ...], crossed: bool, widened: int) -> None:
        super().__init__(state)
        self.freed = freed
        self.drops = drops
        self.crossed = crossed
        """Somebody of another queue could have been a victim."""
        self.widened = widened


class Spot:
    """A queue in one round, or what it was asked for itself."""

    __slots__ = ("below", "key", "made", "parent", "queue", "turns", "waiting")

    def __init__(self, queue: Queue, parent: "Spot | None") -> None:
        self.queue = queue
        self.parent = parent
        self.below: list[tuple[Key, int, Spot]] = []
        self.key: Key | None = None
        """The key by which it stands in its parent's heap; None where it does not."""
        self.made = 0
        self.turns: list[Turn] | None = None
        """Who is to be asked here; None until somebody looks."""
        self.waiting: Waiting | None = None


class TreePass(Pass):
    """One pass over the queues of a tree."""

    __slots__ = (
        "_backfill",
        "_counter",
        "_degraded",
        "_limited",
        "_root",
        "_stamps",
        "_strict",
        "_within",
        "hope",
        "limits",
        "tree",
    )

    def __init__(self, state: State, tree: QueueTree, placer: Placer, emitter: Emitter) -> None:
        super().__init__(state, placer, emitter)
        if tree.stale:
            tree.settle()
        self.tree = tree
        self._backfill = placer.backfill
        """What is planned, where the policy plans. What keeps one asker off a place may not keep another off, so that a gang
        that was looked for in vain is no sign for others then."""
        self._strict = bool(state.policy.strict)
        self.limits = Limits(state, tree)
        self._limited = LimitedPlacer(placer, self.limits)
        self._root = Spot(tree.root, None)
        self._counter = 0
        self._degraded: dict[str, list[Instance]] = {}
        self.hope = Hope(state, tree, placer)
        self._stamps: dict[str, tuple[int, tuple[int, ...]]] = {}
        """By queue: how often less was charged there, as of how many drops in all."""
        self._within: Levels = ()
        """The queues within whose guarantee the last ask was, before any nomination was lifted for it."""

    # Whose turn it is

    def _round(self) -> None:
        self._begin()
        self.preempted = False
        emitter = self.emitter
        while not emitter.full:
            spot = self._pick()
            if spot is None:
                if self.state.pending.spare:
                    self._ask_spare()
                return
            turns = spot.turns
            assert turns is not None
            who = turns[0][-1]
            if isinstance(who, Instance):
                heapq.heappop(turns)
                self._refill(who)
                self._update(spot)
                continue
            first = who.head()
            vain = first is not None and self._surely_in_vain(who, spot)
            if first is None or (vain and not self._may_be_planned(who)):
                heapq.heappop(turns)
                if first is not None and self._strict:
                    turns.clear()
                else:
                    self._drop_hopeless(spot, turns)
                if not turns:
                    self._update(spot)
                continue
            turn = self._turn(who, first)
            if turn[:4] != turns[0][:4]:  # in a fair queue: its user has more by now
                heapq.heapreplace(turns, turn)
                continue
            had_nomination = who.key[-1] is not None
            left = not vain and self._ask(who, first)
            if self.again or self.preempted:
                self.again = True
                return
            if self._backfill is not None and not left and not emitter.full and first.key not in self.state.nominations:
                left = self._backfill.consider(emitter, who, first)
            if left and had_nomination:
                self.hope.count()  # what it kept may be free now
            heapq.heappop(turns)
            head = who.head() if left and who.count else None
            if self._strict and first.phase == "pending":
                turns.clear()
            elif head is not None:
                heapq.heappush(turns, self._turn(who, head))
            self._update(spot)

    def _ask_spare(self) -> None:
        """Ask those who take what nobody else wants."""
        state, tree, emitter = self.state, self.tree, self.emitter
        classes = [each for each in state.pending.spare.values() if not any(q.closed for q in tree.of(each.queue).path)]
        turns = spare.turns(state, classes)
        while turns and not emitter.full:
            *_, number, waiting, first = heapq.heappop(turns)
            vain = self._in_vain_since(waiting, tree.of(waiting.queue))
            if not vain and self._ask(waiting, first):
                head = waiting.head() if waiting.count else None
                if head is not None:
                    heapq.heappush(turns, spare.turn(state, number, waiting, head))

    def _may_be_planned(self, waiting: PendingClass) -> bool:
        """Whether to look at a class that would be asked in vain: its first has a plan, or may get one."""
        backfill = self._backfill
        return backfill is not None and (backfill.open or waiting.key[-1] in self.state.plans.by_key)

    def _begin(self) -> None:
        """Everybody who has somebody to ask stands in its place."""
        state, tree = self.state, self.tree
        if self._backfill is not None:
            self._backfill.begin()
        self._degraded = {}
        for key in state.degraded:
            instance = state.jobs[key[0]].instances[key[1]]
            self._degraded.setdefault(instance.job.queue, []).append(instance)
        self.hope.count()
        self._root = Spot(tree.root, None)
        spots: dict[str, Spot] = {}
        for name in (*state.pending.queues, *self._degraded):
            queue = tree.of(name)
            waiting = state.pending.queues.get(name)
            if waiting is not None and (self._nobody_to_ask(queue, waiting) or any(each.closed for each in queue.path)):
                waiting = None
            if waiting is None and name not in self._degraded:
                continue
            spot = self._spot(spots, queue)
            if queue.children:
                spot = Spot(queue, spot)
            spot.waiting = waiting
            while spot.parent is not None and spot.key is None:
                self._counter += 1
                spot.made = self._counter
                spot.key = self._key(spot)
                spot.parent.below.append((spot.key, spot.made, spot))
                spot = spot.parent
        heapq.heapify(self._root.below)
        for spot in spots.values():
            if len(spot.below) > 1:
                heapq.heapify(spot.below)

    def _spot(self, spots: dict[str, Spot], queue: Queue) -> Spot:
        found = spots.get(queue.name)
        if found is None:
            above = queue.parent
            parent = self._root if above is None or above is self.tree.root else self._spot(spots, above)
            found = spots[queue.name] = Spot(queue, parent)
        return found

    def _put(self, spot: Spot) -> None:
        """It stands among those below its parent, by the key that it has now."""
        parent = spot.parent
        assert parent is not None
        self._counter += 1
        spot.made = self._counter
        spot.key = self._key(spot)
        heapq.heappush(parent.below, (spot.key, spot.made, spot))

    def _key(self, spot: Spot) -> Key:
        queue = spot.queue
        if spot.parent is not None and spot.parent.queue is queue:
            return 1, 0, 0, own_ordered_by(self.tree, queue, share(_own(queue), self.tree.dimensions)), ""
        return self.hope.key(queue)

    def _pick(self) -> Spot | None:
        """Where the turn is, with somebody to ask; None if there is nobody left."""
        while True:
            spot = self._root
            while True:
                heap = spot.below
                while heap:
                    _, made, first = heap[0]
                    if made == first.made and first.key is not None:
                        if first.turns is not None or first.below or not self._hopeless(first):
                            break
                        first.key = None
                    heapq.heappop(heap)
                if not heap:
                    break
                spot = heap[0][2]
            if spot is self._root:
                return None
            if spot.turns is None:
                self._fill(spot)
            if spot.turns:
                return spot
            self._leave(spot)

    def _hopeless(self, spot: Spot) -> bool:
        """Whether nobody is to be asked in a queue at which nobody looked, told at once."""
        if self.hope.alive or self.hope.stopping or spot.queue.name in self._degraded:
            return False
        return spot.waiting is None or self._only_places_help(spot.queue, spot.waiting)

    def _leave(self, spot: Spot) -> None:
        """Nobody is to be asked here any more, nor above where nobody else is."""
        while spot.parent is not None:
            spot.key = None
            spot = spot.parent
            heap = spot.below
            while heap and (heap[0][1] != heap[0][2].made or heap[0][2].key is None):
                heapq.heappop(heap)
            if heap:
                return

    def _update(self, spot: Spot) -> None:
        """What it is charged with has changed, and so have the keys from there up; or nobody is left to ask."""
        if not spot.turns:
            self._leave(spot)
        each: Spot | None = spot
        while each is not None and each.parent is not None:
            if each.key is not None and self._key(each) != each.key:
                self._put(each)
            each = each.parent

    def _fill(self, spot: Spot) -> None:
        """Line up who is to be asked in a queue."""
        turns: list[Turn] = []
        for instance in self._degraded.get(spot.queue.name, ()):
            turns.append((-instance.job.priority, 0, 0, instance.place, len(turns), instance))
        if spot.waiting is not None and not self._nobody_to_ask(spot.queue, spot.waiting):
            quiet = not self._strict and self._only_places_help(spot.queue, spot.waiting)
            for waiting in spot.waiting.classes.values() if self._strict else self._to_ask(quiet, spot.waiting):
                if quiet or self._strict or self._backfill is not None or not self._surely_in_vain(waiting, spot):
                    head = waiting.head()
                    if head is not None:
                        turns.append(self._turn(waiting, head))
        heapq.heapify(turns)
        spot.turns = turns

    def _to_ask(self, quiet: bool, waiting: Waiting) -> Iterable[PendingClass]:
        """The classes in a queue; where it is quiet, without those that would be asked in vain as their gang has no hope."""
        if not quiet:
            return waiting.classes.values()
        return [each for gang in self.hope.of(waiting.by_gang) for each in waiting.by_gang[gang].values()]

    def _turn(self, waiting: PendingClass, head: Instance) -> Turn:
        state = self.state
        self._counter += 1
        mine = 0
        if waiting.user:
            queue = self.tree.of(waiting.queue)
            if queue.fair:
                mine = share(queue.users.get(waiting.user, {}), self.tree.dimensions)
                mine = user_ordered_by(self.tree, queue, waiting.user, mine)
        where = plans.where_of(state.policy, head)
        return -standing(state.policy, head.job, state.at_us), waiting.turn, mine, where, self._counter, waiting

    # Who need not be asked

    def _nobody_to_ask(self, queue: Queue, waiting: Waiting) -> bool:
        """Whether everybody in the queue would be asked in vain, told without looking at each."""
        return self._only_places_help(queue, waiting) and not self.hope.any_of(waiting.by_gang)

    def _only_places_help(self, queue: Queue, waiting: Waiting) -> bool:
        """Whether nobody in the queue can be helped but by a place that is left."""
        if self.tree.tiered or self.tree.subtrees or self._backfill is not None or self.state.yielding:
            return False
        if waiting.alone and self.state.nominations:
            return False
        return self.hope.quiet(queue, waiting)

    def _drop_hopeless(self, spot: Spot, turns: list[Turn]) -> None:
        """One who stood first was left out: so are those behind him who would be for the same reason."""
        waiting, hope = spot.waiting, self.hope
        if len(turns) > 4 and waiting is not None and self._only_places_help(spot.queue, waiting):
            left = [each for each in turns if isinstance(each[-1], Instance) or hope.has(each[-1].gang.key)]
            if len(left) < len(turns):
                turns[:] = left
                heapq.heapify(turns)

    def _surely_in_vain(self, waiting: PendingClass, spot: Spot) -> bool:
        """Whether asking the class would surely fail: as it did last time, or as it did for others."""
        state, queue, hope = self.state, spot.queue, self.hope
        if self._backfill is None and not state.yielding and not hope.has(waiting.gang.key) and waiting.key[-1] is None:
            if spot.waiting is not None and self._only_places_help(queue, spot.waiting):
                return True
            asks = self.limits.asks.of(waiting.gang)
            if hope.lowest_in(queue) >= waiting.priority and not crosses(state, self.tree, queue, asks):
                return True
        return self._in_vain_since(waiting, queue)

    def _in_vain_since(self, waiting: PendingClass, queue: Queue) -> bool:
        """Whether asking the class would fail as it did last time."""
        state = self.state
        asked = waiting.memo
        if not isinstance(asked, AskedInQueue):
            return False
        if asked.drops != self._drops(queue) or (asked.crossed and asked.widened != self.tree.widened):
            return False
        tags = state.ledger.tags
        if asked.away != tags.away or (waiting.gang.rules is not None and asked.tags != tags.version):
            return False
        return asked.wakes == state.wakes and self._nothing_freed(waiting, asked)

    def _nothing_freed(self, waiting: PendingClass, asked: Asked) -> bool:
        """Whether nothing that could help was freed since the class was asked."""
        upto = self._freed()
        if asked.freed != upto:
            freed = self.state.ledger.truly.since(asked.freed)
            kept = waiting.key[-1]
            nomination = self.state.nominations.get(kept) if kept is not None else None
            if nomination is not None and any(freed >> node.row & 1 for node in nomination.nodes):
                return False
            for shape in waiting.gang.shapes:
                if freed & self.placer.cache.of(shape).bits:
                    return False
            asked.freed = upto
        return True

    def _freed(self) -> int:
        ledger = self.state.ledger
        return ledger.truly.upto(len(ledger.nodes))

    def _drops(self, queue: Queue) -> tuple[int, ...]:
        """How often less was charged on the way up; of the root too where it matters what others have."""
        tree = self.tree
        found = self._stamps.get(queue.name)
        if found is None or found[0] != tree.released:
            stamp = tuple([each.drops for each in (*queue.path, tree.root if tree.lenders else queue)])
            found = self._stamps[queue.name] = tree.released, stamp
        return found[1]

    def asked(self, waiting: PendingClass) -> Asked:
        """The note that the class was asked in vain just now."""
        state, tree = self.state, self.tree
        queue = tree.of(waiting.queue)
        crossed = crosses(state, tree, queue, self.limits.asks.of(waiting.gang))
        return AskedInQueue(state, self._freed(), self._drops(queue), crossed, tree.widened)

    # What an ask comes to

    def find(self, job: Job, lifted: bool = False) -> tuple[Placement, ...] | None:
        """Places that are free for the job, within the limits of its queue, or None."""
        gang = job.gang
        if job.spare:
            return self.placer.find(job)
        if not lifted and self._backfill is None and gang.key not in self.hope.alive:
            return None
        allowed = self.limits.allowed(job)
        if allowed is None:
            return None
        places = self.placer.find(allowed)
        if places is None:
            plain = gang.rules is None and not self.placer.bound.around.crowded and not job.avoid
            if allowed is job and not lifted and plain and self._backfill is None:
                self.hope.alive.pop(gang.key, None)
                self.placer.note_vain(gang, self._freed())
                self.hope.prune()
            return None
        return places if self.limits.fits(job, places) else None

    def may_refill(self, instance: Instance, places: tuple[Placement, ...]) -> bool:
        """Whether a running gang may have these places for members that it lost."""
        return instance.job.spare or self.limits.may_refill(instance, places)

    def _outranked(self, job: Job) -> list[Nomination]:
        """The nominations that the job may take from: of its queue, or of one below a common one that says so."""
        nominations = self.state.nominations
        if not nominations or job.soft:
            return []
        found = [
            nomination
            for nomination in nominations.values()
            if outranked(nomination.instance.job, job) and self._shares_rank(nomination.instance.job, job)
        ]
        found.sort(key=lambda nomination: (-nomination.instance.job.priority, nomination.instance.place))
        return found

    def _shares_rank(self, other: Job, job: Job) -> bool:
        if other.queue == job.queue:
            return True
        if not self.tree.subtrees:
            return False
        above = dict.fromkeys(self.tree.of(job.queue).path)
        return any(
            each.spec is not None and each.spec.preemption == "subtree" and each in above
            for each in self.tree.of(other.queue).path
        )

    def _conflicts(
        self, job: Job, places: tuple[Placement, ...], victims: tuple[Attempt, ...], outranked: list[Nomination]
    ) -> list[Nomination]:
        """Beside those that have no room any more, those for which the limits leave nothing."""
        conflicts = super()._conflicts(job, places, victims, outranked)
        if len(conflicts) == len(outranked):
            return conflicts
        tree, limits = self.tree, self.limits
        charged: list[tuple[Job, Charge]] = []
        with Plan(self.state) as plan:
            for attempt in victims:
                plan.without(attempt)
            mine = limits.charge(job.gang, places)
            tree.shift(tree.of(job.queue), job.user, mine, 1)
            charged.append((job, mine))
            for nomination in outranked:
                other = nomination.instance.job
                charge = nomination.charge or {}
                if nomination in conflicts:
                    continue
                if limits.exceeded(tree.of(other.queue), other.user, charge) is not None:
                    conflicts.append(nomination)
                else:
                    tree.shift(tree.of(other.queue), other.user, charge, 1)
                    charged.append((other, charge))
            for each, charge in reversed(charged):
                tree.shift(tree.of(each.queue), each.user, charge, -1)
        return conflicts

    def _may_preempt(self, job: Job) -> bool:
        """Whether anybody could be who does not make way by what he is, or stops anyway."""
        state = self.state
        queue = self.tree.of(job.queue)
        self._within = levels(self.tree, queue, self.limits.asks.of(job.gang))
        if crosses(state, self.tree, queue, self.limits.asks.of(job.gang)):
            return True
        return state.policy.preemption and (bool(state.stopping) or self.hope.lowest_in(queue) < job.priority)

    def among(self, job: Job, grounds: Grounds | None = None) -> preempt.Found | None:
        """Places for the job with the victims that this takes, within the limits of its queue, or None."""
        state = self.state
        grounds = grounds or Grounds(state, self.tree, job, self._within)
        if not grounds.victims:
            return self._wait(job, grounds)
        allowed = self.limits.allowed(job)
        if allowed is None:
            return preempt.among_all(state, self._limited, job, grounds, anywhere=True)
        found = preempt.search(state, self._limited, allowed, grounds)
        return found if found is None or self._without(job, found) else None

    def _wait(self, job: Job, grounds: Grounds) -> preempt.Found | None:
        """Places that those who stop anyway leave free, or None."""
        state, placer = self.state, self.placer
        if not state.stopping:
            return None
        allowed = self.limits.allowed(job)
        if allowed is None:
            return None
        found = preempt.search(state, self._limited, allowed, grounds)
        if found is None and allowed is job and not job.avoid and not self._outranked(job):
            self.hope.stopping.pop(job.gang.key, None)
            placer.waited[job.gang.key] = self._freed()
            placer.gangs[job.gang.key] = job.gang
            return None
        return found if found is None or self._without(job, found) else None

    def _without(self, job: Job, found: preempt.Found) -> bool:
        """Whether the places found are within the limits once the victims are gone."""
        places, victims = found
        with Plan(self.state) as plan:
            for attempt in victims:
                plan.without(attempt)
            return self.limits.fits(job, places)

    def _undeferred(self) -> Iterator[PendingClass]:
        """Those of whom nothing is recorded, in the order in which they stand, while what came before is recorded."""
        return self.placer.unsaid.first()

    def _code(self, waiting: PendingClass) -> str:
        """The leading reason: a limit, before what the nodes lack."""
        head = waiting.head()
        if head is not None and not head.job.spare:
            found = self.limits.why(head.job)
            if found is not None:
                return found.code
        return super()._code(waiting)


def _own(queue: Queue) -> Charge:
    """What a queue is charged with for jobs that named it, and not one below it."""
    total: Charge = {}
    for attempt in queue.attempts:
        for what, amount in (attempt.charge or {}).items():
            total[what] = total.get(what, 0) + amount
    return total
