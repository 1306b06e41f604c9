"""What is true, as the second judge sees it: a plain model of nodes, jobs and attempts, folded from the log.

It shares no code with the engine, keeps no ledger, no index and no cache, and never judges; that is
`muster.verify.judge`. How the inputs are read, where the types leave it open:

- A node that registers takes the lowest free row. Another uid under a known name: the old node is removed first, and its
  row is free then. The same uid: an update; a known device keeps its index, a new one gets the next, one that is not
  named is gone, and an index never means another device. Cordon, drain and foreign use stay.
- A task stops holding when its exit is read, when its node is lost, removed, replaced, fenced or rebooted, or when the
  node says that it does not know the task. Reports about any attempt but the current one change nothing.
- A beat says that every registered node was heard at that moment except the rows it names.
- Spans that judge others are counted in *led time*, which stands still while nobody leads: `at_us` less all gaps so far.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.events import catalogue, jobs, nodes, operations, queues
from muster.events.base import Event
from muster.verify.models import capable
from muster.verify.queues import Books

InstanceKey = tuple[str, int]
AttemptKey = tuple[str, int, int]  # job, instance, number
Use = tuple[jobs.GroupRequest, tuple[int, ...]]  # what a task takes of its node: its group's amounts, on these devices


@dataclass(slots=True, eq=False)
class Job:
    """A job as it was submitted."""

    queue: str
    user: str
    request: jobs.JobRequest
    priority: int
    instances: list["Instance"]
    place: int  # the how manieth submission it was
    submitted_us: int
    avoid: tuple[str, ...] = ()  # uids of nodes that it is not put on again
    ended: int = 0
    over_us: int = -1  # when its last instance was over; -1 before
    sized: int = -1  # when it was resized
    limit_us: int | None = None  # how long an attempt may run: as it asked, else as its queue said
    run: jobs.JobRun | None = None
    closed: bool = False  # a service that was cancelled, or rejected: it is kept no more
    service: Any = None  # `muster.verify.services.Served`, if it is one

    def group_of(self, rank: int) -> jobs.GroupRequest | None:
        """Ranks run through the groups in their order."""
        for group in self.request.groups:
            if rank < group.count or (self.request.elastic and len(self.request.groups) == 1):
                return group
            rank -= group.count
        return None


@dataclass(slots=True, eq=False)
class Instance:
    """What is bound whole or not at all."""

    job: Job
    index: int
    attempt: "Attempt | None" = None
    attempts: int = 0
    retries: int = 0
    not_before_us: int = 0
    cancelled: bool = False  # somebody asked for it
    ran: bool = False  # it was started once
    outcome: str = ""  # empty while it is not over
    revision: int = 0  # of a replica of a service


@dataclass(slots=True, eq=False)
class Attempt:
    """One binding of an instance."""

    instance: Instance
    key: AttemptKey
    ready_by_us: int  # in led time
    bound_us: int
    phase: str = "starting"  # starting, running, stopping
    started_us: int = -1
    kill_at_us: int = 0
    stop_reason: str = ""
    own_failure: bool = False  # a task ended badly, not by a node's fault, before the attempt was told to stop
    node_failure: bool = False  # one did by its node's fault
    tasks: dict[int, "Task"] = field(default_factory=dict)  # by rank
    facts: dict[str, None] = field(default_factory=dict)  # reasons to stop that have been true of it
    degraded_until_us: int = 0
    books: Books | None = None  # in which its queue is charged for it

    def holding(self) -> int:
        """How many of its tasks still hold something."""
        return sum(task.holds for task in self.tasks.values())

    def told(self) -> None:
        """It is told to stop: nothing is charged for it any more."""
        if self.books is not None:
            self.books.stop(self)
        if self.instance.job.request.kind == "headroom":  # nothing has to end first
            for task in list(self.tasks.values()):
                task.release("exited")

    def went_well(self) -> bool:
        """Every task that decides the outcome exited with 0; where none of these was bound, all tasks decide."""
        success, tasks = self.instance.job.request.success, self.tasks.values()
        deciding = [task for task in tasks if success in ("", task.group.name)] or tasks
        return all(task.going or (task.phase == "exited" and task.code == 0) for task in deciding)


@dataclass(slots=True, eq=False)
class Task:
    """One task of an attempt, on one node."""

    attempt: Attempt
    group: jobs.GroupRequest
    devices: tuple[int, ...]
    node: "Node"
    phase: str = "preparing"  # preparing, ready, running, exited, or why it was lost, as a reason to stop
    holds: bool = True
    code: int = 0
    charge: Counter[str] = field(default_factory=Counter)  # what its queue is charged with for it, if it is
    placed_us: int = 0
    going: bool = False  # told to go, while its attempt goes on
    kill_at_us: int = 0  # of one that is going

    def out_of_patience(self, now_us: int) -> bool:
        """Whether a taint of its node has been put up with for as long as it was to be."""
        for taint, since_us in self.node.tainted_us.items() if self.holds else ():
            for one in self.group.tolerations if taint.effect == "NoExecute" else ():
                if one.seconds is not msgspec.UNSET and tolerates(one, taint):
                    if now_us >= max(since_us, self.placed_us) + 1_000_000 * one.seconds:
                        return True
        return False

    def release(self, phase: str) -> None:
        """It holds nothing any more."""
        held, self.phase, self.holds = self.holds, phase, False
        if not self.going:
            self.attempt.facts[phase] = None
        self.node.tasks.pop(self, None)
        if self.going:
            self.attempt.tasks.pop(next(rank for rank, task in self.attempt.tasks.items() if task is self))
        if held and self.attempt.books is not None:
            self.attempt.books.release(self)


@dataclass(slots=True, eq=False)
class Node:
    """A node and the tasks that hold something on it."""

    name: str
    uid: str
    row: int
    boot: str
    spec: nodes.NodeSpec
    foreign: nodes.ForeignUseChanged
    devices: list[nodes.Device] = field(default_factory=list)  # by index; what is not in the spec any more has failed
    closed: dict[str, None] = field(default_factory=dict)  # cordoned, drained, fenced: what operators said of it
    liveness: str = "heard"  # heard, silent, lost
    heard_us: int = 0  # in led time: when it was heard last, unless the last beat heard it too
    quiet_us: int = 0  # what that was when it was held to be silent or lost
    silences: list[int] = field(default_factory=list)
    quarantined_until_us: int = 0
    tainted_us: dict[nodes.Taint, int] = field(default_factory=dict)  # since when it has each of its taints
    tasks: dict[Task, None] = field(default_factory=dict)

    def clear(self, phase: str) -> None:
        """All that ran here has ended."""
        for task in list(self.tasks):
            task.release(phase)

    def afflict(self) -> None:
        """What is wrong with the node is a reason to stop for what is on it."""
        for task in self.tasks:
            sick = any(index < len(self.devices) and self.devices[index].health == "failed" for index in task.devices)
            taint = any(one.effect == "NoExecute" and not tolerated(task.group, one) for one in self.spec.taints)
            said = {"device-failed": sick, "taint": taint, "drained": "drained" in self.closed}
            task.attempt.facts |= {reason: None for reason, so in said.items() if so}


def tolerated(group: jobs.GroupRequest, taint: nodes.Taint) -> bool:
    """An empty key means every key, an empty effect every effect."""
    return any(tolerates(one, taint) for one in group.tolerations)


def tolerates(one: jobs.Toleration, taint: nodes.Taint) -> bool:
    """Whether this toleration is about this taint."""
    return (one.any_value or one.value == taint.value) and one.key in ("", taint.key) and one.effect in ("", taint.effect)


@dataclass(slots=True, eq=False)
class Nomination:
    """What is kept for a pending instance, by node, until its victims are gone."""

    instance: Instance
    uses: dict[Node, list[Use]]
    victims: "dict[AttemptKey | Task, None]"
    until_us: int  # in led time


class World:
    """All that is true after the entries folded so far."""

    def __init__(self) -> None:
        self.submissions = self.number = self.term = self.at_us = self.gaps_us = self.beat_us = self.lease_until_us = 0
        self.policy = operations.Policy()
        self.jobs: dict[str, Job] = {}
        self.rows: dict[int, Node] = {}
        self.names: dict[str, Node] = {}
        self.free_rows: list[int] = []
        self.licences: dict[str, int] = {}
        self.catalogue: tuple[catalogue.DeviceModel, ...] = ()
        self.plain = True  # no job ever asked for more than its tasks need
        self.away: dict[int, Node] = {}  # the nodes that the last beat did not hear, by row
        self.nominations: dict[InstanceKey, Nomination] = {}
        self.past: dict[str, str] = {}  # what became of jobs that were forgotten: finished, failed
        self.books: Books | None = None  # once something was said of queues

    @property
    def led_us(self) -> int:
        return self.at_us - self.gaps_us

    def heard_us(self, node: Node) -> int:
        """When the node was heard last, in led time."""
        return node.heard_us if node.row in self.away else max(node.heard_us, self.beat_us)

    def instance(self, job: str, index: int) -> Instance | None:
        found = self.jobs[job].instances if job in self.jobs else []
        return found[index] if index < len(found) else None

    def end_instance(self, instance: Instance, outcome: str) -> None:
        job, instance.attempt, instance.outcome = instance.job, None, outcome
        job = job if job.service is None else job.service.job
        job.ended += 1
        self.end_job(job)

    def end_job(self, job: Job) -> None:
        """It is over once all of it is; a service not before it was cancelled."""
        if job.ended == len(job.instances) and (job.service is None or job.closed):
            job.over_us = self.at_us

    def limit_us(self, queue: str) -> int | None:
        """How long an attempt may run at most that does not say it itself."""
        said = [] if self.books is None else [self.books.said[name] for name in self.books.path(queue) if name in self.books.said]
        return min([spec.max_time_us for spec in said if spec.max_time_us is not None], default=None)

    def evolve(self, event: Event) -> None:
        """Fold an input."""
        job = self.jobs.get(getattr(event, "job", ""))
        node = self.names.get(getattr(event, "node", ""))
        match event:
            case nodes.TaskReady() | nodes.TaskStarted() | nodes.TaskExited() | nodes.TaskMissing():
                self._evolve_task(event)
            case jobs.JobSubmitted() if job is None:  # else it is a repeat
                groups = event.request.groups
                self.plain &= not event.request.constraints and not any(group.ports or group.numa for group in groups)
                job = self._submitted(event)
                job.instances = [Instance(job, index) for index in range(event.request.array or 1)]
            case jobs.JobCancelRequested() if job is not None:
                for instance in job.instances if (at := event.instance) is None else job.instances[at : at + 1]:
                    instance.cancelled = True
            case jobs.JobReprioritised() if job is not None:
                job.priority = event.priority
            case jobs.JobResizeRequested() if job is not None:
                self._resize(job, event.count)
            case operations.LeaseExtended():
                self.lease_until_us = max(self.lease_until_us, event.until_us)
            case catalogue.CatalogueSet():
                self.catalogue = event.models
            case operations.LicencesSet():
                self.licences = event.licences
            case operations.PolicySet():
                promised_us, lease_us = (each.lease_us + each.margin_us for each in (self.policy, event.policy))
                if self.rows and lease_us < promised_us:  # agents keep the lease that they were given
                    self.lease_until_us = max(self.lease_until_us, self.at_us + promised_us)
                self.policy = event.policy
                if self.books is not None:
                    self.books.remember()
            case queues.QueueSet() | queues.QueueRemoved():
                self.books = self.books or Books(self)
                self.books.remember()
                self.books.evolve(event)
            case nodes.NodesHeard():
                away = {row: self.rows[row] for row in event.missing + event.unread if row in self.rows}
                for missing in away.values():
                    missing.heard_us = self.heard_us(missing)
                self.away, self.beat_us = away, self.led_us
            case nodes.NodeRegistered():
                self._register(node, event)
            case _ if node is not None and getattr(event, "uid", node.uid) == node.uid:
                self._evolve_node(node, event)

    def _resize(self, job: Job, count: int) -> None:
        """Before it runs, or if it is elastic; a gang that takes all its tasks or none takes all of the new ones."""
        group, elastic = job.request.groups[0], job.request.elastic is True
        rigid = group.min == group.count and not elastic
        held = any(instance.attempt is not None for instance in job.instances)
        over = all(instance.outcome for instance in job.instances)
        allowed = len(job.request.groups) == 1 and not over and (elastic or not held) and (rigid or count >= group.min)
        if allowed and count <= self.policy.placements_max:
            group = msgspec.structs.replace(group, count=count, min=count if rigid else group.min)
            job.request = msgspec.structs.replace(job.request, groups=(group,))
            job.sized = self.at_us

    def _submitted(self, event: jobs.JobSubmitted) -> Job:
        request, books = capable(self.catalogue, event.request), self.books
        self.submissions += 1
        job = self.jobs[event.job] = Job(event.queue, event.user, request, request.priority, [], self.submissions, self.at_us)
        job.limit_us = request.time_limit_us
        said = [] if books is None else [books.said[name] for name in books.path(event.queue) if name in books.said]
        if said and said[0].queue == event.queue and not job.priority:
            job.priority = said[0].default_priority
        if job.limit_us is None and request.kind != "headroom":
            job.limit_us = self.limit_us(event.queue)
        job.run = event.run
        return job

    def _evolve_task(self, event: Any) -> None:
        instance = self.instance(event.job, event.instance)
        attempt = instance.attempt if instance is not None else None
        task = attempt.tasks.get(event.rank) if attempt is not None and attempt.key[2] == event.attempt else None
        if attempt is None or task is None or not task.holds:
            return
        match event:
            case nodes.TaskReady():
                task.phase = "ready" if task.phase == "preparing" else task.phase
            case nodes.TaskStarted():
                task.phase = "running"
            case nodes.TaskMissing():
                task.release("task-missing")
            case nodes.TaskExited():
                task.code, starting = event.code, attempt.phase == "starting" and task.phase != "running"
                task.release("exited")
                if (event.code or starting) and not task.going:
                    attempt.facts["start-failed" if starting else "member-failed"] = None
                    attempt.own_failure |= attempt.phase != "stopping" and event.blame != "node"
                    attempt.node_failure |= attempt.phase != "stopping" and event.blame == "node"

    def _evolve_node(self, node: Node, event: Event) -> None:
        match event:
            case nodes.NodeRemoved():
                node.clear("node-removed")
                del self.names[node.name], self.rows[node.row]
                self.away.pop(node.row, None)
                self.free_rows.append(node.row)
            case nodes.ForeignUseChanged():
                node.foreign = event
            case nodes.DeviceHealthChanged():
                for index, device in enumerate(node.devices):
                    if device.uuid == event.device and any(device.uuid == one.uuid for one in node.spec.devices):
                        node.devices[index] = msgspec.structs.replace(device, health=event.health)
            case operations.NodeCordoned():
                node.closed["cordoned"] = None
            case operations.NodeDrained():
                node.closed["drained"] = None
            case operations.NodeFenced():
                node.closed["fenced"] = None
                node.clear("node-lost")
            case operations.NodeUncordoned():
                node.closed, node.quarantined_until_us = {}, 0
        node.afflict()

    def _register(self, node: Node | None, event: nodes.NodeRegistered) -> None:
        if node is not None and node.uid != event.uid:
            self._evolve_node(node, nodes.NodeRemoved(node=node.name, uid=node.uid))
            node = None
        if node is None:
            row = min(self.free_rows, default=len(self.rows))
            self.free_rows = [free for free in self.free_rows if free != row]
            nothing = nodes.ForeignUseChanged(node=event.node, uid=event.uid)
            node = self.names[event.node] = self.rows[row] = Node(event.node, event.uid, row, event.boot, event.spec, nothing)
        elif node.boot != event.boot:
            node.clear("node-rebooted")
            node.closed.pop("fenced", None)
        node.boot, node.spec, node.heard_us = event.boot, event.spec, self.led_us
        node.tainted_us = {taint: node.tainted_us.get(taint, self.at_us) for taint in event.spec.taints}
        self.away.pop(node.row, None)
        now = {device.uuid: device for device in event.spec.devices}
        kept = [now.pop(old.uuid, msgspec.structs.replace(old, health="failed")) for old in node.devices]
        node.devices = kept + list(now.values())
        if self.books is not None:
            self.books.count()  # a device may be of another model now
        node.afflict()
