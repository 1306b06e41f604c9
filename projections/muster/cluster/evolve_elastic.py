"""How elastic attempts gain and lose members, how jobs are resized, and what they say to have saved.

Each function folds one kind of entry. A member that was told to go (`Task.going`) holds its place until it exited and is no
member from then on: its rank is free. What its queue is charged with for it ends at the decision, as for any victim.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from muster.cluster.charging import charge_more, charge_without
from muster.cluster.check import broken, check
from muster.cluster.evolve_jobs import enqueue, place_members
from muster.cluster.evolve_tasks import on_broken_device, succeeded
from muster.cluster.jobs import TERMINAL, Attempt, Instance, Job, Task
from muster.cluster.patience import note_taints
from muster.cluster.plans import dropped
from muster.cluster.shapes import intern_gang
from muster.cluster.state import Nomination, State
from muster.events.base import Event
from muster.events.decisions import InstanceGrown, InstanceShrunk
from muster.events.jobs import JobCheckpointed, JobRequest, JobResizeRequested


def elastic(job: Job) -> bool:
    """Whether its instances grow and shrink while they run."""
    return job.request.elastic is True


def staying(attempt: Attempt) -> list[Task]:
    """The members that were not told to go, those that are done included, by rank."""
    return [task for _, task in sorted(attempt.tasks.items()) if not task.going]


def unwell(task: Task) -> bool:
    """Whether a member is lost, or may not stay where it is."""
    if task.going:
        return False
    if task.phase in ("lost", "leaving"):
        return True
    node = task.node
    if not task.holding:
        return False
    taints = [taint for taint in node.spec.taints if taint.effect == "NoExecute" and not task.shape.tolerates(taint)]
    return node.drained or bool(taints) or on_broken_device(task)


def excess(attempt: Attempt) -> int:
    """How many members more there are than the job is to have, of a job with one group."""
    gang = attempt.instance.job.gang
    return len(staying(attempt)) - gang.tasks if len(gang.counts) == 1 else 0


def resize_fault(state: State, job: Job, count: int) -> str:
    """Why the job cannot be resized to so many tasks, or an empty string."""
    request = job.request
    if len(request.groups) != 1:
        return f"{job.name} has {len(request.groups)} groups: only a job with one group can be resized"
    if not job.open:
        return f"{job.name} is over"
    if count > state.policy.placements_max:
        return f"{count} tasks in one instance; a cycle places at most {state.policy.placements_max}"
    group = request.groups[0]
    if not elastic(job) and any(instance.attempt is not None for instance in job.instances):
        return f"{job.name} is not elastic and holds its places: only before it runs can it be resized"
    if (elastic(job) or group.min < group.count) and count < group.min:
        return f"{job.name} takes {group.min} tasks at least, and {count} were asked for"
    return ""


def resized(request: JobRequest, count: int) -> JobRequest:
    """The request with so many tasks: its minimum stays, unless it was all of them and the job is not elastic."""
    group = request.groups[0]
    least = count if group.min == group.count and request.elastic is not True else group.min
    return msgspec.structs.replace(request, groups=(msgspec.structs.replace(group, count=count, min=least),))


def misfits(nomination: Nomination) -> bool:
    """Whether what is kept is not what its instance asks for any more: too many places, or too few."""
    gang = nomination.instance.job.gang
    counts = [0] * len(gang.counts)
    for placement in nomination.placements:
        counts[gang.group_of(placement.rank)] += 1
    return any(not low <= count <= high for low, count, high in zip(gang.minima, counts, gang.counts, strict=True))


def _job_resize_requested(state: State, event: JobResizeRequested) -> None:
    job = state.jobs.get(event.job)
    if job is None or job.request.groups[0].count == event.count or resize_fault(state, job, event.count):
        return
    waiting = [instance for instance in job.instances if instance.waits is not None]
    for instance in waiting:
        if state.deferred and state.pending.last_of_class(instance):
            state.deferred.pop((job.queue, job.gang.digest), None)
        state.pending.discard(instance)
    job.request = resized(job.request, event.count)
    job.gang = intern_gang(job.request)
    for instance in job.instances:
        if instance.phase in TERMINAL:
            continue
        dropped(state, instance)
        nomination = state.nominations.get(instance.key)
        attempt = instance.attempt
        if (nomination is not None and misfits(nomination)) or (attempt is not None and has_to_shrink(attempt)):
            state.todo[instance] = None
    for instance in waiting:
        enqueue(state, instance)
    state.wakes += 1


def has_to_shrink(attempt: Attempt) -> bool:
    """Whether it has members beyond those that the job is to have, and none that was told to stop."""
    return attempt.phase != "stop" and elastic(attempt.instance.job) and excess(attempt) > 0


def _job_checkpointed(state: State, event: JobCheckpointed) -> None:
    job = state.jobs.get(event.job)
    for instance in job.instances if job is not None else ():
        attempt = instance.attempt
        if event.instance in (None, instance.index) and attempt is not None and attempt.phase == "run":
            attempt.saved_us = state.at_us


def _attempt(state: State, event: InstanceGrown | InstanceShrunk) -> Attempt:
    attempt = state.attempt(event.job, event.instance, event.attempt)
    if attempt is None or attempt.phase == "stop" or not elastic(attempt.instance.job):
        broken(f"{type(event).__name__} names attempt {event.attempt} of {event.job}/{event.instance}, which is no elastic one")
    return attempt


def _instance_grown(state: State, event: InstanceGrown) -> None:
    attempt = _attempt(state, event)
    about = f"InstanceGrown {event.job}/{event.instance}"
    check(attempt.phase == "run", f"{about}: the attempt is in {attempt.phase}")
    for placement in event.placements:
        check(placement.rank not in attempt.tasks, f"{about}: rank {placement.rank} is there")
    place_members(state, attempt, event.placements)
    if state.tree is not None:
        charge_more(state.tree, attempt, [attempt.tasks[placement.rank] for placement in event.placements])
    attempt.changed += 1


def _instance_shrunk(state: State, event: InstanceShrunk) -> None:
    attempt = _attempt(state, event)
    instance = attempt.instance
    told: list[Task] = []
    for rank in event.ranks:
        task = attempt.tasks.get(rank)
        if task is None or task.going:
            broken(f"InstanceShrunk {event.job}/{event.instance}: rank {rank} is no member")
        if task.phase in ("ready", "running", "exited"):
            attempt.ready -= 1
        if task.holding:
            task.going = True
            task.kill_at_us = event.kill_at_us
            told.append(task)
        else:
            del attempt.tasks[rank]
    if told:
        if not attempt.going:
            state.stopping += 1
            state.shrinking[attempt] = None
        attempt.going += len(told)
        if state.tree is not None:
            charge_without(state.tree, attempt, told)
        for task in told:  # somebody who waits may now count on its place
            state.ledger.free(task.node.row)
            if attempt.evictions:
                note_taints(state, attempt, task.node)
        if state.plans.on:
            state.plans.move([task.node.row for task in told])
    if instance.job.tagged:
        state.ledger.tags.stir(instance.job)
    attempt.changed += 1
    if attempt.fault is not None and not any(unwell(task) for task in attempt.tasks.values()):
        attempt.fault = None
    look_again(state, attempt)


def look_again(state: State, attempt: Attempt) -> None:
    """Whether anything is to be decided about an attempt that has other members now."""
    instance = attempt.instance
    ready = attempt.ready + attempt.going == len(attempt.tasks)
    if (
        not attempt.held
        or attempt.fault is not None
        or instance.cancelling
        or has_to_shrink(attempt)
        or (attempt.phase == "prepare" and ready)
        or (attempt.phase == "run" and succeeded(attempt))
    ):
        state.todo[instance] = None
    else:
        state.todo.pop(instance, None)


def is_open(instance: Instance) -> bool:
    """Whether it runs, was not told to stop, and nothing of it is done or lost."""
    attempt = instance.attempt
    return (
        attempt is not None
        and attempt.phase == "run"
        and not instance.cancelling
        and not attempt.degraded_until_us
        and all(task.holding for task in attempt.tasks.values())
    )


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    JobResizeRequested: _job_resize_requested,
    JobCheckpointed: _job_checkpointed,
    InstanceGrown: _instance_grown,
    InstanceShrunk: _instance_shrunk,
}
