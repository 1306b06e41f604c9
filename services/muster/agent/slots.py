"""Small levels in files: what one process says to another that may be dead or newer, on a disk that may be full.

A slot file has two halves. Each write overwrites the older half in place, with a checksum and a count, so a reader always
finds a whole value, a writer that dies in the middle spoils nothing, and no write needs space that is not there already.
The clock is here as well, because what the files say about time must mean the same to both sides.

Standard library only: supervisors, which start often and run long, load this and nothing else of Muster.
"""

import contextlib
import json
import os
import time
import zlib
from typing import Any

HALF_BYTES = 1024
VALUE_MAX_BYTES = HALF_BYTES - 32

Value = dict[str, Any]


def now_us() -> int:
    """Microseconds since this boot, counted also while the machine sleeps. The same for every process; never set back."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def make_slot(path: str, value: Value) -> None:
    """Make the file with its first value. Raises OSError where there is no room."""
    half = _encode(1, value)
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, bytes(HALF_BYTES).replace(b"\0", b" ") + half)
    finally:
        os.close(descriptor)
    os.rename(path + ".new", path)


def write_slot(path: str, value: Value) -> None:
    """Overwrite the older half. Raises OSError, and ValueError for a value that is too large."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        count, _ = _newest(os.pread(descriptor, 2 * HALF_BYTES, 0))
        count += 1
        os.pwrite(descriptor, _encode(count, value), (count % 2) * HALF_BYTES)
    finally:
        os.close(descriptor)


def read_slot(path: str) -> Value | None:
    """The newest whole value; None where there is no file or no value in it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _newest(os.pread(descriptor, 2 * HALF_BYTES, 0))[1]
    except OSError:
        return None
    finally:
        os.close(descriptor)


def write_whole(path: str, data: bytes) -> None:
    """Replace a file durably: it is there whole, with these bytes, or as it was. Raises OSError."""
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(path + ".new", path)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def poke(path: str, data: bytes) -> bool:
    """Wake whoever reads this pipe. False when nobody does, or when it is full: then they are awake anyway."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with contextlib.suppress(OSError):
            os.write(descriptor, data)
            return True
        return False
    finally:
        os.close(descriptor)


def _encode(count: int, value: Value) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    if len(text) > VALUE_MAX_BYTES:
        raise ValueError(f"a slot holds {VALUE_MAX_BYTES} bytes, this value has {len(text)}")
    body = b"%020d %s" % (count, text)
    return (b"%08x %s" % (zlib.crc32(body), body)).ljust(HALF_BYTES)


def _newest(data: bytes) -> tuple[int, Value | None]:
    best: tuple[int, Value | None] = (0, None)
    for start in (0, HALF_BYTES):
        half = data[start : start + HALF_BYTES].rstrip()
        body = half[9:]
        if len(half) < 30 or half[:8] != b"%08x" % zlib.crc32(body):
            continue
        count = int(body[:20])
        if count > best[0]:
            best = (count, json.loads(body[21:]))
    return best


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
