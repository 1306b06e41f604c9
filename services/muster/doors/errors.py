"""How doors speak: an error stops the file, a notice names what is not honoured. Both are one sentence with a place."""

import msgspec

from muster.reading.errors import KEY_MAX, FileError, quoted

__all__ = ["KEY_MAX", "DoorError", "Notice", "quoted"]

DoorError = FileError


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the file that Muster does not do; the job is submitted without it."""

    file: str
    line: int
    key: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.key} {self.sentence}"
