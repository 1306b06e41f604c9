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


def fold_to(records: Records, number: int | None = None) -> State:
    """The state after cycle `number`, or after the last.

    Raises:
        NoSuchCycle: the records do not have it.
    """
    last: State | None = None
    for state in states(records):
        if state.number == number:
            return state
        last = state
    if last is None:
        raise NoSuchCycle("the log is empty")
    if number is not None:
        raise NoSuchCycle(f"there is no cycle {number}: the log has the cycles 1 to {last.number}")
    return last


def state_at(place: str | Path, number: int | None = None, cell: str | None = None) -> State:
    """The state after cycle `number`, or after the last, of the log at `place`: its folder or its file.

    Raises:
        NoSuchCycle: the log does not have it.
        LogError: it cannot be read.
    """
    return fold_to(read_admitted(place, cell), number)
