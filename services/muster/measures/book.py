"""The counts of a cell through starts and ends: each snapshot has them beside it, so a start goes on counting where it was.

A snapshot without them (of an older build, or whose file is torn) begins anew at its cycle, as
`muster_measured_from_cycle` says.
"""

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from muster.events.codec import decode_cycle, digest
from muster.log.port import Record
from muster.measures.counts import Counts
from muster.scheduler.core import Core
from muster.scheduler.snapshots import SUFFIX

COUNTS: Final = ".counts"

logger = logging.getLogger(__name__)


class Book:
    """The counts of one cell, and the folder of its snapshots."""

    def __init__(self, folder: Path, cell: str) -> None:
        self.counts = Counts(cell)
        self._folder = folder
        self._cell = cell

    def follow(self, core: Core, record: Record) -> None:
        """A record was admitted and folded: the next, or the first after a snapshot was read."""
        cycle = core.made
        if cycle is None or cycle.number != core.state.number:
            cycle = decode_cycle(record.data)
        if self.counts.number != cycle.number - 1:
            self._begin(cycle.number - 1)
        self.counts.fold(core.state, cycle, len(record.data))

    def settle(self, core: Core) -> None:
        """All was read that there is: where nothing came after the snapshot, its counts are those of now."""
        if self.counts.number != core.head.number:
            self._begin(core.head.number)

    def written(self, snapshot: Path) -> None:
        """A snapshot of the cycle that was counted last was written there: write the counts beside it, and drop older ones."""
        if self.counts.number != int(snapshot.name.removeprefix(f"{self._cell}-")[:16]):
            return  # nothing was counted since it was read
        content = self.counts.dump()
        path = snapshot.with_suffix(COUNTS)
        partial = path.with_suffix(COUNTS + ".partial")
        try:
            with partial.open("wb") as file:
                file.write(digest(content).encode() + b"\n" + content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            logger.warning("the counts of %s are not written: %s", snapshot.name, error.strerror or error)
            with contextlib.suppress(OSError):
                partial.unlink()
        for old in snapshot.parent.glob(f"{self._cell}-*{COUNTS}"):
            if not old.with_suffix(SUFFIX).exists():
                old.unlink(missing_ok=True)

    def _begin(self, number: int) -> None:
        """Go on from the counts of this cycle, or from none."""
        self.counts = Counts(self._cell, number)
        for path in sorted(self._folder.glob(f"{self._cell}-{number:016d}-*{COUNTS}")):
            if path.with_suffix(SUFFIX).exists():
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    own, _, content = path.read_bytes().partition(b"\n")
                    found = Counts.load(content, self._cell, number) if own.decode() == digest(content) else None
                    if found is not None:
                        self.counts = found
                        return
