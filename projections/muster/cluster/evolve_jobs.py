"""How jobs, instances and attempts change. Each function folds one kind of entry.

`todo` names instances about which something has to be decided now: it is filled here, exactly where the need arises,
and emptied by the decision.
"""

from collections.abc import Callable
from typing import Any

from muster.cluster import catalogue, dependencies, services
from muster.cluster.charging import charge_attempt, enter_queue, leave_queue, uncharge_attempt
from muster.cluster.check import broken, check
from muster.cluster.evolve_tasks import limit_of, on_broken_device, release, set_immune, set_timer, short_of_members, succeeded
from muster.cluster.jobs import TERMINAL, Attempt, Instance, Job, Task, job_of
from muster.cluster.patience import note_taints, set_eviction
from muster.cluster.plans import dropped, length_us
from muster.cluster.reservations import mark
from muster.cluster.shapes import intern_gang
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.decisions import (
    AttemptEnded,
    InstanceBound,
    InstanceEnded,
    InstancePreempted,
    InstanceStarted,
    JobRejected,
    JobsForgotten,
    MemberLost,
    MembersReplaced,
    PassStopped,
    Placement,
    ShapeDeferred,
    StopOrdered,
)
from muster.events.jobs import JobCancelRequested, JobReprioritised, JobSubmitted

# Inputs about jobs


def _job_submitted(state: State, event: JobSubmitted) -> None:
    if event.job in state.jobs:
        return
    request = catalogue.resolved(state.catalogue, event.request)
    job = state.jobs[event.job] = job_of(
        event.job,
        event.name,
        event.user,
        event.queue,
        request,
        event.run,
        intern_gang(request),
        (state.number, state.index),
        state.at_us,
    )
    state.arrived.append(job)
    if isinstance(request.deadline_us, int):
        state.dated[job] = None
    if request.service:
        services.begin(job)
        state.stirred[job] = None
    user = ""
    if state.tree is not None:
        user = enter_queue(state.tree, job)
    reserved = mark(state, job)
    length = length_us(state.policy, job) if state.plans.lengths or reserved else 0
    state.pending_total += len(job.instances)
    if state.dependents or request.after:
        dependencies.hold(state, job)
        if job.held:
            return
    pending = state.pending
    for instance in job.instances if job.next == len(job.instances) else job.instances[: job.next]:
        pending.add(instance, False, user, length, reserved)


def _job_cancel_requested(state: State, event: JobCancelRequested) -> None:
    job = state.jobs.get(event.job)
    if job is None:
        return
    for instance in job.instances:
        if event.instance is None or event.instance == instance.index:
            if instance.phase not in TERMINAL and not instance.cancelling:
                instance.cancelling = True
                attempt = instance.attempt
                if attempt is None or attempt.phase != "stop":
                    state.todo[instance] = None
    service = job.service
    if service is not None and not service.ended:
        services.stir(state, service)
        if event.instance is None:
            service.ended = True
            _close(state, job)


def _job_reprioritised(state: State, event: JobReprioritised) -> None:
    job = state.jobs.get(event.job)
    if job is None or job.priority == event.priority:
        return
    waiting = [instance for instance in job.instances if instance.waits is not None]
    for instance in waiting:
        state.pending.discard(instance)
    live = [i.attempt for i in job.instances if i.attempt is not None and i.attempt.phase != "stop"]
    for attempt in live:
        uncount(state, attempt)
    job.priority = event.priority
    for former in job.service.former.values() if job.service is not None else ():
        former.priority = event.priority
    for attempt in live:
        count_running(state, attempt)
    for instance in waiting:
        enqueue(state, instance)
        state.plans.reorder(instance.key)
    state.wakes += 1


# Decisions


def instance_of(state: State, event: Any) -> Instance:
    """The instance that a decision names.

    Raises:
        BrokenInvariant: it is not there.
    """
    job = state.jobs.get(event.job)
    if job is None or event.instance >= len(job.instances):
        broken(f"{type(event).__name__} names instance {event.instance} of job {event.job}, which is not there")
    instance: Instance = job.instances[event.instance]
    return instance


def _attempt(state: State, event: Any) -> Attempt:
    try:
        attempt: Attempt | None = state.jobs[event.job].instances[event.instance].attempt
    except LookupError:
        attempt = None
    if attempt is None or attempt.number != event.attempt:
        broken(f"{type(event).__name__} names attempt {event.attempt} of {event.job}/{event.instance}, which is not current")
    return attempt


def _job_rejected(state: State, event: JobRejected) -> None:
    job = state.jobs.get(event.job)
    if job is None:
        broken(f"JobRejected names job {event.job}, which is not there")
    job.rejected = event.reason
    check(job.open > 0, f"JobRejected names job {event.job}, which is over")
    for instance in job.instances:
        if instance.phase == "cancelled":
            continue
        check(instance.phase == "pending", f"JobRejected names job {event.job}, which is {instance.phase}")
        _leave_pending(state, instance)
        _end(state, instance, "rejected", event.reason)
    if job.service is not None and not job.service.ended:
        job.service.ended = True
        _close(state, job)


def _instance_bound(state: State, event: InstanceBound) -> None:
    try:
        instance = state.jobs[event.job].instances[event.instance]
    except LookupError:
        broken(f"InstanceBound names instance {event.instance} of job {event.job}, which is not there")
    if instance.phase != "pending" or event.attempt != instance.attempts + 1:
        broken(
            f"InstanceBound {event.job}/{event.instance} as attempt {event.attempt}: "
            f"it is {instance.phase}, {instance.attempts} so far"
        )
    job = instance.job
    if state.nominations and instance.key in state.nominations:
        broken(f"InstanceBound {event.job}/{event.instance}: its nomination has not ended")
    if state.deferred:
        _undefer(state, job)
    if state.plans.by_key:
        dropped(state, instance)
    if instance.waits is not None:
        state.pending.discard(instance)
        state.pending_total -= 1
    else:
        _leave_pending(state, instance)
    at_us = state.at_us
    until_us = at_us + state.policy.ready_timeout_us
    attempt = instance.attempt = Attempt(instance, event.attempt, at_us, state.number, until_us)
    instance.attempts = event.attempt
    instance.phase = "starting"
    if instance.not_before_us:
        instance.not_before_us = 0
    place_members(state, attempt, event.placements)
    if state.tree is not None:
        charge_attempt(state.tree, attempt)
    if job.headroom:
        _stand(state, attempt)
    else:
        state.timers.ready.set_first(instance, until_us)
    if job.soft:
        state.yielding[attempt] = None
    elif job.request.preemptible:
        running = attempt.running = state.pending.running_of(job)
        running.count += 1


def _stand(state: State, attempt: Attempt) -> None:
    """Nothing has to be made ready for placeholders: no agent hears of them."""
    for task in attempt.tasks.values():
        task.phase = "ready"
    attempt.ready = len(attempt.tasks)
    state.todo[attempt.instance] = None


def place_members(state: State, attempt: Attempt, placements: tuple[Placement, ...]) -> None:
    """Its members of these ranks stand at these places from now on."""
    ledger = state.ledger
    nodes = ledger.nodes
    gang = attempt.instance.job.gang
    shapes = gang.shapes
    shape = shapes[0]
    tasks = attempt.tasks
    since = state.number
    group = 0
    for placement in placements:
        try:
            node = nodes[placement.row]
        except LookupError:
            node = None
        if node is None:
            broken(f"a placement names row {placement.row}, which no node has")
        rank = placement.rank
        if len(shapes) > 1:
            group = gang.group_of(rank)
            shape = shapes[group]
        task = tasks[rank] = Task(attempt, rank, group, shape, node, placement.devices, since)
        ledger.hold(task)
        if shape.patient and node.spec.taints:
            note_taints(state, attempt, node)
    if state.plans.on:
        state.plans.move([placement.row for placement in placements])
    if attempt.instance.job.tagged:
        ledger.tags.stir(attempt.instance.job)
    attempt.held += len(placements)


def _instance_started(state: State, event: InstanceStarted) -> None:
    attempt = _attempt(state, event)
    if attempt.phase != "prepare":
        broken(f"InstanceStarted {event.job}/{event.instance}: the attempt is in {attempt.phase}")
    attempt.phase = "run"
    at_us = attempt.started_us = state.at_us
    instance = attempt.instance
    instance.phase = "running"
    if not instance.ran:
        instance.ran = True
        if state.dependents and instance.job.id in state.dependents:
            _look(state, instance.job)
    if instance.start_failures:
        instance.start_failures = 0
    held = attempt.held
    if held and attempt.fault is None and (held == len(attempt.tasks) or not succeeded(attempt)):
        state.todo.pop(instance, None)
    if instance.job.request.elastic:
        state.running_elastic[instance.key] = None
    if state.plans.on:
        move_ends(state, attempt)
    timers = state.timers
    timers.ready.cancel(instance)
    limit_us = limit_of(instance)
    if limit_us is not None:
        timers.limit.set_first(instance, at_us + limit_us)
    if state.policy.min_runtime_us or state.policy.reclaim_min_runtime_us:
        set_immune(state, attempt)
    if instance.job.service is not None:
        services.stir(state, instance.job.service)
        services.set_settle(state, instance.job.service, instance)


def move_ends(state: State, attempt: Attempt) -> None:
    """What the attempt holds is promised for another instant than before."""
    state.plans.move([task.node.row for task in attempt.tasks.values() if task.holding])


def _stop(state: State, attempt: Attempt, reason: str, kill_at_us: int) -> None:
    instance = attempt.instance
    check(attempt.phase != "stop", f"{instance.job.id}/{instance.index} is told to stop twice")
    attempt.phase = "stop"
    attempt.stop_reason = reason
    attempt.kill_at_us = kill_at_us
    attempt.fault = None
    attempt.degraded_until_us = 0
    instance.phase = "stopping"
    state.degraded.pop(instance.key, None)
    state.draining.pop(attempt, None)
    if state.running_elastic:
        state.running_elastic.pop(instance.key, None)
    set_timer(state, attempt)
    if attempt.evictions:
        attempt.evictions = None
        set_eviction(state, attempt)
    uncount(state, attempt)
    if state.tree is not None:
        if attempt.charge is not None:
            uncharge_attempt(state, attempt)
        state.tree.stopping[attempt] = None
    state.stopping += 1
    for task in attempt.tasks.values():  # somebody who waits may now count on its places
        if task.holding:
            state.ledger.free(task.node.row)
    if state.plans.on:
        move_ends(state, attempt)
    if instance.job.tagged:
        state.ledger.tags.stir(instance.job)
    if instance.job.headroom:  # nothing has to end first
        for task in attempt.tasks.values():
            if task.holding:
                release(state, task, "exited")
    if instance.job.service is not None:
        state.timers.settle.cancel(instance)
    if attempt.held:
        state.todo.pop(instance, None)
    else:
        state.todo[instance] = None


def _stop_ordered(state: State, event: StopOrdered) -> None:
    attempt = _attempt(state, event)
    _stop(state, attempt, event.reason, event.kill_at_us)
    attempt.stop_node = event.node
    attempt.stop_code = event.code


def _instance_preempted(state: State, event: InstancePreempted) -> None:
    attempt = _attempt(state, event)
    _stop(state, attempt, "preempted", event.kill_at_us)


def _attempt_ended(state: State, event: AttemptEnded) -> None:
    attempt = _attempt(state, event)
    instance = attempt.instance
    job = instance.job
    if attempt.held:
        broken(f"AttemptEnded {event.job}/{event.instance}: {attempt.held} tasks still hold their places")
    timers = state.timers
    if attempt.phase == "run":
        timers.limit.cancel(instance)
    else:
        timers.ready.cancel(instance)
    if attempt.phase != "stop":
        uncount(state, attempt)
        state.draining.pop(attempt, None)
        if state.degraded:
            state.degraded.pop(instance.key, None)
    else:
        state.stopping -= 1
        if state.tree is not None:
            state.tree.stopping.pop(attempt, None)
    if state.running_elastic:
        state.running_elastic.pop(instance.key, None)
    instance.attempt = None
    attempt.tasks.clear()  # nothing names them any more, and without the circle they are gone at once
    if state.policy.min_runtime_us or state.policy.reclaim_min_runtime_us:
        timers.immune.cancel(instance)
    then = event.then
    if then != "pending":
        _end(state, instance, then, event.reason, event.code)
    else:
        state.todo.pop(instance, None)
        instance.phase = then
        instance.reason = event.reason
        if event.charged:
            instance.retries += 1
        if event.avoid and event.avoid not in job.avoid:
            job.avoid = (*job.avoid, event.avoid)[-64:]
            for other in job.instances:
                if other.waits is not None:
                    state.pending.discard(other)
                    enqueue(state, other)
        if event.not_before_us:
            instance.start_failures += 1
        instance.not_before_us = event.not_before_us
        state.pending_total += 1
        enqueue(state, instance)
        if instance.cancelling:
            state.todo[instance] = None
    if job.service is not None:
        _replica_ended(state, job.service, attempt, event)


def _replica_ended(state: State, service: services.Service, attempt: Attempt, event: AttemptEnded) -> None:
    """What the end of a replica's attempt means for its service."""
    instance = attempt.instance
    state.timers.settle.cancel(instance)
    services.stir(state, service)
    if event.then == "pending":
        if attempt.started_us and not event.charged:
            instance.retries = min(instance.retries, 1)
        failed = event.reason in services.FAILED and instance.job is service.job
        if failed and service.phase == "rolling" and service.fault is None:
            service.fault = instance.index, event.reason


def _instance_ended(state: State, event: InstanceEnded) -> None:
    instance = instance_of(state, event)
    check(instance.phase == "pending", f"InstanceEnded {event.job}/{event.instance}: it is {instance.phase}")
    check(instance.key not in state.nominations, f"InstanceEnded {event.job}/{event.instance}: its nomination has not ended")
    dropped(state, instance)
    _leave_pending(state, instance)
    _end(state, instance, event.outcome, event.reason)


def _end(state: State, instance: Instance, outcome: str, reason: str, code: int = 0) -> None:
    job = instance.job
    service = job.service
    if service is not None:
        job = instance.job = service.job
        services.stir(state, service)
    instance.phase = outcome
    instance.reason = reason
    if code:
        instance.code = code
    instance.ended_us = state.at_us
    state.todo.pop(instance, None)
    job.open -= 1
    if job.next < len(job.instances) and instance.index < job.next:
        _next_in_play(state, job)
    if not job.open:
        _over(state, job)
    if state.dependents and job.id in state.dependents:
        _look(state, job)


def _close(state: State, job: Job) -> None:
    """A service is kept no more: it is over with its last replica."""
    job.open -= 1
    if not job.open:
        _over(state, job)
        if state.dependents and job.id in state.dependents:
            _look(state, job)


def _over(state: State, job: Job) -> None:
    job.over_us = state.at_us
    if state.tree is not None:
        leave_queue(state.tree, job)
    state.timers.forget.set_first(job, state.at_us + state.policy.forget_after_us)
    if job.held:
        dependencies.let_go(state, job)
    if job.service is not None:
        state.timers.metric.cancel(job)


def _next_in_play(state: State, job: Job) -> None:
    """One of its instances that was in play is over: the next that is not takes its turn."""
    while job.next < len(job.instances):
        instance = job.instances[job.next]
        job.next += 1
        if instance.phase not in TERMINAL:
            if not job.held:
                enqueue(state, instance)
            return


def _look(state: State, job: Job) -> None:
    """It started or ended: some may have waited for that."""
    for free in dependencies.look(state, job):
        for instance in free.instances[: free.next]:
            if instance.phase == "pending":
                enqueue(state, instance)


def set_forget(state: State, job: Job) -> None:
    """When the job, which is over, leaves the state."""
    state.timers.forget.set(job, job.over_us + state.policy.forget_after_us)


def _member_lost(state: State, event: MemberLost) -> None:
    attempt = _attempt(state, event)
    attempt.fault = None
    key = attempt.instance.key
    state.todo.pop(attempt.instance, None)
    for task in attempt.tasks.values():
        if task.holding and not task.going and on_broken_device(task):
            task.phase = "leaving"
            attempt.kill_at_us = state.at_us + attempt.instance.job.request.grace_us
    if short_of_members(attempt):  # the one whose device failed may have ended well in the same cycle
        attempt.degraded_until_us = event.until_us
    if any(task.phase in ("lost", "leaving") for task in attempt.tasks.values()):
        state.degraded[key] = None
    set_timer(state, attempt)


def _members_replaced(state: State, event: MembersReplaced) -> None:
    attempt = _attempt(state, event)
    check(attempt.phase == "run", f"MembersReplaced {event.job}/{event.instance}: the attempt is in {attempt.phase}")
    for placement in event.placements:
        old = attempt.tasks.get(placement.rank)
        check(old is None or not old.holding, f"MembersReplaced {event.job}/{event.instance}: rank {placement.rank} is not lost")
    if attempt.charge is not None:
        uncharge_attempt(state, attempt)
    place_members(state, attempt, event.placements)
    if state.tree is not None:
        charge_attempt(state.tree, attempt)
    if not any(task.phase in ("lost", "leaving") for task in attempt.tasks.values()):
        state.degraded.pop(attempt.instance.key, None)


# The rest


def _shape_deferred(state: State, event: ShapeDeferred) -> None:
    if event.code:
        state.deferred[event.queue, event.shape] = event.code
    else:
        state.deferred.pop((event.queue, event.shape), None)
        state.pending.forget_stirred()


def _undefer(state: State, job: Job) -> None:
    """Nothing is recorded of its shape in its queue any more."""
    if state.deferred.pop((job.queue, job.gang.digest), None) is not None and state.pending.indexed:
        state.pending.stir(job)


def _pass_stopped(state: State, event: PassStopped) -> None:
    state.more = True


def _jobs_forgotten(state: State, event: JobsForgotten) -> None:
    for id in event.jobs:
        job = state.jobs.pop(id, None)
        if job is None or job.open:
            broken(f"JobsForgotten names job {id}, which is not over")
        state.dated.pop(job, None)
        job.instances = []
        state.timers.forget.cancel(job)
        if job.service is not None:
            state.stirred.pop(job, None)


def enqueue(state: State, instance: Instance) -> None:
    """It waits for its turn, now or from `not_before_us` on."""
    if instance.not_before_us > state.at_us:
        state.timers.backoff.set(instance, instance.not_before_us)
    else:
        user = ""
        if state.tree is not None and not instance.job.spare and state.tree.tells_users(state.tree.of(instance.job.queue)):
            user = instance.job.user
        alone = instance.key in state.nominations or instance.key in state.plans.by_key
        reserved = mark(state, instance.job)
        length = length_us(state.policy, instance.job) if state.plans.lengths or reserved else 0
        state.pending.add(instance, alone, user, length, reserved)


def _leave_pending(state: State, instance: Instance) -> None:
    if instance.job.tagged:
        state.ledger.tags.stir(instance.job)
    if instance.waits is not None:
        if state.deferred and state.pending.last_of_class(instance):
            _undefer(state, instance.job)
        state.pending.discard(instance)
    else:
        state.timers.backoff.cancel(instance)
    state.pending_total -= 1


def count_running(state: State, attempt: Attempt) -> None:
    """It may be a victim from now on, if its job may."""
    job = attempt.instance.job
    if job.soft:
        state.yielding[attempt] = None
    elif job.request.preemptible:
        running = attempt.running = state.pending.running_of(job)
        running.count += 1


def uncount(state: State, attempt: Attempt) -> None:
    """It is no victim any more."""
    running = attempt.running
    if running is not None:
        running.count -= 1
        attempt.running = None
    elif attempt.instance.job.soft:
        state.yielding.pop(attempt, None)


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    JobSubmitted: _job_submitted,
    JobCancelRequested: _job_cancel_requested,
    JobReprioritised: _job_reprioritised,
    JobRejected: _job_rejected,
    InstanceBound: _instance_bound,
    InstanceStarted: _instance_started,
    InstancePreempted: _instance_preempted,
    StopOrdered: _stop_ordered,
    AttemptEnded: _attempt_ended,
    InstanceEnded: _instance_ended,
    MemberLost: _member_lost,
    MembersReplaced: _members_replaced,
    PassStopped: _pass_stopped,
    ShapeDeferred: _shape_deferred,
    JobsForgotten: _jobs_forgotten,
}
