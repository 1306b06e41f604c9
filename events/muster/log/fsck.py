"""Whether a log is whole: its numbers, digests and terms, what is void and why, and where it halts.

It reads records as `admit` does and looks into no entry but refusals, which it counts: whether the decisions were right is
for audit and verify to say.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from muster.events.codec import decode_entry
from muster.events.operations import InputRefused
from muster.events.record import Envelope
from muster.log.admit import Admitted, Head, Void, admit, genesis
from muster.log.port import Record
from muster.log.reader import open_log, read_records

_REFUSED = b'["InputRefused",'


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One leadership: who, and the cycles from its start to its last."""

    term: int
    host: str
    build: str
    first: int
    last: int
    at_us: int
    """Log time of its start."""


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """Where the chain breaks, and what stands there."""

    position: int
    number: int
    """The last admitted cycle before it."""
    reason: str


class Fsck(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. The log is whole if `halt` is None; void records are no damage."""

    cell: str
    records: int
    """All, admitted or void, up to the halt."""
    bytes: int
    admitted: int
    head: Head
    terms: tuple[Term, ...]
    voids: dict[str, int]
    """How many records are void, by reason."""
    void_positions: tuple[tuple[int, str], ...]
    """Position and reason of the first hundred."""
    refused: dict[str, int] = {}
    """How many inputs were refused, by the topic that brought them."""
    halt: Break | None = None
    unread: int = 0
    """Records after the halt."""


def fsck(place: str | Path, cell: str | None = None) -> Fsck:
    """Check the log that `place` names; see `muster.log.reader.open_log`, which says what is raised too."""
    with open_log(place, cell) as log:
        name = log.cell
    return check_records(name, read_records(place, cell))


def check_records(cell: str, records: Iterable[Record]) -> Fsck:
    """Check these records of the cell, which stand in the order of the log."""
    head = genesis(cell)
    count = size = admitted = unread = 0
    terms: list[Term] = []
    voids: dict[str, int] = {}
    refused: dict[str, int] = {}
    positions: list[tuple[int, str]] = []
    halt: Break | None = None
    for record in records:
        if halt is not None:
            unread += 1
            continue
        verdict = admit(head, record.data)
        if isinstance(verdict, Admitted):
            head = verdict.head
            admitted += 1
            envelope = verdict.envelope
            _count_refused(envelope, refused)
            if envelope.started is not None:
                _close(terms, head.number - 1)
                terms.append(
                    Term(
                        term=envelope.term,
                        host=envelope.started.host,
                        build=envelope.started.build,
                        first=envelope.number,
                        last=envelope.number,
                        at_us=envelope.at_us,
                    )
                )
        elif isinstance(verdict, Void):
            voids[verdict.reason] = voids.get(verdict.reason, 0) + 1
            if len(positions) < 100:
                positions.append((record.position, verdict.reason))
        else:
            halt = Break(position=record.position, number=head.number, reason=verdict.reason)
            unread += 1
            continue
        count += 1
        size += len(record.data)
    _close(terms, head.number)
    return Fsck(
        cell=cell,
        records=count,
        bytes=size,
        admitted=admitted,
        head=head,
        terms=tuple(terms),
        voids=voids,
        void_positions=tuple(positions),
        refused=refused,
        halt=halt,
        unread=unread,
    )


def _count_refused(envelope: Envelope, refused: dict[str, int]) -> None:
    for raw in envelope.inputs:
        if bytes(raw).startswith(_REFUSED):
            event = decode_entry(raw)
            if isinstance(event, InputRefused):
                topic = event.source.partition("/")[0]
                refused[topic] = refused.get(topic, 0) + 1


def _close(terms: list[Term], last: int) -> None:
    if terms:
        terms[-1] = msgspec.structs.replace(terms[-1], last=last)
