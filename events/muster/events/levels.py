"""The two levels between scheduler and agent: the assignment of a node, and its report.

Neither is an event: each states all that is true of one node at one time, so that a late or doubled message changes
nothing. The recorder turns differences between a report and the state into inputs.
"""

from typing import Annotated, Literal

from msgspec import Meta

from muster.events.base import (
    DEVICES_MAX,
    AttemptNumber,
    DeviceHealth,
    DeviceIndex,
    ExitCode,
    InstanceIndex,
    JobKey,
    Micros,
    Name,
    Part,
    Quantity,
    Rank,
    Text,
    Uid,
)
from muster.events.nodes import NodeSpec


class TaskReport(Part, frozen=True, kw_only=True):
    """One task that the node knows. An ended one is reported until no assignment names it."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    rank: Rank
    since: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """As in the assignment: of a rank that was placed anew, which of the two members this is."""
    phase: Literal["preparing", "ready", "running", "exited"]
    code: ExitCode = 0
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    blame: Literal["", "job", "node"] = ""
    reason: Text = ""


class DeviceReport(Part, frozen=True, kw_only=True):
    """Health of one device."""

    uuid: Uid
    health: DeviceHealth
    reason: Text = ""


class NodeReport(Part, frozen=True, kw_only=True):
    """All that is true of a node."""

    node: Name
    uid: Uid
    boot: Uid
    boots: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Which boot of this machine it is, counted on its disk; a report of an earlier one is late. 0 where that is not known."""
    sequence: Annotated[int, Meta(ge=0, le=2**53)]
    """Counts the reports of one boot; a lower one than was read is late and ignored."""
    applied: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """The newest cycle whose assignment the agent has obeyed."""
    spec: NodeSpec | None = None
    """What the node has; sent when the agent starts and when it changes."""
    tasks: Annotated[tuple[TaskReport, ...], Meta(max_length=100_000)] = ()
    devices: Annotated[tuple[DeviceReport, ...], Meta(max_length=DEVICES_MAX)] = ()
    foreign_cpu_milli: Quantity = 0
    foreign_memory_mib: Quantity = 0
    foreign_devices: Annotated[tuple[Uid, ...], Meta(max_length=DEVICES_MAX)] = ()


class TaskAssignment(Part, frozen=True, kw_only=True):
    """One task that the node is to hold, and in which phase."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    rank: Rank
    since: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """The cycle that placed this member here. The same rank with a later one is another member: it starts from nothing."""
    phase: Literal["prepare", "run", "stop"]
    kill_at_us: Micros = 0
    """With `stop`: by log time."""
    devices: Annotated[tuple[DeviceIndex, ...], Meta(max_length=DEVICES_MAX)] = ()


class Assignment(Part, frozen=True, kw_only=True):
    """All that the node is to hold, as of cycle `number`."""

    node: Name
    uid: Uid
    boot: Annotated[str, Meta(max_length=64)] = ""
    """The boot that it is meant for; an agent of another one has nothing to do with it. Empty where that is not said."""
    number: Annotated[int, Meta(ge=0, le=2**53)]
    at_us: Micros
    tasks: Annotated[tuple[TaskAssignment, ...], Meta(max_length=100_000)] = ()
