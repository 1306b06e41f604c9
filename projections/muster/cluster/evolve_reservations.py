"""How reservations come, change, begin, end and go. Each function folds one kind of entry, or the coming of an instant.

Their beginnings and ends are no decisions: they stand in what was said, so the first cycle at or after one finds it so.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from muster.cluster.check import broken
from muster.cluster.evolve_jobs import enqueue
from muster.cluster.reservations import Reservation
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.decisions import ReservationPlaced
from muster.events.reservations import ReservationRemoved, ReservationSet


def _set(state: State, event: ReservationSet) -> None:
    reservation = Reservation(event, state.at_us)
    if not reservation.pass_over(state.at_us):
        return  # the recorder refuses it before
    state.reservations.put(reservation)
    state.timers.reservation.set(event.reservation, reservation.next_us(state.at_us))
    _changed(state, anew=True)


def _removed(state: State, event: ReservationRemoved) -> None:
    if event.reservation in state.reservations.by_name:
        _drop(state, event.reservation)


def _placed(state: State, event: ReservationPlaced) -> None:
    found = state.reservations.by_name.get(event.reservation)
    if found is None or found.spec.nodes:
        broken(f"ReservationPlaced {event.reservation}: there is none, or it names its nodes")
    found.pieces = event.pieces
    state.reservations.version += 1
    _changed(state, anew=False)


def wake(state: State) -> None:
    """A window of some begins or ends now."""
    timer = state.timers.reservation
    for _, _, name in sorted(timer.due(state.at_us), key=itemgetter(0, 1)):
        reservation = state.reservations.by_name[name]
        if not reservation.pass_over(state.at_us):
            _drop(state, name)
            continue
        timer.set(name, reservation.next_us(state.at_us))
        state.reservations.version += 1
        _changed(state, anew=False)


def _drop(state: State, name: str) -> None:
    state.reservations.drop(name)
    state.timers.reservation.cancel(name)
    _changed(state, anew=True)


def _changed(state: State, anew: bool) -> None:
    """Who waits may start now who could not before, and what is planned is looked at again."""
    state.wakes += 1
    state.plans.forget()
    if anew:
        regroup(state)


def regroup(state: State) -> None:
    """Who waits stands in other classes: who is equal for placement depends on what is reserved for whom."""
    for instance in [i for job in state.jobs.values() if job.open for i in job.instances if i.waits is not None]:
        state.pending.discard(instance)
        enqueue(state, instance)


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    ReservationSet: _set,
    ReservationRemoved: _removed,
    ReservationPlaced: _placed,
}
