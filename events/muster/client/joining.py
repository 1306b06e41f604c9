"""Reading a log from its middle: which record is the first that surely is admitted.

`admit` needs the head before a record, which nobody knows who did not read from the beginning. But a writer appends only
behind a record that it has read back, admitted. So whatever record a later one names as its previous was admitted, though
the later one itself may be void; and from there on `admit` judges. Records before it are passed over.

A record may stand twice, its copy within the 64 records after it. A copy of what was admitted long ago is no place to begin,
so the first 64 records that are read tell no more than which of the others are copies.
"""

from typing import Final

from muster.events.codec import decode_envelope, digest
from muster.events.entries import BAD_BYTES
from muster.events.record import Envelope
from muster.log.admit import RECENT, Admitted, Halt, Head, admit, genesis
from muster.log.errors import LogHalted

WAITING_MAX: Final = 4 * RECENT
"""So many records at most are kept until one of them is named."""


class Joining:
    """Judges the records of one cell, given in order from anywhere in its log."""

    def __init__(self, cell: str, *, from_beginning: bool) -> None:
        self._cell = cell
        self._head: Head | None = genesis(cell) if from_beginning else None
        self._waiting: list[tuple[int, bytes, Envelope, str]] = []
        """Position, bytes, envelope and digest of what was read before the head was known."""
        self._read = 0
        self._copied: dict[str, None] = {}
        """Digests of the first records."""
        self._copies = 0
        """So many of the next records may be copies of what stands before the place where this reader joined."""

    def take(self, position: int, data: bytes) -> list[Envelope]:
        """The next record. Returns those that are admitted and were not returned before, in order.

        Raises:
            LogHalted: the chain is broken.
        """
        if self._head is not None:
            return self._judge(self._head, position, data)
        self._read += 1
        own = digest(data)
        if self._read <= RECENT:
            self._copied[own] = None
            return []
        if own in self._copied:
            return []
        try:
            envelope = decode_envelope(data)
        except BAD_BYTES:
            return []
        if envelope.cell != self._cell:
            return []
        for at, (_, _, earlier, named) in enumerate(self._waiting):
            if named == envelope.previous:
                self._head = Head(self._cell, earlier.number, earlier.term, named, (named,))
                self._copies = RECENT
                found = [earlier]
                for place, older, _, _ in [*self._waiting[at + 1 :], (position, data, envelope, own)]:
                    found += self._judge(self._head, place, older)
                self._waiting = []
                return found
        self._waiting.append((position, data, envelope, own))
        del self._waiting[:-WAITING_MAX]
        return []

    def _judge(self, head: Head, position: int, data: bytes) -> list[Envelope]:
        copies = self._copies
        self._copies = max(0, copies - 1)
        verdict = admit(head, data)
        if isinstance(verdict, Admitted):
            self._head = verdict.head
            return [verdict.envelope]
        if isinstance(verdict, Halt):
            envelope = decode_envelope(data)
            if not (copies and envelope.term <= head.term and envelope.number <= head.number):
                raise LogHalted(position, head.number, verdict.reason)
        return []
