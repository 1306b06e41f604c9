"""How services change. Each handler folds one kind of entry; what it touches may have to be decided about (`services.stir`).

An input about a job that is no service, or a service that has ended, changes nothing.
"""

from collections.abc import Callable
from typing import Any

from muster.cluster import catalogue, evolve_jobs, services
from muster.cluster.check import broken, check
from muster.cluster.jobs import Instance
from muster.cluster.services import NO_END, Service
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.jobs import JobReprioritised, JobRevised
from muster.events.services import (
    REPLICAS_MAX,
    JobMetricReported,
    JobScaleRequested,
    ReplicaOpened,
    ReplicasDecided,
    RevisionAccepted,
    RevisionRejected,
    RollFinished,
    RollStopped,
)


def _service(state: State, job: str) -> Service | None:
    found = state.jobs.get(job)
    service = found.service if found is not None else None
    return service if service is not None and not service.ended else None


def _decided(state: State, event: Any) -> Service:
    service = _service(state, event.job)
    if service is None:
        broken(f"{type(event).__name__} names job {event.job}, which is no service, or has ended")
    services.stir(state, service)
    return service


def _scale_requested(state: State, event: JobScaleRequested) -> None:
    service = _service(state, event.job)
    if service is not None and not service.asked.autoscale:
        service.replicas = min(event.replicas, REPLICAS_MAX - service.asked.max_surge)
        services.stir(state, service)


def _metric_reported(state: State, event: JobMetricReported) -> None:
    service = _service(state, event.job)
    scale = service.asked.autoscale if service is not None else None
    if service is not None and scale and event.metric in ("", scale.metric):
        services.measured(state, service, event.value_milli)
        services.stir(state, service)


def _revised(state: State, event: JobRevised) -> None:
    service = _service(state, event.job)
    if service is not None and event.request.service and event.follows in (0, service.job.revision):
        service.proposed = catalogue.resolved(state.catalogue, event.request), event.run
        services.stir(state, service)


def _accepted(state: State, event: RevisionAccepted) -> None:
    service = _decided(state, event)
    job, proposed = service.job, service.proposed
    if proposed is None:
        broken(f"RevisionAccepted {event.job}: nobody proposed any")
    service.proposed = None
    request, run = proposed
    before, was = job.request, service.asked
    if event.revision != job.revision:
        check(event.revision == job.revision + 1, f"RevisionAccepted {event.job}: {event.revision} follows {job.revision}")
        services.revise(state, service, request, run, event.revision)
        service.phase = "rolling"
    else:
        job.request = request
        if service.phase == "stopped":
            service.phase = "rolling"
    service.fault = None
    now = service.asked
    if now.replicas != was.replicas:
        service.replicas = now.replicas
    service.replicas = min(service.replicas, REPLICAS_MAX - now.max_surge)
    if now.autoscale and not was.autoscale:
        service.highs, service.lows, service.value_milli = [(service.replicas, NO_END)], [(service.replicas, NO_END)], -1
    if request.priority != before.priority:
        evolve_jobs.HANDLERS[JobReprioritised](state, JobReprioritised(job=job.id, priority=request.priority))
    services.look(state, service)
    for instance in job.instances:
        services.set_settle(state, service, instance)


def _rejected(state: State, event: RevisionRejected) -> None:
    _decided(state, event).proposed = None


def _opened(state: State, event: ReplicaOpened) -> None:
    service = _decided(state, event)
    job = service.job
    of = services.edition(service, event.revision)
    if of is None:
        broken(f"ReplicaOpened {event.job}/{event.instance}: there is no revision {event.revision}")
    index = event.instance
    if index == len(job.instances):
        job.instances.append(Instance(of, index, (job.id, index), (*job.place, index)))
        job.next = index + 1
    else:
        check(job.instances[index].phase == "cancelled", f"ReplicaOpened {event.job}/{index}: it is wanted already")
    instance = job.instances[index]
    instance.job = of
    instance.phase = "pending"
    instance.cancelling = False
    instance.retries = 0
    instance.start_failures = 0
    instance.not_before_us = 0
    instance.ended_us = 0
    instance.reason = ""
    instance.code = 0
    job.open += 1
    state.pending_total += 1
    if not job.held:
        evolve_jobs.enqueue(state, instance)


def _stopped(state: State, event: RollStopped) -> None:
    _decided(state, event).phase = "stopped"


def _finished(state: State, event: RollFinished) -> None:
    service = _decided(state, event)
    service.phase = "kept"
    if service.whole != event.revision:
        service.back, service.whole = service.whole, event.revision
    services.tidy(service)


def _replicas_decided(state: State, event: ReplicasDecided) -> None:
    _decided(state, event).replicas = event.replicas


def wake(state: State) -> None:
    """Spans about which nothing is decided are over: a replica has settled, or what a metric asked for is long ago."""
    timers = state.timers
    for _, _, instance in timers.settle.due(state.at_us):
        timers.settle.cancel(instance)
        if instance.job.service is not None:
            services.stir(state, instance.job.service)
    for _, _, job in timers.metric.due(state.at_us):
        timers.metric.cancel(job)
        if job.service is not None:
            services.look(state, job.service)
            services.stir(state, job.service)


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    JobScaleRequested: _scale_requested,
    JobMetricReported: _metric_reported,
    JobRevised: _revised,
    RevisionAccepted: _accepted,
    RevisionRejected: _rejected,
    ReplicaOpened: _opened,
    RollStopped: _stopped,
    RollFinished: _finished,
    ReplicasDecided: _replicas_decided,
}
