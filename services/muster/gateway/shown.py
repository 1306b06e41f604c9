"""What is shown of a state: types of the answers, and how they are made. Nothing here decides or waits.

Times are log time in microseconds; shares of a device are in thousandths of it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from muster.cluster.jobs import TERMINAL, Attempt, Instance, Job
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.doors.names import ARRAY, DOOR
from muster.engine.deadline import about as about_deadline
from muster.events.base import MODELS_MAX
from muster.events.catalogue import DeviceModel
from muster.events.jobs import JobRequest, JobRun
from muster.events.nodes import NodeSpec
from muster.events.operations import Policy
from muster.gateway.queues import QueueStands, stands

LIMIT = 1000
"""So many jobs in one answer, if no other number is asked for."""
ELEMENTS_MAX = 5000
"""After so many instances a page of jobs with their instances ends."""
COMMAND_MAX = 256
DOOR_NAMES = ("SLURM_JOB_NAME", "SLURM_JOB_PARTITION", DOOR, ARRAY)


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a list."""

    job: str
    name: str
    user: str
    queue: str
    priority: int
    state: str
    """pending, starting, running, stopping, finished, failed, cancelled or rejected; of several instances the liveliest."""
    instances: dict[str, int]
    """How many instances are in each phase."""
    tasks: int
    """Of one instance."""
    gpus: int
    """Whole GPUs of one instance."""
    attempts: int
    nodes: tuple[str, ...]
    submitted_us: int
    started_us: int
    """When the first running attempt started; 0 where none runs."""
    ended_us: int
    """When its last instance ended; 0 before."""
    code: int
    """Exit status of the first instance that did not end well."""
    reason: str


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in the order in which they were submitted."""

    cycle: int
    at_us: int
    jobs: tuple[JobRow, ...]
    more: bool
    """There are more: ask again with `after` the last one's id."""


class ElementRow(msgspec.Struct, frozen=True, kw_only=True):
    """An instance of a job in a list."""

    instance: int
    state: str
    not_before_us: int
    started_us: int
    """When its present attempt started; 0 where it has none that did."""
    nodes: tuple[str, ...]
    reason: str
    code: int


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its instances in a list, and what Slurm's `squeue` shows of it besides."""

    job: JobRow
    array: bool
    time_limit_us: int | None
    cpu_milli: int
    """Of one instance."""
    command: str
    """How it begins."""
    directory: str
    door: dict[str, str]
    """What the door through which it came calls it, from its environment."""
    elements: tuple[ElementRow, ...]


class ElementList(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs with their instances, in the order in which they were submitted."""

    cycle: int
    at_us: int
    jobs: tuple[JobLine, ...]
    more: bool
    """There are more: ask again with `after` the last job's id."""


class TaskShown(msgspec.Struct, frozen=True, kw_only=True):
    """One task of an attempt."""

    rank: int
    group: str
    state: str
    node: str
    devices: tuple[int, ...]
    holding: bool
    code: int


class AttemptShown(msgspec.Struct, frozen=True, kw_only=True):
    """The present attempt of an instance."""

    attempt: int
    phase: str
    bound_us: int
    started_us: int
    kill_at_us: int
    stop_reason: str
    stop_node: str
    tasks: tuple[TaskShown, ...]


class InstanceShown(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a job."""

    instance: int
    state: str
    attempts: int
    retries: int
    not_before_us: int
    ended_us: int
    reason: str
    code: int
    attempt: AttemptShown | None
    deadline: str = ""
    """What became of its deadline, or is to be expected; empty where it has none."""
    revision: int = 0
    """Of a replica of a service: as which it was started."""


class ServiceShown(msgspec.Struct, frozen=True, kw_only=True):
    """How a service stands."""

    replicas: int
    revision: int
    """The newest."""
    phase: str
    """kept; rolling; stopped: a replica of the newest revision failed, and a person has to say how to go on."""
    whole: int
    """The revision of which all replicas were last."""
    said: str
    """The same and more, as a sentence."""


class JobShown(msgspec.Struct, frozen=True, kw_only=True):
    """A job with all its instances, as of a cycle."""

    cycle: int
    at_us: int
    job: JobRow
    request: JobRequest
    run: JobRun
    rejected: str
    recorded: int
    """The cycle in which it was submitted."""
    elements: tuple[InstanceShown, ...]
    service: ServiceShown | None = None


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node in a list."""

    row: int
    node: str
    state: str
    cpu_milli: int
    cpu_free: int
    memory_mib: int
    memory_free: int
    tasks: int
    gpus: int
    model: str
    gpus_milli: tuple[int, ...]
    """How much of each device is held."""
    unhealthy: tuple[int, ...]


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes, by row."""

    cycle: int
    at_us: int
    nodes: tuple[NodeRow, ...]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A task that holds something on a node."""

    job: str
    name: str
    user: str
    instance: int
    attempt: int
    rank: int
    phase: str
    devices: tuple[int, ...]


class DeviceShown(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a node."""

    index: int
    uuid: str
    model: str
    profile: str
    """Of a slice (MIG) its profile; empty for a whole GPU."""
    memory_mib: int
    health: str
    present: bool
    foreign: bool


class NodeShown(msgspec.Struct, frozen=True, kw_only=True):
    """A node with all it has and holds, as of a cycle."""

    cycle: int
    at_us: int
    node: NodeRow
    uid: str
    boot: str
    heard_us: int
    quarantined_until_us: int
    spec: NodeSpec
    devices: tuple[DeviceShown, ...]
    held: tuple[Held, ...]


class QueueShown(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, and how many instances of its jobs are in which phase."""

    queue: str
    jobs: int
    instances: dict[str, int]
    tree: QueueStands | None = None
    """How it stands in the tree; null where there is no tree."""


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """The queues, as of a cycle."""

    cycle: int
    at_us: int
    queues: tuple[QueueShown, ...]


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All models of GPU that the cell knows."""

    models: Annotated[tuple[DeviceModel, ...], Meta(max_length=MODELS_MAX)]


class CellShown(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cell stands."""

    cell: str
    cycle: int
    term: int
    at_us: int
    head: str
    """Digest of the last admitted record."""
    jobs: int
    pending: int
    nodes: int
    lease_until_us: int
    policy: Policy
    behind_us: int = 0
    """For how long this gateway has not been at the end of the log: what it shows may be as old."""


def job_state(job: Job) -> str:
    """One word for a job of however many instances."""
    if job.rejected:
        return "rejected"
    phases = dict.fromkeys([instance.phase for instance in job.instances])
    if job.service is not None and not job.service.ended:  # what was scaled away says nothing of it
        phases = dict.fromkeys([phase for phase in phases if phase not in TERMINAL] or ["pending"])
    for phase in ("running", "starting", "stopping", "pending", "failed", "cancelled", "rejected"):
        if phase in phases:
            return phase
    return "finished"


def job_row(job: Job) -> JobRow:
    """What a list shows of a job."""
    instances = job.instances
    attempts = [instance.attempt for instance in instances if instance.attempt is not None]
    phases = [instance.phase for instance in instances]
    ended = next((instance for instance in instances if instance.phase in TERMINAL and instance.phase != "finished"), None)
    nodes = dict.fromkeys([task.node.name for attempt in attempts for task in attempt.tasks.values() if task.holding])
    started = [attempt.started_us for attempt in attempts if attempt.started_us]
    return JobRow(
        job=job.id,
        name=job.name,
        user=job.user,
        queue=job.queue,
        priority=job.priority,
        state=job_state(job),
        instances={phases[0]: 1} if len(phases) == 1 else dict(sorted(Counter(phases).items())),
        tasks=sum([group.count for group in job.request.groups]),
        gpus=sum([group.count * group.gpus for group in job.request.groups]),
        attempts=sum([instance.attempts for instance in instances]),
        nodes=tuple(nodes),
        submitted_us=job.submitted_us,
        started_us=min(started, default=0),
        ended_us=job.over_us,
        code=ended.code if ended is not None else 0,
        reason=job.rejected or (ended.reason if ended is not None else ""),
    )


def job_list(
    state: State, wanted: Callable[[Job], bool], limit: int = LIMIT, after: str = "", ids: tuple[str, ...] = ()
) -> JobList:
    """The jobs for which `wanted` holds, after the one with the id `after`; of those with these ids only, if any are said."""
    rows: list[JobRow] = []
    more = False
    for job in _after(state, after, ids):
        if wanted(job):
            if len(rows) >= limit:
                more = True
                break
            rows.append(job_row(job))
    return JobList(cycle=state.number, at_us=state.at_us, jobs=tuple(rows), more=more)


def element_list(
    state: State, wanted: Callable[[Job], bool], over: bool, limit: int = LIMIT, after: str = "", ids: tuple[str, ...] = ()
) -> ElementList:
    """As `job_list`, with the instances; without `over` only what is not over. A page ends early where it has many instances."""
    lines: list[JobLine] = []
    more = False
    size = 0
    for job in _after(state, after, ids):
        if (over or not job.over_us) and wanted(job):
            if len(lines) >= limit or size >= ELEMENTS_MAX:
                more = True
                break
            lines.append(_job_line(job, over))
            size += len(lines[-1].elements)
    return ElementList(cycle=state.number, at_us=state.at_us, jobs=tuple(lines), more=more)


def job_shown(state: State, job: Job) -> JobShown:
    """All of a job."""
    return JobShown(
        cycle=state.number,
        at_us=state.at_us,
        job=job_row(job),
        request=job.request,
        run=job.run,
        rejected=job.rejected,
        recorded=job.place[0],
        elements=tuple([_instance(instance, state.at_us) for instance in job.instances]),
        service=_service(state, job),
    )


def _service(state: State, job: Job) -> ServiceShown | None:
    from muster.engine.services import said_of_service  # it loads NumPy, which whoever only reads these types does not need

    service = job.service
    if service is None:
        return None
    return ServiceShown(
        replicas=service.replicas,
        revision=job.revision,
        phase=service.phase,
        whole=service.whole,
        said="".join(said_of_service(state, job)),
    )


def node_row(node: Node) -> NodeRow:
    """What a list shows of a node."""
    marks = [name for name, on in (("cordoned", node.cordoned), ("drained", node.drained), ("fenced", node.fenced)) if on]
    if node.quarantined_until_us:
        marks.append("quarantined")
    used = [0] * len(node.devices)
    for task in node.tasks:
        for index in task.devices:
            device = node.devices[index]
            used[index] += 1000 if task.shape.gpus else task.shape.units(device.memory_mib) * 1000 // device.units
    present = [device for device in node.devices if device.present]
    return NodeRow(
        row=node.row,
        node=node.name,
        state=" ".join([node.liveness, *marks]),
        cpu_milli=node.spec.cpu_milli,
        cpu_free=node.cpu_free,
        memory_mib=node.spec.memory_mib,
        memory_free=node.memory_free,
        tasks=len(node.tasks),
        gpus=len(present),
        model=",".join(dict.fromkeys([device.model for device in present])),
        gpus_milli=tuple(used),
        unhealthy=tuple([i for i, device in enumerate(node.devices) if device.present and device.health != "healthy"]),
    )


def node_list(state: State) -> NodeList:
    """All nodes."""
    rows = tuple([node_row(node) for node in state.nodes if node is not None])
    return NodeList(cycle=state.number, at_us=state.at_us, nodes=rows)


def node_shown(state: State, node: Node, seen: Callable[[Job], bool]) -> NodeShown:
    """All of a node; of what it holds, the tasks of jobs that may be `seen`."""
    held = [
        Held(
            job=job.id,
            name=job.name,
            user=job.user,
            instance=task.attempt.instance.index,
            attempt=task.attempt.number,
            rank=task.rank,
            phase=task.phase,
            devices=task.devices,
        )
        for task in node.tasks
        if seen(job := task.attempt.instance.job)
    ]
    devices = [
        DeviceShown(
            index=index,
            uuid=device.uuid,
            model=device.model,
            profile=device.profile,
            memory_mib=device.memory_mib,
            health=device.health,
            present=device.present,
            foreign=device.foreign,
        )
        for index, device in enumerate(node.devices)
    ]
    return NodeShown(
        cycle=state.number,
        at_us=state.at_us,
        node=node_row(node),
        uid=node.uid,
        boot=node.boot,
        heard_us=node.heard_us,
        quarantined_until_us=node.quarantined_until_us,
        spec=node.spec,
        devices=tuple(devices),
        held=tuple(held),
    )


def queue_list(state: State) -> QueueList:
    """The queues that there are or that jobs name."""
    jobs: Counter[str] = Counter()
    tree = stands(state)
    phases: dict[str, Counter[str]] = {queue: Counter() for queue in (*tree, *state.policy.queues)}
    for job in state.jobs.values():
        jobs[job.queue] += 1
        count = phases.setdefault(job.queue, Counter())
        for instance in job.instances:
            count[instance.phase] += 1
    shown = [
        QueueShown(queue=queue, jobs=jobs[queue], instances=dict(sorted(count.items())), tree=tree.get(queue))
        for queue, count in phases.items()
    ]
    return QueueList(cycle=state.number, at_us=state.at_us, queues=tuple(shown))


def cell_shown(state: State, head: str) -> CellShown:
    """Where the cell stands. `head` is the digest of the last admitted record."""
    return CellShown(
        cell=state.cell,
        cycle=state.number,
        term=state.term,
        at_us=state.at_us,
        head=head,
        jobs=len(state.jobs),
        pending=state.pending_total,
        nodes=len(state.node_rows),
        lease_until_us=state.lease_until_us,
        policy=state.policy,
    )


def _job_line(job: Job, over: bool) -> JobLine:
    environment = job.run.environment
    return JobLine(
        job=job_row(job),
        array=job.request.array is not None,
        time_limit_us=job.limit_us,
        cpu_milli=sum([group.count * group.cpu_milli for group in job.request.groups]),
        command=" ".join([word[:COMMAND_MAX] for word in job.run.command[:2]])[:COMMAND_MAX],
        directory=job.run.directory,
        door={name: environment[name] for name in DOOR_NAMES if name in environment},
        elements=tuple([_element(instance) for instance in job.instances if over or instance.phase not in TERMINAL]),
    )


def _element(instance: Instance) -> ElementRow:
    attempt = instance.attempt
    tasks = [] if attempt is None else [task for _, task in sorted(attempt.tasks.items())]
    return ElementRow(
        instance=instance.index,
        state=instance.phase,
        not_before_us=instance.not_before_us,
        started_us=0 if attempt is None else attempt.started_us,
        nodes=tuple(dict.fromkeys([task.node.name for task in tasks])),
        reason=instance.reason,
        code=instance.code,
    )


def _after(state: State, job: str, ids: tuple[str, ...]) -> Iterator[Job]:
    found = not job
    some = [state.jobs[id] for id in dict.fromkeys(ids) if id in state.jobs]
    for each in some if ids else state.jobs.values():
        if found:
            yield each
        elif each.id == job:
            found = True


def _instance(instance: Instance, at_us: int) -> InstanceShown:
    return InstanceShown(
        instance=instance.index,
        state=instance.phase,
        attempts=instance.attempts,
        retries=instance.retries,
        not_before_us=instance.not_before_us,
        ended_us=instance.ended_us,
        reason=instance.reason,
        code=instance.code,
        attempt=_attempt(instance.attempt) if instance.attempt is not None else None,
        deadline=about_deadline(instance, at_us),
        revision=instance.job.revision,
    )


def _attempt(attempt: Attempt) -> AttemptShown:
    groups = attempt.instance.job.request.groups
    tasks = [
        TaskShown(
            rank=rank,
            group=groups[task.group].name,
            state="leaving" if task.going and task.holding else task.phase,
            node=task.node.name,
            devices=task.devices,
            holding=task.holding,
            code=task.code,
        )
        for rank, task in sorted(attempt.tasks.items())
    ]
    return AttemptShown(
        attempt=attempt.number,
        phase=attempt.phase,
        bound_us=attempt.bound_us,
        started_us=attempt.started_us,
        kill_at_us=attempt.kill_at_us,
        stop_reason=attempt.stop_reason,
        stop_node=attempt.stop_node,
        tasks=tuple(tasks),
    )
