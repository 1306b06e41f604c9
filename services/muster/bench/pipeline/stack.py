"""The stack that is measured: the real programs, started for one measurement on a folder of its own.

The measurements know a `Stack` and nothing else; a starter for another log is another class here.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from muster.bench.pipeline.report import Inside
from muster.events.record import Envelope
from muster.log.errors import OperatingError
from muster.log.port import Record
from muster.log.reader import read_admitted
from muster.log.sqlite import SqliteFile
from muster.up.places import CELL, Options

PROGRAM = "muster.bench.pipeline.program"
END_S = 60.0


class NoStack(OperatingError):
    """The stack did not start, or ended by itself."""


class Stack(Protocol):
    """One cell with its gateway, as it is measured."""

    folder: Path
    """Where it keeps things; its disk is that of the log, where the log has one here."""
    url: str
    """The gateway."""

    def inside(self) -> Inside:
        """What was counted in the leader's process since this was asked last."""
        ...

    def beside(self) -> dict[str, Inside]:
        """The same for the other programs of the stack that count, by what they are."""
        ...

    def pids(self) -> dict[str, int]:
        """The processes of the stack, where they are several, by what they are."""
        ...

    def read(self, after: int) -> list[Record]:
        """Records of the log that stand behind this position, the first of them."""
        ...

    def stop(self) -> None:
        """End it. A second call does nothing."""
        ...

    def admitted(self) -> Iterator[tuple[Envelope, bytes]]:
        """The log, whole, once it has stopped."""
        ...


Start = Callable[[Path], Stack]


class SqliteStack:
    """`muster up`'s program with scheduler and gateway, on SQLite."""

    def __init__(self, folder: Path) -> None:
        """Start it; returns when it leads and listens.

        Raises:
            NoStack: it does not.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        options = msgspec.json.encode(Options(folder=str(folder), port=0)).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, "muster.up.stack", options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        line = self._hear().decode().split()
        if line[:1] != ["ready"]:
            raise NoStack("the stack does not start: see what it said above")
        self.url = line[1]
        self._file = SqliteFile.reader(folder, CELL)

    def inside(self) -> Inside:
        """See `Stack`."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._hear(), type=Inside)

    def beside(self) -> dict[str, Inside]:
        """See `Stack`."""
        return {}

    def pids(self) -> dict[str, int]:
        """See `Stack`."""
        return {}

    def read(self, after: int) -> list[Record]:
        """See `Stack`."""
        return self._file.read(after)

    def stop(self) -> None:
        """See `Stack`."""
        self._file.close()
        end(self._process)

    def admitted(self) -> Iterator[tuple[Envelope, bytes]]:
        """See `Stack`."""
        return read_admitted(self.folder, CELL)

    def _hear(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NoStack(f"the stack ended with status {self._process.wait()}: see what it said above")
        return line


def end(process: "subprocess.Popen[bytes]") -> None:
    """Tell a program to end, wait, and let go of it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
