"""For tests of full disks: small file systems, which only root can make."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

SMALL_MIB = 256


@contextlib.contextmanager
def small_disk(place: Path, mib: int = SMALL_MIB) -> Iterator[Path | None]:
    """A file system of so many MiB at `place`; None where this user may not mount one."""
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", place], capture_output=True, check=False)
    try:
        yield None if done.returncode else place
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> Path:
    """Leave no byte of room."""
    path = place / "fill"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return path
