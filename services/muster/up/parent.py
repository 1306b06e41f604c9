"""`muster up` itself: starts the stack and the agents, starts again what ended, and ends them all when it is told to.

It holds the lock `up.lock` of the data folder for its life and nothing else. What it starts ends with it, also when it is
killed; what agents run goes on under its supervisors, until the lease of its node ends or a new agent finds it.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from muster.gateway.tokens import Tokens
from muster.log.errors import OperatingError
from muster.up import places
from muster.up.places import EXIT_LOCKED, EXIT_PORT, Options, Running

BACKOFF_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
LIVED_S: Final = 20.0
"""A child that lived so long starts at once the next time."""
GIVE_UP: Final = 20
"""So many starts of the stack in a row that did not live, and there is no sense in more."""
END_S: Final = 15.0
"""So long a child may take to end; then it is killed."""
EXIT_HALTED: Final = 74
TOKEN_NAME: Final = "muster up"

logger = logging.getLogger("muster.up")


class Taken(OperatingError):
    """Another `muster up` has the folder."""


class Stopped(OperatingError):
    """The stack cannot run, and starting it again does not help."""


class Lock:
    """The data folder is ours."""

    def __init__(self, options: Options) -> None:
        """Take it.

        Raises:
            Taken: another has it.
        """
        options.data.mkdir(parents=True, exist_ok=True)
        self._file = os.open(options.data / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            other = places.running(options.data)
            where = f" (process {other.pid}, {other.url})" if other is not None else ""
            raise Taken(
                f"another `muster up` runs on {options.data}{where}; stop it, use --wait, or give another folder with --data"
            ) from None

    def close(self) -> None:
        """Let go of it."""
        os.close(self._file)


def wait_for_lock(options: Options, say: Callable[[str], None]) -> Lock:
    """Take the folder once whoever has it lets go."""
    said = False
    while True:
        try:
            return Lock(options)
        except Taken as error:
            if not said:
                say(f"{error}; waiting")
                said = True
            time.sleep(0.2)


class Parent:
    """One `muster up`, from start to end."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self.options = options
        self.url = ""
        self._say = say
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._token = ""

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        Raises:
            Stopped: the stack cannot run.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        tokens = Tokens(self.options.data)
        self._renew_token(tokens)
        stack = asyncio.create_task(self._keep_stack())
        agents = [asyncio.create_task(self._keep_agent(name)) for name in self.options.names]
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((stack, stopping), return_when=asyncio.FIRST_COMPLETED)
            self._stop.set()
            order = ["stack", *self.options.names] if self.options.stop_tasks else [*self.options.names, "stack"]
            if self.options.stop_tasks:
                self._say("what runs is stopped; it runs again after the next start")
                await self._end("stack", 150.0)
            await asyncio.gather(*[self._end(name) for name in order if name != "stack"])
            await self._end("stack")
            await asyncio.gather(*agents)
            await stack
        finally:
            for process in self._children.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            self._drop_token(tokens)

    async def _keep_stack(self) -> None:
        """Keep scheduler and gateway alive."""
        died = 0
        options = self.options
        while not self._stop.is_set():
            began = time.monotonic()
            command = [sys.executable, "-m", "muster.up.stack", msgspec.json.encode(options).decode()]
            process = await self._start("stack", command, stdout=asyncio.subprocess.PIPE)
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode().split()
            if len(line) == 2 and line[0] == "ready":
                first, self.url = not self.url, line[1]
                options = msgspec.structs.replace(options, port=int(self.url.rpartition(":")[2]))
                self._write()
                self._ready.set()
                self._say(f"{self.url} {'is ready' if first else 'is ready again'}")
            status = await process.wait()
            self._children.pop("stack", None)
            self._ready.clear()
            if self._stop.is_set():
                return
            if status in (EXIT_PORT, EXIT_LOCKED, EXIT_HALTED):
                raise Stopped("the scheduler and its gateway cannot run: see the sentence above")
            died = died + 1 if time.monotonic() - began < LIVED_S else 1
            if died >= GIVE_UP:
                raise Stopped(f"the scheduler ended {died} times in a row, at last with status {status}: see what it said above")
            logger.warning("the scheduler ended with status %d and is started again", status)
            await self._pause(died)

    async def _keep_agent(self, name: str) -> None:
        """Keep an agent alive, once there is a gateway."""
        died = 0
        while not self._stop.is_set():
            waits = (asyncio.create_task(self._ready.wait()), asyncio.create_task(self._stop.wait()))
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
            if self._stop.is_set():
                return
            began = time.monotonic()
            data = str(self.options.data / "agents" / name)
            command = [sys.executable, "-m", "muster.cli", "agent", "--gateway", self.url, "--node", name, "--data", data]
            command += ["--address", "127.0.0.1"]
            if self.options.devices:
                command += ["--devices", self.options.devices]
            process = await self._start(name, command)
            self._write()
            status = await process.wait()
            self._children.pop(name, None)
            if self._stop.is_set():
                return
            died = died + 1 if time.monotonic() - began < LIVED_S else 1
            logger.warning("the agent of %s ended with status %d and is started again", name, status)
            await self._pause(died)

    async def _start(self, name: str, command: list[str], stdout: int | None = None) -> asyncio.subprocess.Process:
        environment = {**os.environ, "MUSTER_TOKEN": self._token} if self._token else dict(os.environ)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            env=environment,
            start_new_session=True,  # a Ctrl-C is ours to hand on, in the right order
            preexec_fn=_end_with_parent,
        )
        self._children[name] = process
        return process

    async def _end(self, name: str, patience_s: float = END_S) -> None:
        """Tell a child to end, and see that it does."""
        process = self._children.get(name)
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(patience_s):
                await process.wait()
        except TimeoutError:
            logger.warning("%s did not end within %d s and is killed", name, int(patience_s))
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _pause(self, died: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BACKOFF_S[min(died, len(BACKOFF_S)) - 1]):
                await self._stop.wait()

    def _write(self) -> None:
        stack = self._children.get("stack")
        agents = {name: process.pid for name, process in self._children.items() if name != "stack"}
        running = Running(url=self.url, pid=os.getpid(), scheduler=stack.pid if stack is not None else 0, agents=agents)
        places.say_running(self.options.data, running)

    def _renew_token(self, tokens: Tokens) -> None:
        """Where tokens are needed our own agents get one, a new one each time."""
        self._drop_token(tokens)
        if self.options.names and (self.options.tokens or not places.is_loopback(self.options.host)):
            _, self._token = tokens.create("agent", name=TOKEN_NAME, nodes=self.options.names)

    def _drop_token(self, tokens: Tokens) -> None:
        for token in tokens.all():
            if token.name == TOKEN_NAME and token.role == "agent":
                tokens.revoke(token.id)


def _end_with_parent() -> None:
    """In the child, before it is what it will be: the kernel ends it when its parent dies."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere a child finds out by itself
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
