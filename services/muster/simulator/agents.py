"""Simulated agents in virtual time: each node's level, and how it follows the assignments it is given.

An agent gets the assignment of its node, changes its tasks accordingly, and reports the whole level: what a real agent
does, without processes. How long tasks take to be ready, to run and to stop is the `Behaviour` of their job. Agents do
not know the engine; they see assignments (`muster.events.levels.Assignment`) and make reports (`NodeReport`).

Times here are microseconds of virtual time since the start; an assignment's instants are log time, and `Fleet.epoch_us`
is the difference.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import UNSET

from muster.events.base import DeviceHealth
from muster.events.codec import encode
from muster.events.levels import Assignment, DeviceReport, NodeReport, TaskAssignment, TaskReport
from muster.events.nodes import Device, NodeSpec

TaskKey = tuple[str, int, int, int]
"""Job, instance, attempt, rank."""

TOLD_TO_STOP = -15
KILLED = -9
PORT = 29_500

NEVER_US = -1


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How the tasks of a job behave. `stop_takes_us` may be `NEVER_US`: only the kill ends them."""

    ready_takes_us: int = 0
    runtime_us: int | None = None
    stop_takes_us: int = 0
    fails_to_start_on: tuple[str, ...] = ()
    start_failures: int | None = None
    """How many attempts fail to start on those nodes; None means each."""


class AgentTask:
    """One task on a node, as its agent knows it."""

    __slots__ = ("blame", "code", "devices", "key", "kill_at_us", "phase", "reason", "since", "wanted")

    def __init__(self, key: TaskKey, devices: tuple[int, ...]) -> None:
        self.key = key
        self.devices = devices
        self.since = 0
        """Which member of that rank it is, as the assignment says."""
        self.phase = "preparing"
        self.wanted = "prepare"
        """The phase of the newest assignment."""
        self.kill_at_us: int | None = None
        self.code = 0
        self.blame = ""
        self.reason = ""


class Agent:
    """A node: what it has, what runs there, and whether its reports get through."""

    def __init__(self, name: str, uid: str) -> None:
        self.name = name
        self.uid = uid
        self.boots = 1
        self.sequence = 0
        self.applied = 0
        self.devices: list[Device] = []
        """Every device there ever was, by index; those that went are not in `present`."""
        self.present: list[int] = []
        self.cards: list[tuple[tuple[str, ...], list[int]]] = []
        """By GPU: the profiles of the slices that it is cut into, none where it is whole; and its devices."""
        self.order: list[int] = []
        """In which order the devices are reported."""
        self.spec = NodeSpec()
        """What the node has but its devices."""
        self.health: dict[str, DeviceHealth] = {}
        self.foreign_cpu_milli = 0
        self.foreign_memory_mib = 0
        self.foreign_devices: tuple[str, ...] = ()
        self.tasks: dict[TaskKey, AgentTask] = {}
        self.silent = False
        self.off = False
        """Fenced: without power until it returns with another boot."""
        self.announce = True
        """The next report says what the node has."""
        self.changed = True
        """The level is not what was reported last."""
        self.heard_us = 0
        self.lease_until_us = 0
        """An announced outage of the bus: no task is killed before."""
        self.lease_ends_us = 0

    @property
    def boot(self) -> str:
        """The id of the present boot."""
        return f"{self.uid}-boot{self.boots}"

    def described(self) -> NodeSpec:
        """What the node has now, its devices in the order in which they are reported."""
        devices = [self.devices[index] for index in self.order]
        return msgspec.structs.replace(
            self.spec,
            devices=tuple(msgspec.structs.replace(device, health=self.health.get(device.uuid, "healthy")) for device in devices),
        )

    def report(self, now_us: int, extra: TaskReport | None = None) -> bytes:
        """The level as a report. `extra` is one more task, or another word on one that is there."""
        self.sequence += 1
        self.heard_us = now_us
        self.changed = False
        spec = self.described() if self.announce else None
        self.announce = False
        tasks = {task.key: _task_report(task) for task in self.tasks.values()}
        if extra is not None:
            tasks[extra.job, extra.instance, extra.attempt, extra.rank] = extra
        return encode(
            NodeReport(
                node=self.name,
                uid=self.uid,
                boot=self.boot,
                sequence=self.sequence,
                applied=self.applied,
                spec=spec,
                tasks=tuple(tasks.values()),
                devices=tuple(
                    DeviceReport(uuid=self.devices[index].uuid, health=self.health.get(self.devices[index].uuid, "healthy"))
                    for index in self.order
                ),
                foreign_cpu_milli=self.foreign_cpu_milli,
                foreign_memory_mib=self.foreign_memory_mib,
                foreign_devices=self.foreign_devices,
            )
        )

    def exit(self, task: AgentTask, code: int, blame: str = "", reason: str = "") -> None:
        """The task's process group is gone."""
        task.phase = "exited"
        task.code = code
        task.blame = blame
        task.reason = reason
        self.changed = True

    def use_foreign(self, cpu_milli: int, memory_mib: int, gpus: int) -> None:
        """Something else uses this much: devices that it has already, then free ones, then the rest, by index."""
        held = {index for task in self.tasks.values() if task.phase != "exited" for index in task.devices}
        ranked = sorted(self.present, key=lambda i: (self.devices[i].uuid not in self.foreign_devices, i in held, i))
        self.foreign_cpu_milli = cpu_milli
        self.foreign_memory_mib = memory_mib
        self.foreign_devices = tuple(self.devices[index].uuid for index in sorted(ranked[:gpus]))
        self.changed = True

    def describe(
        self, spec: NodeSpec, gpus: int, model: str, memory_mib: int, cut: Mapping[int, tuple[str, ...]] | None = None
    ) -> None:
        """The node has this now: so many GPUs; new devices take the next indices, those that go are the last.

        `cut` says by GPU into which slices it is cut: each is a device, and the GPU is none.
        """
        self.spec = spec
        self.cards = self.cards[:gpus]
        for place in range(gpus):
            profiles = (cut or {}).get(place, ())
            if place == len(self.cards):
                self.cards.append((profiles, self._new(len(profiles) or 1)))
            elif self.cards[place][0] != profiles:
                self.cards[place] = (profiles, self._new(len(profiles) or 1))
        for place, (profiles, indices) in enumerate(self.cards):
            numa = place * (spec.numa or 1) // gpus
            for profile, index in zip(profiles or ("",), indices, strict=True):
                size = 1024 * int(profile.partition(".")[2].partition("gb")[0]) if profile else memory_mib
                self.devices[index] = Device(
                    uuid=self.devices[index].uuid,
                    model=model,
                    memory_mib=size,
                    numa=numa,
                    profile=profile or UNSET,
                    card=f"{self.uid}-card{place}" if profile else UNSET,
                )
        self.present = [index for _, indices in self.cards for index in indices]
        self.order = list(self.present)
        self.announce = self.changed = True

    def _new(self, count: int) -> list[int]:
        """So many devices that never were before."""
        first = len(self.devices)
        self.devices += [Device(uuid=device_uuid(self.uid, index)) for index in range(first, first + count)]
        return list(range(first, first + count))

    def devices_of(self, gpu: int) -> list[int]:
        """The devices that this GPU is: its slices, or itself."""
        return self.cards[gpu][1] if gpu < len(self.cards) and self.cards[gpu][0] else [gpu]

    def gpu_of(self, index: int) -> int:
        """Which of the node's GPUs a device is, or is a slice of."""
        return next((place for place, (_, indices) in enumerate(self.cards) if index in indices), index)

    def reboot(self) -> None:
        """Off and on again: nothing runs, and what it has is said anew."""
        self.boots += 1
        self.sequence = 0
        self.applied = 0
        self.tasks = {}
        self.off = False
        self.announce = True
        self.changed = True


class Fleet:
    """All agents, and what happens on their nodes at which time."""

    def __init__(self, behaviour: Callable[[str], Behaviour]) -> None:
        self.agents: dict[str, Agent] = {}
        self.epoch_us = 0
        """Log time less virtual time."""
        self._behaviour = behaviour
        self._due: list[tuple[int, int, Agent, AgentTask | None, str]] = []
        self._count = 0
        self._failed: dict[str, dict[tuple[int, int], None]] = {}
        """By job, the attempts that failed to start."""

    def next_us(self) -> int | None:
        """When something next happens on a node by itself."""
        return self._due[0][0] if self._due else None

    def fire(self, now_us: int) -> None:
        """Let happen what is due by now."""
        while self._due and self._due[0][0] <= now_us:
            _, _, agent, task, what = heapq.heappop(self._due)
            if task is None:
                self._lease_ends(agent, now_us)
                continue
            gone = agent.tasks.get(task.key) is not task or self.agents.get(agent.name) is not agent
            if gone or task.phase == "exited":
                continue
            if what == "ready" and task.phase == "preparing":
                self._ready(agent, task, now_us)
            elif what == "end" and task.phase == "running":
                agent.exit(task, 0)
            elif what == "stopped":
                agent.exit(task, TOLD_TO_STOP)
            elif what == "kill" and task.kill_at_us is not None and task.kill_at_us <= now_us:
                agent.exit(task, KILLED)

    def obey(self, agent: Agent, level: Assignment, now_us: int) -> None:
        """The agent reads the assignment of its node and does what it says."""
        if level.uid != agent.uid or level.number < agent.applied:
            return
        agent.applied = level.number
        if not level.tasks and not agent.tasks:
            return
        named: dict[TaskKey, None] = {}
        for item in level.tasks:
            key = (item.job, item.instance, item.attempt, item.rank)
            named[key] = None
            self._follow(agent, key, item, now_us)
        for key in [key for key in agent.tasks if key not in named]:
            del agent.tasks[key]
            agent.changed = True

    def silence(self, agent: Agent, lease_us: int) -> None:
        """Reports stop. What runs there is killed when the lease ends."""
        agent.silent = True
        agent.lease_ends_us = max(agent.heard_us + lease_us, agent.lease_until_us)
        self._push(agent.lease_ends_us, agent, None, "lease")

    def fence(self, agent: Agent) -> None:
        """Nothing runs there any more, and nothing is heard."""
        for task in agent.tasks.values():
            if task.phase != "exited":
                agent.exit(task, KILLED)
        agent.silent = agent.off = True

    def come_back(self, agent: Agent) -> None:
        """It is heard again, after a fence with another boot."""
        agent.silent = False
        agent.changed = True
        if agent.off:
            agent.reboot()

    def running(self, job: str, instance: int | None) -> Iterable[tuple[Agent, AgentTask]]:
        """The tasks of the job (of one instance of it) that have not exited, on whatever node."""
        for agent in list(self.agents.values()):
            for task in list(agent.tasks.values()):
                if task.key[0] == job and instance in (None, task.key[1]) and task.phase != "exited":
                    yield agent, task

    def _follow(self, agent: Agent, key: TaskKey, item: TaskAssignment, now_us: int) -> None:
        task = agent.tasks.get(key)
        behaviour = self._behaviour(key[0])
        if task is None or task.since != item.since:
            task = agent.tasks[key] = AgentTask(key, item.devices)
            task.since = item.since
            agent.changed = True
            if item.phase == "stop":
                agent.exit(task, TOLD_TO_STOP)
                return
            task.wanted = item.phase
            if behaviour.ready_takes_us:
                self._push(now_us + behaviour.ready_takes_us, agent, task, "ready")
            else:
                self._ready(agent, task, now_us)
        if task.phase == "exited":
            return
        task.wanted = item.phase
        if item.phase == "run" and task.phase == "ready":
            self._run(agent, task, now_us)
        elif item.phase == "stop":
            self._stop(agent, task, item.kill_at_us - self.epoch_us, now_us)

    def _ready(self, agent: Agent, task: AgentTask, now_us: int) -> None:
        behaviour = self._behaviour(task.key[0])
        if agent.name in behaviour.fails_to_start_on and self._fails(task, behaviour.start_failures):
            agent.exit(task, 1, blame="node", reason="the start fails")
            return
        task.phase = "ready"
        agent.changed = True
        if task.wanted == "run":
            self._run(agent, task, now_us)

    def _fails(self, task: AgentTask, times: int | None) -> bool:
        failed = self._failed.setdefault(task.key[0], {})
        attempt = (task.key[1], task.key[2])
        if attempt not in failed and times is not None and len(failed) >= times:
            return False
        failed[attempt] = None
        return True

    def _run(self, agent: Agent, task: AgentTask, now_us: int) -> None:
        task.phase = "running"
        agent.changed = True
        runtime_us = self._behaviour(task.key[0]).runtime_us
        if runtime_us is not None:
            self._push(now_us + runtime_us, agent, task, "end")

    def _stop(self, agent: Agent, task: AgentTask, kill_at_us: int, now_us: int) -> None:
        first = task.kill_at_us is None
        if not first and task.kill_at_us == kill_at_us:
            return
        task.kill_at_us = kill_at_us
        takes_us = self._behaviour(task.key[0]).stop_takes_us
        if first and (task.phase != "running" or takes_us == 0):
            agent.exit(task, TOLD_TO_STOP)
        elif kill_at_us <= now_us:
            agent.exit(task, KILLED)
        else:
            if first and takes_us != NEVER_US and now_us + takes_us <= kill_at_us:
                self._push(now_us + takes_us, agent, task, "stopped")
            self._push(kill_at_us, agent, task, "kill")

    def _lease_ends(self, agent: Agent, now_us: int) -> None:
        gone = agent.off or self.agents.get(agent.name) is not agent
        if gone or not agent.silent or now_us < agent.lease_ends_us:
            return
        for task in agent.tasks.values():
            if task.phase != "exited":
                agent.exit(task, KILLED, reason="the lease ended")

    def _push(self, at_us: int, agent: Agent, task: AgentTask | None, what: str) -> None:
        self._count += 1
        heapq.heappush(self._due, (at_us, self._count, agent, task, what))


def device_uuid(uid: str, index: int) -> str:
    """The uuid of a node's device."""
    return f"GPU-{uid}-{index}"


def _task_report(task: AgentTask) -> TaskReport:
    job, instance, attempt, rank = task.key
    return TaskReport(
        job=job,
        instance=instance,
        attempt=attempt,
        rank=rank,
        since=task.since,
        phase=task.phase,  # type: ignore[arg-type]  # one of the four phases
        code=task.code,
        port=PORT if rank == 0 and task.phase in ("ready", "running") else 0,
        blame=task.blame,  # type: ignore[arg-type]  # "", "job" or "node"
        reason=task.reason,
    )
