"""The demo's scheduler: the real loop on a real log, in a process of its own. Only its clock and its inbox are the demo's.

`python -m muster.simulator.demo.scheduler FOLDER AT_US` reads the log in FOLDER, starts a term, and says so in one line
(`Led`). Each time it has nothing more to say it prints until when it would rest (`Rests`) and reads one line: what time it is
then and what has arrived (`Turn`). It ends when its input does. `Scheduler` is the handle on such a process.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from muster.log.sqlite import SqliteFile, SqliteLog
from muster.scheduler import memory
from muster.scheduler.loop import Scheduler as Loop
from muster.scheduler.loop import Settings
from muster.scheduler.messages import Message
from muster.scheduler.recovery import recover

CELL = "main"
KILL_WAIT_S = 10


class SchedulerEnded(Exception):
    """The process is gone and nobody killed it."""


class Led(msgspec.Struct, frozen=True):
    """The log was read and a term started."""

    recovered: int
    """Cycles read from the log before the term began."""
    took_ms: int
    positions: dict[str, int]
    """Where the inputs are to be read on, as the log says."""


class Rests(msgspec.Struct, frozen=True):
    """Everything that follows from what has arrived stands in the log; something is due at this time."""

    wake_us: int


class Turn(msgspec.Struct, frozen=True):
    """What time it is, and what arrived."""

    at_us: int
    messages: list[Message]


class Scheduler:
    """A running scheduler process."""

    def __init__(self, folder: Path, at_us: int) -> None:
        command = [sys.executable, "-m", "muster.simulator.demo.scheduler", str(folder), str(at_us)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.led = msgspec.json.decode(self._line(), type=Led)
        self.positions = dict(self.led.positions)
        """The next offset to give it, by source."""
        self.wake_us = msgspec.json.decode(self._line(), type=Rests).wake_us

    def turn(self, turn: Turn) -> None:
        """Let it work at this time until it rests."""
        self._send(turn)
        self.wake_us = msgspec.json.decode(self._line(), type=Rests).wake_us

    def kill_during(self, turn: Turn, log: SqliteFile) -> int:
        """Let it work, and kill it with SIGKILL as soon as its first record is in the log. What it answers is never read.

        Returns the exit status that the kernel gives: -9.
        """
        end = log.end()
        self._send(turn)
        limit = time.monotonic() + KILL_WAIT_S
        while log.end() == end and time.monotonic() < limit:
            time.sleep(0.0002)
        self._process.send_signal(signal.SIGKILL)
        return self.stop()

    def stop(self) -> int:
        """Close its input, so that it ends; its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        status = self._process.wait(KILL_WAIT_S)
        self._process.stdout.close()
        return status

    def _send(self, turn: Turn) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(turn) + b"\n")
        self._process.stdin.flush()
        for message in turn.messages:
            self.positions[message.source] = message.offset + 1

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SchedulerEnded(f"the scheduler ended by itself, with status {self._process.wait(KILL_WAIT_S)}")
        return line


class Pipe:
    """The inbox and the clock of the process: both are told by whoever holds the other end."""

    def __init__(self, at_us: int, led: Callable[[Mapping[str, int]], None]) -> None:
        self.at_us = at_us
        self.stop: Callable[[], None] = lambda: None
        self._led = led
        self._messages: deque[Message] = deque()

    def monotonic_us(self) -> int:
        """See `muster.scheduler.terms.Clock`."""
        return self.at_us

    def wall_us(self) -> int:
        """See `muster.scheduler.terms.Clock`."""
        return self.at_us

    async def seek(self, positions: Mapping[str, int]) -> None:
        """See `muster.scheduler.inbox.Inbox`."""
        self._messages.clear()
        self._led(positions)

    def first(self) -> Message | None:
        """See `muster.scheduler.inbox.Inbox`."""
        return self._messages[0] if self._messages else None

    def pop(self) -> None:
        """See `muster.scheduler.inbox.Inbox`."""
        self._messages.popleft()

    async def wait(self, timeout_s: float) -> None:
        """See `muster.scheduler.inbox.Inbox`. Nothing else runs in this process, so it may block."""
        if self._messages:
            return
        answer(Rests(self.at_us + round(timeout_s * 1e6)))
        line = sys.stdin.buffer.readline()
        if not line:
            self.stop()
            return
        turn = msgspec.json.decode(line, type=Turn)
        self.at_us = turn.at_us
        self._messages.extend(turn.messages)

    async def catch_up(self) -> frozenset[str]:
        """See `muster.scheduler.inbox.Inbox`. All that arrived is here."""
        return frozenset()

    def moved(self, positions: Mapping[str, int]) -> None:
        """See `muster.scheduler.inbox.Inbox`. The bus forgets nothing."""

    async def beat(self) -> None:
        """See `muster.scheduler.inbox.Inbox`. There is no other scheduler."""

    def beats(self) -> int:
        """See `muster.scheduler.inbox.Inbox`."""
        return 0


def answer(line: msgspec.Struct) -> None:
    """One line to whoever holds the other end."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


async def main(folder: Path, at_us: int) -> None:
    """The process."""
    begun = time.monotonic()
    log = SqliteLog.open(folder, CELL, writer=True)
    recovered = await recover(log, CELL)
    memory.settle()
    took_ms = int((time.monotonic() - begun) * 1000)
    settings = Settings(host=socket.gethostname(), build=f"demo, process {os.getpid()}", takeover_after_us=0)
    pipe = Pipe(at_us, lambda positions: answer(Led(recovered.folded, took_ms, dict(positions))))
    loop = Loop(recovered, log, pipe, settings, clock=pipe)
    pipe.stop = loop.stop
    await loop.run()
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
