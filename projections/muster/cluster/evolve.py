"""The fold: how each entry changes the state. This is the only code that changes it for good.

`begin_cycle` and then `evolve` for each entry in order; `apply` does both for a recorded cycle. An input that no longer
concerns anybody (a report of an earlier attempt, a cancellation of an ended job) changes nothing. A decision that does
not fit the state is a broken invariant: it cannot have been made here.

How jobs change stands in `evolve_jobs`, what is particular about elastic ones in `evolve_elastic`, their tasks in
`evolve_tasks`, nodes in `evolve_nodes`, what is kept for whom in `evolve_nominations`, queues in `evolve_queues`, what is
planned for whom in `evolve_plans`, what is reserved in `evolve_reservations`,
services in `evolve_services`.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from muster.cluster import (
    dependencies,
    evolve_elastic,
    evolve_jobs,
    evolve_nodes,
    evolve_nominations,
    evolve_plans,
    evolve_queues,
    evolve_reservations,
    evolve_services,
    evolve_tasks,
)
from muster.cluster.check import broken
from muster.cluster.evolve_jobs import enqueue
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.catalogue import CatalogueSet
from muster.events.operations import EntryQuarantined, InputRefused, LeaseExtended, LicencesSet, LossAccepted, PolicySet
from muster.events.record import Cycle, TermStarted


def begin_cycle(state: State, number: int, term: int, at_us: int, started: TermStarted | None, positions: dict[str, int]) -> None:
    """Time moves on to this cycle. What only waited for this instant is ready."""
    if number != state.number + 1:
        broken(f"cycle {number} does not follow cycle {state.number}")
    if at_us < state.at_us:
        broken(f"cycle {number} is at {at_us} us, before cycle {state.number} at {state.at_us} us")
    state.number = number
    state.term = term
    state.at_us = at_us
    state.index = 0
    state.more = False
    if state.arrived:
        state.arrived = []
    state.ledger.trim()
    state.plans.trim()
    if state.tree is not None and state.tree.usage is not None:
        state.tree.usage.pass_time(state.tree, at_us)
    if positions:
        state.positions.update(positions)
    if started is not None and started.gap_us:
        _shift_deadlines(state, started.gap_us)
    soonest = state.timers.next_us()
    if soonest is not None and soonest <= at_us:
        _wake(state)


def evolve(state: State, event: Event) -> None:
    """Fold one entry in.

    Raises:
        BrokenInvariant: a decision that cannot be true in this state.
    """
    HANDLERS[type(event)](state, event)
    state.index += 1


def apply(state: State, cycle: Cycle) -> None:
    """Fold a recorded cycle in."""
    begin_cycle(state, cycle.number, cycle.term, cycle.at_us, cycle.started, cycle.positions)
    evolve_all(state, cycle.inputs)
    evolve_all(state, cycle.decisions)


def evolve_all(state: State, events: Sequence[Event]) -> None:
    """Fold entries in, one after the other."""
    handlers = HANDLERS
    first = state.index
    for state.index, event in enumerate(events, first):
        handlers[type(event)](state, event)
    state.index = first + len(events)


def _wake(state: State) -> None:
    """Timers about which nothing is decided: what is reserved begins or ends, and so do a back-off and the time in which an
    attempt is no victim."""
    timers = state.timers
    evolve_reservations.wake(state)
    for _, _, instance in sorted(timers.backoff.due(state.at_us), key=itemgetter(0, 1)):
        timers.backoff.cancel(instance)
        instance.not_before_us = 0
        enqueue(state, instance)
    for _, _, instance in timers.immune.due(state.at_us):
        if instance.attempt is not None:
            evolve_tasks.set_immune(state, instance.attempt)
        else:
            timers.immune.cancel(instance)
        state.wakes += 1
    evolve_services.wake(state)


def _shift_deadlines(state: State, gap_us: int) -> None:
    """Nobody led for this long: deadlines that judge others move by it."""
    state.beat_us += gap_us
    state.plans.forget()
    for node in state.ledger.nodes:
        if node is not None:
            node.heard_us += gap_us
            evolve_nodes.set_timer(state, node)
    for job in state.jobs.values():
        if not job.open:  # the gap may be a wall clock that was set forward: repeats are still told by the job being known
            job.over_us += gap_us
            evolve_jobs.set_forget(state, job)
        elif job.held:
            dependencies.set_timer(state, job)
        for instance in job.instances:
            attempt = instance.attempt
            if attempt is not None and attempt.phase == "prepare":
                attempt.ready_until_us += gap_us
                evolve_tasks.set_timer(state, attempt)
            elif attempt is not None and attempt.degraded_until_us:
                attempt.degraded_until_us += gap_us  # nobody could have replaced what it lost
                evolve_tasks.set_timer(state, attempt)
    for key, nomination in state.nominations.items():
        nomination.until_us += gap_us
        state.timers.nomination.set(key, nomination.until_us)


def _policy_set(state: State, event: PolicySet) -> None:
    promised_us = state.policy.lease_us + state.policy.margin_us
    if state.ledger.rows and event.policy.lease_us + event.policy.margin_us < promised_us:
        # Agents keep the lease that they were given: no node is lost before the longest of these is over.
        state.lease_until_us = max(state.lease_until_us, state.at_us + promised_us)
    state.policy = event.policy
    state.wakes += 1
    evolve_plans.policy_set(state)
    evolve_queues.keep_history(state)
    for job in state.jobs.values():
        if not job.open:
            evolve_jobs.set_forget(state, job)
        elif job.held:
            dependencies.set_timer(state, job)
        for instance in job.instances:
            if instance.attempt is not None:
                evolve_tasks.set_immune(state, instance.attempt)
    for node in state.ledger.nodes:
        if node is not None:
            evolve_nodes.set_timer(state, node)


def _lease_extended(state: State, event: LeaseExtended) -> None:
    state.lease_until_us = max(state.lease_until_us, event.until_us)
    for row in state.missing:
        evolve_nodes.set_timer(state, state.ledger.node(row))


def _licences_set(state: State, event: LicencesSet) -> None:
    state.licences = dict(sorted(event.licences.items()))
    state.wakes += 1


def _catalogue_set(state: State, event: CatalogueSet) -> None:
    state.catalogue = event.models


def _nothing(state: State, event: InputRefused | EntryQuarantined | LossAccepted) -> None:
    """It is written down and changes nothing."""


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    **evolve_jobs.HANDLERS,
    **evolve_elastic.HANDLERS,
    **evolve_tasks.HANDLERS,
    **evolve_nodes.HANDLERS,
    **evolve_nominations.HANDLERS,
    **evolve_queues.HANDLERS,
    **evolve_plans.HANDLERS,
    **evolve_reservations.HANDLERS,
    **evolve_services.HANDLERS,
    PolicySet: _policy_set,
    LeaseExtended: _lease_extended,
    LicencesSet: _licences_set,
    CatalogueSet: _catalogue_set,
    InputRefused: _nothing,
    LossAccepted: _nothing,
    EntryQuarantined: _nothing,
}
