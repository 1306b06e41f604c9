"""Follows a log and writes its history: records in, rows and position out. Whoever brings the records is not known here.

A writer starts where PostgreSQL says that the rows end, and nowhere else. The fold that goes on from there is the one that was
written down last (a checkpoint, in the same transaction as rows and position), led on through the log to the position without
writing anything; without one, or with one of another build, it is made from the first record. The head must come out as the
position says, or the rows are not this log's.

Every error ends the writer: what it holds may be ahead of the rows, and only another start makes them agree.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from muster.events.codec import open_envelope
from muster.events.record import Cycle
from muster.history.fold import Changes, Fold, FoldError
from muster.history.schema import HistoryError
from muster.history.sink import Position
from muster.log.admit import Admitted, Halt, Head, admit, genesis
from muster.log.errors import LogHalted
from muster.log.port import Record

ROWS_AT_ONCE: Final = 20_000
"""A transaction ends with the cycle that brings it to so many rows."""
CHECKPOINT_ENTRIES: Final = 200_000
"""After so many entries the fold is written down: this is the most that a start folds again, and seconds."""
CHECKPOINT_CYCLES: Final = 5_000
"""Or after so many cycles."""
READ_AT_ONCE: Final = 500
BEHIND_S: Final = 20.0
"""So long the log may not show yet what another worker has seen of it already."""
POLL_S: Final = 0.2

logger = logging.getLogger(__name__)


class Source(Protocol):
    """What a writer needs of a log: `muster.log.port.Log` has it, and more."""

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        """See `muster.log.port.Log.read`."""
        ...


class Destination(Protocol):
    """Where rows go: see `muster.history.sink.Sink`, which is the one."""

    async def position(self) -> Position:
        """How far the rows go."""
        ...

    async def checkpoint(self) -> bytes | None:
        """The fold that was written down last."""
        ...

    async def write(self, old: Position, new: Position, changes: Changes, checkpoint: bytes | None = None) -> None:
        """Write these rows and move the position from `old` to `new`: both or neither."""
        ...


class Wrote(msgspec.Struct, frozen=True):
    """One transaction."""

    number: int
    """The cycle up to which rows are written now."""
    at_us: int
    """Its log time."""
    entries: int
    """How many entries were folded for it."""
    rows: dict[str, int]
    """How many rows it had, by table."""
    seconds: float
    """What it took, the fold not counted."""


class _Checkpoint(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    head: Head
    position: int
    fold: bytes


class Follower:
    """Judges records and folds those that are admitted. It writes nothing."""

    def __init__(self, cell: str) -> None:
        self.fold = Fold(cell)
        self.head = genesis(cell)
        self.position = 0
        """Where the head's record stands."""
        self.seen = 0
        """Where the last record stands that was looked at, admitted or not."""
        self.void = 0
        """How many records were none."""

    def take(self, record: Record) -> tuple[Cycle, Changes] | None:
        """The cycle that this record is, and the rows that it makes; None where it is void.

        Raises:
            LogHalted: the log was cut or altered.
        """
        verdict = admit(self.head, record.data)
        self.seen = record.position
        if isinstance(verdict, Halt):
            raise LogHalted(record.position, self.head.number, verdict.reason)
        if not isinstance(verdict, Admitted):
            self.void += 1
            return None
        cycle = open_envelope(verdict.envelope)
        changes = self.fold.take(cycle, verdict.head.digest, record.position, len(record.data))
        self.head = verdict.head
        self.position = record.position
        return cycle, changes

    def checkpoint(self) -> bytes:
        """All that it takes to go on from here."""
        return msgspec.msgpack.encode(_Checkpoint(self.head, self.position, self.fold.encode()))

    @classmethod
    def restored(cls, data: bytes, cell: str) -> "Follower":
        """What was written down.

        Raises:
            FoldError: another build wrote it, it is of another cell, or these bytes are none.
        """
        try:
            written = msgspec.msgpack.decode(data, type=_Checkpoint)
        except msgspec.MsgspecError as error:
            raise FoldError(str(error)) from error
        follower = cls(cell)
        follower.fold = Fold.decode(written.fold)
        follower.head = written.head
        follower.position = follower.seen = written.position
        if follower.fold.cell != cell or follower.fold.number != written.head.number:
            raise FoldError("its fold and its head are not of one cycle")
        return follower


class Writer:
    """Writes the history of one cell into one build."""

    def __init__(self, sink: Destination, cell: str) -> None:
        self._sink = sink
        self._cell = cell
        self._follower = Follower(cell)
        self._written = Position(cell=cell)
        self._pending = Changes()
        self._entries = 0
        self._cycles = 0
        """Since the last checkpoint."""
        self.wrote: Callable[[Wrote], None] = lambda wrote: None
        """Told of each transaction."""

    @property
    def number(self) -> int:
        """The cycle up to which rows are written."""
        return self._written.number

    @property
    def at_us(self) -> int:
        """Log time of the last cycle that was folded."""
        return self._follower.fold.state.at_us

    @property
    def void(self) -> int:
        """How many records were void since the start."""
        return self._follower.void

    @property
    def seen(self) -> int:
        """The position of the last record that was looked at: what comes next stands after it."""
        return self._follower.seen

    async def start(self, source: Source) -> None:
        """Stand where the rows end.

        Raises:
            HistoryError: the rows are not of this log, or PostgreSQL does not answer.
            LogError: the log cannot be read so far.
        """
        written = await self._sink.position()
        follower = await self._restore(written)
        began = follower.head.number
        until_s = time.monotonic() + BEHIND_S
        while follower.head.number < written.number:
            records = await source.read(follower.seen, READ_AT_ONCE)
            if not records and time.monotonic() < until_s:
                await asyncio.sleep(POLL_S)
            elif not records:
                raise HistoryError(
                    f"the history of {self._cell} goes to cycle {written.number}, and the log ends after cycle "
                    f"{follower.head.number}: it is another log, or was cut"
                )
            for record in records:
                follower.take(record)
                if follower.head.number == written.number:
                    break
        if follower.head.digest != written.digest:
            raise HistoryError(
                f"the history of {self._cell} goes to cycle {written.number} with the digest {written.digest[:16]}…, and the log "
                f"has {follower.head.digest[:16]}… there: it is another log; `muster history rebuild` makes this one's history"
            )
        self._follower = follower
        self._written = written
        self._pending = Changes()
        self._cycles = written.number - began
        self._entries = 0
        logger.info("the history of %s goes to cycle %d", self._cell, written.number)

    async def take(self, records: Sequence[Record]) -> None:
        """Write what these records say, which follow those that were taken.

        Raises:
            LogHalted: the log was cut or altered.
            Outrun, Switched, HistoryError: see `Sink.write`.
        """
        follower = self._follower
        entries = 0
        for record in records:
            taken = follower.take(record)
            if taken is None:
                continue
            cycle, changes = taken
            entries += len(cycle.inputs) + len(cycle.decisions)
            self._cycles += 1
            self._pending.merge(changes)
            if len(self._pending) >= ROWS_AT_ONCE:
                await self._write(entries)
                entries = 0
        if len(self._pending):
            await self._write(entries)

    async def _write(self, entries: int) -> None:
        follower = self._follower
        self._entries += entries
        checkpoint = None
        if self._entries >= CHECKPOINT_ENTRIES or self._cycles >= CHECKPOINT_CYCLES:
            checkpoint = follower.checkpoint()
        new = Position.of(follower.head, follower.position)
        rows = {table: len(rows) for table, rows in self._pending.tables.items()}
        begun = time.monotonic()
        await self._sink.write(self._written, new, self._pending, checkpoint)
        self._written = new
        self._pending = Changes()
        if checkpoint is not None:
            self._entries = self._cycles = 0
        self.wrote(Wrote(new.number, follower.fold.state.at_us, entries, rows, time.monotonic() - begun))

    async def _restore(self, written: Position) -> Follower:
        """The newest fold that can be gone on with."""
        data = await self._sink.checkpoint() if written.number else None
        if data is not None:
            try:
                found = Follower.restored(data, self._cell)
            except FoldError as error:
                logger.warning("the checkpoint of the history cannot be used, all is folded anew: %s", error)
            else:
                if found.head.number <= written.number:
                    return found
        return Follower(self._cell)
