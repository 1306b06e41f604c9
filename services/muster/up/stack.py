"""Scheduler and gateway in one process: the composition root. `muster.up.parent` starts it and starts it again.

`python -m muster.up.stack OPTIONS` (JSON) says `ready URL` on standard output once it leads and listens, and ends on SIGTERM.
The scheduler leaves by `os._exit` on any doubt; what happened then is learned by reading, at the next start.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

import httptools  # noqa: F401  # uvicorn reads HTTP with it: missed here rather than at the first request
import msgspec
import uvicorn

from muster.cluster.state import State
from muster.events.operations import NodeDrained, NodeUncordoned, PolicySet
from muster.gateway.app import application, build
from muster.gateway.context import Gateway
from muster.gateway.history import History
from muster.gateway.intake import Intake
from muster.gateway.live import Live
from muster.gateway.problems import Refused
from muster.gateway.tokens import Tokens
from muster.log.errors import LogHalted, LogLocked, OperatingError
from muster.log.port import Record
from muster.log.sqlite import SqliteLog
from muster.scheduler.inbox import QueueInbox
from muster.scheduler.loop import EXIT_HALTED, Scheduler, Settings
from muster.scheduler.memory import settle
from muster.scheduler.poison import Deaths
from muster.scheduler.recovery import Recovered, recover
from muster.scheduler.snapshots import Snapshots
from muster.up import places
from muster.up.places import CELL, EXIT_LOCKED, EXIT_PORT, Options

LOCK_S: Final = 10.0
"""So long a predecessor that is just ending is waited for."""
GRACE_S: Final = 2
"""So long requests may go on when the end has come."""
STOP_TASKS_S: Final = 120.0
SNAPSHOT_EVERY: Final = 2000
"""A start, and a clean end, write a snapshot if the last is so many cycles old."""

logger = logging.getLogger("muster.up")


class Server(uvicorn.Server):
    """uvicorn without its own ideas about signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.serving.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to this program."""
        yield


class Stack:
    """One cell on SQLite with its gateway."""

    def __init__(self, options: Options, log: SqliteLog, recovered: Recovered, snapshots: Snapshots) -> None:
        self.options = options
        self.log = log
        self.snapshots = snapshots
        inbox = QueueInbox()
        self.scheduler = Scheduler(
            recovered,
            log,
            inbox,
            Settings(host=socket.gethostname()[:128], build=build(), takeover_after_us=0),
            snapshots=self.snapshots,
            deaths=Deaths(options.data / "deaths", recovered.core.positions),
            exit=leave,
            admitted=self._admitted,
        )
        self.core = recovered.core
        self._leads = asyncio.Event()
        self.position = recovered.head_position
        live = Live(self.core, self.scheduler.now_us)
        self.gateway = Gateway(live, Intake(inbox), History(options.data, CELL))
        required = options.tokens or not places.is_loopback(options.host)
        self.server = Server(
            uvicorn.Config(
                application(self.gateway, Tokens(options.data), required),
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=GRACE_S,
                backlog=2048,
            )
        )

    async def run(self, listener: socket.socket) -> None:
        """Lead and serve until told to stop."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        scheduling = asyncio.create_task(self.scheduler.run())
        await self._leads.wait()
        settle()
        await self._undrain()
        await self._name_queues()
        serving = asyncio.create_task(self.server.serve(sockets=[listener]))
        await self.server.serving.wait()
        host, port = listener.getsockname()[:2]
        sys.stdout.write(f"ready {places.url(host, port)}\n")
        sys.stdout.flush()
        await stop.wait()
        if self.options.stop_tasks:
            await self._stop_tasks()
        self.gateway.close()
        self.server.should_exit = True
        await serving
        self.scheduler.stop()
        await scheduling
        self._snapshot()
        self.scheduler.deaths.close()
        await self.log.close()

    def _admitted(self, record: Record) -> None:
        self.position = record.position
        if self.core.leads:
            self._leads.set()
        self.gateway.live.admitted(record)

    async def _stop_tasks(self) -> None:
        """Let what runs on our own nodes leave with its grace; its jobs wait for the next start."""
        gateway = self.gateway
        names = await gateway.live.read(lambda state: [name for name in self.options.names if _plain(state, name)])
        places.say_drained(self.options.data, tuple(names))
        with suppress(Refused):
            for name in names:
                await gateway.intake.operation(NodeDrained(node=name, by="muster up --stop-tasks"))
        limit = time.monotonic() + STOP_TASKS_S
        while time.monotonic() < limit and await gateway.live.read(lambda state: _held(state, names)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # nothing says that a node holds nothing any more

    async def _undrain(self) -> None:
        """Nodes that the last end drained take work again."""
        names = places.drained(self.options.data)
        for name in await self.gateway.live.read(lambda state: [each for each in names if state.node(each) is not None]):
            await self.gateway.intake.operation(NodeUncordoned(node=name, by="muster up"))
        places.say_drained(self.options.data, ())

    async def _name_queues(self) -> None:
        """The policy names the queues that `muster up` was told; the rest of it stays."""
        queues = tuple(dict.fromkeys(("default", *self.options.queues)))
        policy = await self.gateway.live.read(lambda state: state.policy)
        if self.options.queues and policy.queues != queues:
            event = PolicySet(policy=msgspec.structs.replace(policy, queues=queues), by="muster up --queue")
            await self.gateway.intake.operation(event)

    def _snapshot(self) -> None:
        core = self.core
        if core.pending is None and self.snapshots.due(core.head.number):
            self.snapshots.write(core.state, core.head, self.position)


def leave(status: int) -> NoReturn:
    """How the scheduler leaves: at once, and nothing of it goes on."""
    sys.stderr.flush()
    os._exit(status)


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, and does not listen yet.

    Raises:
        OSError: the address is taken or is none of ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


async def main(options: Options) -> int:
    """The process; its exit status."""
    try:
        listener = listen(options.host.strip("[]"), options.port)
    except OSError as error:
        logger.error("cannot listen at %s, port %d: %s", options.host, options.port, error.strerror or error)
        return EXIT_PORT
    limit = time.monotonic() + LOCK_S
    while True:
        try:
            log = SqliteLog.open(options.data, CELL, writer=True)
            break
        except LogLocked as error:
            if time.monotonic() >= limit:
                logger.error("%s", error)
                return EXIT_LOCKED
            await asyncio.sleep(0.1)
    snapshots = Snapshots(options.data, CELL, SNAPSHOT_EVERY)
    try:
        recovered = await recover(log, CELL, snapshots)
    except LogHalted as error:
        logger.error("%s", error)
        return EXIT_HALTED
    if recovered.folded:
        logger.info("read %d cycles; the log stands at cycle %d", recovered.folded, recovered.core.head.number)
    await Stack(options, log, recovered, snapshots).run(listener)
    return 0


def _plain(state: State, name: str) -> bool:
    node = state.node(name)
    return node is not None and not node.cordoned and not node.drained


def _held(state: State, names: list[str]) -> bool:
    return any(node is not None and node.tasks for node in map(state.node, names))


if __name__ == "__main__":
    import uvloop

    gc.set_threshold(50_000, 20, 100)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="muster: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        status = uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Options)))
    except OperatingError as error:
        logger.error("%s", error)
        status = EXIT_HALTED
    sys.exit(status)
