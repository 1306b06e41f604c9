"""A service: what a job says that is kept running, and how it is revised and scaled."""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from muster.events.base import Event, JobKey, Label, Micros, Part, Quantity, Text

REPLICAS_MAX = 10_000
"""A service has no more replicas than this, those by which a roll goes above its count among them."""

ReplicaCount = Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
ReplicaBound = Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]
Revision = Annotated[int, Meta(ge=0, le=2**53)]


class Autoscale(Part, frozen=True, kw_only=True):
    """How many replicas a metric asks for: its value over `target_milli`, rounded up, between `min` and `max`."""

    metric: Annotated[str, Meta(min_length=1, max_length=128)]
    """Its name, for people and for whoever feeds it."""
    target_milli: Annotated[int, Meta(ge=1, le=2**53)]
    """What one replica is to bear of it, in thousandths."""
    min: ReplicaCount = 1
    max: ReplicaCount
    up_after_us: Micros = 0
    """Replicas are added only as far as the value asked for all this while."""
    down_after_us: Micros = 300_000_000
    """Replicas are taken away only as far as the value did not ask for them all this while."""
    tolerance_milli: Annotated[int, Meta(ge=0, le=1000)] = 100
    """A value so near to what the present replicas are to bear, in thousandths of it, changes nothing."""


class Service(Part, frozen=True, kw_only=True):
    """Replicas that are kept: each is an instance of its own, and one that ends is placed again.

    Of `max_unavailable` and `max_surge` one at least is not 0.
    """

    replicas: ReplicaCount = 1
    max_unavailable: ReplicaBound = 1
    """A roll takes away no replica by which fewer than `replicas` less this would be up."""
    max_surge: ReplicaBound = 0
    """A roll has so many replicas above `replicas` at most."""
    settle_us: Micros = 0
    """A replica is up when it has run for so long."""
    autoscale: Autoscale | UnsetType = UNSET


class JobScaleRequested(Event, frozen=True, kw_only=True):
    """Somebody wants a service to have so many replicas. One that is scaled by a metric stays as it is."""

    job: JobKey
    replicas: ReplicaBound
    by: Text = ""


class JobMetricReported(Event, frozen=True, kw_only=True):
    """The metric by which a service is scaled has this value, over all its replicas; it stands until another comes."""

    job: JobKey
    value_milli: Quantity
    metric: Label = ""
    """Its name; empty for whatever the service is scaled by. Another than that changes nothing."""
    by: Text = ""


class RevisionAccepted(Event, frozen=True, kw_only=True):
    """From here on the replicas are to be as the job was revised. With the revision that it has already only settings change."""

    job: JobKey
    revision: Revision


class RevisionRejected(Event, frozen=True, kw_only=True):
    """The job stays as it was before it was revised, and why."""

    job: JobKey
    reason: Text


class ReplicaOpened(Event, frozen=True, kw_only=True):
    """One more replica of this revision is wanted: it waits to be placed."""

    job: JobKey
    instance: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]
    revision: Revision


class RollStopped(Event, frozen=True, kw_only=True):
    """A replica of the new revision failed: no other is touched until a person says how to go on."""

    job: JobKey
    revision: Revision
    instance: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]
    reason: Annotated[str, Meta(max_length=64)]


class RollFinished(Event, frozen=True, kw_only=True):
    """Every replica is of this revision and up."""

    job: JobKey
    revision: Revision


class ReplicasDecided(Event, frozen=True, kw_only=True):
    """The metric asks for so many replicas."""

    job: JobKey
    replicas: ReplicaCount
