"""The state written down, so that a start need not fold the whole log.

A follower writes one every so many cycles, beside the log (on one machine: `muster.up.follower`). Its name says cycle and
digest, its content the schema. It is believed only where everything agrees: the digest of what it says of itself, that of the
state, and the record in the log at which it was taken. Otherwise it is removed, and an older one or the log itself is used.

That the state which is read is the one that was written is seen by writing it again, which takes as long as reading it. Who
has the time does that when a snapshot is written (`prove`), and names the code with which it was done: the same code need
not do it again when it starts.
"""

import contextlib
import io
import logging
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from muster import cluster, events
from muster.cluster import snapshot
from muster.cluster.check import check
from muster.cluster.state import State
from muster.events.codec import digest
from muster.log.admit import Head
from muster.log.port import Log

KEPT: Final = 2
EVERY: Final = 10_000
SUFFIX: Final = ".snapshot"
PARTIAL: Final = ".partial"
PIECE_BYTES: Final = 4 * 1024 * 1024
"""So much is forced to the disk at once: whoever appends to the log meanwhile waits for no more than this."""

logger = logging.getLogger(__name__)


class Snapshot(msgspec.Struct, frozen=True):
    """A state that was read, and where in the log it stands."""

    state: State
    head: Head
    position: int


class _Header(msgspec.Struct, frozen=True):
    schema: int
    head: Head
    position: int
    state: str
    """Digest of the state."""
    proved: str = ""
    """The code by which this was read back as the state that it is."""


class Snapshots:
    """The snapshots of one cell in one folder."""

    def __init__(self, folder: Path, cell: str, every: int = EVERY) -> None:
        self.folder = folder
        self.cell = cell
        self.every = every
        self.written: Callable[[Path], None] | None = None
        """Told of each snapshot that was written, so that what belongs to it can be written beside it."""
        self._last = 0
        self._name = re.compile(re.escape(cell) + r"-[0-9]{16}-[0-9a-f]{16}\.snapshot")

    def due(self, number: int) -> bool:
        """Whether one is to be written at this cycle."""
        return number - self._last >= self.every

    def latest(self) -> int:
        """The cycle of the newest snapshot, by its name; 0 where there is none."""
        return max([int(path.name[len(self.cell) + 1 :][:16]) for path in self._paths()], default=0)

    def write(self, state: State, head: Head, position: int, *, prove: bool = False) -> Path:
        """Write the state as of `head`, whose record has this position in the log; older ones are removed.

        With `prove` it is read back first, which takes as long again and as much memory as the state.

        Raises:
            OSError: there is no room, or the folder cannot be written. Nothing is left of the attempt.
        """
        check(state.number == head.number, "a snapshot is taken between cycles, at the head")
        data = snapshot.encode(state)
        proved = ""
        if prove:
            check(snapshot.encode(snapshot.decode(data)) == data, "a state that is read from its snapshot has the same snapshot")
            proved = _code()
        header = _Header(schema=snapshot.SCHEMA, head=head, position=position, state=digest(data), proved=proved)
        line = msgspec.json.encode(header)
        path = self.folder / _name(self.cell, head)
        for torn in self.folder.glob(f"{self.cell}-*{PARTIAL}"):
            if self._name.fullmatch(torn.with_suffix(SUFFIX).name):
                torn.unlink(missing_ok=True)  # of one that was killed while it wrote
        partial = path.with_suffix(PARTIAL)
        try:
            with partial.open("wb", buffering=0) as file:
                _write(file, b"\n".join([digest(line).encode(), line, data]))
            partial.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        self._last = head.number
        for old in self._paths()[KEPT:]:
            old.unlink(missing_ok=True)
        if self.written is not None:
            self.written(path)
        return path

    async def newest(self, log: Log) -> Snapshot | None:
        """The newest snapshot that can be believed, or None. Those that cannot are removed."""
        for path in self._paths():
            found = self._read(path)
            if found is not None and await _stands(log, found):
                self._last = found.head.number
                return found
            logger.warning("the snapshot %s does not agree with the log or with itself and is dropped", path.name)
            with contextlib.suppress(OSError):
                path.unlink()
        return None

    def before(self, number: int) -> Snapshot | None:
        """The newest of those up to this cycle that agree with themselves. Whether the log agrees is for the caller to see."""
        for path in self._paths():
            if int(path.name.removeprefix(f"{self.cell}-")[:16]) <= number and (found := self._read(path)) is not None:
                return found
        return None

    def _paths(self) -> list[Path]:
        """Newest first."""
        return sorted([path for path in self.folder.iterdir() if self._name.fullmatch(path.name)], reverse=True)

    def _read(self, path: Path) -> Snapshot | None:
        with contextlib.suppress(Exception):  # whatever is wrong with it, it is not needed
            own, line, data = path.read_bytes().split(b"\n", 2)
            if own.decode() != digest(line):
                return None
            header = msgspec.json.decode(line, type=_Header)
            if header.schema != snapshot.SCHEMA or header.head.cell != self.cell or path.name != _name(self.cell, header.head):
                return None
            if digest(data) != header.state:
                return None
            state = snapshot.decode(data)
            known = header.proved == _code()
            if state.number == header.head.number and state.cell == self.cell and (known or snapshot.encode(state) == data):
                return Snapshot(state, header.head, header.position)
        return None


def _name(cell: str, head: Head) -> str:
    return f"{cell}-{head.number:016d}-{head.digest[:16]}{SUFFIX}"


def _write(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view[:PIECE_BYTES]) :]
        os.fsync(file.fileno())


@cache
def _code() -> str:
    """What reads and writes a state here, by its digest: the sources of the state and of the events, and the codec's version."""
    sources = sorted(path for package in (cluster, events) for path in Path(*package.__path__).rglob("*.py"))
    return digest(b"\0".join([msgspec.__version__.encode(), *[path.read_bytes() for path in sources]]))


async def _stands(log: Log, found: Snapshot) -> bool:
    """Whether the log holds, at that position, the record after which the snapshot was taken."""
    records = await log.read(found.position - 1, 1)
    return bool(records) and records[0].position == found.position and digest(records[0].data) == found.head.digest
