"""Who is heard: one pure function for every reader, on every engine of the log.

Each record carries its term, its number and the digest of the record admitted before it, so that an append is a
compare-and-set on any engine that keeps an order. `admit` compares nothing else: it neither decodes entries nor knows
what they mean, and it has no state of its own but the head that it is given.

    record                                                            verdict
    its envelope does not decode, or it names another cell            void
    starts a term above the head's: next number, head's digest        admitted
    any other that starts a term                                      void: it lost a race or came late
    a term below the head's                                           void: its writer was replaced
    the head's term, the next number, the head's digest               admitted
    the head's term, byte for byte one of the last 64 admitted        void: delivered twice
    anything else                                                     halt: the log was cut or altered
"""

import msgspec

from muster.events.codec import decode_envelope, digest
from muster.events.record import GENESIS, Envelope

RECENT = 64
"""So many admitted records a copy is known for."""

NO_RECORD = "no record"
OTHER_CELL = "another cell"
LATE_START = "a start of a term that lost a race or came late"
REPLACED = "its writer was replaced"
TWICE = "delivered twice"


class Head(msgspec.Struct, frozen=True):
    """Where the chain stands: what a reader knows after the last admitted record."""

    cell: str
    number: int = 0
    term: int = 0
    digest: str = GENESIS
    recent: tuple[str, ...] = ()
    """Digests of the last `RECENT` admitted records, oldest first."""


class Admitted(msgspec.Struct, frozen=True):
    """The record is true from here on, and `head` is the new head."""

    head: Head
    envelope: Envelope


class Void(msgspec.Struct, frozen=True):
    """The record is nothing. `reason` is one of this module's constants, so that voids can be counted by it."""

    reason: str
    detail: str = ""


class Halt(msgspec.Struct, frozen=True):
    """No history leads from the head to this record: the log was cut or altered, and nobody may go on."""

    reason: str


def genesis(cell: str) -> Head:
    """The head of an empty log."""
    return Head(cell)


def admit(head: Head, data: bytes) -> Admitted | Void | Halt:
    """Judge the record `data` that stands next in the log."""
    try:
        envelope = decode_envelope(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Void(NO_RECORD, str(error)[:1024])
    return judge(head, data, envelope, bool(envelope.inputs or envelope.decisions))


def judge(head: Head, data: bytes, envelope: Envelope, entries: bool) -> Admitted | Void | Halt:
    """The verdict on the record `data` that was decoded already; `entries`: whether it has any."""
    if envelope.cell != head.cell:
        return Void(OTHER_CELL, f"it names the cell {envelope.cell!r}, not {head.cell!r}")
    term = envelope.term
    if envelope.started is not None:
        if entries:
            return Void(NO_RECORD, "it starts a term and yet has entries")
        if term > head.term and envelope.number == head.number + 1 and envelope.previous == head.digest:
            return Admitted(_next(head, envelope, data), envelope)
        return Void(LATE_START)
    if term < head.term:
        return Void(REPLACED)
    if term == head.term:
        if envelope.number == head.number + 1 and envelope.previous == head.digest:
            return Admitted(_next(head, envelope, data), envelope)
        if digest(data) in head.recent:
            return Void(TWICE)
    return Halt(_broken(head, envelope))


def admit_own(head: Head, frame: bytes, data: bytes) -> Admitted | Void | Halt:
    """Judge `data`, a cycle's record that this process made itself: the verdict of `admit`, found sooner.

    `frame` is the record without its entries (`encode_frame`). All that `admit` compares stands in the frame; of the entries
    it wants no more than that they are JSON, which what our encoder wrote is. An admitted envelope comes without entries.
    """
    verdict = admit(head, frame)
    if isinstance(verdict, Admitted):
        return Admitted(_next(head, verdict.envelope, data), verdict.envelope)
    return admit(head, data)


def _next(head: Head, envelope: Envelope, data: bytes) -> Head:
    own = digest(data)
    return Head(head.cell, envelope.number, envelope.term, own, (*head.recent[1 - RECENT :], own))


def _broken(head: Head, envelope: Envelope) -> str:
    if envelope.term > head.term:
        return f"a cycle of term {envelope.term} stands here, whose start was never admitted; the head's term is {head.term}"
    if envelope.number != head.number + 1:
        return f"cycle {envelope.number} stands here; {head.number + 1} would be right"
    return f"cycle {envelope.number} follows a record with digest {envelope.previous[:16]}…; the head's is {head.digest[:16]}…"
