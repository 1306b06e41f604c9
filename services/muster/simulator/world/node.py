"""A node of the world: machine, supervisors and disk, which outlive the agent; and the agent, which is a process.

The machine is where the truth stands: which tasks ran, when, on which devices, and how they ended (`Run`). What the scheduler
believes is compared with that in the end.

Each task has a supervisor that ends it when the lease does, agent or no agent. The lease is moved by acknowledged reports
alone, to the sending plus `lease_us`. When it ends, what was only prepared is given up too, and the node goes on as after a
reboot, under another boot id: nothing that was said before starts after it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from muster.events.base import DeviceHealth
from muster.events.codec import encode
from muster.events.levels import Assignment, DeviceReport, NodeReport, TaskAssignment, TaskReport
from muster.events.nodes import Device, NodeSpec
from muster.simulator.world.gateway import POLL_US, Gateway
from muster.simulator.world.network import Network, Unanswered
from muster.simulator.world.process import MILLION, HostClock, Process, Timeline

TaskKey = tuple[str, int, int, int]
"""Job, instance, attempt, rank."""

REPORT_US = 4 * MILLION
TOLD_TO_STOP = -15
KILLED = -9


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How the tasks of a job behave."""

    ready_us: int = MILLION
    runtime_us: int = 10 * MILLION
    stop_us: int | None = 500_000
    """How long they take to stop when told; None if only the kill ends them."""
    fails: int = 0
    """So many attempts of each instance exit with 1."""


class Run(msgspec.Struct, kw_only=True):
    """A task that ran: the truth."""

    key: TaskKey
    node: str
    uid: str
    boot: str
    devices: tuple[int, ...]
    began_us: int
    ended_us: int | None = None
    code: int = 0


class Held:
    """What the disk says of one task."""

    __slots__ = ("blame", "code", "devices", "key", "kill_at_us", "phase", "reason", "run", "since", "wanted")

    def __init__(self, key: TaskKey, since: int, devices: tuple[int, ...]) -> None:
        self.key = key
        self.since = since
        self.devices = devices
        self.phase = "preparing"
        self.wanted = "prepare"
        self.kill_at_us: int | None = None
        self.code = 0
        self.blame = ""
        self.reason = ""
        self.run: Run | None = None


class Machine:
    """Hardware, supervisors and disk of one node."""

    def __init__(
        self,
        timeline: Timeline,
        name: str,
        clock: HostClock,
        spec: NodeSpec,
        lease_us: int,
        behaviours: Mapping[str, Behaviour],
        runs: list[Run],
    ) -> None:
        self.timeline = timeline
        self.name = name
        self.clock = clock
        self.lease_us = lease_us
        self.behaviours = behaviours
        self.runs = runs
        self.machines = 1
        self.boots = 1
        self.on = True
        self.template = spec
        self.health: dict[str, DeviceHealth] = {}
        self.applied = 0
        self.sequence = 0
        self.tasks: dict[TaskKey, Held] = {}
        self.lease_ends_us = 0
        """By the machine's own monotonic clock; 0 before the first report was acknowledged."""
        self.changed: Callable[[], None] = lambda: None
        """Tells the agent that something happened here."""

    @property
    def uid(self) -> str:
        """The machine's identity."""
        return f"{self.name}-machine{self.machines}"

    @property
    def boot(self) -> str:
        """The id of this boot."""
        return f"{self.uid}-boot{self.boots}"

    def spec(self) -> NodeSpec:
        """What the machine has now."""
        devices = [
            Device(uuid=uuid, model="H100", memory_mib=1000, health=self.health.get(uuid, "healthy")) for uuid in self.uuids()
        ]
        return msgspec.structs.replace(self.template, devices=tuple(devices))

    def uuids(self) -> list[str]:
        """Its devices."""
        return [f"{self.uid}-gpu{index}" for index in range(len(self.template.devices))]

    # What happens to the machine

    def off(self) -> None:
        """Without power nothing runs."""
        self.on = False
        for held in self.tasks.values():
            self.end(held, KILLED, "node", "the node went down")

    def reboot(self) -> None:
        """Up again."""
        self.off()
        self.on = True
        self.begin_boot()

    def begin_boot(self) -> None:
        """Nothing runs here, and all that was said to this node before is void."""
        self.boots += 1
        self.sequence = self.lease_ends_us = 0
        self.tasks = {}
        self.changed()

    def replace(self) -> None:
        """Another machine under the same name."""
        self.off()
        self.on = True
        self.machines += 1
        self.boots = self.applied = 0
        self.health = {}
        self.begin_boot()

    # Tasks

    def follow(self, item: TaskAssignment, at_us: int) -> None:
        """Bring one task as far as the assignment of log time `at_us` says."""
        key = (item.job, item.instance, item.attempt, item.rank)
        held = self.tasks.get(key)
        if held is not None and held.since != item.since:  # the rank was placed here anew
            self.forget(key)
            held = None
        if held is None:
            held = self.tasks[key] = Held(key, item.since, item.devices)
            if item.phase == "stop":
                self.end(held, TOLD_TO_STOP)
            else:
                self._supervise()
                self._later(self.behaviours[key[0]].ready_us, held, self._ready)
        held.wanted = item.phase
        if item.phase == "run" and held.phase == "ready":
            self.start(held)
        elif item.phase == "stop" and held.phase != "exited":
            self._stop(held, max(0, item.kill_at_us - at_us))

    def forget(self, key: TaskKey) -> None:
        """No assignment names it any more."""
        self.end(self.tasks[key], KILLED)
        del self.tasks[key]

    def start(self, held: Held) -> None:
        """Its process runs, if the lease holds."""
        now_us = self.clock.monotonic_us()
        if now_us >= self.lease_ends_us:
            return
        behaviour = self.behaviours[held.key[0]]
        held.phase = "running"
        held.run = Run(
            key=held.key,
            node=self.name,
            uid=self.uid,
            boot=self.boot,
            devices=held.devices,
            began_us=self.timeline.now_us,
        )
        self.runs.append(held.run)
        code = 1 if held.key[2] <= behaviour.fails else 0
        self._later(behaviour.runtime_us, held, lambda task: self.end(task, code, "job" if code else ""))
        self._supervise()
        self.changed()

    def end(self, held: Held, code: int, blame: str = "", reason: str = "") -> None:
        """Its process group is gone, or will never be."""
        if held.phase == "exited":
            return
        if held.run is not None:
            held.run.ended_us = self.timeline.now_us
            held.run.code = code
        held.phase = "exited"
        held.code = code
        held.blame = blame
        held.reason = reason
        self.changed()

    def extend(self, sent_us: int) -> None:
        """A report that was sent then, by this machine's clock, was acknowledged."""
        self.check_lease()
        self.lease_ends_us = max(self.lease_ends_us, sent_us + self.lease_us)
        for held in list(self.tasks.values()):
            if held.phase == "ready" and held.wanted == "run":
                self.start(held)
        self._supervise()

    def check_lease(self) -> None:
        """What is held beyond the lease ends, and the node begins anew.

        Only then is it safe that reports are acknowledged again while some gateway still serves what was true before the
        lease ended: an assignment names the boot that it is meant for.
        """
        if 0 < self.lease_ends_us <= self.clock.monotonic_us():
            for held in list(self.tasks.values()):
                self.end(held, KILLED, "node", "the lease ended")
            self.begin_boot()

    def report(self, with_spec: bool) -> bytes:
        """The whole level."""
        self.sequence += 1
        return encode(
            NodeReport(
                node=self.name,
                uid=self.uid,
                boot=self.boot,
                boots=self.boots,
                sequence=self.sequence,
                applied=self.applied,
                spec=self.spec() if with_spec else None,
                tasks=tuple([_reported(held) for held in self.tasks.values()]),
                devices=tuple([DeviceReport(uuid=uuid, health=self.health.get(uuid, "healthy")) for uuid in self.uuids()]),
            )
        )

    def _ready(self, held: Held) -> None:
        if held.phase == "preparing":
            held.phase = "ready"
            self.changed()
            if held.wanted == "run":
                self.start(held)

    def _stop(self, held: Held, left_us: int) -> None:
        kill_at_us = self.timeline.now_us + left_us
        if held.kill_at_us is not None and held.kill_at_us <= kill_at_us:
            return
        first = held.kill_at_us is None
        held.kill_at_us = kill_at_us
        stop_us = self.behaviours[held.key[0]].stop_us
        if held.phase != "running":
            self.end(held, TOLD_TO_STOP)
            return
        if first and stop_us is not None and stop_us < left_us:
            self._later(stop_us, held, lambda task: self.end(task, TOLD_TO_STOP))
        self._later(left_us, held, lambda task: self.end(task, KILLED))

    def _supervise(self) -> None:
        self.timeline.at(self.clock.world_us(self.lease_ends_us), self.check_lease)

    def _later(self, span_us: int, held: Held, action: Callable[[Held], None]) -> None:
        """Do this on this machine, in this boot, while the task is there."""
        boot = self.boot

        def due() -> None:
            if self.on and self.boot == boot and self.tasks.get(held.key) is held and held.phase != "exited":
                action(held)

        self.timeline.after(span_us, due)


class Agent:
    """The agent of a node: a process that may die while its tasks go on."""

    def __init__(self, process: Process, machine: Machine, network: Network, gateways: Sequence[Gateway]) -> None:
        self.process = process
        self.machine = machine
        self.network = network
        self.gateways = gateways
        self._loop: object = None
        self._news: asyncio.Event | None = None
        self._registered = ""
        """The boot for which an assignment was seen: the scheduler knows it."""
        machine.changed = self._changed

    async def run(self, process: Process) -> None:
        """Report and obey, side by side."""
        self._loop = process.loop
        self._news = asyncio.Event()
        self._registered = ""
        self.machine.check_lease()
        reporter = process.spawn(self._report())
        poller = process.spawn(self._poll())
        done, _ = await asyncio.wait([reporter, poller], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _report(self) -> None:
        machine = self.machine
        assert self._news is not None
        gateway = self.process.random.choice(self.gateways)
        while True:
            self._news.clear()
            sent_us = machine.clock.monotonic_us()
            boot = machine.boot
            data = machine.report(with_spec=self._registered != boot)
            if not await self._acknowledged(gateway, data):
                gateway = self.process.random.choice(self.gateways)
            elif machine.boot == boot:
                machine.extend(sent_us)
            await self.process.pause(100_000)
            try:
                async with asyncio.timeout(REPORT_US / MILLION):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _acknowledged(self, gateway: Gateway, data: bytes) -> bool:
        try:
            await self.network.ask(self.process, gateway, lambda: gateway.report(self.machine.name, data), 4 * MILLION)
        except Unanswered:
            return False
        return True

    async def _poll(self) -> None:
        machine = self.machine
        gateway = self.process.random.choice(self.gateways)
        while True:
            life = (machine.uid, machine.boot)
            try:
                level = await self.network.ask(
                    self.process, gateway, _poll_of(gateway, machine.name, life, machine.applied), POLL_US + MILLION
                )
            except Unanswered:
                gateway = self.process.random.choice(self.gateways)
                continue
            if level is not None:
                self.obey(level)
            else:
                self._registered = ""  # perhaps nobody knows this node any more: the next report says what it has
            await self.process.pause(20_000)

    def obey(self, level: Assignment) -> None:
        """Do what the newest assignment says. An older one, or one for another boot, says nothing."""
        machine = self.machine
        machine.check_lease()
        if (level.uid, level.boot) != (machine.uid, machine.boot) or level.number <= machine.applied:
            return
        machine.applied = level.number
        self._registered = level.boot
        named: dict[TaskKey, None] = {}
        for item in level.tasks:
            named[item.job, item.instance, item.attempt, item.rank] = None
            machine.follow(item, level.at_us)
        for key in [key for key in machine.tasks if key not in named]:
            machine.forget(key)
            self._changed()

    def _changed(self) -> None:
        if self._news is not None:
            self.process.deliver(self._loop, self._news.set)


def _poll_of(gateway: Gateway, node: str, life: tuple[str, str], applied: int) -> Callable[[], object]:
    return lambda: gateway.poll(node, life, applied)


def _reported(held: Held) -> TaskReport:
    job, instance, attempt, rank = held.key
    return TaskReport(
        job=job,
        instance=instance,
        attempt=attempt,
        rank=rank,
        since=held.since,
        phase=held.phase,  # type: ignore[arg-type]  # one of the four phases
        code=held.code,
        blame=held.blame,  # type: ignore[arg-type]  # "", "job" or "node"
        reason=held.reason,
    )
