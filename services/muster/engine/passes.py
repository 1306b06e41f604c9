"""One pass over those who wait: who starts, who is nominated, who is deferred.

Order: priority (with aging); among equals first the running gangs that lost a member, then by place. A pass asks each class of
pending instances (`muster.cluster.queues`) from its first on, until one does not fit; then none of its class can.

For one instance, in this order:
  1. a place that is free, its own nomination lifted;
  2. a place that a nomination of a job it outranks keeps: that nomination ends, `taken`;
  3. places of victims (`muster.engine.preempt`): it is nominated, the victims are told to stop;
  4. none: it waits.

At the end the leading reason is recorded for each shape that waits and has none recorded.

A class that was asked in vain is not asked again until something was freed on a row that passes its filters, or until
something else may let it start (`State.wakes`). That only saves asking: asked again it would fail again.
"""

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter

from msgspec import UNSET

from muster.cluster import plans
from muster.cluster.jobs import Attempt, Instance, Job, Place
from muster.cluster.plans import promised_us
from muster.cluster.queues import PendingClass
from muster.cluster.shapes import Gang, Shape
from muster.cluster.state import Nomination, State
from muster.engine import preempt
from muster.engine.elastic import grow
from muster.engine.emit import Emitter
from muster.engine.lifecycle import next_decision
from muster.engine.members import in_whole, is_part, members, refs, shrinks
from muster.engine.overlay import Overlay
from muster.engine.place import Placer
from muster.engine.plan import Plan
from muster.engine.reclaim import Grounds
from muster.engine.spare import making_way
from muster.engine.yielding import outranked
from muster.events.decisions import (
    InstanceBound,
    InstancePreempted,
    MembersReplaced,
    Nominated,
    NominationEnded,
    Placement,
    ShapeDeferred,
)


class Asked:
    """When a class was last asked in vain."""

    __slots__ = ("away", "freed", "tags", "wakes")

    def __init__(self, state: State) -> None:
        self.freed = state.ledger.freed_upto()
        self.wakes = state.wakes
        self.tags = state.ledger.tags.version
        self.away = state.ledger.tags.away


class Pass:
    """One pass. It emits decisions, each of which is folded in at once."""

    __slots__ = ("again", "beyond", "deferrals", "emitter", "placer", "preempted", "state")

    def __init__(self, state: State, placer: Placer, emitter: Emitter) -> None:
        self.state = state
        self.placer = placer
        self.emitter = emitter
        self.again = False
        self.beyond = False
        """For the last ask somebody could be a victim who does not make way by what he is, or stops anyway."""
        self.preempted = False
        """Somebody was told to stop in this round: what of it nobody waits for may help somebody who comes later."""
        self.deferrals = state.policy.deferrals_max

    def run(self) -> None:
        """Ask everybody whom it is worth asking, until nobody is left or the cycle is full.

        Where a nomination ends and a place of it is free, the round begins anew: else somebody lower who comes next could have
        others preempted for what somebody higher, who was asked before, takes then.
        """
        while True:
            self.again = False
            if self.state.running_elastic:
                grow(self, first=True)
            self._round()
            if self.state.running_elastic and not self.again and not self.emitter.full:
                grow(self, first=False)
            if self.emitter.full:
                return
            if not self.again:
                self._record_deferrals()
                return

    def _round(self) -> None:
        state = self.state
        turns: list[tuple[int, int, plans.Where, int, PendingClass | Instance]] = []
        for job, index in state.degraded:
            instance = state.jobs[job].instances[index]
            turns.append((-instance.job.priority, 0, instance.place, len(turns), instance))
        passed: list[PendingClass] = []
        backfill = self.placer.backfill
        if backfill is not None:
            backfill.begin()
        limit = backfill.order_limit() if backfill is not None else None
        policy = state.policy
        aging, strict = policy.aging_after_us, bool(policy.strict)
        blocked: dict[str, None] = {}
        """Where the policy is strict: the queues in which somebody was asked in vain."""
        for waiting in state.pending.classes.values():
            if waiting.count:
                # Who starts before a class with rules may let it start: whether it is asked in vain is seen at its turn.
                vain = waiting.memo is not None and waiting.gang.rules is None and self._in_vain(waiting)
                if vain and backfill is None and not strict:
                    passed.append(waiting)
                    continue
                head = waiting.head()
                if head is not None:
                    standing = self._standing(waiting, head) if aging else waiting.priority
                    where = plans.where_of(policy, head)
                    if vain and limit is not None and not strict and (-standing, waiting.turn, where) > limit:
                        passed.append(waiting)
                        continue
                    turns.append((-standing, waiting.turn, where, len(turns), waiting))
        heapq.heapify(turns)
        self.preempted = False
        emitter = self.emitter
        while turns:
            if emitter.full:
                return
            _, _, _, number, who = turns[0]
            if isinstance(who, Instance):
                heapq.heappop(turns)
                self._refill(who)
                continue
            first = who.head()
            vain = first is not None and who.memo is not None and self._in_vain(who)
            if first is None or who.queue in blocked or (vain and backfill is None):
                if strict and first is not None and not who.spare:
                    blocked[who.queue] = None
                heapq.heappop(turns)
                continue
            left = not vain and self._ask(who, first)
            if self.again:
                return
            if backfill is not None and not left and not emitter.full and first.key not in state.nominations:
                left = backfill.consider(emitter, who, first)
            if strict and first.phase == "pending" and not who.spare:
                blocked[who.queue] = None
            now = turns[0]
            head = who.head() if left and who.count else None
            if head is not None:
                standing = self._standing(who, head) if aging else who.priority
                heapq.heapreplace(turns, (-standing, who.turn, plans.where_of(policy, head), number, who))
            else:
                heapq.heappop(turns)
            if passed and (self.preempted or (backfill is not None and backfill.open)):
                for number, waiting in enumerate(passed, len(state.pending.classes) + len(state.degraded)):
                    head = waiting.head()
                    order = None if head is None else plans.order_of(policy, head, state.at_us)
                    if order is not None and order > now[:3]:
                        turns.append((*order, number, waiting))
                heapq.heapify(turns)
                passed = []

    def _standing(self, waiting: PendingClass, head: Instance) -> int:
        """The priority by which the class stands: higher for as long as its first one has waited."""
        return plans.standing(self.state.policy, head.job, self.state.at_us)

    def _in_vain(self, waiting: PendingClass) -> bool:
        """Whether asking the class would surely fail as it did last time."""
        asked = waiting.memo
        if not isinstance(asked, Asked) or asked.wakes != self.state.wakes:
            return False
        ledger = self.state.ledger
        if asked.away != ledger.tags.away or (waiting.gang.rules is not None and asked.tags != ledger.tags.version):
            return False
        if asked.freed != ledger.freed_upto():
            freed = ledger.freed_since(asked.freed)
            kept = waiting.key[-1]
            nomination = self.state.nominations.get(kept) if kept is not None else None
            if nomination is not None and any(freed >> node.row & 1 for node in nomination.nodes):
                return False
            for shape in waiting.gang.shapes:
                if freed & self.placer.cache.of(shape).bits:
                    return False
            asked.freed = ledger.freed_upto()
        return True

    def _ask(self, waiting: PendingClass, instance: Instance) -> bool:
        """Whether the instance left its class: bound, or nominated."""
        state = self.state
        job = instance.job
        if self.placer.backfill is not None:
            self.placer.backfill.ask_for(instance)
        nomination = state.nominations.get(instance.key) if state.nominations else None
        if nomination is None:
            places = self.find(job)
        else:
            with Plan(state) as plan:
                plan.lift(nomination)
                places = self.find(job, lifted=True)
        if places is not None:
            return self._bind(instance, places, nomination)
        waiting.memo = None
        outranked = self._outranked(job)
        if outranked:
            with self._lifted(outranked, nomination):
                places = self.find(job, lifted=True)
                taken = self._conflicts(job, places, (), outranked) if places is not None else []
            if places is not None:
                return self._bind(instance, places, nomination, taken)
        if nomination is not None:
            return self._still_nominated(waiting, nomination)
        if self._preempt(instance, outranked):
            return True
        if not self.emitter.full:
            waiting.memo = self.asked(waiting)
        return False

    def find(self, job: Job, lifted: bool = False) -> tuple[Placement, ...] | None:
        """Places that are free for the job, or None; `lifted` where some nominations are as if they were not there."""
        return self.placer.find(job)

    def search(self, job: Job) -> preempt.Found | None:
        """Places for the job with the victims that this takes, or None. Those who make way anyway are tried alone first."""
        first = making_way(self.state, job)
        found = self.among(job, first) if first is not None else None
        return found if found is not None or not self.beyond else self.among(job)

    def among(self, job: Job, grounds: Grounds | None = None) -> preempt.Found | None:
        """The same with these victims, or with all that there may be."""
        return preempt.search(self.state, self.placer, job, grounds)

    def asked(self, waiting: PendingClass) -> Asked:
        """The note that the class was asked in vain just now."""
        return Asked(self.state)

    def may_refill(self, instance: Instance, places: tuple[Placement, ...]) -> bool:
        """Whether a running gang may have these places for members that it lost."""
        return True

    # Binding

    def _bind(
        self,
        instance: Instance,
        places: tuple[Placement, ...],
        nomination: Nomination | None,
        taken: Sequence[Nomination] = (),
    ) -> bool:
        emitter = self.emitter
        more = len(taken) if nomination is None else len(taken) + 1
        if not emitter.room_for(len(places), 1 + more + instance.job.headroom):
            return False
        job, index = instance.key
        if taken:
            self._end_taken(taken, instance.job)
        if nomination is not None:
            if nomination.placements != places:
                self.again = True
            emitter.emit(NominationEnded(job=job, instance=index, reason="bound"))
        emitter.places_left -= len(places)
        emitter.emit(InstanceBound(job=job, instance=index, attempt=instance.attempts + 1, placements=places))
        if instance.job.headroom:
            self._settle(instance)
        return True

    def _refill(self, instance: Instance) -> None:
        """Place the lost members of a running gang anew, all of them, or none yet."""
        attempt = instance.attempt
        if attempt is None or not attempt.degraded_until_us:
            return
        gang = instance.job.gang
        lost: list[list[int]] = [[] for _ in gang.counts]
        for rank, task in sorted(attempt.tasks.items()):
            if task.phase == "lost":
                lost[task.group].append(rank)
        if not any(lost):
            return
        if self.placer.backfill is not None:
            self.placer.backfill.ask_for(instance, first=True)
        places = self.placer.refill(instance, lost)
        if places is not None and self.may_refill(instance, places) and self.emitter.room_for(len(places)):
            self.emitter.placed(len(places))
            self.emitter.emit(
                MembersReplaced(job=instance.job.id, instance=instance.index, attempt=attempt.number, placements=places)
            )

    # Nominations

    def _outranked(self, job: Job) -> list[Nomination]:
        """The nominations that the job may take from, in the order of their beneficiaries."""
        if job.soft:
            return []
        found = [
            nomination
            for nomination in self.state.nominations.values()
            if nomination.instance.job.queue == job.queue and outranked(nomination.instance.job, job)
        ]
        found.sort(key=lambda nomination: (-nomination.instance.job.priority, nomination.instance.place))
        return found

    @contextmanager
    def _lifted(self, outranked: list[Nomination], own: Nomination | None) -> Iterator[Plan]:
        with Plan(self.state) as plan:
            if own is not None:
                plan.lift(own)
            for nomination in outranked:
                plan.lift(nomination)
            yield plan

    def _conflicts(
        self, job: Job, places: tuple[Placement, ...], victims: tuple[Attempt, ...], outranked: list[Nomination]
    ) -> list[Nomination]:
        """Which of the lifted nominations cannot be kept beside these places, once the victims are gone."""
        taken: dict[int, list[tuple[Shape, tuple[int, ...]]]] = {}
        """What is given on each row so far."""
        _give(taken, job.gang, places)
        given: list[tuple[Job, tuple[Placement, ...]]] = [(job, places)]
        conflicts = []
        with Plan(self.state) as plan:
            for attempt in victims:
                plan.without(attempt)
            for nomination in outranked:
                mark = plan.mark()
                for attempt in nomination.victims:
                    plan.without(attempt)
                for task in nomination.members:
                    plan.without(members(task.attempt, [task]))
                both: dict[int, list[tuple[Shape, tuple[int, ...]]]] = {}
                _give(both, nomination.instance.job.gang, nomination.placements)
                overlay = Overlay()
                for node in nomination.nodes:
                    for shape, devices in (*both[node.row], *taken.get(node.row, ())):
                        overlay.take(node, shape, devices)
                if overlay.enough(nomination.nodes) and self.placer.bound.beside(given, nomination):
                    _give(taken, nomination.instance.job.gang, nomination.placements)
                    given.append((nomination.instance.job, nomination.placements))
                else:
                    plan.undo(mark)
                    conflicts.append(nomination)
        return conflicts

    def _end_taken(self, taken: Sequence[Nomination], job: Job) -> None:
        for nomination in taken:
            key = nomination.instance.key
            self.emitter.emit(NominationEnded(job=key[0], instance=key[1], reason="taken", by=job.id))
            self.again = True

    def _still_nominated(self, waiting: PendingClass, nomination: Nomination) -> bool:
        """It waits for its victims. If they are all gone and it still does not fit, its places are of no use to it."""
        if self._kept_away(nomination):
            key = nomination.instance.key
            self.emitter.emit(NominationEnded(job=key[0], instance=key[1], reason="infeasible"))
            self.again = True
            return False
        if any(attempt.held for attempt in nomination.victims) or any(task.holding for task in nomination.members):
            waiting.memo = self.asked(waiting)
            return False
        key = nomination.instance.key
        self.emitter.emit(NominationEnded(job=key[0], instance=key[1], reason="infeasible"))
        self.again = True
        return False

    def _kept_away(self, nomination: Nomination) -> bool:
        """Whether a filter keeps the job off one of its places by now."""
        gang = nomination.instance.job.gang
        for placement in nomination.placements:
            shape = gang.shapes[gang.group_of(placement.rank)]
            if not self.placer.cache.of(shape).bits >> placement.row & 1:
                return True
        return False

    def _preempt(self, instance: Instance, outranked: list[Nomination]) -> bool:
        state = self.state
        job = instance.job
        if not self._worth_searching(job):
            return False
        with self._lifted(outranked, None):
            found = self.search(job)
            if found is not None and self._too_late(instance, found[1]):
                found = self.search(job)
                if found is not None and self._too_late(instance, found[1]):
                    found = None
            if found is None:
                return False
            places, victims = found[0], in_whole(found[1])
            taken = self._conflicts(job, places, tuple(victims), outranked)
        if not victims:
            return self._bind(instance, places, None, taken)
        told = [attempt for attempt in victims if attempt.phase != "stop" and not is_part(attempt)]
        at_once = [attempt.instance for attempt in told if attempt.instance.job.headroom]
        shrunk = shrinks(state, victims, instance.key)
        if not self.emitter.room_for(len(places), len(taken) + 1 + len(told) + len(at_once) + len(shrunk)):
            return False
        self._end_taken(taken, job)
        self.preempted = True
        self.emitter.placed(len(places))
        kills = [(attempt, state.at_us + attempt.instance.job.request.grace_us) for attempt in told]
        latest = max([state.at_us, *[attempt.kill_at_us for attempt in victims], *[kill for _, kill in kills]])
        whole, some = refs(victims)
        self.emitter.emit(
            Nominated(
                job=job.id,
                instance=instance.index,
                placements=places,
                victims=whole,
                members=some or UNSET,
                until_us=latest + state.policy.kill_margin_us + state.policy.nomination_ttl_us,
            )
        )
        for shrink in shrunk:
            self.emitter.emit(shrink)
        for attempt, kill_at_us in kills:
            victim = attempt.instance
            self.emitter.emit(
                InstancePreempted(
                    job=victim.job.id,
                    instance=victim.index,
                    attempt=attempt.number,
                    by_job=job.id,
                    by_instance=instance.index,
                    kill_at_us=kill_at_us,
                )
            )
        for each in at_once:
            self._settle(each)
            self.again = True  # its places are free now
        return True

    def _settle(self, instance: Instance) -> None:
        """Decide now what has to be decided about an instance that nobody else reports on."""
        decision = next_decision(self.state, instance)
        if decision is not None:
            self.emitter.emit(decision)

    def _too_late(self, instance: Instance, victims: Sequence[Attempt]) -> bool:
        """Whether the instance, starting once these are gone, would be gone later than was asked: plans may be in its way."""
        backfill = self.placer.backfill
        if backfill is None or not (self.state.plans.bits or self.state.reservations.by_name) or not victims:
            return False
        state = self.state
        gone_us = [
            max(promised_us(state.policy, each), state.at_us)
            if each.phase == "stop"
            else state.at_us + each.instance.job.request.grace_us + state.policy.kill_margin_us
            for each in victims
        ]
        before_us = backfill.end_us
        backfill.ask_for(instance, max(gone_us))
        return backfill.end_us > before_us

    def _worth_searching(self, job: Job) -> bool:
        """Whether anybody could be a victim, or stops anyway."""
        if job.spare:
            return False
        self.beyond = not job.headroom and self._may_preempt(job)
        return self.beyond or bool(self.state.yielding)

    def _may_preempt(self, job: Job) -> bool:
        """Whether anybody could be who does not make way by what he is, or stops anyway."""
        state = self.state
        if not state.policy.preemption:
            return False
        running = state.pending.running
        if any(key[0] == job.queue and key[1] < job.priority and each.count for key, each in running.items()):
            return True
        return bool(state.stopping)

    # Deferring

    def _record_deferrals(self) -> None:
        """Record why those wait for whom nothing is recorded, in the order in which they stand."""
        if not self.deferrals:
            return
        for waiting in self._undeferred():
            if self.emitter.full or not self.deferrals:
                return
            self.deferrals -= 1
            self.emitter.emit(ShapeDeferred(queue=waiting.queue, shape=waiting.gang.digest, code=self._code(waiting)))

    def _undeferred(self) -> Iterator[PendingClass]:
        """Of each shape of a queue of which nothing is recorded, the class that stands first; in the order of standing."""
        deferred = self.state.deferred
        first: dict[tuple[str, str], tuple[int, Place, PendingClass]] = {}
        for waiting in self.state.pending.classes.values():
            if waiting.named not in deferred and waiting.count and waiting.key[-1] is None:
                head = waiting.head()
                before = first.get(waiting.named)
                if head is not None and (before is None or (-waiting.priority, head.place) < before[:2]):
                    first[waiting.named] = -waiting.priority, head.place, waiting
        for _, _, waiting in heapq.nsmallest(self.deferrals, first.values(), key=itemgetter(0, 1)):
            yield waiting

    def _code(self, waiting: PendingClass) -> str:
        """The leading reason: the first filter that leaves no node for one of the shapes; else what is free is not enough."""
        cache = self.placer.cache
        cache.index.refresh()
        for shape in waiting.gang.shapes:
            among = registered = self.state.ledger.registered
            for each in cache.filters:
                among = each.passes(cache.index, shape, among)
                if not among:
                    return each.code if registered else "no-nodes"
            if not among:
                return "no-nodes"
        head = waiting.head() if waiting.gang.rules is not None else None
        return "resources" if head is None else self.placer.bound.code(head.job)


def _give(taken: dict[int, list[tuple[Shape, tuple[int, ...]]]], gang: Gang, places: Sequence[Placement]) -> None:
    """Note these places by row."""
    for placement in places:
        shape = gang.shapes[gang.group_of(placement.rank)]
        taken.setdefault(placement.row, []).append((shape, placement.devices))
