"""Inputs that kill: what a scheduler leaves behind for its successor in case it dies while it decides.

Before each cycle it marks in a small file that it decides, and on which messages; afterwards it takes the mark away. A
successor that finds the mark knows that the one before died there. After two deaths with the same messages ahead it takes
them one at a time, each after a cycle without any, so that a death which no message caused is not laid to one. A message
at which it dies then is refused, without being looked at.

The file is written with one call and not forced to the disk: it is for deaths of the process. Whatever cannot be read
there means that nobody died; where it cannot be written, on a full disk, no mark is left, and a cycle is made nevertheless.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from muster.events.codec import digest
from muster.scheduler.messages import Message

CAREFUL_AFTER: Final = 2
REFUSED_MAX: Final = 1000

logger = logging.getLogger(__name__)

Suspect = tuple[str, int, str]
"""Source, offset and digest of a message."""


class _Mark(msgspec.Struct, array_like=True):
    deaths: int = 0
    until: dict[str, int] = {}
    suspect: Suspect | None = None
    refused: tuple[Suspect, ...] = ()


class Deaths:
    """The mark of this scheduler, and what it found of the one before."""

    def __init__(self, path: Path | None, positions: Mapping[str, int]) -> None:
        """Read the file at `path`; None keeps nothing. `positions` are those of the recovered state."""
        self._said = False
        self._file = self._open(path) if path is not None else None
        died, mark = _read(self._file)
        if not _ahead(mark.until, positions):
            mark = _Mark(deaths=0, until=mark.until)
        if died:
            mark.deaths += 1
            if mark.deaths > CAREFUL_AFTER and mark.suspect is not None:
                mark.refused = (*mark.refused[-REFUSED_MAX:], mark.suspect)
        mark.suspect = None
        self._mark = mark

    @property
    def deaths(self) -> int:
        """How often schedulers died with the same messages ahead."""
        return self._mark.deaths

    @property
    def refused(self) -> tuple[Suspect, ...]:
        """The messages that must not be looked at."""
        return self._mark.refused

    def careful(self, taken: Mapping[str, int]) -> bool:
        """Whether messages are to be taken one at a time, having taken them up to these positions."""
        return self._mark.deaths >= CAREFUL_AFTER and _ahead(self._mark.until, taken)

    def enter(self, taken: Mapping[str, int], ahead: Mapping[str, int], suspect: Message | None = None) -> None:
        """A cycle is about to be made of messages up to `ahead`, or of the suspect alone."""
        if self._file is None:
            return
        mark = self._mark
        if not mark.deaths or not _ahead(mark.until, taken):
            mark.deaths = 0
            mark.until = dict(ahead)
            mark.refused = ()
        mark.suspect = None if suspect is None else (suspect.source, suspect.offset, digest(suspect.data))
        self._write(b"1" + msgspec.json.encode(mark) + b"\n")

    def leave(self) -> None:
        """The cycle was made."""
        if self._file is not None:
            self._write(b"0")

    def close(self) -> None:
        """Give the file back; it stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, path: Path) -> int | None:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            self._say(error)
            return None

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        try:
            os.pwrite(self._file, data, 0)
        except OSError as error:
            self._say(error)

    def _say(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            logger.warning("the mark of deaths cannot be written, an input that kills is not found: %s", error.strerror or error)


def _read(file: int | None) -> tuple[bool, _Mark]:
    if file is None:
        return False, _Mark()
    data = os.pread(file, 16 * 1024 * 1024, 0).partition(b"\n")[0]
    try:
        return data[:1] == b"1", msgspec.json.decode(data[1:], type=_Mark)
    except msgspec.DecodeError:
        return False, _Mark()


def _ahead(until: Mapping[str, int], positions: Mapping[str, int]) -> bool:
    return any(positions.get(source, 0) < offset for source, offset in until.items())
