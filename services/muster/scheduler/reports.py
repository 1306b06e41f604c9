"""From an agent's report, which states all that is true of a node, to the inputs that say what is new in it.

A report is compared with the state: what the state says already makes no input, so late and doubled reports change
nothing. What is remembered here beside the state (`Agents`) sorts out late reports sooner, and tells the agent's word on a
device's health from telemetry's. It is lost with the process, and then the state alone decides.

Not done here: judging what follows. `muster.cluster.evolve` and the engine do that.
"""

from typing import Final

from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.events.base import DeviceHealth, Event
from muster.events.levels import NodeReport, TaskReport
from muster.events.nodes import (
    DeviceHealthChanged,
    ForeignUseChanged,
    NodeRegistered,
    NodeSpec,
    TaskExited,
    TaskMissing,
    TaskReady,
    TaskStarted,
)

PREPARING, READY, RUNNING, ENDED = range(4)
_LEVELS: Final = {"preparing": PREPARING, "ready": READY, "running": RUNNING, "leaving": RUNNING, "exited": ENDED, "lost": ENDED}

TaskKey = tuple[str, int, int, int]
"""Job, instance, attempt, rank."""


class Agent:
    """What is remembered of one node's agent since this scheduler began to lead."""

    __slots__ = ("boot", "health", "sequence", "source")

    def __init__(self, boot: str, sequence: int, source: str) -> None:
        self.boot = boot
        self.sequence = sequence
        self.source = source
        """Where its last report came from."""
        self.health: dict[str, DeviceHealth] = {}
        """What it said last of each device."""


class Agents:
    """What is remembered of all agents, and what the reports of the present cycle have said already."""

    __slots__ = ("_lives", "_shown", "_shown_health", "registered")

    def __init__(self) -> None:
        self._lives: dict[str, Agent] = {}
        self._shown: dict[TaskKey, int] = {}
        self._shown_health: dict[tuple[str, str], DeviceHealth] = {}
        """By uid of the node and uuid of the device: what the present cycle makes of its health."""
        self.registered: dict[str, str] = {}
        """Uid by name of the nodes that this cycle registers."""

    def begin_cycle(self) -> None:
        """What the reports of the last cycle said is in the state now."""
        if self._shown:
            self._shown = {}
        if self._shown_health:
            self._shown_health = {}
        if self.registered:
            self.registered = {}

    def begin_term(self) -> None:
        """Whatever an agent said of its devices' health, others may have recorded more since."""
        self.begin_cycle()
        for agent in self._lives.values():
            agent.health = {}

    def source(self, uid: str) -> str:
        """The source of the node's last report; empty where there was none."""
        agent = self._lives.get(uid)
        return agent.source if agent is not None else ""

    def late(self, report: NodeReport) -> bool:
        """Whether something newer was read from this boot of the node."""
        agent = self._lives.get(report.uid)
        return agent is not None and agent.boot == report.boot and report.sequence < agent.sequence

    def differences(self, state: State, report: NodeReport) -> list[Event]:
        """The inputs that lead from the state to what the report says. Changes nothing.

        None where an earlier boot or machine speaks: what comes from it is late.
        """
        if _is_retired(state, report):
            return []
        node = registered(state, report.node)
        if node is None or node.uid != report.uid:
            return [] if report.spec is None else self._arrival(report, report.spec)
        spec = report.spec or node.spec
        if report.boot != node.boot:
            return self._arrival(report, spec)
        events: list[Event] = []
        if spec != node.spec:
            events.append(_registration(report, spec))
            self._health(report, {device.uuid: device.health for device in spec.devices}, events)
        elif report.devices:
            self._health(report, {device.uuid: device.health for device in node.devices if device.present}, events)
        _foreign(node, report, events)
        self._tasks(state, node, report, events)
        return events

    def accept(self, state: State, report: NodeReport, source: str, events: list[Event]) -> None:
        """The report was read and these inputs are made of it."""
        if _is_retired(state, report):
            return
        agent = self._lives.get(report.uid)
        if agent is None or agent.boot != report.boot:
            agent = self._lives[report.uid] = Agent(report.boot, report.sequence, source)
        agent.sequence = report.sequence
        agent.source = source
        for device in report.devices:
            agent.health[device.uuid] = device.health
        for event in events:
            if type(event) is TaskExited or type(event) is TaskMissing:
                self._shown[event.job, event.instance, event.attempt, event.rank] = ENDED
            elif type(event) is TaskStarted:
                self._shown[event.job, event.instance, event.attempt, event.rank] = RUNNING
            elif type(event) is TaskReady:
                self._shown[event.job, event.instance, event.attempt, event.rank] = READY
            elif type(event) is DeviceHealthChanged:
                self._shown_health[event.uid, event.device] = event.health
            elif type(event) is NodeRegistered:
                self.learn(state, event)
                self.registered[event.node] = event.uid

    def learn(self, state: State, event: NodeRegistered) -> None:
        """Before a registration is folded: a machine that it replaces is not heard again."""
        node = registered(state, event.node)
        if node is not None and node.uid != event.uid:
            self._lives.pop(node.uid, None)

    def prune(self, state: State) -> None:
        """Forget agents whose nodes are gone, once they are many."""
        if len(self._lives) > 1000 + 2 * len(state.node_rows):
            uids = dict.fromkeys([node.uid for node in state.nodes if node is not None])
            self._lives = {uid: agent for uid, agent in self._lives.items() if uid in uids}

    def _arrival(self, report: NodeReport, spec: NodeSpec) -> list[Event]:
        """A node, or a boot of it, that the state does not know: what ran before has ended, so its tasks say nothing."""
        events: list[Event] = [_registration(report, spec)]
        self._health(report, {device.uuid: device.health for device in spec.devices}, events)
        if report.foreign_cpu_milli or report.foreign_memory_mib or report.foreign_devices:
            events.append(_foreign_use(report, report.foreign_devices))
        return events

    def _health(self, report: NodeReport, known: dict[str, DeviceHealth], events: list[Event]) -> None:
        """What the agent says of a device counts when it is news from the agent.

        Where telemetry said otherwise since, the agent's repeated word does not undo it.
        """
        agent = self._lives.get(report.uid)
        before = agent.health if agent is not None and agent.boot == report.boot else {}
        for device in report.devices:
            health = device.health
            now = self._shown_health.get((report.uid, device.uuid)) or known.get(device.uuid, health)
            if now != health and before.get(device.uuid) != health:
                events.append(
                    DeviceHealthChanged(node=report.node, uid=report.uid, device=device.uuid, health=health, reason=device.reason)
                )

    def _tasks(self, state: State, node: Node, report: NodeReport, events: list[Event]) -> None:
        named: dict[TaskKey, None] = {}
        shown = self._shown
        for task in report.tasks:
            found = _held(state, node, task, report.applied)
            if found is not None:
                phase, may_run = found
                key = (task.job, task.instance, task.attempt, task.rank)
                named[key] = None
                _advance(task, max(phase, shown.get(key, 0)), may_run, events)
        for held in node.tasks:
            if held.since <= report.applied and not held.attempt.instance.job.headroom:
                attempt = held.attempt
                instance = attempt.instance
                key = (instance.job.id, instance.index, attempt.number, held.rank)
                if key not in named and shown.get(key, 0) != ENDED:
                    events.append(TaskMissing(job=key[0], instance=key[1], attempt=key[2], rank=key[3]))


def _is_retired(state: State, report: NodeReport) -> bool:
    """Whether another life of the node is known to be later than the one that speaks here.

    Boots of one machine are told apart by their count. A machine that was replaced or removed comes back only where no
    other has its name, or that one is lost: then nothing runs there, and perhaps it was the late one.
    """
    node = registered(state, report.node)
    if node is None or (node.uid, node.boot) == (report.uid, report.boot):
        return False
    if node.uid == report.uid and report.boots and node.boots:
        return report.boots < node.boots
    lives = state.retired.get(report.node, ())
    if node.uid == report.uid:
        return (report.uid, report.boot) in lives
    return node.liveness != "lost" and any(uid == report.uid for uid, _ in lives)


def registered(state: State, name: str) -> Node | None:
    """The node that has this name now."""
    row = state.node_rows.get(name)
    return None if row is None else state.nodes[row]


def _registration(report: NodeReport, spec: NodeSpec) -> NodeRegistered:
    return NodeRegistered(node=report.node, uid=report.uid, boot=report.boot, spec=spec, boots=report.boots)


def _foreign(node: Node, report: NodeReport, events: list[Event]) -> None:
    """What something else uses, where it changed. Devices that the node does not have are left out."""
    said = report.foreign_devices
    before = [device.uuid for device in node.devices if device.foreign and device.present]
    after = [device.uuid for device in node.devices if device.uuid in said and device.present] if said else []
    if report.foreign_cpu_milli != node.foreign_cpu or report.foreign_memory_mib != node.foreign_memory or after != before:
        events.append(_foreign_use(report, tuple(after)))


def _foreign_use(report: NodeReport, devices: tuple[str, ...]) -> ForeignUseChanged:
    return ForeignUseChanged(
        node=report.node,
        uid=report.uid,
        cpu_milli=report.foreign_cpu_milli,
        memory_mib=report.foreign_memory_mib,
        devices=devices,
    )


def _held(state: State, node: Node, task: TaskReport, applied: int) -> tuple[int, str] | None:
    """The phase of a task that the state holds on this node, and whether it may run; else None.

    It may when its attempt was `started`, and also when it is `alone` in one that was bound only; else it `waits`.
    None too where the agent, which applied that cycle last, speaks of a member whose rank was placed here anew since.
    """
    attempt = state.attempt(task.job, task.instance, task.attempt)
    held = None if attempt is None else attempt.tasks.get(task.rank)
    if attempt is None or held is None or held.node is not node or not held.holding:
        return None
    if task.since != held.since and (task.since or (applied < held.since and held.since != attempt.bound_cycle)):
        return None
    if attempt.phase != "prepare":
        return _LEVELS[held.phase], "started"
    return _LEVELS[held.phase], "alone" if attempt.instance.job.gang.single else "waits"


def _advance(task: TaskReport, phase: int, may_run: str, events: list[Event]) -> None:
    """The inputs from one phase of a task to the reported one."""
    reported = _LEVELS[task.phase]
    if reported <= phase:
        return
    job, instance, attempt, rank = task.job, task.instance, task.attempt, task.rank
    if reported == ENDED:
        if may_run == "alone" and phase < RUNNING and not task.blame:  # it ran and ended between two reports
            events.append(TaskStarted(job=job, instance=instance, attempt=attempt, rank=rank))
        events.append(
            TaskExited(
                job=job, instance=instance, attempt=attempt, rank=rank, code=task.code, blame=task.blame, reason=task.reason
            )
        )
        return
    if phase < READY and not (reported == RUNNING and may_run == "alone"):
        events.append(TaskReady(job=job, instance=instance, attempt=attempt, rank=rank, port=task.port))
    if reported == RUNNING and may_run != "waits":
        events.append(TaskStarted(job=job, instance=instance, attempt=attempt, rank=rank))
