"""The wrappers: one small file a program, which calls the interpreter that wrote it."""

import os
import shlex
import sys
from pathlib import Path

from muster.slurm.__main__ import PROGRAMS


def install(folder: Path) -> list[Path]:
    """Write the wrappers; a file that is there is replaced. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in PROGRAMS:
        path = folder / name
        fresh = folder / f".{name}.{os.getpid()}"
        fresh.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m muster.slurm {name} "$@"\n')
        fresh.chmod(0o755)
        fresh.replace(path)
        written.append(path)
    return written
