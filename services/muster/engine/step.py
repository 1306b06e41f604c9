"""The door of the engine: inputs in, decisions out.

A cycle goes: time moves on; the inputs are folded in; then `decide`, in this order:

    1. the gate, for the jobs of this cycle                      `gate`
    2. nodes that were heard again                               `liveness`
    3. instances to which something happened, and services       `lifecycle`, `services`
    4. reservations: which devices an amount is, and who leaves  `reserved`
    5. deadlines that have come, of nodes, attempts, nominations, and of ended jobs that leave the state
    6. a pass over those who wait                                `passes`, `order` where queues stand in a tree

Each decision is folded in before the next is made. What does not fit into the cycle is decided in the next one.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from muster.cluster.check import broken, check
from muster.cluster.evolve import apply, begin_cycle, evolve_all
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.engine import lifecycle, liveness, services
from muster.engine.disruption import drain
from muster.engine.emit import Emitter
from muster.engine.gate import gate
from muster.engine.order import TreePass
from muster.engine.passes import Pass
from muster.engine.place import Placer
from muster.events.base import Event
from muster.events.decisions import JobRejected, JobsForgotten, NominationEnded, PlanDropped
from muster.events.operations import Policy
from muster.events.record import Cycle


class Engine:
    """The state of a cell and the rules that move it. Everything but the state is a cache."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._placer: Placer | None = None
        self._policy: Policy | None = None
        self._reserved = False
        """Whether anything was reserved when the placer was made."""

    def step(
        self, number: int, term: int, at_us: int, inputs: Sequence[Event], positions: Mapping[str, int] | None = None
    ) -> list[Event]:
        """One cycle: its decisions, in order. The state is then as after this cycle.

        Raises:
            BrokenInvariant: the number does not follow, time goes back, or the state is at odds with itself.
        """
        state = self.state
        begin_cycle(state, number, term, at_us, None, dict(positions or {}))
        evolve_all(state, inputs)
        return self._decide()

    def fold(self, cycle: Cycle) -> None:
        """Fold a recorded cycle in, without deciding."""
        apply(self.state, cycle)

    def drop_caches(self) -> None:
        """Forget everything that only makes a pass faster."""
        self._placer = None
        self._forget_memos()

    def _forget_memos(self) -> None:
        for waiting in self.state.pending.classes.values():
            waiting.memo = None
        for queue in self.state.tree.queues.values() if self.state.tree is not None else ():
            queue.memo = None

    def next_wake_us(self) -> int | None:
        """When it next wants a cycle although nothing comes in; at once if the last one did not hold everything."""
        if self.state.more:
            return self.state.at_us
        return self.state.timers.next_us()

    def _decide(self) -> list[Event]:
        state = self.state
        emitter = Emitter(state)
        for job in state.arrived:
            if not job.open:
                continue  # it waited for a job that was rejected just now
            reason = gate(state, job)
            if reason:
                emitter.emit(JobRejected(job=job.id, reason=reason))
        if state.back:
            self._returned(emitter)
        self._settle(emitter)
        if state.reservations.by_name:
            self._reserve(emitter)
            self._settle(emitter)  # of who runs nothing nobody reports
        while _is_due(state) and not emitter.full:  # what is decided may be due again: silent for long enough to be lost
            before = len(emitter.decisions)
            self._due(emitter)
            self._settle(emitter)
            names = [key for key, _ in state.timers.due(state.at_us)]
            check(len(emitter.decisions) > before, f"{names} is due, and there is nothing to decide")
        if state.draining and not emitter.full:
            drain(state, emitter)
            self._settle(emitter)
        if not emitter.full:
            placer = self._placer_for(state.policy)
            if state.tree is None:
                Pass(state, placer, emitter).run()
            else:
                TreePass(state, state.tree, placer, emitter).run()
        emitter.close()
        check(state.more or not (state.todo or state.hopeless), "something was to be decided, and nothing was")
        return emitter.decisions

    def _returned(self, emitter: Emitter) -> None:
        state = self.state
        for row in sorted(state.back):
            if emitter.full:
                return
            decisions = liveness.returned(state, state.ledger.node(row))
            if not emitter.room_for(0, len(decisions)):
                return
            for decision in decisions:
                emitter.emit(decision)

    def _reserve(self, emitter: Emitter) -> None:
        """Choose the devices of amounts that are reserved, and have those leave who are where a reservation begins."""
        backfill = self._placer_for(self.state.policy).backfill
        assert backfill is not None, "something is reserved"
        for decision in backfill.reserved.decisions():
            if not emitter.room_for(0):
                return
            emitter.emit(decision)

    def _due(self, emitter: Emitter) -> None:
        """Decide about every deadline that has come."""
        state = self.state
        due = state.timers.due(state.at_us)
        over = [name for (what, name, _), _ in due if what == "forget"]
        if over and not emitter.full:
            emitter.emit(JobsForgotten(jobs=tuple(over)))
        for (what, name, number), owner in due:
            if emitter.full:
                return
            decision: Event | None = None
            if what == "node":
                node: Node = owner
                decision = liveness.due(state, node) if state.ledger.nodes[number] is node else None
            elif what == "attempt":
                decision = lifecycle.overdue(state, owner)
            elif what == "dependency":
                decision = lifecycle.hopeless(state, owner)
            elif what == "evict":
                decision = lifecycle.evicted(state, owner)
            elif what == "nomination" and (name, number) in state.nominations:
                decision = NominationEnded(job=name, instance=number, reason="deadline")
            elif what == "plan" and (name, number) in state.plans.by_key:
                decision = PlanDropped(job=name, instance=number, reason="expired")
            if decision is not None:
                emitter.emit(decision)

    def _settle(self, emitter: Emitter) -> None:
        """Decide about every instance to which something happened, until nothing is left."""
        state = self.state
        next_decision = lifecycle.next_decision
        while (state.todo or state.hopeless or state.stirred) and not emitter.full:
            for job in sorted(state.hopeless, key=_place):
                if emitter.full:
                    return
                if job in state.hopeless:
                    emitter.emit(lifecycle.hopeless(state, job))
            for instance in sorted(state.todo, key=_key):
                if emitter.full:
                    return
                decision = next_decision(state, instance)
                if decision is None:
                    broken(f"{instance.key} is to be decided about, and there is nothing to decide")
                emitter.emit(decision)
            if state.stirred and not emitter.full:
                services.settle(state, emitter)

    def _placer_for(self, policy: Policy) -> Placer:
        reserved = bool(self.state.reservations.by_name)
        if self._placer is None or self._policy is not policy or self._reserved != reserved:
            self._placer = Placer(self.state)
            self._reserved = reserved
            self._policy = policy
            self._forget_memos()
        return self._placer


_key = attrgetter("key")
_place = attrgetter("place")


def _is_due(state: State) -> bool:
    soonest = state.timers.next_us()
    return soonest is not None and soonest <= state.at_us
