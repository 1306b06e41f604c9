"""Whether there is room for more records where the log is."""

import contextlib
import os
from pathlib import Path
from typing import Final

ROOM_BYTES: Final = 1024 * 1024
"""With less than this the disk is full: enough for any usual record, and for what SQLite keeps beside it."""


def has_room(folder: Path) -> bool:
    """Whether so much can be written there now: by taking it for a moment, as quotas and limits are found out only so."""
    path = folder / "room"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        os.posix_fallocate(descriptor, 0, ROOM_BYTES)
    except OSError:
        return False
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
    return True
