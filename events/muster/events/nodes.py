"""What is said about nodes and devices from outside, and about the tasks on them.

The inputs here are made by the recorder from the levels that agents report (`muster.events.levels`) and from
telemetry's proposals. A node is identified by `uid`: a node that comes back under its old name with another uid is
another node.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from muster.events.base import (
    DEVICES_MAX,
    TASKS_MAX,
    AttemptNumber,
    DeviceHealth,
    Event,
    ExitCode,
    InstanceIndex,
    JobKey,
    Label,
    LabelKey,
    Labels,
    Name,
    NodeRow,
    Part,
    Profile,
    Quantity,
    Rank,
    Text,
    Uid,
)


class Taint(Part, frozen=True, kw_only=True):
    """Keeps tasks away that do not tolerate it."""

    key: LabelKey
    value: Label = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class Device(Part, frozen=True, kw_only=True):
    """A GPU as its node reports it. `uuid` is its identity; its place in a report is not."""

    uuid: Uid
    model: Label = ""
    memory_mib: Quantity = 0
    numa: Annotated[int, Meta(ge=0, le=1024)] = 0
    island: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Devices of one island reach each other at full speed (NVLink, NVSwitch, one PCIe switch)."""
    health: DeviceHealth = "healthy"
    profile: Profile | UnsetType = UNSET
    """Of a slice of a GPU (MIG) its profile; unset is a whole GPU."""
    card: Uid | UnsetType = UNSET
    """Whose slice it is: the uuid of the GPU."""


class NodeSpec(Part, frozen=True, kw_only=True):
    """What a node has."""

    cpu_milli: Quantity = 0
    memory_mib: Quantity = 0
    disk_mib: Quantity = 0
    tasks_max: Annotated[int, Meta(ge=1, le=TASKS_MAX)] = 1000
    labels: Labels = {}
    taints: Annotated[tuple[Taint, ...], Meta(max_length=64)] = ()
    devices: Annotated[tuple[Device, ...], Meta(max_length=DEVICES_MAX)] = ()
    zone: Label = ""
    block: Label = ""
    rack: Label = ""
    nvlink_domain: Label = ""
    numa: Annotated[int, Meta(ge=1, le=64)] | UnsetType = UNSET
    """Over how many NUMA nodes its CPU and memory are split, evenly; unset means 1. A device says its own."""
    images: Annotated[tuple[Label, ...], Meta(max_length=256)] | UnsetType = UNSET
    """Images that need not be fetched."""
    datasets: Annotated[tuple[Label, ...], Meta(max_length=256)] | UnsetType = UNSET
    """Data sets that are near."""


class NodeRegistered(Event, frozen=True, kw_only=True):
    """A node is there and has this; or a known node (same uid) now has this.

    A new uid under a known name replaces the node of that name: what ran on the old one has ended. Another `boot` of the
    same uid is a reboot: what ran there has ended. A device that is known by its uuid keeps its index; a new one takes
    the next index; one that is no longer named is gone.
    """

    node: Name
    uid: Uid
    boot: Uid
    spec: NodeSpec
    boots: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """As in the report: the how manieth boot of this machine."""


class NodeRemoved(Event, frozen=True, kw_only=True):
    """The node is gone for good and what ran on it has ended."""

    node: Name
    uid: Uid


class NodesHeard(Event, frozen=True, kw_only=True):
    """A beat: since the one before, every registered node was heard except these rows.

    `unread` are rows on partitions that could not be read: they were not heard, and nothing follows from that.
    """

    missing: Annotated[tuple[NodeRow, ...], Meta(max_length=1_000_000)] = ()
    unread: Annotated[tuple[NodeRow, ...], Meta(max_length=1_000_000)] = ()


class DeviceHealthChanged(Event, frozen=True, kw_only=True):
    """A device is now in this health."""

    node: Name
    uid: Uid
    device: Uid
    health: DeviceHealth
    reason: Text = ""


class ForeignUseChanged(Event, frozen=True, kw_only=True):
    """Something that Muster did not start uses this much of the node now."""

    node: Name
    uid: Uid
    cpu_milli: Quantity = 0
    memory_mib: Quantity = 0
    devices: Annotated[tuple[Uid, ...], Meta(max_length=DEVICES_MAX)] = ()


class TaskReady(Event, frozen=True, kw_only=True):
    """The task's node has all that the task needs and waits for the start."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    rank: Rank
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Chosen by rank 0's agent for the members to meet at; else 0."""


class TaskStarted(Event, frozen=True, kw_only=True):
    """The task's process runs."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    rank: Rank


class TaskExited(Event, frozen=True, kw_only=True):
    """The task's whole process group is gone, or never was and never will be."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    rank: Rank
    code: ExitCode = 0
    blame: Literal["", "job", "node"] = ""
    """Whose fault a failure is, where the agent knows: an image that cannot be had is the node's."""
    reason: Text = ""


class TaskMissing(Event, frozen=True, kw_only=True):
    """The node applied the cycle that bound the attempt and yet reports nothing of this task."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    rank: Rank
