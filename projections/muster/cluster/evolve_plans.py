"""How plans begin and end, and what a policy that plans otherwise means for them. Each function folds one kind of entry."""

from collections.abc import Callable
from typing import Any

from muster.cluster.check import broken, check
from muster.cluster.evolve_jobs import enqueue, instance_of
from muster.cluster.plans import counts_lengths, dropped, most_plans, plan
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.decisions import PlanDropped, StartPlanned


def _start_planned(state: State, event: StartPlanned) -> None:
    instance = instance_of(state, event)
    check(
        instance.waits is not None and instance.key not in state.nominations and state.plans.on,
        f"StartPlanned {event.job}/{event.instance}: it is {instance.phase}, or nominated, or nothing is planned",
    )
    plan(state, instance, event.placements, event.start_us, event.until_us)
    state.pending.discard(instance)
    enqueue(state, instance)


def _plan_dropped(state: State, event: PlanDropped) -> None:
    instance = instance_of(state, event)
    check(instance.key in state.plans.by_key, f"PlanDropped {event.job}/{event.instance}: there is none")
    dropped(state, instance)
    if instance.waits is None:
        broken(f"PlanDropped {event.job}/{event.instance}: it does not wait")
    state.pending.discard(instance)
    enqueue(state, instance)


def policy_set(state: State) -> None:
    """Another policy: nothing is planned any more, or ends are promised for other instants."""
    plans = state.plans
    on = most_plans(state.policy) > 0
    lengths = counts_lengths(state.policy)
    if not lengths and not plans.lengths and not state.reservations.by_name:
        return
    plans.on, plans.lengths = on, lengths
    for key in list(plans.by_key) if not on else ():
        dropped(state, state.jobs[key[0]].instances[key[1]])
    plans.forget()
    waiting = [instance for job in state.jobs.values() for instance in job.instances if instance.waits is not None]
    for instance in waiting:  # how long they run is a part of their class only where it counts
        state.pending.discard(instance)
        enqueue(state, instance)


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    StartPlanned: _start_planned,
    PlanDropped: _plan_dropped,
}
