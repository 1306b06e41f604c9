"""Services: replicas that are kept, revised one after the other, and scaled.

A replica is an instance. One that is wanted no more is `cancelled` for the reason `scaled` or `revised`, and its number goes to
the next that is wanted. What a replica was revised from is a job of its own, with the same id (`former`): its `request`, `gang`
and `run` are those of the replicas that are still of it; what is counted of a job is counted in the one that stands in the state.

What a metric asks for is kept as two short lists: the most and the least that it asked for within the two windows.
"""

from typing import Final

import msgspec

from muster.cluster.jobs import Instance, Job, Kept, mark
from muster.cluster.shapes import intern_gang
from muster.cluster.state import State
from muster.events.jobs import JobRequest, JobRun
from muster.events.services import REPLICAS_MAX, Autoscale
from muster.events.services import Service as Asked

SAMPLES_MAX: Final = 64
"""So many values of a metric are remembered in each list; of more, the two oldest become one, so that nothing goes earlier."""

FAILED: Final = ("finished", "member-failed", "start-failed", "ready-timeout")
"""Why an attempt ended that says something against the revision of which it was."""

NO_END: Final = 2**62


class Service(Kept):
    """What a service has come to beyond what a job has."""

    job: Job
    replicas: int
    """How many are to be kept."""
    phase: str = "kept"
    """kept; rolling: not every replica is of the newest revision; stopped: one of the newest failed."""
    whole: int = 1
    """The revision that all replicas had last."""
    back: int = 0
    """The one before that; 0 for none."""
    former: dict[int, Job] = {}
    """Earlier revisions that are still of use, by number."""
    proposed: tuple[JobRequest, JobRun] | None = None
    """As what somebody wants it, and the gate has not looked at it yet."""
    fault: tuple[int, str] | None = None
    """The replica of the newest revision that failed in its roll, and why."""
    ended: bool = False
    """It was cancelled or rejected: nothing is placed again."""
    value_milli: int = -1
    """What its metric was last; -1 before it came."""
    highs: list[tuple[int, int]] = []
    """Replicas that the metric asked for and until when it did, those after it each lower; the last is the present one."""
    lows: list[tuple[int, int]] = []
    """The same, those after each higher."""

    @property
    def asked(self) -> Asked:
        """What its newest revision says of it as a service."""
        asked = self.job.request.service
        assert asked
        return asked

    @property
    def most(self) -> int:
        """So many replicas may hold places at once."""
        return self.replicas + self.asked.max_surge


def begin(job: Job) -> None:
    """A service was submitted: each of its replicas is an instance, and it stays open without any."""
    asked = job.request.service
    assert asked
    replicas = asked.replicas
    job.revision = 1
    job.service = Service(job, replicas, highs=[(replicas, NO_END)], lows=[(replicas, NO_END)])
    job.instances = [Instance(job, index, (job.id, index), (*job.place, index)) for index in range(replicas)]
    job.open = replicas + 1
    job.next = replicas


def stir(state: State, service: Service) -> None:
    """Something may have to be decided about it."""
    state.stirred[service.job] = None


def is_up(state: State, service: Service, instance: Instance) -> bool:
    """Whether the replica has run for as long as it takes to settle."""
    attempt = instance.attempt
    return attempt is not None and attempt.phase == "run" and attempt.started_us + service.asked.settle_us <= state.at_us


def leaves(instance: Instance) -> bool:
    """Whether the replica is wanted no more, and only has to be gone."""
    attempt = instance.attempt
    return instance.cancelling or (attempt is not None and attempt.stop_reason in ("scaled", "revised"))


def set_settle(state: State, service: Service, instance: Instance) -> None:
    """When the replica will have settled."""
    attempt = instance.attempt
    due_us = 0
    if attempt is not None and attempt.phase == "run":
        due_us = attempt.started_us + service.asked.settle_us
    if due_us > state.at_us:
        state.timers.settle.set(instance, due_us)
    else:
        state.timers.settle.cancel(instance)


# Revisions


def edition(service: Service, revision: int) -> Job | None:
    """The job as it is in this revision, if that is still of use."""
    return service.job if revision == service.job.revision else service.former.get(revision)


def same(request: JobRequest, run: JobRun, job: Job) -> bool:
    """Whether replicas of it need not be replaced: it differs in nothing but its priority and what it says of its replicas."""
    other = msgspec.structs.replace(request, priority=job.request.priority, service=job.request.service)
    return other == job.request and run == job.run


def revise(state: State, service: Service, request: JobRequest, run: JobRun, revision: int) -> None:
    """The job is of this revision from now on; its replicas are of those they were."""
    job = service.job
    old = Job(
        job.id,
        job.name,
        job.user,
        job.queue,
        job.request,
        job.run,
        job.gang,
        job.place,
        job.submitted_us,
        job.priority,
        job.open,
        job.instances,
        job.avoid,
        limit_us=job.limit_us,
        next=REPLICAS_MAX,
        revision=job.revision,
        service=service,
    )
    mark(old)
    for instance in job.instances:
        if instance.job is job and (instance.attempt is not None or instance.phase == "pending"):
            instance.job = old
    again = next((each for each in service.former.values() if same(request, run, each)), None)
    service.former[old.revision] = old
    become(state, job, request, run)
    job.revision = revision
    if again is not None:
        job.avoid = again.avoid
        for instance in job.instances:
            if instance.job is again:
                instance.job = job
        del service.former[again.revision]
        if service.whole == again.revision:
            service.whole = revision
        if service.back == again.revision:
            service.back = 0
    tidy(service)


def become(state: State, job: Job, request: JobRequest, run: JobRun) -> None:
    """This is what the job asks for and runs."""
    job.request = request
    job.run = run
    job.gang = intern_gang(request)
    job.avoid = ()
    job.tag = ""
    job.tagged = False
    job.apart = ""
    mark(job)
    job.limit_us = request.time_limit_us
    if job.limit_us is None and state.tree is not None:
        job.limit_us = state.tree.max_time_us(state.tree.of(job.queue))


def tidy(service: Service) -> None:
    """Drop the revisions that are of no use: no replica is of them, and nobody could want to go back to them."""
    used = dict.fromkeys([instance.job.revision for instance in service.job.instances])
    for revision in list(service.former):
        if revision not in used and revision not in (service.whole, service.back):
            del service.former[revision]


# Scaling by a metric


def bounded(scale: Autoscale, replicas: int) -> int:
    """So many replicas, or the next number that there may be."""
    return min(max(replicas, scale.min), scale.max)


def measured(state: State, service: Service, value_milli: int) -> None:
    """The metric has this value from now on."""
    scale = service.asked.autoscale
    assert scale
    service.value_milli = value_milli
    right = scale.target_milli * service.replicas
    wanted = service.replicas
    if abs(value_milli - right) * 1000 > scale.tolerance_milli * right:
        wanted = bounded(scale, -(-value_milli // scale.target_milli))
    now_us = state.at_us
    for kept, sign in ((service.highs, 1), (service.lows, -1)):
        kept[-1] = (kept[-1][0], now_us)
        while kept and sign * kept[-1][0] <= sign * wanted:
            kept.pop()
        kept.append((wanted, NO_END))
        if len(kept) > SAMPLES_MAX:
            kept[:2] = [(kept[0][0], kept[1][1])]
    look(state, service)


def look(state: State, service: Service) -> None:
    """Forget what the metric asked for longer ago than anybody waits, and look again when the next of it is so old."""
    scale = service.asked.autoscale
    next_us = NO_END
    if scale:
        for kept, after_us in ((service.highs, scale.down_after_us), (service.lows, scale.up_after_us)):
            while kept[0][1] + after_us <= state.at_us:
                kept.pop(0)
            next_us = min(next_us, kept[0][1] + after_us)
    if next_us < NO_END:
        state.timers.metric.set(service.job, next_us)
    else:
        state.timers.metric.cancel(service.job)


def wanted(service: Service) -> int:
    """How many replicas the metric asks for, taking its windows into account."""
    scale = service.asked.autoscale
    if not scale:
        return service.replicas
    if service.value_milli < 0:
        return bounded(scale, service.replicas)
    least, most = service.lows[0][0], service.highs[0][0]
    return bounded(scale, min(max(service.replicas, least), most))
