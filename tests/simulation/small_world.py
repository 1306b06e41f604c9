"""A small world around real schedulers: durable topics, agents that obey, a log in memory, and clocks that move by waiting.

Nothing sleeps. Whoever waits on a port moves its own clock by the time-out and lets the agents act, so that one order of
awaits gives one history. Each await of a port is counted, and the world can kill a scheduler at any of them.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Literal, NoReturn

import msgspec

from muster.cluster.assignment import assignment
from muster.cluster.evolve import apply
from muster.cluster.state import State
from muster.events.codec import encode, encode_entry, open_envelope
from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.events.levels import NodeReport, TaskReport
from muster.events.nodes import Device, NodeSpec
from muster.events.record import Envelope
from muster.log.admit import Admitted, Halt, admit, genesis
from muster.log.memory import MemoryBroker, MemoryLog
from muster.log.port import Log, Record
from muster.scheduler.loop import Scheduler, Settings
from muster.scheduler.messages import JOBS, NODES, Message
from muster.scheduler.poison import Deaths
from muster.scheduler.recovery import Recovered, recover
from muster.scheduler.snapshots import Snapshots

CELL = "main"
WALL_US = 1_780_000_000_000_000
"""The wall clock when a world begins."""


Phase = Literal["preparing", "ready", "running", "exited"]


KillWhen = Literal["before", "during", "after"]


class Killed(BaseException):
    """The process is gone."""


class NoEnd(BaseException):
    """The world goes on and on."""


class Exited(BaseException):
    """The process left by itself."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def leave(code: int) -> NoReturn:
    """What a scheduler has for `os._exit`."""
    raise Exited(code)


def job_id(number: int, made_us: int = WALL_US) -> str:
    """A UUIDv7 that was made then."""
    digits = f"{made_us // 1000:012x}7000{0x8000 + number // 65536:04x}{number % 65536:012x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def submission(job: str, *, count: int = 1, gpus: int = 1, **request: Any) -> bytes:
    """A job of one group on the wire."""
    group = GroupRequest(count=count, min=count, gpus=gpus, cpu_milli=100)
    event = JobSubmitted(job=job, name="job", user="u", request=JobRequest(groups=(group,), **request))
    return encode_entry(event)


def spec(name: str, gpus: int = 4) -> NodeSpec:
    """What a node of this name has."""
    devices = tuple([Device(uuid=f"{name}-gpu{index}", model="H100", memory_mib=81_920) for index in range(gpus)])
    return NodeSpec(cpu_milli=64_000, memory_mib=524_288, disk_mib=1_048_576, devices=devices)


def report(node: str, **fields: Any) -> NodeReport:
    """What a node says."""
    return NodeReport(**{"node": node, "uid": f"{node}-uid", "boot": "boot-1", "sequence": 1, **fields})


class Topics:
    """The input topics: what was acknowledged stays."""

    def __init__(self) -> None:
        self.messages: dict[str, list[Message]] = {}
        self.arrived: list[Message] = []

    def put(self, source: str, data: bytes, at_us: int, key: str = "") -> int:
        """Append a message; its offset."""
        partition = self.messages.setdefault(source, [])
        message = Message(source, len(partition), data, at_us, key)
        partition.append(message)
        self.arrived.append(message)
        return message.offset


class TopicsInbox:
    """One scheduler's view of the topics, in the order in which messages arrived."""

    def __init__(self, world: "World", clock: "WorldClock") -> None:
        self.world = world
        self.clock = clock
        self._next = 0
        self._from: dict[str, int] = {}
        self._foreign = 0
        self._own = 0

    async def seek(self, positions: Mapping[str, int]) -> None:
        await self.world.step("seek")
        self._from = dict(positions)
        self._next = 0

    def first(self) -> Message | None:
        arrived = self.world.topics.arrived
        while self._next < len(arrived):
            message = arrived[self._next]
            if message.offset >= self._from.get(message.source, 0):
                return message
            self._next += 1
        return None

    def pop(self) -> None:
        self._next += 1

    async def wait(self, timeout_s: float) -> None:
        await self.world.step("inbox wait")
        await self.world.see()
        self.world.act()
        if self.first() is None:
            self.clock.mono_us += max(1, round(timeout_s * 1e6))

    async def catch_up(self) -> frozenset[str]:
        await self.world.step("catch up")
        return frozenset()

    def moved(self, positions: Mapping[str, int]) -> None:
        self.world.moved = dict(positions)

    async def beat(self) -> None:
        await self.world.step("beat")
        self.world.beats += 1
        self._own += 1

    def beats(self) -> int:
        return self.world.beats - self._own


class WorldClock:
    """A clock that moves when its owner waits."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.mono_us = 1_000_000

    def monotonic_us(self) -> int:
        return self.mono_us

    def wall_us(self) -> int:
        return self.world.wall_us


class WorldLog:
    """One scheduler's handle on the log, whose awaits are counted."""

    def __init__(self, world: "World", clock: "WorldClock", log: Log | None = None) -> None:
        self.world = world
        self.clock = clock
        self.log = log if log is not None else MemoryLog(world.broker)

    async def append(self, data: bytes) -> None:
        await self.world.step("append", self.log.append(data))

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        found: list[Record] = await self.world.step("read", self.log.read(after, limit))
        return found

    async def end(self) -> int:
        end: int = await self.world.step("end", self.log.end())
        return end

    async def wait(self, after: int, timeout_s: float) -> None:
        await self.world.step("log wait")
        self.world.broker.tick()
        await self.world.see()
        self.world.act()
        self.clock.mono_us += max(1, round(timeout_s * 1e6))
        await asyncio.sleep(0)

    async def close(self) -> None:
        await self.log.close()


class Agent:
    """One node: it obeys the newest assignment it has seen and reports its level."""

    def __init__(self, name: str, gpus: int) -> None:
        self.name = name
        self.gpus = gpus
        self.applied = 0
        self.sequence = 0
        self.tasks: dict[tuple[str, int, int, int], Phase] = {}
        self.said: bytes = b""
        self.started: list[tuple[str, int, int, int]] = []
        self.announced = False

    def obey(self, state: State) -> None:
        """Bring every task as far as the assignment says; a task that runs exits with 0 the next time."""
        node = state.node(self.name)
        if node is None or node.uid != f"{self.name}-uid":
            return
        given = assignment(state, node.row)
        if given.number <= self.applied:
            return
        self.applied = given.number
        named = {(task.job, task.instance, task.attempt, task.rank): task.phase for task in given.tasks}
        self.tasks = {key: phase for key, phase in self.tasks.items() if key in named}
        for key, phase in named.items():
            has = self.tasks.get(key)
            if has is None:
                self.tasks[key] = "exited" if phase == "stop" else "ready"
            elif phase == "run" and has == "ready":
                self.tasks[key] = "running"
                self.started.append(key)
            elif has == "running":
                self.tasks[key] = "exited"

    def report(self) -> NodeReport | None:
        """What is true here, if it is news."""
        tasks = tuple(
            [TaskReport(job=k[0], instance=k[1], attempt=k[2], rank=k[3], phase=phase) for k, phase in self.tasks.items()]
        )
        said = encode(tasks)
        if said == self.said and self.announced:
            return None
        self.said = said
        self.sequence += 1
        self.announced = True
        return report(
            self.name,
            sequence=self.sequence,
            applied=self.applied,
            spec=spec(self.name, self.gpus) if self.sequence == 1 else None,
            tasks=tasks,
        )


class View:
    """What a gateway knows: the fold of what was admitted."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.head = genesis(CELL)
        self.state = State(CELL)
        self.admitted: list[tuple[Envelope, bytes]] = []
        self.voids: dict[str, int] = {}
        self._read = 0

    def follow(self) -> State:
        """Fold what has landed."""
        for data in self.broker.records[self._read :]:
            self._read += 1
            verdict = admit(self.head, data)
            assert not isinstance(verdict, Halt), verdict
            if isinstance(verdict, Admitted):
                self.head = verdict.head
                apply(self.state, open_envelope(verdict.envelope))
                self.admitted.append((verdict.envelope, data))
            else:
                self.voids[verdict.reason] = self.voids.get(verdict.reason, 0) + 1
        return self.state


class World:
    """Topics, log, agents; and schedulers one after another or side by side."""

    def __init__(self, nodes: int = 2, gpus: int = 4, broker: MemoryBroker | None = None) -> None:
        self.broker = broker if broker is not None else MemoryBroker()
        self.topics = Topics()
        self.agents = [Agent(f"n{number}", gpus) for number in range(1, nodes + 1)]
        self.view = View(self.broker)
        self.wall_us = WALL_US
        self.beats = 0
        self.moved: dict[str, int] = {}
        self.jobs: list[str] = []
        self.awaits = 0
        self.kill_at = 0
        """The await at which to kill, counted from 1; 0 for none."""
        self.kill_when: KillWhen = "before"
        """Whether what is awaited has begun, and whether it has ended, when the kill comes."""
        self.schedulers: list[Scheduler] = []
        self.exits: list[int] = []
        self.incarnations = 0
        self.script: list[tuple[str, bytes]] = []
        """Messages that producers send one at a time, whenever the agents act."""
        self.acts = 0
        self.acts_max = 20_000
        self.terms: dict[int, None] = {}

    def submit(self, number: int, **request: Any) -> str:
        """A producer's job is acknowledged by the topic."""
        job = job_id(number)
        self.jobs.append(job)
        self.script.append((job, submission(job, **request)))
        return job

    async def step(self, what: str, operation: Any = None) -> Any:
        """One await of a port."""
        self.awaits += 1
        now = self.awaits == self.kill_at
        if now and self.kill_when != "after":
            if operation is not None:
                await self.abandon(operation)
            raise Killed(what)
        result = await operation if operation is not None else None
        if now:
            raise Killed(what)
        return result

    async def abandon(self, operation: Coroutine[Any, Any, Any]) -> None:
        """What a dead process had asked for: nothing, or what nobody waits for any more."""
        if self.kill_when == "before":
            operation.close()
            return
        asked = asyncio.ensure_future(operation)
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    async def open_log(self, clock: WorldClock) -> WorldLog:
        """A handle for one more scheduler."""
        return WorldLog(self, clock)

    async def see(self) -> None:
        """Look at what has landed meanwhile: in memory it is there."""

    def act(self) -> None:
        """Producers and agents do what they do; once all jobs are over the schedulers are told to stop."""
        self.acts += 1
        if self.acts > self.acts_max:
            raise NoEnd(f"no end after {self.acts} turns; {len(self.left())} jobs are left")
        if self.script:
            job, data = self.script.pop(0)
            self.topics.put(f"{JOBS}/0", data, self.wall_us, job)
        state = self.view.follow()
        agent = self.agents[self.acts % len(self.agents)]
        agent.obey(state)
        said = agent.report()
        if said is not None:
            self.topics.put(f"{NODES}/0", msgspec.json.encode(said), self.wall_us, agent.name)
        if not self.left():
            for scheduler in self.schedulers:
                scheduler.stop()

    def left(self) -> list[str]:
        """Jobs that have not ended."""
        state = self.view.state
        return [job for job in self.jobs if job not in state.jobs or state.jobs[job].open]

    async def incarnation(self, settings: Settings, snapshots: Snapshots | None = None, deaths: Any = None) -> Recovered | None:
        """Start a scheduler and let it run to its end. None if it was killed or left by itself."""
        self.incarnations += 1
        clock = WorldClock(self)
        log = await self.open_log(clock)
        scheduler: Scheduler | None = None
        try:
            recovered = await recover(log, CELL, snapshots)
            mark = Deaths(deaths, recovered.core.positions)
            nonce = f"{self.incarnations:032x}"
            scheduler = Scheduler(
                recovered,
                log,
                TopicsInbox(self, clock),
                settings,
                clock=clock,
                snapshots=snapshots,
                deaths=mark,
                exit=leave,
                nonce=lambda: nonce,
            )
            self.schedulers.append(scheduler)
            await scheduler.run()
            return recovered
        except Exited as exited:
            self.exits.append(exited.code)
            return None
        except Killed:
            return None
        finally:
            if scheduler is not None:
                self.schedulers.remove(scheduler)
            await log.close()
