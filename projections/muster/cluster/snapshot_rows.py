"""What stands in a snapshot, row by row: arrays in the order of these fields. `muster.cluster.snapshot` fills and reads them."""

import msgspec

from muster.events.catalogue import DeviceModel
from muster.events.decisions import AttemptRef, MembersRef, Piece, Placement
from muster.events.jobs import Dependency, JobRequest, JobRun
from muster.events.nodes import Device as DeviceSpec
from muster.events.nodes import NodeSpec
from muster.events.operations import Policy
from muster.events.queues import QueueSet
from muster.events.reservations import ReservationSet


class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Base of everything in a snapshot."""


class DeviceRow(Row):
    spec: DeviceSpec
    present: bool
    foreign: bool


class NodeRow(Row):
    row: int
    name: str
    uid: str
    boot: str
    boots: int
    spec: NodeSpec
    devices: tuple[DeviceRow, ...]
    cordoned: bool
    drained: bool
    fenced: bool
    liveness: str
    heard_us: int
    quarantined_until_us: int
    silences: tuple[int, ...]
    foreign_cpu: int
    foreign_memory: int


class TaskRow(Row):
    rank: int
    row: int
    node: str
    uid: str
    devices: tuple[int, ...]
    phase: str
    holding: bool
    code: int
    port: int
    since: int
    going: bool
    kill_at_us: int


class FaultRow(Row):
    reason: str
    code: int
    node: str
    blame: str
    lost: bool


class AttemptRow(Row):
    number: int
    phase: str
    bound_us: int
    bound_cycle: int
    ready_until_us: int
    started_us: int
    kill_at_us: int
    stop_reason: str
    stop_code: int
    stop_node: str
    fault: FaultRow | None
    degraded_until_us: int
    ready: int
    tasks: tuple[TaskRow, ...]
    changed: int
    saved_us: int


class InstanceRow(Row):
    phase: str
    attempts: int
    retries: int
    start_failures: int
    not_before_us: int
    cancelling: bool
    ended_us: int
    reason: str
    code: int
    attempt: AttemptRow | None
    ran: bool


class JobRow(Row):
    id: str
    name: str
    user: str
    queue: str
    request: int
    """Which of the state's requests."""
    run: int
    """Which of the state's runs."""
    place: tuple[int, int]
    submitted_us: int
    priority: int
    avoid: tuple[str, ...]
    over_us: int
    rejected: str
    held: tuple[Dependency, ...]
    instances: tuple[InstanceRow, ...]


class NominationRow(Row):
    job: str
    instance: int
    placements: tuple[Placement, ...]
    victims: tuple[AttemptRef, ...]
    at_us: int
    until_us: int
    members: tuple[MembersRef, ...]


class QueueRow(Row):
    spec: QueueSet
    closed: bool
    charged: tuple[tuple[str, int], ...]


class PlanRow(Row):
    job: str
    instance: int
    placements: tuple[Placement, ...]
    start_us: int
    at_us: int
    until_us: int


class ReservationRow(Row):
    spec: ReservationSet
    made_us: int
    at: int
    pieces: tuple[Piece, ...]


class EditionRow(Row):
    revision: int
    request: JobRequest
    run: JobRun
    avoid: tuple[str, ...]
    limit_us: int | None


class ServiceRow(Row):
    job: str
    replicas: int
    revision: int
    phase: str
    whole: int
    back: int
    former: tuple[EditionRow, ...]
    of: tuple[int, ...]
    """The revision of each replica."""
    request: JobRequest | None
    """As what somebody wants it, and the gate has not looked at it yet; with `run`."""
    run: JobRun | None
    fault: tuple[int, str] | None
    ended: bool
    value_milli: int
    highs: tuple[tuple[int, int], ...]
    lows: tuple[tuple[int, int], ...]


class StateRow(Row):
    schema: int
    cell: str
    number: int
    term: int
    at_us: int
    policy: Policy
    positions: dict[str, int]
    lease_until_us: int
    beat_us: int
    missing: tuple[int, ...]
    back: tuple[int, ...]
    more: bool
    deferred: tuple[tuple[str, str, str], ...]
    nodes: tuple[NodeRow, ...]
    rows: int
    requests: tuple[JobRequest, ...]
    """Each once, in the order of the first job that has it: many jobs ask for the same."""
    runs: tuple[JobRun, ...]
    """Likewise."""
    jobs: tuple[JobRow, ...]
    nominations: tuple[NominationRow, ...]
    retired: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    queues: tuple[QueueRow, ...] | None
    """None where there is no tree. The parents first, then by name."""
    limits: tuple[tuple[str, int], ...]
    """Time limits of jobs that did not ask for one, by job, in the order of jobs."""
    plans: tuple[PlanRow, ...]
    licences: tuple[tuple[str, int], ...]
    catalogue: tuple[DeviceModel, ...]
    evictions: tuple[tuple[str, int, tuple[tuple[int, str, str, int], ...]], ...]
    """Job and instance; then row, key and value of a taint that is put up with for a while, and until when."""
    usage: tuple[tuple[str, str, int, int], ...] = ()
    """Queue, user or an empty name, what was used and until when; empty where no history is kept."""
    reservations: tuple[ReservationRow, ...] = ()
    """By name."""
    services: tuple[ServiceRow, ...] = ()
    """In the order of jobs."""
