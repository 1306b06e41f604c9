"""The processes of a step on one machine: started in a session of their own each, signalled as a whole, awaited."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

NOT_FOUND = 127
NOT_EXECUTABLE = 126


class Process:
    """One task of a step. `code` is its exit status; 128 + n for signal n; None while it runs."""

    def __init__(self, argv: Sequence[str], directory: str, environment: dict[str, str], piped: bool, feed: bool) -> None:
        self.argv = list(argv)
        self.directory = directory
        self.environment = environment
        self.piped = piped
        self.feed = feed
        self.code: int | None = None
        self.problem = ""
        self.process: asyncio.subprocess.Process | None = None
        self._begun = asyncio.Event()
        self._early: list[int] = []
        """Signals that came before it was there."""

    async def start(self, stdout: int | None = None, stderr: int | None = None) -> None:
        """Start it. A program that is not there ends with 127, as in a shell."""
        pipe = subprocess.PIPE
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.argv,
                cwd=self.directory or None,
                env=self.environment,
                stdin=pipe if self.feed else subprocess.DEVNULL,
                stdout=pipe if self.piped else stdout,
                stderr=pipe if self.piped else stderr,
                start_new_session=True,
            )
        except FileNotFoundError:
            self.code, self.problem = NOT_FOUND, f"{self._missing()}: no such file or directory"
        except OSError as error:
            self.code, self.problem = NOT_EXECUTABLE, f"{self.argv[0]}: {error.strerror}"
        self._begun.set()
        for number in self._early:
            self.signal(number)

    def _missing(self) -> str:
        return self.directory if self.directory and not os.path.isdir(self.directory) else self.argv[0]

    async def wait(self) -> int:
        """Its exit status, when it has ended."""
        if self.process is not None:
            code = await self.process.wait()
            self.code = 128 - code if code < 0 else code
        return self.code or 0

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it started."""
        if not self._begun.is_set():
            self._early.append(number)
        elif self.process is not None and self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)

    async def write(self, data: bytes) -> None:
        """Give it input, once it is there; no bytes end it."""
        await self._begun.wait()
        pipe = self.process.stdin if self.process is not None else None
        if pipe is None or pipe.is_closing():
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if data:
                pipe.write(data)
                await pipe.drain()
            else:
                pipe.close()
