"""Rows from what the state holds. Each function is one table's: pure, and of what it is given alone."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from muster.cluster.jobs import Attempt, Instance, Job, Task
from muster.cluster.nodes import Device, Node
from muster.cluster.shapes import part_of
from muster.events.base import Event
from muster.events.codec import encode
from muster.events.decisions import (
    AttemptEnded,
    InstanceBound,
    InstanceEnded,
    InstanceGrown,
    InstancePreempted,
    InstanceShrunk,
    InstanceStarted,
    JobRejected,
    JobsForgotten,
    MemberLost,
    MembersReplaced,
    NodeLost,
    NodeQuarantined,
    NodeReleased,
    NodeReturned,
    NodeSilent,
    Nominated,
    NominationEnded,
    PassStopped,
    PlanDropped,
    ReservationPlaced,
    ShapeDeferred,
    StartPlanned,
    StopOrdered,
)
from muster.events.record import Cycle
from muster.events.services import (
    ReplicaOpened,
    ReplicasDecided,
    RevisionAccepted,
    RevisionRejected,
    RollFinished,
    RollStopped,
)
from muster.history.rows import AttemptRow, CycleRow, DecisionRow, DeviceRow, InstanceRow, JobRow, Json, NodeRow, PlacementRow

LARGEST: Final = 2**63 - 1
"""What a column holds; a sum beyond it is said to be this."""
NOTHING: Final = Json("[]")
COMMAND_MAX: Final = 16_384
"""Characters of a command that are kept."""

WAITS: Final = "pending"
HOLDS: Final = "running"
OUTCOMES: Final = ("finished", "failed", "cancelled")


class Counts(msgspec.Struct):
    """How many instances of a job are in which state."""

    pending: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0

    def move(self, phase: str, by: int) -> None:
        """So many more are in this phase."""
        name = standing(phase)
        setattr(self, name, getattr(self, name) + by)


def standing(phase: str) -> str:
    """What a phase of an instance comes to: pending, running (it holds places), or how it ended."""
    return HOLDS if phase in ("starting", "running", "stopping") else phase


def counted(job: Job) -> Counts:
    """The counts of a job, from all its instances."""
    counts = Counts()
    for instance in job.instances:
        counts.move(instance.phase, 1)
    return counts


def cycle_row(cycle: Cycle, digest: str, position: int, size: int) -> CycleRow:
    """A record with this digest, which stands at this position and has so many bytes."""
    started = cycle.started
    return CycleRow(
        cycle.cell,
        cycle.number,
        cycle.term,
        cycle.at_us,
        text(cycle.policy),
        len(cycle.inputs),
        len(cycle.decisions),
        digest,
        position,
        size,
        text(started.host) if started is not None else None,
        text(started.build) if started is not None else None,
        started.gap_us if started is not None else None,
    )


def job_row(cell: str, job: Job, counts: Counts, submitted_us: int) -> JobRow:
    """A job whose instances are in the state, and which its producer made at `submitted_us`; 0 where nobody knows."""
    request, run = job.request, job.run
    groups = request.groups
    models: dict[str, None] = {}
    for group in groups:
        models.update(dict.fromkeys(group.gpu_models))
    if job.rejected:
        state = "rejected"
    elif job.open:
        state = HOLDS if counts.running else WAITS
    else:
        state = "failed" if counts.failed else "cancelled" if counts.cancelled else "finished"
    return JobRow(
        cell,
        job.id,
        job.name,
        job.user,
        job.queue,
        job.priority,
        state,
        text(job.rejected),
        len(job.instances),
        counts.pending,
        counts.running,
        counts.finished,
        counts.failed,
        counts.cancelled,
        request.array is not None,
        job.gang.tasks,
        total([group.cpu_milli * group.count for group in groups]),
        total([group.memory_mib * group.count for group in groups]),
        total([(group.gpus * part_of(group.gpu_profile or "") // 1000 or group.gpu_milli) * group.count for group in groups]),
        total([group.gpu_memory_mib * group.count for group in groups if not group.gpus and not group.gpu_milli]),
        json(list(models)) if models else NOTHING,
        job.gang.digest,
        request.preemptible,
        request.max_retries,
        request.time_limit_us,
        json(request.labels),
        json(shortened(run.command)),
        text(run.image),
        text(run.directory),
        submitted_us or None,
        job.submitted_us,
        job.place[0],
        None if job.open else max(instance.ended_us for instance in job.instances),
    )


def instance_row(cell: str, instance: Instance) -> InstanceRow:
    """An instance as it is."""
    return InstanceRow(
        cell,
        instance.job.id,
        instance.index,
        instance.phase,
        instance.attempts,
        instance.retries,
        instance.not_before_us or None,
        instance.cancelling,
        text(instance.reason),
        instance.code,
        instance.ended_us or None,
    )


def attempt_row(
    cell: str, attempt: Attempt, tasks: Sequence[Task], by: tuple[str, int] | None, ended: AttemptEnded | None, at_us: int
) -> AttemptRow:
    """An attempt with these tasks, preempted for `by`; `ended` at `at_us`, if it is."""
    instance = attempt.instance
    return AttemptRow(
        cell,
        instance.job.id,
        instance.index,
        attempt.number,
        attempt.phase if ended is None else "ended",
        attempt.bound_us,
        attempt.bound_cycle,
        attempt.started_us or None,
        None if ended is None else at_us,
        len(tasks),
        total([task.shape.cpu_milli for task in tasks]),
        total([task.shape.memory_mib for task in tasks]),
        total([gpu_milli(task) for task in tasks]),
        attempt.stop_reason,
        attempt.stop_node,
        attempt.stop_code,
        attempt.kill_at_us or None,
        "" if by is None else by[0],
        None if by is None else by[1],
        "" if ended is None else ended.then,
        "" if ended is None else text(ended.reason),
        0 if ended is None else ended.code,
        ended is not None and ended.charged,
    )


def placement_row(cell: str, task: Task, placed_us: int, released_us: int | None) -> PlacementRow:
    """A task that holds its place since `placed_us`."""
    attempt, shape, node = task.attempt, task.shape, task.node
    instance = attempt.instance
    job = instance.job
    devices = [node.devices[index] for index in task.devices]
    return PlacementRow(
        cell,
        job.id,
        instance.index,
        attempt.number,
        task.rank,
        task.since,
        job.request.groups[task.group].name,
        node.name,
        node.uid,
        task.phase,
        task.code,
        shape.cpu_milli,
        shape.memory_mib,
        gpu_milli(task),
        text(devices[0].model) if devices else "",
        json([device.uuid for device in devices]) if devices else NOTHING,
        placed_us,
        released_us,
    )


def gpu_milli(task: Task) -> int:
    """What a task holds of devices, in thousandths of one."""
    shape = task.shape
    if shape.gpus:
        return shape.part * len(task.devices) // 1000
    if not task.devices or not shape.share:
        return 0
    return shape.gpu_milli or shape.gpu_memory_mib * 1000 // (task.node.devices[task.devices[0]].memory_mib or 1)


def node_row(cell: str, node: Node, registered_us: int, changed_us: int) -> NodeRow:
    """A node that is known since `registered_us`."""
    spec = node.spec
    return NodeRow(
        cell,
        node.name,
        node.uid,
        node.row,
        node.liveness,
        node.boot,
        node.boots,
        node.cordoned,
        node.drained,
        node.fenced,
        node.quarantined_until_us or None,
        spec.cpu_milli,
        spec.memory_mib,
        spec.disk_mib,
        present(node),
        text(spec.zone),
        text(spec.block),
        text(spec.rack),
        text(spec.nvlink_domain),
        json(spec.labels),
        json(msgspec.to_builtins(spec.taints)) if spec.taints else NOTHING,
        registered_us,
        changed_us,
    )


def present(node: Node) -> int:
    """How many devices a node has."""
    return sum([device.present for device in node.devices])


def node_milli(node: Node) -> int:
    """What a node has of GPUs, in thousandths of one; a slice counts by its compute slices."""
    return sum([device.part for device in node.devices if device.present]) // 1000


def device_row(cell: str, node: Node, index: int, device: Device, changed_us: int) -> DeviceRow:
    """The device with this index."""
    return DeviceRow(
        cell,
        node.name,
        node.uid,
        index,
        device.uuid,
        text(device.model),
        device.memory_mib,
        device.numa,
        device.island,
        device.health,
        device.present,
        device.foreign,
        changed_us,
    )


_ATTEMPT: Final = {"job": "job", "instance": "instance", "attempt": "attempt"}
_INSTANCE: Final = {"job": "job", "instance": "instance"}

_SAID: Final[dict[type[Event], dict[str, str]]] = {
    JobRejected: {"job": "job", "text": "reason"},
    InstanceBound: _ATTEMPT | {"size": "placements"},
    InstanceStarted: _ATTEMPT,
    InstancePreempted: _ATTEMPT | {"by_job": "by_job", "by_instance": "by_instance", "until_us": "kill_at_us"},
    StopOrdered: _ATTEMPT | {"code": "reason", "until_us": "kill_at_us", "node": "node", "exit_code": "code"},
    AttemptEnded: _ATTEMPT | {"outcome": "then", "code": "reason", "exit_code": "code", "until_us": "not_before_us"},
    InstanceEnded: _INSTANCE | {"outcome": "outcome", "code": "reason"},
    MemberLost: _ATTEMPT | {"until_us": "until_us"},
    MembersReplaced: _ATTEMPT | {"size": "placements"},
    InstanceGrown: _ATTEMPT | {"size": "placements"},
    InstanceShrunk: _ATTEMPT
    | {
        "code": "reason",
        "size": "ranks",
        "by_job": "by_job",
        "by_instance": "by_instance",
        "until_us": "kill_at_us",
    },
    Nominated: _INSTANCE | {"until_us": "until_us", "size": "placements"},
    StartPlanned: _INSTANCE | {"until_us": "start_us", "size": "placements"},
    PlanDropped: _INSTANCE | {"code": "reason"},
    NominationEnded: _INSTANCE | {"code": "reason", "by_job": "by"},
    ReservationPlaced: {"text": "reservation", "size": "pieces"},
    NodeSilent: {"node": "node"},
    NodeReturned: {"node": "node"},
    NodeLost: {"node": "node"},
    NodeQuarantined: {"node": "node", "until_us": "until_us"},
    NodeReleased: {"node": "node"},
    ShapeDeferred: {"queue": "queue", "shape": "shape", "code": "code"},
    PassStopped: {},
    JobsForgotten: {"size": "jobs"},
    RevisionAccepted: {"job": "job", "size": "revision"},
    RevisionRejected: {"job": "job", "text": "reason"},
    ReplicaOpened: _INSTANCE | {"size": "revision"},
    RollStopped: _INSTANCE | {"code": "reason", "size": "revision"},
    RollFinished: {"job": "job", "size": "revision"},
    ReplicasDecided: {"job": "job", "size": "replicas"},
}
"""By kind, the columns that it fills and the fields of the event that they are filled from."""

_COLUMNS: Final = DecisionRow._fields[5:]
_FIELDS: Final = {kind: [said.get(column, "") for column in _COLUMNS] for kind, said in _SAID.items()}


def decision_row(cell: str, number: int, place: int, at_us: int, event: Event) -> DecisionRow:
    """A decision."""
    kind = type(event)
    return DecisionRow(
        cell, number, place, at_us, kind.__name__, *[_said(event, field) if field else None for field in _FIELDS[kind]]
    )


def _said(event: Event, field: str) -> Any:
    value = getattr(event, field)
    if type(value) is tuple:
        return len(value)
    if type(value) is str:
        # An empty code of a shape says something: that it waits no more.
        return text(value) if value or type(event) is ShapeDeferred else None
    return value if value or not field.endswith("_us") else None


def shortened(command: tuple[str, ...]) -> list[str]:
    """A command, cut where it is too long to be kept whole with every row; an ellipsis says so."""
    kept: list[str] = []
    left = COMMAND_MAX
    for word in command:
        if len(word) > left:
            kept.append(word[:left] + "…")
            break
        kept.append(word)
        left -= len(word) + 1
    return kept


def total(amounts: list[int]) -> int:
    """Their sum, or the most that a column holds."""
    return min(sum(amounts), LARGEST)


def text(said: str) -> str:
    """The same, as PostgreSQL can hold it."""
    return said if "\0" not in said else said.replace("\0", "\ufffd")


def json(value: Any) -> Json:
    """A value as canonical JSON that PostgreSQL can hold."""
    encoded = encode(value).decode()
    if "\\u0000" in encoded:
        encoded = encode(_texts(msgspec.json.decode(encoded))).decode()
    return Json(encoded)


def _texts(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [_texts(each) for each in value]
    if isinstance(value, dict):
        return {text(key): _texts(each) for key, each in value.items()}
    return value
