"""Scheduler and gateway in one process: the composition root. `muster.up.parent` starts it and starts it again.

`python -m muster.up.stack OPTIONS [SOCKET]` (JSON, and the descriptor of a socket that listens) says `ready URL` on standard
output once it leads and serves, and ends on SIGTERM. The scheduler leaves by `os._exit` on any doubt; what happened then is
learned by reading, at the next start. A start that finds no room for the log serves what can be read, refuses everything
else, and leads as soon as there is room.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from muster.cluster.state import State
from muster.events.catalogue import CatalogueSet
from muster.events.operations import NodeDrained, NodeUncordoned, PolicySet
from muster.gateway.app import application
from muster.gateway.context import Gateway
from muster.gateway.history import History
from muster.gateway.intake import Intake
from muster.gateway.job_tokens import Secrets
from muster.gateway.live import Live
from muster.gateway.measured import metrics_of
from muster.gateway.problems import Refused
from muster.gateway.tokens import Tokens
from muster.log.errors import LogDamaged, LogHalted, LogLocked, OperatingError
from muster.log.port import Record
from muster.log.sqlite import SqliteLog
from muster.measures.book import Book
from muster.measures.loop import Phases, scheduler
from muster.metrics import serve
from muster.reading.catalogue import package_catalogue
from muster.scheduler.build import build
from muster.scheduler.inbox import QueueInbox
from muster.scheduler.loop import EXIT_HALTED, Scheduler, Settings
from muster.scheduler.memory import settle
from muster.scheduler.messages import BufferFull
from muster.scheduler.poison import Deaths
from muster.scheduler.recovery import Recovered, recover
from muster.scheduler.snapshots import Snapshots
from muster.up import places
from muster.up.places import CELL, EXIT_LOCKED, EXIT_PORT, LOCK_S, Options
from muster.up.room import has_room
from muster.up.serving import Server

STOP_TASKS_S: Final = 120.0
LOOK_S: Final = 0.5
"""How often a full disk is looked at for room."""

SWITCH_S: Final = 0.0001
"""So long at most the thread that has written to the log waits for its turn to say so. Python's own 5 ms are several cycles."""

logger = logging.getLogger("muster.up")


class Door(QueueInbox):
    """The way in; while it is closed, whoever comes is told why."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = ""

    def put(self, source: str, data: bytes, appended_us: int, key: str = "") -> asyncio.Future[None]:
        """See `QueueInbox`."""
        if self.closed:
            raise BufferFull(self.closed)
        return super().put(source, data, appended_us, key)


class Stack:
    """One cell on SQLite with its gateway."""

    def __init__(
        self, options: Options, log: SqliteLog, recovered: Recovered, snapshots: Snapshots, book: Book, began_s: float
    ) -> None:
        """`began_s` is when the recovery began, by the monotonic clock."""
        self._began_s = began_s
        self.options = options
        self.log = log
        self.snapshots = snapshots
        self.door = Door()
        self.scheduler = Scheduler(
            recovered,
            log,
            self.door,
            Settings(host=socket.gethostname()[:128], build=build(), takeover_after_us=0),
            deaths=Deaths(options.data / "deaths", recovered.core.positions),
            exit=leave,
            admitted=self._admitted,
            settled=self._settled,
        )
        self.core = recovered.core
        self._leads = asyncio.Event()
        self.position = recovered.head_position
        live = Live(self.core, self.scheduler.now_us)
        secrets = Secrets(options.data)
        self.gateway = Gateway(live, Intake(self.door), History(options.data, CELL), secrets)
        phases = self.scheduler.spent.also = Phases()
        self.metrics = self.gateway.metrics = metrics_of(self.gateway, self.core, book, snapshots, log.path)
        self.metrics.source(lambda: scheduler(self.core, phases))
        self.metrics.set("muster_recovery_cycles", recovered.folded)
        self.metrics.set("muster_follower_lag_records", 0, follower="gateway")  # its state is the scheduler's own
        required = options.tokens or not places.is_loopback(options.host)
        self.server = Server(application(self.gateway, Tokens(options.data), required, secrets))

    async def run(self, listener: socket.socket) -> None:
        """Lead and serve until told to stop."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        serving: asyncio.Task[None] | None = None
        if not has_room(self.options.data):
            self.door.closed = f"there is no room for the log in {self.options.data}, so nothing is recorded; ask again later"
            logger.error("%s", self.door.closed.partition(";")[0])
            serving = await self._serve(listener)
            await self._room(stop)
        if not stop.is_set():
            await self._lead(serving, listener, stop)
        self.gateway.close()
        self.server.should_exit = True
        if serving is not None:
            await serving
        self.scheduler.deaths.close()
        await self.log.close()

    async def _lead(self, serving: asyncio.Task[None] | None, listener: socket.socket, stop: asyncio.Event) -> None:
        """Decide until told to stop, and serve as soon as this scheduler leads."""
        scheduling = asyncio.create_task(self.scheduler.run())
        await self._leads.wait()
        settle()
        self.metrics.set("muster_recovery_seconds", time.monotonic() - self._began_s)
        self.door.closed = ""
        await self._undrain()
        await self._name_queues()
        await self._say_catalogue()
        if serving is None:
            serving = await self._serve(listener)
        await stop.wait()
        if self.options.stop_tasks:
            await self._stop_tasks()
        self.gateway.close()
        self.server.should_exit = True
        await serving
        self.scheduler.stop()
        await scheduling
        self._snapshot()

    async def _serve(self, listener: socket.socket) -> asyncio.Task[None]:
        """Answer requests from now on, and say so to whoever started this."""
        serving = asyncio.create_task(self.server.serve(sockets=[listener]))
        await self.server.serving.wait()
        host, port = listener.getsockname()[:2]
        sys.stdout.write(f"ready {places.url(host, port)}\n")
        sys.stdout.flush()
        return serving

    async def _room(self, stop: asyncio.Event) -> None:
        """Wait until there is room for the log, or this is told to stop."""
        while not stop.is_set() and not has_room(self.options.data):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()
        if not stop.is_set():
            logger.info("there is room for the log again")

    def _admitted(self, record: Record) -> None:
        self.position = record.position
        if self.core.leads:
            self._leads.set()
        self.gateway.live.fold(record)

    def _settled(self) -> None:
        self.gateway.live.serve()

    async def _stop_tasks(self) -> None:
        """Let what runs on our own nodes leave with its grace; its jobs wait for the next start."""
        gateway = self.gateway
        names = await gateway.live.read(lambda state: [name for name in self.options.names if _plain(state, name)])
        try:
            places.say_drained(self.options.data, tuple(names))
        except OSError as error:
            logger.warning("tasks are left running, as what was stopped cannot be written down: %s", error.strerror or error)
            return
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

    async def _say_catalogue(self) -> None:
        """A cell that knows no models of GPU is told those of the package."""
        if not await self.gateway.live.read(lambda state: state.catalogue):
            await self.gateway.intake.operation(CatalogueSet(models=package_catalogue(), by="muster up"))

    def _snapshot(self) -> None:
        """A clean end, which has time, spares the next start what the follower did not come to."""
        core = self.core
        if core.pending is None and self.snapshots.due(core.head.number):
            try:
                self.snapshots.write(core.state, core.head, self.position)
            except OSError as error:
                logger.warning("no snapshot is written: %s", error)


def leave(status: int) -> NoReturn:
    """How the scheduler leaves: at once, and nothing of it goes on."""
    sys.stderr.flush()
    os._exit(status)


async def main(options: Options, inherited: int | None = None) -> int:
    """The process; its exit status. `inherited` is the descriptor of a socket that listens already."""
    try:
        if inherited is not None:
            listener = socket.socket(fileno=inherited)
            listener.setblocking(False)
        else:
            listener = places.listen(options.host.strip("[]"), options.port)
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
        except LogDamaged as error:
            if has_room(options.data):
                raise
            logger.error("there is no room for the log in %s: %s", options.data, error)
            while not has_room(options.data):  # noqa: ASYNC110  # nothing says that there is room
                await asyncio.sleep(LOOK_S)
    began_s = time.monotonic()
    snapshots = Snapshots(options.data, CELL, options.snapshot_every)
    book = Book(options.data, CELL)
    snapshots.written = book.written
    try:
        recovered = await recover(log, CELL, snapshots, counted=book.follow)
    except LogHalted as error:
        logger.error("%s", error)
        return EXIT_HALTED
    if recovered.core.head.number:
        logger.info("read %d cycles; the log stands at cycle %d", recovered.folded, recovered.core.head.number)
    stack = Stack(options, log, recovered, snapshots, book, began_s)
    if options.metrics:
        try:
            endpoint = await serve(stack.metrics, options.metrics)
            logger.info("metrics are at %s/metrics", places.url(endpoint.host, endpoint.port))
        except OSError as error:
            logger.error("metrics cannot be served at %s: %s", options.metrics, error.strerror or error)
            return EXIT_PORT
    await stack.run(listener)
    return 0


def _plain(state: State, name: str) -> bool:
    node = state.node(name)
    return node is not None and not node.cordoned and not node.drained


def _held(state: State, names: list[str]) -> bool:
    return any(node is not None and node.tasks for node in map(state.node, names))


if __name__ == "__main__":
    import uvloop

    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(SWITCH_S)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="muster: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        status = uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Options), int(sys.argv[2]) if len(sys.argv) > 2 else None))
    except OperatingError as error:
        logger.error("%s", error)
        status = EXIT_HALTED
    sys.exit(status)
