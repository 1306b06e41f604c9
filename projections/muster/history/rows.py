"""The rows of the history, one type a table: what stands in each column, and in which unit.

A row is a function of the log alone. Each has its whole content: a later row with the same key takes the place of the earlier
one. The columns of a table are the fields of its type, in their order, and the first `Table.keys` of them are its key.

Instants are microseconds since 1970 by the log's own time, spans are microseconds; `None` is "not yet" or "never". Devices
count in thousandths: a whole GPU is 1000 `gpu_milli`. What is text has no NUL character, which PostgreSQL cannot hold; `Json` is
text that holds canonical JSON.
"""

from types import UnionType
from typing import Any, Final, NamedTuple, NewType, get_args, get_type_hints

import msgspec

Json = NewType("Json", str)
"""JSON, as `muster.events.codec.encode` writes it: keys sorted, no white space."""


class CycleRow(NamedTuple):
    """One admitted record of the log."""

    cell: str
    number: int
    """From 1, without a gap."""
    term: int
    at_us: int
    """Log time."""
    policy: str
    """Name and version of the policy that decided."""
    inputs: int
    """How many inputs it has."""
    decisions: int
    digest: str
    """BLAKE2b-256 of the record, in hexadecimal."""
    position: int
    """Where the record stands in its log: the engine's own count."""
    size_bytes: int
    """The record's size."""
    host: str | None
    """Who began to lead, where the record starts a term."""
    build: str | None
    """With `host`: of which build."""
    gap_us: int | None
    """With `host`: for how long nobody led."""


class JobRow(NamedTuple):
    """What was submitted, and what has become of it."""

    cell: str
    job: str
    name: str
    user_name: str
    queue: str
    priority: int
    """As it is now."""
    state: str
    """pending (nothing of it holds a place), running (something does); once all has ended: finished, failed (an instance
    failed), cancelled (one was cancelled, none failed), rejected."""
    reason: str
    """Why it was rejected; else empty."""
    instances: int
    pending: int
    """How many of its instances wait."""
    running: int
    """How many of its instances hold places: starting, running, stopping."""
    finished: int
    failed: int
    cancelled: int
    is_array: bool
    """Whether it is an array, also one of a single element."""
    tasks: int
    """Of one instance, as are the next four."""
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    """Whole devices and shares; not what is asked for as memory of a device."""
    gpu_memory_mib: int
    """Asked for as memory of shared devices."""
    gpu_models: Json
    """A list: every model that a group names."""
    shape: str
    """What makes jobs equal for placement: joins with `decisions.shape`, whose `code` says why the shape waits."""
    preemptible: bool
    max_retries: int
    time_limit_us: int | None
    labels: Json
    """An object of strings."""
    command: Json
    """A list of strings; after 16,384 characters it is cut, and ends in an ellipsis. The environment is not kept: it may hold
    what is secret."""
    image: str
    directory: str
    submitted_us: int | None
    """When its producer made it, by the producer's clock; None where it does not say."""
    entered_us: int
    """When a cycle took it."""
    entered_cycle: int
    ended_us: int | None
    """When its last instance ended."""


class InstanceRow(NamedTuple):
    """What is bound whole or not at all: a job's only instance, or one element of an array."""

    cell: str
    job: str
    instance: int
    state: str
    """pending, starting, running, stopping; finished, failed, cancelled, rejected."""
    attempts: int
    """Bindings so far."""
    retries: int
    """Attempts that counted against `jobs.max_retries`."""
    not_before_us: int | None
    """Not bound again before this instant, after a start that failed."""
    cancelling: bool
    """Somebody asked for its end."""
    reason: str
    """Why it ended, or why its last attempt did."""
    code: int
    """Exit code of what failed."""
    ended_us: int | None


class AttemptRow(NamedTuple):
    """One binding of one instance."""

    cell: str
    job: str
    instance: int
    attempt: int
    """From 1."""
    phase: str
    """prepare, run, stop, ended."""
    bound_us: int
    bound_cycle: int
    started_us: int | None
    """When every member was ready and all ran."""
    ended_us: int | None
    """When nothing was held any more and the engine said what comes of it."""
    tasks: int
    """Places that it was bound with, as are the next three."""
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    stop_reason: str
    """Why it was told to stop: a reason of `StopOrdered`, or preempted; else empty."""
    stop_node: str
    """The node to blame, where one is."""
    stop_code: int
    kill_at_us: int | None
    by_job: str
    """For whom it was preempted."""
    by_instance: int | None
    outcome: str
    """pending (its instance waits again), finished, failed, cancelled; empty until it ended."""
    reason: str
    """Why it ended."""
    code: int
    charged: bool
    """Whether it counts against `jobs.max_retries`."""


class PlacementRow(NamedTuple):
    """One task of an attempt on one node: it holds its place from `placed_us` to `released_us`.

    GPU-hours are the sum of `gpu_milli * (released_us - placed_us)`, with the present for those that still hold.
    """

    cell: str
    job: str
    instance: int
    attempt: int
    rank: int
    placed_cycle: int
    """The cycle that placed it: the attempt's, or a later one where it took the place of a lost member."""
    group_name: str
    node: str
    uid: str
    """Of the node."""
    phase: str
    """preparing, ready, running, leaving (told to go alone); exited, lost."""
    code: int
    """Exit code; 0 where it ended well or nobody knows."""
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    """Held of all its devices together; a share in memory counts by the size of its device."""
    gpu_model: str
    """Of its first device."""
    devices: Json
    """A list: the uuids of its devices."""
    placed_us: int
    released_us: int | None


class NodeRow(NamedTuple):
    """A node. One that comes back with another uid is another node."""

    cell: str
    node: str
    uid: str
    row: int
    """The number by which the log names it."""
    state: str
    """heard, silent (no new work), lost (what ran there is over), removed."""
    boot: str
    boots: int
    """The how manieth boot of the machine; 0 where that is not known."""
    cordoned: bool
    drained: bool
    fenced: bool
    quarantined_until_us: int | None
    cpu_milli: int
    memory_mib: int
    disk_mib: int
    gpus: int
    """Devices that are there now."""
    zone: str
    block: str
    rack: str
    nvlink_domain: str
    labels: Json
    """An object of strings."""
    taints: Json
    """A list of objects: key, value, effect."""
    registered_us: int
    changed_us: int
    """When `state` last changed."""


class DeviceRow(NamedTuple):
    """A device of a node."""

    cell: str
    node: str
    uid: str
    """Of the node."""
    device: int
    """Its index on the node, which never means another device."""
    uuid: str
    model: str
    memory_mib: int
    numa: int
    island: int
    """Devices of one island reach each other at full speed."""
    health: str
    """healthy, degraded, failed."""
    present: bool
    """Whether the node, if it is there, still names it."""
    in_foreign_use: bool
    """Whether something that Muster did not start uses it."""
    changed_us: int
    """When `health` or `present` last changed, or it was first named."""


class ShareRow(NamedTuple):
    """What a queue held at the end of a minute of log time. A minute without a row in any queue ended as the one before."""

    cell: str
    queue: str
    at_us: int
    """A multiple of a minute."""
    pending: int
    """Instances that waited."""
    running: int
    """Instances that held places."""
    tasks: int
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    cluster_gpu_milli: int
    """All devices of all nodes that were there, whatever their health: the share is `gpu_milli / cluster_gpu_milli`."""


class DecisionRow(NamedTuple):
    """One decision. What its kind does not have is None; the kinds are those of `muster.events.decisions`."""

    cell: str
    number: int
    """The cycle."""
    place: int
    """Its place among the cycle's decisions, from 0."""
    at_us: int
    kind: str
    job: str | None
    instance: int | None
    attempt: int | None
    node: str | None
    """The node it is about, or the one to blame."""
    queue: str | None
    shape: str | None
    code: str | None
    """What it says in one word: the leading reason of a shape that waits (`ShapeDeferred`, empty when it waits no more), why
    something was told to stop or ended."""
    outcome: str | None
    """What comes of the instance: pending, finished, failed, cancelled."""
    exit_code: int | None
    by_job: str | None
    """For whom, where somebody gives way."""
    by_instance: int | None
    until_us: int | None
    """Until when: the kill, the end of a nomination, of a quarantine, of a back-off, of a degraded gang's grace."""
    size: int | None
    """How many places are bound or kept, or how many jobs leave the state."""
    text: str | None
    """What it says in a sentence: why a job was rejected."""


Row = CycleRow | JobRow | InstanceRow | AttemptRow | PlacementRow | NodeRow | DeviceRow | ShareRow | DecisionRow


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table: its name, its rows, and how many of their first columns are the key."""

    name: str
    row: type[Any]
    keys: int
    grows: bool = False
    """Whether rows are only added, in the order of `number` and what follows it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, in order."""
        fields: tuple[str, ...] = self.row._fields
        return fields

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the columns that are its key."""
        return self.columns[: self.keys]

    @property
    def types(self) -> tuple[str, ...]:
        """The types of its columns in PostgreSQL."""
        hints = get_type_hints(self.row)
        return tuple(_sql_type(hints[name]) for name in self.columns)


_TYPES: Final[dict[Any, str]] = {int: "bigint", str: "text", bool: "boolean", Json: "jsonb"}


def _sql_type(hint: Any) -> str:
    if isinstance(hint, UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    return _TYPES[hint]


TABLES: Final[tuple[Table, ...]] = (
    Table(name="cycles", row=CycleRow, keys=2, grows=True),
    Table(name="jobs", row=JobRow, keys=2),
    Table(name="instances", row=InstanceRow, keys=3),
    Table(name="attempts", row=AttemptRow, keys=4),
    Table(name="placements", row=PlacementRow, keys=6),
    Table(name="nodes", row=NodeRow, keys=3),
    Table(name="devices", row=DeviceRow, keys=4),
    Table(name="shares", row=ShareRow, keys=3),
    Table(name="decisions", row=DecisionRow, keys=3, grows=True),
)
"""All tables, in the order in which they are written."""

BY_NAME: Final[dict[str, Table]] = {table.name: table for table in TABLES}
