"""What the engine decides. Every one of these is a fact once its cycle is admitted.

Life of an instance (who emits what; inputs are marked *):

    pending --InstanceBound--> starting --(every TaskReady*)--> InstanceStarted --> running
    starting or running --InstancePreempted | StopOrdered--> stopping
    starting, running or stopping --(nothing held any more: TaskExited*, node lost or fenced)--> AttemptEnded
    AttemptEnded.then: "pending" (requeued, keeping its place) | "finished" | "failed" | "cancelled"
    pending --InstanceEnded--> "cancelled" | "failed"

The replicas of a service (`muster.events.services`) are wanted again after that: "cancelled" --ReplicaOpened--> pending.
An elastic instance that runs gains members by InstanceGrown, and loses some by InstanceShrunk.

An attempt's holdings are given back task by task, when the task's exit is read or its node is lost, removed or
fenced, and at no other moment.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from muster.events.base import (
    AttemptNumber,
    DeviceIndex,
    Event,
    ExitCode,
    InstanceIndex,
    JobKey,
    Label,
    Micros,
    Name,
    NodeRow,
    Rank,
    Text,
)

Outcome = Literal["finished", "failed", "cancelled"]

StopReason = Literal[
    "cancelled",
    "time-limit",
    "member-failed",
    "start-failed",
    "ready-timeout",
    "device-failed",
    "node-lost",
    "node-removed",
    "node-rebooted",
    "drained",
    "taint",
    "task-missing",
    "finished",
    "reserved",
    "scaled",
    "revised",
]
"""Why an attempt has to stop. `finished`: what decides the outcome is done and the rest is told to go. `reserved`: where it is, a
reservation begins that is not for it. `scaled`, `revised`: a replica that its service wants no more, or wants of another
revision."""


class Placement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One task on one node: `[rank, row, [device indices]]`.

    Ranks run through the groups in their order: group g has the ranks from the sum of the counts before it. What a task
    holds on each device follows from its group's request (whole, a share, or an amount of memory).
    """

    rank: Rank
    row: NodeRow
    devices: Annotated[tuple[DeviceIndex, ...], Meta(max_length=64)] = ()


Placements = Annotated[tuple[Placement, ...], Meta(max_length=100_000)]


class AttemptRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`[job, instance, attempt]`."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber


Ranks = Annotated[tuple[Rank, ...], Meta(min_length=1, max_length=100_000)]


class MembersRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`[job, instance, attempt, [ranks]]`: some members of an elastic attempt."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    ranks: Ranks


class JobRejected(Event, frozen=True, kw_only=True):
    """The job will never be taken, and why."""

    job: JobKey
    reason: Text


class InstanceBound(Event, frozen=True, kw_only=True):
    """The instance holds these places from now on; its nodes prepare it."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    placements: Placements


class InstanceStarted(Event, frozen=True, kw_only=True):
    """Every member is ready: all run."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber


class InstancePreempted(Event, frozen=True, kw_only=True):
    """The attempt is told to stop so that the beneficiary can have what it holds."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    by_job: JobKey
    by_instance: InstanceIndex
    kill_at_us: Micros


class StopOrdered(Event, frozen=True, kw_only=True):
    """The attempt is told to stop, and is killed at `kill_at_us`."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    reason: StopReason
    kill_at_us: Micros
    node: Annotated[str, Meta(max_length=63)] = ""
    """The node to blame, where one is."""
    code: ExitCode = 0


class AttemptEnded(Event, frozen=True, kw_only=True):
    """Nothing is held for the attempt any more, and this comes of its instance."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    then: Literal["pending", "finished", "failed", "cancelled"]
    reason: Annotated[str, Meta(max_length=64)] = ""
    code: ExitCode = 0
    not_before_us: Micros = 0
    """With `pending`: not bound again before this instant."""
    avoid: Annotated[str, Meta(max_length=64)] = ""
    """With `pending`: the uid of a node that this job is not put on again; empty for none."""
    charged: bool = False
    """Whether this counts against `max_retries`."""


class InstanceEnded(Event, frozen=True, kw_only=True):
    """The instance, which held nothing, is over."""

    job: JobKey
    instance: InstanceIndex
    outcome: Outcome
    reason: Annotated[str, Meta(max_length=64)] = ""


class MemberLost(Event, frozen=True, kw_only=True):
    """A running gang lost this member and goes on below its minimum until `until_us` at most (semantics 13)."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    until_us: Micros


class MembersReplaced(Event, frozen=True, kw_only=True):
    """These ranks of a degraded attempt were placed anew."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    placements: Placements


class InstanceGrown(Event, frozen=True, kw_only=True):
    """An elastic attempt that runs holds these places too, and has so many members more."""

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    placements: Placements


ShrinkReason = Literal[
    "preempted",
    "resized",
    "ready-timeout",
    "device-failed",
    "node-lost",
    "node-removed",
    "node-rebooted",
    "drained",
    "taint",
    "task-missing",
]


class InstanceShrunk(Event, frozen=True, kw_only=True):
    """An elastic attempt goes on without these members, and is still at its minimum.

    Those that hold something are told to stop and are killed at `kill_at_us`; they are members no more when they exited.
    """

    job: JobKey
    instance: InstanceIndex
    attempt: AttemptNumber
    ranks: Ranks
    reason: ShrinkReason
    kill_at_us: Micros
    by_job: Annotated[str, Meta(max_length=64)] = ""
    """With `preempted`: for whom."""
    by_instance: InstanceIndex = 0


class Nominated(Event, frozen=True, kw_only=True):
    """These places are kept for the instance until its victims are gone."""

    job: JobKey
    instance: InstanceIndex
    placements: Placements
    victims: Annotated[tuple[AttemptRef, ...], Meta(max_length=100_000)]
    until_us: Micros
    members: Annotated[tuple[MembersRef, ...], Meta(max_length=100_000)] | UnsetType = UNSET
    """Victims that are members of elastic attempts, which go on without them."""


class NominationEnded(Event, frozen=True, kw_only=True):
    """The places are no longer kept. `bound` is the good end."""

    job: JobKey
    instance: InstanceIndex
    reason: Literal["bound", "cancelled", "node-lost", "taken", "deadline", "infeasible", "policy"]
    by: Annotated[str, Meta(max_length=64)] = ""
    """With `taken`: the job that took them."""


class StartPlanned(Event, frozen=True, kw_only=True):
    """The instance, which does not fit now, is to start then and there, if all end by when they promised (semantics 18).

    Whoever ranks below it may not delay that. Recorded when it changes; it takes the place of an earlier plan. It ends without a
    word when the instance is bound, nominated or over, and when the policy plans no more.
    """

    job: JobKey
    instance: InstanceIndex
    placements: Placements
    start_us: Micros
    until_us: Micros
    """Then it is made anew."""


class PlanDropped(Event, frozen=True, kw_only=True):
    """Nothing is planned for the instance any more.

    `outranked`: others that rank above it take up all plans that there may be. `infeasible`: a place of it cannot be had any more
    and there is no other within the horizon. `expired`: it was as old as a plan may get.
    """

    job: JobKey
    instance: InstanceIndex
    reason: Literal["outranked", "infeasible", "expired"]


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is reserved on one node: `[node, [device indices]]`."""

    node: Name
    devices: Annotated[tuple[DeviceIndex, ...], Meta(max_length=64)]


class ReservationPlaced(Event, frozen=True, kw_only=True):
    """The amount that is reserved is these devices from now on, whatever it was before."""

    reservation: Name
    pieces: Annotated[tuple[Piece, ...], Meta(max_length=10_000)]


class NodeSilent(Event, frozen=True, kw_only=True):
    """The node was not heard for `silent_after_us`: no new work."""

    node: Name
    row: NodeRow


class NodeReturned(Event, frozen=True, kw_only=True):
    """A silent or lost node was heard again."""

    node: Name
    row: NodeRow


class NodeLost(Event, frozen=True, kw_only=True):
    """The node was not heard for the lease and its margin: its tasks are over, each by its own supervisor."""

    node: Name
    row: NodeRow


class NodeQuarantined(Event, frozen=True, kw_only=True):
    """The node flaps: no new work until this instant."""

    node: Name
    row: NodeRow
    until_us: Micros


class NodeReleased(Event, frozen=True, kw_only=True):
    """The node's quarantine is over."""

    node: Name
    row: NodeRow


class ShapeDeferred(Event, frozen=True, kw_only=True):
    """Jobs of this shape in this queue wait, and this is the leading reason. Recorded when it changes."""

    queue: Name
    shape: Annotated[str, Meta(max_length=32)]
    code: Label


class PassStopped(Event, frozen=True, kw_only=True):
    """The cycle holds no more; what is left to decide is decided in the next one."""


class JobsForgotten(Event, frozen=True, kw_only=True):
    """These ended jobs leave the state."""

    jobs: Annotated[tuple[JobKey, ...], Meta(max_length=100_000)]
