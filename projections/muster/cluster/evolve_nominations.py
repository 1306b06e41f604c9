"""How nominations begin and end, and what they keep of the nodes meanwhile. Each function folds one kind of entry."""

from collections.abc import Callable
from typing import Any

from muster.cluster.check import broken, check
from muster.cluster.evolve_jobs import enqueue, instance_of
from muster.cluster.nodes import Claim
from muster.cluster.plans import dropped
from muster.cluster.queuetree import nominated_amounts
from muster.cluster.state import Nomination, State
from muster.events.base import Event
from muster.events.decisions import Nominated, NominationEnded


def _nominated(state: State, event: Nominated) -> None:
    instance = instance_of(state, event)
    key = instance.key
    check(
        instance.phase == "pending" and key not in state.nominations,
        f"Nominated {event.job}/{event.instance}: it is {instance.phase}",
    )
    victims = []
    for ref in event.victims:
        attempt = state.attempt(ref.job, ref.instance, ref.attempt)
        if attempt is None:
            broken(f"Nominated {event.job}/{event.instance}: the victim {ref.job}/{ref.instance} is not there")
        victims.append(attempt)
    members = []
    for some in event.members or ():
        attempt = state.attempt(some.job, some.instance, some.attempt)
        if attempt is None or any(rank not in attempt.tasks for rank in some.ranks):
            broken(f"Nominated {event.job}/{event.instance}: a member of {some.job}/{some.instance} is not there")
        members += [attempt.tasks[rank] for rank in some.ranks]
    nomination = Nomination(instance, event.placements, victims, state.at_us, event.until_us, members)
    dropped(state, instance)
    claim_places(state, nomination)
    if state.tree is not None:
        charge = nomination.charge = nominated_amounts(nomination)
        state.tree.charge(state.tree.of(instance.job.queue), instance.job.user, charge)
    state.timers.nomination.set(key, event.until_us)
    state.pending.discard(instance)
    enqueue(state, instance)


def claim_places(state: State, nomination: Nomination) -> None:
    """Keep the places from now on: on each node what they need beyond what the victims there still hold."""
    instance = nomination.instance
    key = instance.key
    state.nominations[key] = nomination
    gang = instance.job.gang
    for placement in nomination.placements:
        node = state.ledger.node(placement.row)
        claim = node.claims.get(key)
        if claim is None:
            claim = node.claims[key] = Claim()
            nomination.nodes.append(node)
        claim.add(gang.shapes[gang.group_of(placement.rank)], placement.devices, node)
    for attempt in nomination.victims:
        attempt.by = (*attempt.by, key)
    for task in nomination.members:
        task.by = (*task.by, key)
    for node in nomination.nodes:
        state.ledger.recount(node)
    state.plans.move([node.row for node in nomination.nodes])


def _nomination_ended(state: State, event: NominationEnded) -> None:
    key = (event.job, event.instance)
    nomination = state.nominations.pop(key, None)
    if nomination is None:
        broken(f"NominationEnded {event.job}/{event.instance}: there is none")
    state.plans.move([node.row for node in nomination.nodes])
    for node in nomination.nodes:
        del node.claims[key]
        if node.liveness != "removed":
            state.ledger.recount(node)
    for attempt in nomination.victims:
        if key in attempt.by:
            attempt.by = tuple([other for other in attempt.by if other != key])
            for task in attempt.tasks.values():
                if task.holding:
                    state.ledger.free(task.node.row)
    for task in nomination.members:
        task.by = tuple([other for other in task.by if other != key])
        if task.holding:
            state.ledger.free(task.node.row)
    state.timers.nomination.cancel(key)
    instance = nomination.instance
    if state.tree is not None and nomination.charge is not None:
        state.tree.release(state.tree.of(instance.job.queue), instance.job.user, nomination.charge)
    if instance.job.tagged:
        state.ledger.tags.stir(instance.job)
    if instance.waits is not None:
        state.pending.discard(instance)
        enqueue(state, instance)
    if not instance.cancelling:
        state.todo.pop(instance, None)


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    Nominated: _nominated,
    NominationEnded: _nomination_ended,
}
