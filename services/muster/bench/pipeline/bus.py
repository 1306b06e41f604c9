"""The stack that is measured, on Kafka: schedulers and a gateway as programs of their own, on a bus whose topics are new.

Each measurement finds the topics empty: they are made before it and removed after it. So a bus that holds topics of Muster's
already is never used. Without a bus, one broker is started from the jars, as for tests, on the machine that is measured.
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from aiokafka.admin import AIOKafkaAdminClient

from muster.bench.pipeline.report import Inside
from muster.bench.pipeline.stack import PROGRAM, NoStack, end
from muster.events.base import Event
from muster.events.cloudevents import key_of, to_message
from muster.events.record import Envelope
from muster.log.bus import Bus
from muster.log.errors import OperatingError
from muster.log.kafka import KafkaLog, give_up, make_producer
from muster.log.kafka_reader import CONFIG_VARIABLE, bus_at
from muster.log.port import Record
from muster.log.reader import read_admitted
from muster.log.topics import create, declared
from muster.scheduler.messages import OPERATIONS
from muster.up import bus_gateway, bus_scheduler
from muster.up.places import CELL

BROKER: Final = Path("infra/kafka/broker")
"""Starts a broker; where the repository is the working directory."""
START_S: Final = 90.0
GONE_S: Final = 30.0

Answer = TypeVar("Answer")


class Home:
    """A bus for measurements."""

    def __init__(self, address: str, broker: int = 0) -> None:
        """`broker` is the number of its process, where it is one of ours."""
        self.bus = bus_at(address)
        self.config = os.environ.get(CONFIG_VARIABLE, "")
        self.broker = broker

    def check(self) -> None:
        """See that nobody else uses the bus.

        Raises:
            NoStack: it holds topics of Muster's.
        """
        if there := asyncio.run(_there(self.bus)):
            raise NoStack(
                f"{self.bus.address} holds {', '.join(there)}: a measurement makes its topics anew, so name a bus without"
            )

    def make(self) -> None:
        """Make all topics anew."""
        asyncio.run(_make(self.bus))

    def clear(self) -> None:
        """Remove them."""
        asyncio.run(_remove(self.bus))


@contextmanager
def home(address: str, folder: Path) -> Iterator[Home]:
    """The bus at this address, or one broker on this machine where there is no address.

    Raises:
        NoStack: it holds topics of Muster's, or the broker does not start.
    """
    if address:
        made = Home(address)
        made.check()
        try:
            yield made
        finally:
            made.clear()
        return
    if not BROKER.is_file():
        raise NoStack(f"{BROKER} is not here: measure in the repository, whose program starts a broker, or name one with --bus")
    command = [sys.executable, str(BROKER), "run", "--folder", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        if line := process.stdout.readline().decode().strip():
            nodes = json.loads((folder / "brokers.json").read_text())["nodes"]
            yield Home(f"kafka://{line}", int(nodes[0]["pid"]))
            assert process.stdin is not None
            process.stdin.close()
        else:
            raise NoStack("the broker does not start: see what it said above")


class Program:
    """A program of the stack with counters inside (`muster.bench.pipeline.program`)."""

    def __init__(self, module: str, options: msgspec.Struct, said: Path) -> None:
        """Start it; what it says of itself goes to the file `said`."""
        self._said = said
        with said.open("ab") as words:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, module, msgspec.json.encode(options).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
            )
        self.pid = self._process.pid

    def inside(self) -> Inside:
        """What was counted since this was asked last."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self.hear(), type=Inside)

    def hear(self) -> bytes:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NoStack(f"a program ended with status {self._process.wait()}: see {self._said}")
        return line

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it."""
        end(self._process)


class KafkaStack:
    """See `muster.bench.pipeline.stack.Stack`."""

    def __init__(self, home: Home, folder: Path) -> None:
        """Make the topics; no program runs yet."""
        self.home = home
        self.folder = folder
        self.cell = CELL
        self.url = ""
        self._schedulers: list[Program] = []
        """The first one leads."""
        self._started = 0
        self._gateway: Program | None = None
        self._loop = asyncio.new_event_loop()
        """Runs in a thread: whoever reads the log must go on to answer the broker, also while nothing is read."""
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._log: KafkaLog | None = None
        folder.mkdir(parents=True, exist_ok=True)
        home.make()

    def start(self, takeover_after_s: float) -> None:
        """Start a scheduler and a gateway; returns when the one leads and the other listens.

        Raises:
            NoStack: it does not.
        """
        bus = self.home.bus
        self._thread.start()
        self._log = self._run(KafkaLog.open(bus, writer=False))
        self.takeover_after_s = takeover_after_s
        self.stand_by()
        options = bus_gateway.Options(bus=bus.address, config=self.home.config, folder=str(self.folder / "gateway"), port=0)
        self._gateway = Program("muster.up.bus_gateway", options, self.folder / "gateway.log")
        line = self._gateway.hear().decode().split()
        if line[:1] != ["ready"]:
            raise NoStack(f"the gateway does not start: see {self.folder / 'gateway.log'}")
        self.url = line[1]
        limit = time.monotonic() + START_S
        while not self.read(0):
            time.sleep(0.1)
            if time.monotonic() > limit:
                raise NoStack(f"the scheduler does not lead: see {self.folder / 'scheduler-1.log'}")

    def stand_by(self) -> None:
        """Start one more scheduler; it leads where no other does."""
        self._started += 1
        name = f"scheduler-{self._started}"
        options = bus_scheduler.Options(
            bus=self.home.bus.address,
            config=self.home.config,
            folder=str(self.folder / name),
            takeover_after_us=int(self.takeover_after_s * 1_000_000),
        )
        self._schedulers.append(Program("muster.up.bus_scheduler", options, self.folder / f"{name}.log"))

    def kill_leader(self) -> None:
        """SIGKILL the one that leads. The one that was started next is to lead after it."""
        self._schedulers[0].kill()
        self._schedulers.pop(0).stop()

    def say(self, event: Event) -> None:
        """Put an operation on the bus."""
        self._run(_say(self.home.bus, event))

    def pids(self) -> dict[str, int]:
        """See `Stack`."""
        found = {"scheduler": self._schedulers[0].pid, "gateway": self._gateway.pid if self._gateway else 0}
        return {**found, "broker": self.home.broker} if self.home.broker else found

    def inside(self) -> Inside:
        """See `Stack`."""
        return self._schedulers[0].inside()

    def beside(self) -> dict[str, Inside]:
        """See `Stack`."""
        return {"gateway": self._gateway.inside()} if self._gateway is not None else {}

    def read(self, after: int) -> list[Record]:
        """See `Stack`. Waits for nothing: of a log that always grows somebody who waits at its end never gets there."""
        assert self._log is not None
        return self._run(self._log.read(after))

    def stop(self) -> None:
        """See `Stack`."""
        for program in (*self._schedulers, self._gateway):
            if program is not None:
                program.stop()
        self._schedulers, self._gateway = [], None
        log, self._log = self._log, None
        if log is not None:
            self._run(log.close())
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def admitted(self) -> Iterator[tuple[Envelope, bytes]]:
        """See `Stack`."""
        return read_admitted(self.home.bus.address, self.cell)

    def _run(self, what: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()


class NotRemoved(OperatingError):
    """The broker keeps a topic that it was told to remove."""


async def _there(bus: Bus) -> list[str]:
    client = AIOKafkaAdminClient(**bus.client_options())
    await client.start()
    try:
        known = await client.list_topics()
    finally:
        await client.close()
    return [topic.name for topic in declared() if topic.name in known]


async def _remove(bus: Bus) -> None:
    client = AIOKafkaAdminClient(**bus.client_options())
    await client.start()
    limit = time.monotonic() + GONE_S
    try:
        names = [topic.name for topic in declared()]
        there = [name for name in names if name in await client.list_topics()]
        if there:
            await client.delete_topics(there)
        while any(name in there for name in await client.list_topics()):
            if time.monotonic() > limit:
                raise NotRemoved(f"{bus.address} does not remove {', '.join(there)}: its delete.topic.enable must be true")
            await asyncio.sleep(0.1)
    finally:
        await client.close()


async def _make(bus: Bus) -> None:
    await _remove(bus)
    await create(bus)


async def _say(bus: Bus, event: Event) -> None:
    producer = make_producer(bus)
    try:
        await producer.start()
        headers, value = to_message(OPERATIONS, event, "muster:bench", secrets.token_hex(16), time.time_ns() // 1000)
        await producer.send_and_wait(OPERATIONS, value, key_of(event).encode(), headers=headers)
    finally:
        await give_up(producer)
