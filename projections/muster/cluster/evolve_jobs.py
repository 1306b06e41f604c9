"""How jobs, instances and attempts change. Each function folds one kind of entry.

`todo` names instances about which something has to be decided now: it is filled here, exactly where the need arises,
and emptied by the decision.
"""

from collections.abc import Callable, Collection
from typing import Any

from muster.cluster.charging import charge_attempt, charge_less, enter_queue, leave_queue, uncharge_attempt
from muster.cluster.check import broken, check
from muster.cluster.jobs import TERMINAL, Attempt, Fault, Instance, Job, Task, job_of
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
from muster.events.nodes import TaskExited, TaskMissing, TaskReady, TaskStarted

# Inputs about jobs


def _job_submitted(state: State, event: JobSubmitted) -> None:
    if event.job in state.jobs:
        return
    request = event.request
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
    pending = state.pending
    user = ""
    if state.tree is not None:
        user = enter_queue(state.tree, job)
    for instance in job.instances:
        pending.add(instance, False, user)
    state.pending_total += len(job.instances)


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


def _job_reprioritised(state: State, event: JobReprioritised) -> None:
    job = state.jobs.get(event.job)
    if job is None or job.priority == event.priority:
        return
    waiting = [instance for instance in job.instances if instance.waits is not None]
    for instance in waiting:
        state.pending.discard(instance)
    live = [i.attempt for i in job.instances if i.attempt is not None and i.attempt.phase != "stop"]
    for attempt in live:
        uncount(attempt)
    job.priority = event.priority
    for attempt in live:
        count_running(state, attempt)
    for instance in waiting:
        enqueue(state, instance)
    state.wakes += 1


# Inputs about tasks


def _task(state: State, event: TaskReady | TaskStarted | TaskExited | TaskMissing) -> Task | None:
    """The task that is reported, if it belongs to the current attempt of its instance and still holds its place."""
    try:
        attempt = state.jobs[event.job].instances[event.instance].attempt
        if attempt is not None and attempt.number == event.attempt:
            task = attempt.tasks[event.rank]
            if task.holding:
                return task
    except LookupError:
        pass
    return None


def _task_ready(state: State, event: TaskReady) -> None:
    task = _task(state, event)
    if task is not None and task.phase == "preparing":
        task.phase = "ready"
        task.port = event.port
        attempt = task.attempt
        ready = attempt.ready = attempt.ready + 1
        if attempt.phase == "prepare":
            if ready == len(attempt.tasks):
                state.todo[attempt.instance] = None
        elif attempt.degraded_until_us and attempt.phase == "run" and not short_of_members(attempt):
            attempt.degraded_until_us = 0
            set_timer(state, attempt)


def _task_started(state: State, event: TaskStarted) -> None:
    task = _task(state, event)
    if task is None:
        return
    if task.phase == "preparing":  # a single task runs without waiting for others
        task.phase = "running"
        attempt = task.attempt
        attempt.ready += 1
        if attempt.phase == "prepare" and attempt.ready == len(attempt.tasks):
            state.todo[attempt.instance] = None
    elif task.phase == "ready":
        task.phase = "running"


def _task_exited(state: State, event: TaskExited) -> None:
    task = _task(state, event)
    if task is None:
        return
    code = event.code
    if code:
        task.code = code
    before = task.phase
    if before == "leaving":
        release(state, task, "lost")
        return
    release(state, task, "exited")
    attempt = task.attempt
    phase = attempt.phase
    if phase == "stop":
        return
    if phase == "prepare" and before != "running":
        fault(state, attempt, Fault("start-failed", event.code, task.node.name, event.blame or "node"))
    elif code:
        fault(state, attempt, Fault("member-failed", code, task.node.name, event.blame or "job"))
    elif attempt.held and succeeded(attempt):
        state.todo[attempt.instance] = None


def _task_missing(state: State, event: TaskMissing) -> None:
    task = _task(state, event)
    if task is not None:
        release(state, task, "lost")
        fault(state, task.attempt, Fault("task-missing", 0, task.node.name, "node", lost=True))


def release(state: State, task: Task, phase: str) -> None:
    """The task holds nothing any more and is in this phase for good."""
    task.phase = phase
    task.holding = False
    state.ledger.release(task)
    attempt = task.attempt
    attempt.held -= 1
    if attempt.charge is not None:
        charge_less(state, attempt, task)
    if not attempt.held:
        state.todo[attempt.instance] = None


def fault(state: State, attempt: Attempt, what: Fault) -> None:
    """The attempt cannot go on; only the first reason counts."""
    if attempt.phase != "stop" and attempt.fault is None:
        attempt.fault = what
        state.todo[attempt.instance] = None


def succeeded(attempt: Attempt) -> bool:
    """Whether the tasks that decide the outcome have all exited with 0; where none of these was bound, all tasks do."""
    request = attempt.instance.job.request
    tasks: Collection[Task] = attempt.tasks.values()
    if request.success:
        decisive = [task for task in tasks if request.groups[task.group].name == request.success]
        if decisive:
            tasks = decisive
    for task in tasks:  # noqa: SIM110 -- most attempts have one task, for which a generator costs more than it does
        if task.phase != "exited" or task.code:
            return False
    return True


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
    for instance in job.instances:
        check(instance.phase == "pending", f"JobRejected names job {event.job}, which is {instance.phase}")
        _leave_pending(state, instance)
        _end(state, instance, "rejected", event.reason)


def _instance_bound(state: State, event: InstanceBound) -> None:
    try:
        job = state.jobs[event.job]
        instance = job.instances[event.instance]
    except LookupError:
        broken(f"InstanceBound names instance {event.instance} of job {event.job}, which is not there")
    if instance.phase != "pending" or event.attempt != instance.attempts + 1:
        broken(
            f"InstanceBound {event.job}/{event.instance} as attempt {event.attempt}: "
            f"it is {instance.phase}, {instance.attempts} so far"
        )
    if state.nominations and instance.key in state.nominations:
        broken(f"InstanceBound {event.job}/{event.instance}: its nomination has not ended")
    if state.deferred:
        state.deferred.pop((job.queue, job.gang.digest), None)
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
    _place(state, attempt, event.placements)
    if state.tree is not None:
        charge_attempt(state.tree, attempt)
    state.timers.ready.set_first(instance, until_us)
    if job.request.preemptible:
        running = attempt.running = state.pending.running_of(job)
        running.count += 1


def _place(state: State, attempt: Attempt, placements: tuple[Placement, ...]) -> None:
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
    attempt.held += len(placements)


def _instance_started(state: State, event: InstanceStarted) -> None:
    attempt = _attempt(state, event)
    if attempt.phase != "prepare":
        broken(f"InstanceStarted {event.job}/{event.instance}: the attempt is in {attempt.phase}")
    attempt.phase = "run"
    at_us = attempt.started_us = state.at_us
    instance = attempt.instance
    instance.phase = "running"
    if instance.start_failures:
        instance.start_failures = 0
    held = attempt.held
    if held and attempt.fault is None and (held == len(attempt.tasks) or not succeeded(attempt)):
        state.todo.pop(instance, None)
    timers = state.timers
    timers.ready.cancel(instance)
    limit_us = limit_of(instance)
    if limit_us is not None:
        timers.limit.set_first(instance, at_us + limit_us)
    if state.policy.min_runtime_us or state.policy.reclaim_min_runtime_us:
        set_immune(state, attempt)


def limit_of(instance: Instance) -> int | None:
    """For how long its attempts may run; None: for ever."""
    return instance.job.limit_us


def set_immune(state: State, attempt: Attempt) -> None:
    """When it has run for `min_runtime_us`, or for `reclaim_min_runtime_us`: it may be a victim, so that somebody may start."""
    policy = state.policy
    untils = [attempt.started_us + span_us for span_us in (policy.min_runtime_us, policy.reclaim_min_runtime_us)]
    later = [until_us for until_us in untils if until_us > state.at_us]
    if attempt.started_us and later:
        state.timers.immune.set(attempt.instance, min(later))
    else:
        state.timers.immune.cancel(attempt.instance)


def set_timer(state: State, attempt: Attempt) -> None:
    """When the attempt next needs a decision although nobody reports anything."""
    instance = attempt.instance
    timers = state.timers
    if attempt.phase == "prepare":
        timers.ready.set(instance, attempt.ready_until_us)
        return
    timers.ready.cancel(instance)
    due_us = 0
    if attempt.phase == "run":
        due_us = attempt.degraded_until_us
        limit_us = limit_of(instance)
        if limit_us is not None:
            end_us = attempt.started_us + limit_us
            due_us = min(due_us, end_us) if due_us else end_us
    if due_us:
        timers.limit.set(instance, due_us)
    else:
        timers.limit.cancel(instance)


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
    set_timer(state, attempt)
    uncount(attempt)
    if state.tree is not None:
        if attempt.charge is not None:
            uncharge_attempt(state, attempt)
        state.tree.stopping[attempt] = None
    state.stopping += 1
    for task in attempt.tasks.values():  # somebody who waits may now count on its places
        if task.holding:
            state.ledger.free(task.node.row)
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
        uncount(attempt)
        if state.degraded:
            state.degraded.pop(instance.key, None)
    else:
        state.stopping -= 1
        if state.tree is not None:
            state.tree.stopping.pop(attempt, None)
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


def _instance_ended(state: State, event: InstanceEnded) -> None:
    instance = instance_of(state, event)
    check(instance.phase == "pending", f"InstanceEnded {event.job}/{event.instance}: it is {instance.phase}")
    check(instance.key not in state.nominations, f"InstanceEnded {event.job}/{event.instance}: its nomination has not ended")
    _leave_pending(state, instance)
    _end(state, instance, event.outcome, event.reason)


def _end(state: State, instance: Instance, outcome: str, reason: str, code: int = 0) -> None:
    job = instance.job
    instance.phase = outcome
    instance.reason = reason
    if code:
        instance.code = code
    at_us = instance.ended_us = state.at_us
    state.todo.pop(instance, None)
    job.open -= 1
    if not job.open:
        job.over_us = at_us
        if state.tree is not None:
            leave_queue(state.tree, job)
        state.timers.forget.set_first(job, at_us + state.policy.forget_after_us)


def set_forget(state: State, job: Job) -> None:
    """When the job, which is over, leaves the state."""
    state.timers.forget.set(job, job.over_us + state.policy.forget_after_us)


def _member_lost(state: State, event: MemberLost) -> None:
    attempt = _attempt(state, event)
    attempt.fault = None
    key = attempt.instance.key
    state.todo.pop(attempt.instance, None)
    for task in attempt.tasks.values():
        if task.holding and on_broken_device(task):
            task.phase = "leaving"
            attempt.kill_at_us = state.at_us + attempt.instance.job.request.grace_us
    if short_of_members(attempt):  # the one whose device failed may have ended well in the same cycle
        attempt.degraded_until_us = event.until_us
    if any(task.phase in ("lost", "leaving") for task in attempt.tasks.values()):
        state.degraded[key] = None
    set_timer(state, attempt)


def on_broken_device(task: Task) -> bool:
    """Whether a device that the task holds has failed or is gone."""
    devices = task.node.devices
    return any(devices[index].health == "failed" or not devices[index].present for index in task.devices)


def short_of_members(attempt: Attempt) -> bool:
    """Whether a member is lost, or leaves, or is placed anew and not ready yet."""
    return any(task.phase in ("lost", "leaving", "preparing") for task in attempt.tasks.values())


def _members_replaced(state: State, event: MembersReplaced) -> None:
    attempt = _attempt(state, event)
    check(attempt.phase == "run", f"MembersReplaced {event.job}/{event.instance}: the attempt is in {attempt.phase}")
    for placement in event.placements:
        old = attempt.tasks.get(placement.rank)
        check(old is None or not old.holding, f"MembersReplaced {event.job}/{event.instance}: rank {placement.rank} is not lost")
    if attempt.charge is not None:
        uncharge_attempt(state, attempt)
    _place(state, attempt, event.placements)
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


def _pass_stopped(state: State, event: PassStopped) -> None:
    state.more = True


def _jobs_forgotten(state: State, event: JobsForgotten) -> None:
    for id in event.jobs:
        job = state.jobs.pop(id, None)
        if job is None or job.open:
            broken(f"JobsForgotten names job {id}, which is not over")
        job.instances = []
        state.timers.forget.cancel(job)


def enqueue(state: State, instance: Instance) -> None:
    """It waits for its turn, now or from `not_before_us` on."""
    if instance.not_before_us > state.at_us:
        state.timers.backoff.set(instance, instance.not_before_us)
    else:
        user = ""
        if state.tree is not None and state.tree.tells_users(state.tree.of(instance.job.queue)):
            user = instance.job.user
        state.pending.add(instance, instance.key in state.nominations, user)


def _leave_pending(state: State, instance: Instance) -> None:
    if instance.waits is not None:
        if state.deferred and state.pending.last_of_class(instance):
            state.deferred.pop((instance.job.queue, instance.job.gang.digest), None)
        state.pending.discard(instance)
    else:
        state.timers.backoff.cancel(instance)
    state.pending_total -= 1


def count_running(state: State, attempt: Attempt) -> None:
    """It may be a victim from now on, if its job may."""
    job = attempt.instance.job
    if job.request.preemptible:
        running = attempt.running = state.pending.running_of(job)
        running.count += 1


def uncount(attempt: Attempt) -> None:
    """It is no victim any more."""
    running = attempt.running
    if running is not None:
        running.count -= 1
        attempt.running = None


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    JobSubmitted: _job_submitted,
    JobCancelRequested: _job_cancel_requested,
    JobReprioritised: _job_reprioritised,
    TaskReady: _task_ready,
    TaskStarted: _task_started,
    TaskExited: _task_exited,
    TaskMissing: _task_missing,
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
