"""Simulated agents that speak the real protocol, all in one process.

Each has two connections, as a real agent has: one for reports, one for the long poll. It reports its whole level when
something is new, one report at a time, and at least each beat; it obeys its assignment: a task that is to run runs at once
and exits after its span. It keeps nothing, and starts no processes.
"""

import asyncio
import random

import msgspec

from muster.bench.pipeline.http import Connection
from muster.bench.pipeline.workers import Orders, say, work
from muster.events.codec import encode
from muster.events.levels import NodeReport, TaskReport
from muster.events.nodes import Device, NodeSpec
from muster.log.errors import OperatingError

OBEYED_S = 0.25
"""As soon as an agent says that an assignment was obeyed, if no other report does before."""
REGISTERED_PER_S = 500
AGAIN_S = 0.1
MODEL = "H100"
DEVICE_MIB = 81_920
NODE_CPU_MILLI = 192_000
NODE_MEMORY_MIB = 2_097_152

TaskKey = tuple[str, int, int, int]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What they are."""

    url: str
    nodes: int
    gpus: int = 8
    beat_s: float = 5.0
    runs_s: tuple[float, float] = (0.0, 0.0)
    """A task runs for a span between these."""
    runs: bool = True
    """Whether tasks are run. Otherwise assignments are only taken, and what is assigned stays as it is."""
    seed: int = 1


class Level(msgspec.Struct, frozen=True):
    """What such an agent reads of its assignment: a part of `muster.agent.protocol.AgentAssignment`."""

    uid: str
    boot: str
    number: int
    tasks: "tuple[LevelTask, ...]" = ()


class LevelTask(msgspec.Struct, frozen=True):
    """What it reads of a task."""

    job: str
    instance: int
    attempt: int
    rank: int
    phase: str
    since: int = 0


class Counts(msgspec.Struct, kw_only=True):
    """What they did so far."""

    reports: int = 0
    polls: int = 0
    assignments: int = 0
    """Polls that were answered with an assignment."""
    started: int = 0
    exited: int = 0


class _Known(msgspec.Struct):
    known: bool = True


class Refused(OperatingError):
    """The gateway did not take what an agent said."""


_level = msgspec.json.Decoder(Level).decode
_known = msgspec.json.Decoder(_Known).decode


class Agent:
    """One node's."""

    def __init__(self, options: Options, number: int, counts: Counts) -> None:
        self.name = f"node-{number:05d}"
        self.uid = f"uid-{number:05d}"
        self.registered = asyncio.Event()
        self._options = options
        self._counts = counts
        self._chance = random.Random(f"{options.seed} {number}")
        self._sequence = 0
        self._applied = 0
        self._said_applied = 0
        self._announce = True
        self._changed = asyncio.Event()
        self._tasks: dict[TaskKey, tuple[str, int]] = {}
        """The phase and the `since` of each task that the node knows."""
        devices = tuple(
            Device(uuid=f"GPU-{number:05d}-{index}", model=MODEL, memory_mib=DEVICE_MIB, numa=index // 4)
            for index in range(options.gpus)
        )
        self._spec = NodeSpec(cpu_milli=NODE_CPU_MILLI, memory_mib=NODE_MEMORY_MIB, devices=devices)

    async def report(self, first_s: float) -> None:
        """Report, for ever; the first time after so many seconds."""
        connection = await Connection.to(self._options.url)
        path = f"/v1/nodes/{self.name}/reports".encode()
        await asyncio.sleep(first_s)
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            self._sequence += 1
            self._said_applied = self._applied
            announced, self._announce = self._announce, False
            status, said = await connection.ask(b"POST", path, encode(self._report(announced)))
            if status == 503:  # it cannot be answered now
                self._announce = announced
                await asyncio.sleep(AGAIN_S)
                continue
            if status != 202:
                raise Refused(f"a report was answered with {status}: {said.decode(errors='replace')[:500]}")
            self._counts.reports += 1
            if _known(said).known:
                self.registered.set()
            else:
                self._announce = True
                self._changed.set()
                await asyncio.sleep(0.05)
            beat_s = self._options.beat_s  # the first one sooner or later, so that nodes do not all report at once
            beat = loop.call_later(beat_s if self._sequence > 1 else self._chance.uniform(0, beat_s), self._changed.set)
            await self._changed.wait()
            beat.cancel()

    async def poll(self) -> None:
        """Ask for the assignment and obey it, for ever."""
        await self.registered.wait()
        connection = await Connection.to(self._options.url)
        try:
            while True:
                path = f"/v1/nodes/{self.name}/assignment?after={self._applied}&uid={self.uid}".encode()
                status, said = await connection.ask(b"GET", path)
                self._counts.polls += 1
                if status == 200:
                    self._counts.assignments += 1
                    self._obey(_level(said))
                elif status != 204:
                    raise Refused(f"a poll was answered with {status}: {said.decode(errors='replace')[:500]}")
        finally:
            connection.close()

    def _obey(self, level: Level) -> None:
        self._applied = level.number
        if not self._options.runs:
            return  # and no report says that it was applied: it would mean that the tasks are missing
        named: dict[TaskKey, None] = {}
        for task in level.tasks:
            key = (task.job, task.instance, task.attempt, task.rank)
            named[key] = None
            if task.phase == "run" and key not in self._tasks:
                self._tasks[key] = ("running", task.since)
                self._counts.started += 1
                asyncio.get_running_loop().call_later(self._chance.uniform(*self._options.runs_s), self._exit, key)
                self._changed.set()
        for key in [key for key in self._tasks if key not in named]:
            del self._tasks[key]
        asyncio.get_running_loop().call_later(OBEYED_S, self._obeyed, level.number)

    def _exit(self, key: TaskKey) -> None:
        if key in self._tasks:
            self._tasks[key] = ("exited", self._tasks[key][1])
            self._counts.exited += 1
            self._changed.set()

    def _obeyed(self, number: int) -> None:
        if self._said_applied < number:
            self._changed.set()

    def _report(self, announced: bool) -> NodeReport:
        return NodeReport(
            node=self.name,
            uid=self.uid,
            boot="boot-1",
            sequence=self._sequence,
            applied=self._applied if self._options.runs else 0,
            spec=self._spec if announced else None,
            tasks=tuple(
                [
                    TaskReport(job=key[0], instance=key[1], attempt=key[2], rank=key[3], since=since, phase=phase)  # type: ignore[arg-type]
                    for key, (phase, since) in self._tasks.items()
                ]
            ),
        )


async def begin(options: Options, orders: Orders) -> None:
    """Register all nodes; then `poll` begins the long polls, `rest` ends them, and each order is answered with `Counts`."""
    counts = Counts()
    agents = [Agent(options, number, counts) for number in range(options.nodes)]
    reporting = [asyncio.create_task(agent.report(number / REGISTERED_PER_S)) for number, agent in enumerate(agents)]
    polling: list[asyncio.Task[None]] = []
    registered = asyncio.create_task(_all(agents))
    hearing: asyncio.Task[str] | None = None
    await asyncio.wait([registered, *reporting], return_when=asyncio.FIRST_COMPLETED)
    for task in reporting:
        if task.done():
            task.result()
    say("ready")
    while True:
        hearing = hearing or asyncio.create_task(orders.next())
        done, _ = await asyncio.wait([hearing, *reporting, *polling], return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            if each is not hearing and not each.cancelled():
                each.result()
        if hearing not in done:
            continue
        order = hearing.result()
        hearing = None
        if not order:
            return
        if order == "poll":
            polling = [asyncio.create_task(agent.poll()) for agent in agents]
        elif order == "rest":
            for task in polling:
                task.cancel()
            await asyncio.gather(*polling, return_exceptions=True)
            polling = []
        say(counts)


async def _all(agents: list[Agent]) -> None:
    for agent in agents:
        await agent.registered.wait()


if __name__ == "__main__":
    work(Options, begin)
