"""What has to be decided about a service: how many replicas there are, of which revision, and which goes next (semantics 32).

At no time hold more than `replicas` and `max_surge` of them places. By a decision made here no fewer than `replicas` less
`max_unavailable` are up, where *up* is having run for `settle`. Of the newest revision no more than both
together are not up yet. One of these that fails in a roll stops it: nothing is touched any more, what is missing comes back as
the last revision that was whole, and a person says how to go on.

Wanted no more are, in this order: who waits to be placed, who has not started, who has not settled; then, in a roll, the older
revision; then who started last; then the highest number. A replica that is wanted takes the lowest number that is free.
"""

from operator import attrgetter, itemgetter

from muster.cluster import services
from muster.cluster.jobs import TERMINAL, Instance, Job, job_of
from muster.cluster.services import Service
from muster.cluster.shapes import intern_gang
from muster.cluster.state import State
from muster.engine.emit import Emitter
from muster.engine.gate import may_run
from muster.events.base import Event
from muster.events.decisions import InstanceEnded, NominationEnded, StopOrdered
from muster.events.jobs import JobRequest, JobRun
from muster.events.services import (
    ReplicaOpened,
    ReplicasDecided,
    RevisionAccepted,
    RevisionRejected,
    RollFinished,
    RollStopped,
)

WAITS, STARTS, SETTLES, UP = 0, 1, 2, 3
"""How far a replica has come."""


class Counted:
    """The replicas of a service that are wanted, and how many hold places or wait for them."""

    __slots__ = ("job", "new", "occupied", "old", "settling", "up", "wanted")

    def __init__(self, state: State, service: Service) -> None:
        job = self.job = service.job
        self.wanted: list[tuple[tuple[int, int, int, int], Instance]] = []
        """With the order in which they would go."""
        self.occupied = 0
        self.new = 0
        self.old = 0
        self.up = 0
        self.settling = 0
        """Of the newest revision and not up."""
        for instance in job.instances:
            if instance.phase in TERMINAL:
                continue
            self.occupied += 1
            if services.leaves(instance):
                continue
            new = instance.job is job
            rank = how_far(state, service, instance)
            started_us = instance.attempt.started_us if instance.attempt is not None else 0
            self.wanted.append(((rank, int(new), -started_us, -instance.index), instance))
            self.new += new
            self.old += not new
            self.up += rank == UP
            self.settling += new and rank != UP
        self.wanted.sort(key=itemgetter(0))


def how_far(state: State, service: Service, instance: Instance) -> int:
    """How far the replica has come: it waits, starts, settles or is up."""
    attempt = instance.attempt
    if attempt is None:
        return WAITS
    if attempt.phase != "run":
        return STARTS
    return UP if services.is_up(state, service, instance) else SETTLES


def settle(state: State, emitter: Emitter) -> None:
    """Decide about every service about which something may have to be decided, until nothing is left or the cycle is full."""
    for job in sorted(state.stirred, key=attrgetter("place")):
        service = job.service
        while service is not None and not service.ended:
            made = _decisions(state, service)
            if not made:
                break
            for decision in made:
                if emitter.full:
                    return
                emitter.emit(decision)
        state.stirred.pop(job, None)


def _decisions(state: State, service: Service) -> list[Event]:
    """What is to be decided now, of one sort; then it is looked at again."""
    job = service.job
    if service.proposed is not None:
        return [_proposed(state, service, *service.proposed)]
    wanted = services.wanted(service)
    if wanted != service.replicas:
        return [ReplicasDecided(job=job.id, replicas=wanted)]
    if service.phase == "rolling" and service.fault is not None:
        index, reason = service.fault
        return [RollStopped(job=job.id, revision=job.revision, instance=index, reason=reason)]
    counted = Counted(state, service)
    return _too_many(state, service, counted) or _too_few(service, counted) or _next(state, service, counted)


def _proposed(state: State, service: Service, request: JobRequest, run: JobRun) -> Event:
    job = service.job
    if services.same(request, run, job):
        return RevisionAccepted(job=job.id, revision=job.revision)
    trial = job_of(job.id, job.name, job.user, job.queue, request, run, intern_gang(request), job.place, job.submitted_us)
    reason = ""
    for name in ("after", "kind"):
        if getattr(request, name) != getattr(job.request, name):
            reason = f"request.{name} cannot be another in a revision"
    reason = reason or may_run(state, trial)
    if reason:
        return RevisionRejected(job=job.id, reason=reason[:1024])
    return RevisionAccepted(job=job.id, revision=job.revision + 1)


def _too_many(state: State, service: Service, counted: Counted) -> list[Event]:
    """Scaled down: those that are wanted no more."""
    most = service.replicas if service.phase == "kept" else service.most
    found: list[Event] = []
    for _, instance in counted.wanted[: max(0, len(counted.wanted) - most)]:
        found += _let_go(state, instance, "scaled")
    return found


def _too_few(service: Service, counted: Counted) -> list[Event]:
    """Replicas that are wanted and not there, as far as there is room for them beside those that are leaving."""
    job = service.job
    count = min(service.replicas - len(counted.wanted), service.most - counted.occupied)
    revision = job.revision
    if service.phase == "rolling":
        count = min(service.most - counted.occupied, service.replicas - counted.new, _at_once(service) - counted.settling)
    elif service.phase == "stopped" and services.edition(service, service.whole) is not None:
        revision = service.whole
    numbers = [instance.index for instance in job.instances if instance.phase in TERMINAL] if count > 0 else []
    numbers += range(len(job.instances), len(job.instances) + count)
    return [ReplicaOpened(job=job.id, instance=index, revision=revision) for index in numbers[: max(0, count)]]


def _next(state: State, service: Service, counted: Counted) -> list[Event]:
    """In a roll: the older replicas that go now; or its end."""
    if service.phase != "rolling":
        return []
    job = service.job
    if not counted.old and counted.new == counted.up == counted.occupied == service.replicas:
        return [RollFinished(job=job.id, revision=job.revision)]
    found: list[Event] = []
    there, up = len(counted.wanted), counted.up
    for (rank, *_), instance in counted.wanted:
        if instance.job is job:
            continue
        if counted.settling + max(0, service.replicas - there) >= _at_once(service):
            break
        if rank == UP:
            if up <= service.replicas - service.asked.max_unavailable:
                break
            up -= 1
        there -= 1
        found += _let_go(state, instance, "revised")
    return found


def _at_once(service: Service) -> int:
    """So many replicas of the newest revision may be on their way at once."""
    return service.asked.max_unavailable + service.asked.max_surge


def _let_go(state: State, instance: Instance, why: str) -> list[Event]:
    """The replica is wanted no more; where it stops already, that is decided when it has."""
    job, index = instance.key
    attempt = instance.attempt
    if attempt is None:
        ended = InstanceEnded(job=job, instance=index, outcome="cancelled", reason=why)
        if instance.key in state.nominations:
            return [NominationEnded(job=job, instance=index, reason="cancelled"), ended]
        return [ended]
    if attempt.phase == "stop":
        return []
    return [
        StopOrdered(
            job=job,
            instance=index,
            attempt=attempt.number,
            reason="scaled" if why == "scaled" else "revised",
            kill_at_us=state.at_us + instance.job.request.grace_us,
        )
    ]


def again(state: State, instance: Instance, ran_us: int) -> tuple[bool, int]:
    """When a replica that ended by itself is placed again: whether that is counted, and not before which instant.

    The first time at once; each further time after the back-off of the policy, which doubles, unless it ran for longer than that.
    """
    policy = state.policy
    if not instance.retries:
        return True, 0
    wait_us = min(policy.backoff_us << min(instance.retries - 1, 32), policy.backoff_max_us)
    if ran_us >= wait_us:
        return False, 0
    return True, state.at_us + wait_us


def said_of_service(state: State, job: Job) -> tuple[str, ...]:
    """Where the service stands of which this is a replica, in one sentence; nothing for what is none."""
    service = job.service
    if service is None or service.ended:
        return ()
    counted = Counted(state, service)
    whole = service.job
    said = f"{counted.up} of {service.replicas} replicas are up"
    waiting = [instance.index for _, instance in counted.wanted if instance.phase == "pending"]
    if waiting:
        said += f"; {', '.join([f'{job.name}/{index}' for index in sorted(waiting)[:8]])} waits"
    if counted.occupied > len(counted.wanted):
        said += f"; {counted.occupied - len(counted.wanted)} are told to go"
    if service.phase != "kept":
        said += f"; a roll to revision {whole.revision}: {counted.new} are of it, {counted.new - counted.settling} of these up"
    if service.phase == "stopped" and service.fault is not None:
        index, reason = service.fault
        said += f"; the roll to revision {whole.revision} stopped: {job.name}/{index} ended ({reason})"
        said += f"; revise it again, or roll back to revision {service.whole}"
    scale = service.asked.autoscale
    if scale and service.value_milli >= 0:
        said += f"; {scale.metric} is {service.value_milli}/1000, at {scale.target_milli}/1000 a replica"
    return (said,)
