"""`muster up` itself: starts the stack and the agents, starts again what ended, and ends them all when it is told to.

It holds the lock `up.lock` of the data folder for its life, and the socket at which the gateway is reached. What it starts
ends with it, also when it is killed; what agents run goes on under its supervisors, until the lease of its node ends or a new
agent finds it.
"""

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from muster.gateway.tokens import Tokens
from muster.log.errors import OperatingError
from muster.log.sqlite import SqliteFile
from muster.scheduler.snapshots import Snapshots
from muster.up import places
from muster.up.places import CELL, EXIT_LOCKED, EXIT_PORT, LOCK_S, Options, Running

BACKOFF_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
LIVED_S: Final = 20.0
"""A child that lived so long starts at once the next time."""
GIVE_UP: Final = 20
"""So many starts of the stack in a row that did not live, and there is no sense in more."""
END_S: Final = 15.0
"""So long a child may take to end; then it is killed."""
EXIT_HALTED: Final = 74
EXIT_DOUBT: Final = 75
"""Both as in `muster.scheduler.loop`, which this small process does not load."""
LOOK_S: Final = 5.0
"""How often the length of the log is looked at."""
FOLLOWER_RESTS: Final = 9
"""So many times as long as it ran, the follower is not started again."""
FOLLOWER_FAILED_S: Final = 30.0
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
        self._unwritten = False
        """Who runs here is not written down."""

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        Raises:
            Stopped: the stack cannot run.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        tokens = Tokens(self.options.data)
        self._renew_token(tokens)
        listener = await self._listen()
        stack = asyncio.create_task(self._keep_stack(listener))
        agents = [asyncio.create_task(self._keep_agent(name)) for name in self.options.names]
        snapshots = asyncio.create_task(self._keep_snapshots())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((stack, stopping), return_when=asyncio.FIRST_COMPLETED)
            self._stop.set()
            await self._end("follower")
            await snapshots
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
            listener.close()
            self._drop_token(tokens)

    async def _listen(self) -> socket.socket:
        """The socket at which the gateway is reached. It is ours, so that who comes while the stack is started again waits.

        Raises:
            Stopped: the address is taken or is none of ours.
        """
        options = self.options
        limit = time.monotonic() + LOCK_S
        while True:
            try:
                return places.listen(options.host.strip("[]"), options.port)
            except OSError as error:
                ending = error.errno == errno.EADDRINUSE and places.is_locked(options.data)
                if not ending or time.monotonic() >= limit:
                    where = f"{options.host}, port {options.port}"
                    raise Stopped(f"cannot listen at {where}: {error.strerror or error}") from None
            await asyncio.sleep(0.1)

    async def _keep_stack(self, listener: socket.socket) -> None:
        """Keep scheduler and gateway alive."""
        died = 0
        words = (msgspec.json.encode(self.options).decode(), str(listener.fileno()))
        while not self._stop.is_set():
            began = time.monotonic()
            command = [sys.executable, "-m", "muster.up.stack", *words]
            process = await self._start("stack", command, stdout=asyncio.subprocess.PIPE, pass_fds=(listener.fileno(),))
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode().split()
            if len(line) == 2 and line[0] == "ready":
                first, self.url = not self.url, line[1]
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
            if died >= GIVE_UP and status != EXIT_DOUBT:
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

    async def _keep_snapshots(self) -> None:
        """Start the follower when there is much that the next start would have to fold. It has a tenth of a core at most."""
        options = self.options
        snapshots = Snapshots(options.data, CELL)
        rest_s = LOOK_S
        while not await self._stopped_within(rest_s):
            rest_s = LOOK_S
            if self._unwritten:
                self._write()
            try:
                if await asyncio.to_thread(_behind, options, snapshots) < options.snapshot_every:
                    continue
            except (OperatingError, OSError):
                continue  # the stack says what is wrong with the log
            began = time.monotonic()
            command = [sys.executable, "-m", "muster.up.follower", options.folder, str(options.snapshot_every)]
            process = await self._start("follower", command)
            status = await process.wait()
            self._children.pop("follower", None)
            if self._stop.is_set():
                return
            if status:
                logger.warning("the follower, which writes snapshots, ended with status %d and is started again", status)
            rest_s = max(FOLLOWER_FAILED_S if status else LOOK_S, FOLLOWER_RESTS * (time.monotonic() - began))

    async def _stopped_within(self, wait_s: float) -> bool:
        """Whether this was told to stop, after waiting so long for it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._stop.wait()
        return self._stop.is_set()

    async def _start(
        self, name: str, command: list[str], stdout: int | None = None, pass_fds: tuple[int, ...] = ()
    ) -> asyncio.subprocess.Process:
        environment = {**os.environ, "MUSTER_TOKEN": self._token} if self._token else dict(os.environ)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            env=environment,
            pass_fds=pass_fds,
            start_new_session=True,  # a Ctrl-C is ours to hand on, in the right order
            preexec_fn=end_with_parent,
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
        await self._stopped_within(BACKOFF_S[min(died, len(BACKOFF_S)) - 1])

    def _write(self) -> None:
        stack = self._children.get("stack")
        agents = {name: process.pid for name, process in self._children.items() if name in self.options.names}
        running = Running(url=self.url, pid=os.getpid(), scheduler=stack.pid if stack is not None else 0, agents=agents)
        try:
            places.say_running(self.options.data, running)
            self._unwritten = False
        except OSError as error:  # a full disk, say
            if not self._unwritten:
                logger.warning("who runs here cannot be written down in %s: %s", self.options.data, error.strerror or error)
            self._unwritten = True

    def _renew_token(self, tokens: Tokens) -> None:
        """Where tokens are needed our own agents get one, a new one each time."""
        self._drop_token(tokens)
        if self.options.names and (self.options.tokens or not places.is_loopback(self.options.host)):
            _, self._token = tokens.create("agent", name=TOKEN_NAME, nodes=self.options.names)

    def _drop_token(self, tokens: Tokens) -> None:
        for token in tokens.all():
            if token.name == TOKEN_NAME and token.role == "agent":
                tokens.revoke(token.id)


def _behind(options: Options, snapshots: Snapshots) -> int:
    """How many records the log has beyond the newest snapshot."""
    with SqliteFile.reader(options.data, CELL) as file:
        return file.end() - snapshots.latest()


def end_with_parent() -> None:
    """In the child, before it is what it will be: the kernel ends it when its parent dies."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere a child finds out by itself
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
