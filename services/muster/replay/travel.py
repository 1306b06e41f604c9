"""The state as it was: the fold of the log, stopped at a cycle."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from muster.cluster.evolve import apply
from muster.cluster.state import State
from muster.events.codec import open_envelope
from muster.events.record import Envelope
from muster.log.errors import OperatingError
from muster.log.reader import read_admitted

Records = Iterable[tuple[Envelope, bytes]]
"""Admitted records in order, from the first."""


class NoSuchCycle(OperatingError):
    """The log does not reach so far."""


def states(records: Records) -> Iterator[State]:
    """The state after each cycle. It is one object that moves on: look at it before asking for the next."""
    state: State | None = None
    for envelope, _ in records:
        if state is None:
            state = State(envelope.cell)
        apply(state, open_envelope(envelope))
        yield state


def state_at(records: Records, number: int) -> State:
    """The state after cycle `number`.

    Raises:
        NoSuchCycle: the log does not have it.
    """
    last = 0
    if number > 0:
        for state in states(records):
            last = state.number
            if last == number:
                return state
    raise NoSuchCycle(
        f"there is no cycle {number}: the log has the cycles 1 to {last}" if last else f"there is no cycle {number}"
    )


def state_of(place: str | Path, number: int, cell: str | None = None) -> State:
    """The state after cycle `number` of the log at `place`.

    Raises:
        NoSuchCycle: the log does not have it.
        LogError: it cannot be read.
    """
    return state_at(read_admitted(place, cell), number)


def newest_state(place: str | Path, cell: str | None = None) -> State:
    """The state after the last cycle of the log at `place`.

    Raises:
        NoSuchCycle: the log is empty.
        LogError: it cannot be read.
    """
    newest: State | None = None
    for state in states(read_admitted(place, cell)):
        newest = state
    if newest is None:
        raise NoSuchCycle(f"the log at {place} is empty")
    return newest
