"""Clients in processes of their own: how the measurement starts them, tells them what to do, and hears what they found.

A worker is told its options when it starts, and says `ready`. From then on each order is a line on its standard input, and
each answer a line of JSON on its standard output. It ends when its input does, so none outlives the measurement.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from muster.log.errors import OperatingError

Options = TypeVar("Options", bound=msgspec.Struct)
Answer = TypeVar("Answer")


class WorkerEnded(OperatingError):
    """A client of the measurement ended by itself."""


class Worker:
    """One client process, as the measurement sees it."""

    def __init__(self, module: str, options: msgspec.Struct) -> None:
        """Start `python -m MODULE`."""
        self.module = module
        self._used_s: float | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, msgspec.json.encode(options).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ready(self) -> None:
        """Wait until it can begin."""
        self.hear(str)

    def tell(self, order: str) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(order.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerEnded(f"{self.module} ended: see what it said above") from None

    def hear(self, kind: type[Answer]) -> Answer:
        """Wait for its next answer.

        Raises:
            WorkerEnded: none comes any more.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerEnded(f"{self.module} ended: see what it said above")
        return msgspec.json.decode(line, type=kind)

    def cpu_s(self) -> float:
        """What it has used of a processor so far, or had when it was ended; 0 where the system does not say."""
        return cpu_s(self._process.pid) if self._used_s is None else self._used_s

    def close(self) -> None:
        """End it. A second call does nothing."""
        if self._used_s is None:
            self._used_s = cpu_s(self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def cpu_s(pid: int) -> float:
    """What a process has used of a processor so far; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat") as text:
            fields = text.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Orders:
    """What the measurement says, as its worker hears it."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def next(self) -> str:
        """The next order; empty when there will be none."""
        return (await self._reader.readline()).decode().strip()


def say(answer: Any) -> None:
    """Tell the measurement."""
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def work(kind: type[Options], begin: Callable[[Options, Orders], Awaitable[None]]) -> None:
    """Be a worker: read the options, and do what `begin` does."""
    import uvloop

    async def run() -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await begin(msgspec.json.decode(sys.argv[1], type=kind), Orders(reader))

    uvloop.run(run())
