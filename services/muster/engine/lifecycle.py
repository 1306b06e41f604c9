"""What becomes of an instance to which something happened. One decision at a time; the caller asks until there is none."""

from muster.cluster import dependencies
from muster.cluster.evolve_elastic import misfits
from muster.cluster.evolve_nodes import broken_place
from muster.cluster.evolve_tasks import succeeded
from muster.cluster.jobs import Attempt, Fault, Instance, Job
from muster.cluster.state import State
from muster.engine.members import shrink_due, without_the_late
from muster.engine.services import again
from muster.events.base import Event
from muster.events.decisions import (
    AttemptEnded,
    InstanceEnded,
    InstanceStarted,
    JobRejected,
    MemberLost,
    NominationEnded,
    StopOrdered,
    StopReason,
)

OWN_FAULT = ("member-failed", "start-failed", "ready-timeout", "task-missing")
"""Reasons that count against the job, unless a node is to blame."""

REPLACEABLE = ("node-lost", "node-removed", "node-rebooted", "task-missing", "device-failed")
"""Losses of a member whose rank another can take: at once, or, on a failed device, when it has left."""


def next_decision(state: State, instance: Instance) -> Event | None:
    """What has to be decided about it now, or None."""
    attempt = instance.attempt
    if attempt is None:
        return _waiting(state, instance)
    phase = attempt.phase
    if phase == "stop":
        return None if attempt.held else _ended(state, attempt, attempt.stop_reason, attempt.stop_node, attempt.stop_code)
    if instance.cancelling:
        return leave(state, attempt, "cancelled", "", 0)
    if instance.job.request.elastic:
        shrunk = shrink_due(state, attempt)
        if shrunk is not None:
            return shrunk
    fault = attempt.fault
    if phase == "prepare" and attempt.ready + attempt.going == len(attempt.tasks):
        if fault is None or fault.reason == "member-failed":  # it ran, whatever came of it
            return InstanceStarted(job=instance.job.id, instance=instance.index, attempt=attempt.number)
    if fault is not None:
        if fault.lost and phase == "run" and succeeded(attempt):
            return leave(state, attempt, "finished", "", 0)  # it was done before it lost anything
        return _faulty(state, attempt, fault)
    if phase == "prepare":
        return None
    if attempt.held < len(attempt.tasks) and succeeded(attempt):
        return leave(state, attempt, "finished", "", 0)
    if not attempt.held:
        return _ended(state, attempt, "task-missing", "", 0)
    return None


def overdue(state: State, instance: Instance) -> Event | None:
    """What the instance's timer, which is due, is about."""
    attempt = instance.attempt
    now = state.at_us
    if attempt is None:
        return None
    if attempt.phase == "prepare" and attempt.ready_until_us <= now:
        if instance.job.request.elastic:
            some = without_the_late(state, attempt)
            if some is not None:
                return some
        late = [task for _, task in sorted(attempt.tasks.items()) if task.phase == "preparing"]
        return leave(state, attempt, "ready-timeout", late[0].node.name if late else "", 0)
    if attempt.phase == "run":
        if attempt.degraded_until_us and attempt.degraded_until_us <= now:
            return leave(state, attempt, "node-lost", "", 0)
        limit = instance.job.limit_us
        if limit is not None and attempt.started_us + limit <= now:
            return leave(state, attempt, "time-limit", "", 0)
    return None


def hopeless(state: State, job: Job) -> Event:
    """What it waits for can never be: it will never run."""
    return JobRejected(job=job.id, reason=dependencies.hopeless(state, job))


def evicted(state: State, instance: Instance) -> Event | None:
    """It put up with a taint for as long as it was to."""
    attempt = instance.attempt
    if attempt is None or attempt.phase == "stop" or not attempt.evictions or min(attempt.evictions.values()) > state.at_us:
        return None
    return leave(state, attempt, "taint", "", 0)


def _waiting(state: State, instance: Instance) -> Event | None:
    key = instance.key
    nomination = state.nominations.get(key)
    if nomination is not None:
        if instance.cancelling:
            return NominationEnded(job=key[0], instance=key[1], reason="cancelled")
        why = broken_place(nomination)
        if not why and misfits(nomination):
            why = "infeasible"  # it was resized
        if why:
            return NominationEnded(job=key[0], instance=key[1], reason="node-lost" if why == "node-lost" else "infeasible")
    if instance.cancelling and instance.phase == "pending":
        return InstanceEnded(job=key[0], instance=key[1], outcome="cancelled", reason="cancelled")
    return None


def _faulty(state: State, attempt: Attempt, fault: Fault) -> Event:
    grace_us = attempt.instance.job.request.degraded_grace_us
    if grace_us and attempt.phase == "run" and attempt.held and fault.reason in REPLACEABLE:
        until_us = attempt.degraded_until_us or state.at_us + grace_us
        if until_us > state.at_us:
            instance = attempt.instance
            return MemberLost(job=instance.job.id, instance=instance.index, attempt=attempt.number, until_us=until_us)
    blamed = "" if fault.blame == "job" else fault.node
    return leave(state, attempt, fault.reason, blamed, fault.code)


def leave(state: State, attempt: Attempt, reason: str, node: str, code: int) -> Event:
    """Tell it to stop; or, if nothing is held any more, end it at once."""
    if not attempt.held:
        return _ended(state, attempt, reason, node, code)
    instance = attempt.instance
    why: StopReason = reason  # type: ignore[assignment]
    return StopOrdered(
        job=instance.job.id,
        instance=instance.index,
        attempt=attempt.number,
        reason=why,
        kill_at_us=state.at_us + instance.job.request.grace_us,
        node=node,
        code=code,
    )


def _finished(attempt: Attempt) -> Event:
    job, index = attempt.instance.key
    return AttemptEnded(job=job, instance=index, attempt=attempt.number, then="finished", reason="finished")


def _ended(state: State, attempt: Attempt, reason: str, node: str, code: int) -> Event:
    """Nothing is held: back to the queue, or over."""
    instance = attempt.instance
    job = instance.job
    service = job.request.service
    if reason == "finished" and not instance.cancelling and not service:
        return _finished(attempt)
    then = "pending"
    charged = False
    not_before_us = 0
    avoid = ""
    if instance.cancelling:
        then, reason = "cancelled", "cancelled"
    elif reason in ("scaled", "revised"):
        then = "cancelled"
    elif service and (reason in ("finished", "time-limit") or (reason in OWN_FAULT[:3] and not node)):
        charged, not_before_us = again(state, instance, state.at_us - attempt.started_us if attempt.started_us else 0)
    elif reason == "time-limit":
        then = "failed"
    elif reason in OWN_FAULT:
        if node and not (reason == "task-missing" and attempt.started_us):
            blamed = state.node(node)
            avoid = blamed.uid if blamed is not None else ""
            backoff_us = state.policy.backoff_us << min(instance.start_failures, 32)
            not_before_us = state.at_us + min(backoff_us, state.policy.backoff_max_us)
        elif reason != "task-missing":
            if instance.retries < job.request.max_retries:
                charged = True
            else:
                then = "failed"
    return AttemptEnded(
        job=job.id,
        instance=instance.index,
        attempt=attempt.number,
        then=then,  # type: ignore[arg-type]
        reason=reason,
        code=code,
        not_before_us=not_before_us,
        avoid=avoid,
        charged=charged,
    )
