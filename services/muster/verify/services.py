"""Services, as the second judge sees them: how many replicas there may be, and whether each step of a roll was allowed.

Counted anew from the instances each time. A replica is *wanted* until it is told to go, and *up* once it has run for `settle`.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.events import jobs, services
from muster.verify.models import capable
from muster.verify.world import Attempt, Instance, Job, World

GOES = ("scaled", "revised")
AGAINST = ("finished", "member-failed", "start-failed", "ready-timeout")
"""Ends of an attempt that speak against its revision."""
NEVER_US = -1


@dataclass(slots=True, eq=False)
class Served:
    """What a service is to be."""

    job: Job
    replicas: int
    revision: int = 1
    whole: int = 1  # the last revision of which all replicas were
    phase: str = "kept"  # kept, rolling, stopped
    failed: bool = False  # a replica of the newest revision did, in its roll
    editions: dict[int, Job] = field(default_factory=dict)
    proposed: jobs.JobRevised | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)  # for how many its metric asked, and since when

    @property
    def says(self) -> services.Service:
        """What its newest revision says of it."""
        said = self.editions[self.revision].request.service
        assert said
        return said

    def rank(self, priority: int) -> None:
        """Its replicas are of this priority, whatever their revision."""
        for edition in self.editions.values():
            edition.priority = priority
        self.job.priority = priority

    def open(self) -> list[Instance]:
        """The replicas that hold places, or wait for some."""
        return [instance for instance in self.job.instances if not instance.outcome]

    def wanted(self) -> list[Instance]:
        """Those that were not told to go."""
        return [instance for instance in self.open() if not goes(instance)]

    def is_up(self, world: World, instance: Instance) -> bool:
        attempt = instance.attempt
        if attempt is None or attempt.phase != "running":
            return False
        return world.at_us - attempt.started_us >= self.says.settle_us

    def coming(self, world: World) -> int:
        """How many of the newest revision are not up yet."""
        return sum(one.revision == self.revision and not self.is_up(world, one) for one in self.wanted())


def goes(instance: Instance) -> bool:
    """Whether it was told to go for good."""
    attempt = instance.attempt
    return instance.cancelled or (attempt is not None and attempt.stop_reason in GOES)


def _submitted(job: Job) -> None:
    said = job.request.service
    if said and job.service is None:
        job.instances = []
        served = job.service = Served(job, said.replicas)
        served.asked = [(NEVER_US, said.replicas)]
        first = served.editions[1] = dataclasses.replace(job)
        job.instances.extend(Instance(first, index, revision=1) for index in range(said.replicas))


def evolve(world: World, event: Any) -> None:
    """Fold an input that may be about a service. What each revision was is a job of its own; all share their instances."""
    job = world.jobs.get(getattr(event, "job", ""))
    if job is not None and type(event) is jobs.JobSubmitted:
        _submitted(job)
    served: Served | None = job.service if job is not None else None
    if job is None or served is None or job.closed:
        return
    scale = served.says.autoscale
    match event:
        case jobs.JobReprioritised():
            served.rank(event.priority)
        case jobs.JobCancelRequested() if event.instance is None:
            job.closed = True
            world.end_job(job)
        case services.JobScaleRequested() if not scale:
            served.replicas = min(event.replicas, services.REPLICAS_MAX - served.says.max_surge)
        case services.JobMetricReported() if scale and event.metric in ("", scale.metric):
            right, wanted = scale.target_milli * served.replicas, served.replicas
            if abs(event.value_milli - right) * 1000 > scale.tolerance_milli * right:
                wanted = min(max(-(-event.value_milli // scale.target_milli), scale.min), scale.max)
            served.asked.append((world.at_us, wanted))
        case jobs.JobRevised() if event.request.service and event.follows in (0, served.revision):
            served.proposed = msgspec.structs.replace(event, request=capable(world.catalogue, event.request))


def bound_fault(served: Served) -> str:
    """Whether one more may hold places."""
    holding, most = sum(one.attempt is not None for one in served.job.instances), served.replicas + served.says.max_surge
    return "" if holding < most else f"{holding} replicas hold places already, and {most} may"


def going_fault(world: World, served: Served, instance: Instance, why: str) -> str:
    """What is wrong with telling a replica to go."""
    says, wanted = served.says, served.wanted()
    if instance not in wanted:
        return "it goes already"
    if why == "scaled":
        most = served.replicas + (says.max_surge if served.phase != "kept" else 0)
        return "" if len(wanted) > most else f"{len(wanted)} replicas are wanted, and {most} may be"
    if served.phase != "rolling" or served.failed or instance.revision == served.revision:
        return f"the service is {served.phase}, revision {served.revision}, and this is of {instance.revision}"
    up, least = sum(served.is_up(world, one) for one in wanted), served.replicas - says.max_unavailable
    if served.is_up(world, instance) and up - 1 < least:
        return f"{up} replicas are up, and {least} are to stay"
    coming, most = served.coming(world), says.max_unavailable + says.max_surge
    return "" if coming < most else f"{coming} of the newest revision are not up yet, and {most} may be"


def told_fault(world: World, instance: Instance, why: str) -> str:
    """What is wrong with telling it to go, if that is for a reason that only replicas have."""
    served = instance.job.service
    if why not in GOES:
        return ""
    return going_fault(world, served, instance, why) if served is not None else "it is no replica of a service"


def may_go(world: World, instance: Instance) -> bool:
    """Whether it is a replica that may be told to go."""
    served = instance.job.service
    return served is not None and any(not going_fault(world, served, instance, why) for why in GOES)


def ended(served: Served, attempt: Attempt, event: Any) -> str:
    """What is wrong with what becomes of a replica whose attempt ended; and what it says of its revision."""
    instance = attempt.instance
    gone = instance.cancelled or attempt.stop_reason in GOES
    if event.then == "pending" and event.reason in AGAINST and instance.revision == served.revision:
        served.failed |= served.phase == "rolling"
    return (
        "" if event.then == ("cancelled" if gone else "pending") else f"a replica is {event.then} that is kept, or kept no more"
    )


def decide(world: World, served: Served, event: Any) -> str:
    """Fold a decision about a service; what is wrong with it."""
    match event:
        case services.RevisionAccepted():
            return _accepted(world, served, event)
        case services.RevisionRejected():
            proposed, served.proposed = served.proposed, None
            return "" if proposed is not None else "nobody proposed any"
        case services.ReplicaOpened():
            return _opened(world, served, event)
        case services.ReplicasDecided():
            right, served.replicas = _asked_for(world, served), event.replicas
            return "" if event.replicas == right else f"the metric asks for {right} replicas, not for {event.replicas}"
        case services.RollStopped():
            right, served.phase = served.phase == "rolling" and served.failed and event.revision == served.revision, "stopped"
            return "" if right else "no replica of the newest revision failed in its roll"
        case _:
            wanted = served.wanted()
            right = served.phase == "rolling" and len(served.open()) == len(wanted) == served.replicas
            right = right and all(one.revision == served.revision and served.is_up(world, one) for one in wanted)
            served.phase, served.whole = "kept", served.revision
            return "" if right else "not every replica is of the newest revision and up"


def _accepted(world: World, served: Served, event: services.RevisionAccepted) -> str:
    proposed, before = served.proposed, served.editions[served.revision]
    if proposed is None:
        return "nobody proposed any"
    served.proposed = None
    asked, was, request = before.request, served.says, proposed.request
    plain = msgspec.structs.replace(request, priority=before.request.priority, service=was)
    same = plain == before.request and proposed.run == before.run
    if event.revision != served.revision + (0 if same else 1):
        return f"revision {event.revision} follows {served.revision}"
    if same:
        before.request = request
    else:
        _edit(world, served, proposed)
    if not same or served.phase == "stopped":
        served.phase = "rolling"
    served.failed = False
    said = served.says
    served.job.request = request
    if request.priority != asked.priority:
        served.rank(request.priority)
    if said.replicas != was.replicas:
        served.replicas = said.replicas
    if said.autoscale and not was.autoscale:
        served.asked = [(NEVER_US, served.replicas)]
    return ""


def _edit(world: World, served: Served, proposed: jobs.JobRevised) -> None:
    """The newest revision is another; if there was one like it, that is the newest again."""
    job, request = served.job, proposed.request
    number = served.revision + 1
    for revision, edition in list(served.editions.items()):
        alike = msgspec.structs.replace(request, priority=edition.request.priority, service=edition.request.service)
        if alike == edition.request and proposed.run == edition.run:
            edition.request = request
            served.editions[number] = served.editions.pop(revision)
            served.whole = number if served.whole == revision else served.whole
            for instance in job.instances:
                instance.revision = number if instance.revision == revision else instance.revision
            break
    else:
        limit_us = request.time_limit_us if request.time_limit_us is not None else world.limit_us(job.queue)
        edition = dataclasses.replace(job, request=request, run=proposed.run, avoid=(), limit_us=limit_us)
        served.editions[number] = edition
    served.revision = number


def _opened(world: World, served: Served, event: services.ReplicaOpened) -> str:
    instances, says = served.job.instances, served.says
    if event.instance > len(instances) or event.revision not in served.editions:
        return "there is no such replica, or no such revision"
    of = served.editions[event.revision]
    if event.instance == len(instances):
        instances.append(Instance(of, event.instance, outcome="cancelled"))
        served.job.ended += 1
    instance = instances[event.instance]
    if instance.outcome != "cancelled":
        return "it is wanted already"
    instance.job, instance.revision, instance.outcome, instance.cancelled = of, event.revision, "", False
    instance.retries = instance.not_before_us = 0
    served.job.ended -= 1
    there, most = len(served.open()), served.replicas + says.max_surge
    coming, may = served.coming(world), says.max_unavailable + says.max_surge
    newest = served.whole if served.phase == "stopped" and served.whole in served.editions else served.revision
    if there > most or (served.phase != "rolling" and len(served.wanted()) > served.replicas):
        return f"it is one of {there} replicas, and there may be {most}"
    if event.revision != newest:
        return f"it is of revision {event.revision}, not {newest}"
    if served.phase == "rolling" and (coming > may or served.failed):
        return f"{coming} of the newest revision are not up yet, and {may} may be"
    return ""


def _asked_for(world: World, served: Served) -> int:
    """How many replicas the metric asks for, from all that it ever was."""
    scale = served.says.autoscale
    if not scale:
        return served.replicas
    found = served.replicas
    if len(served.asked) > 1:
        until = [since for since, _ in served.asked[1:]] + [world.at_us + 1]
        low = [n for (_, n), end in zip(served.asked, until, strict=True) if end + scale.up_after_us > world.at_us]
        high = [n for (_, n), end in zip(served.asked, until, strict=True) if end + scale.down_after_us > world.at_us]
        found = min(max(found, min(low)), max(high))
    return min(max(found, scale.min), scale.max)
