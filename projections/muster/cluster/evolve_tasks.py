"""How the tasks of an attempt change, and when the attempt next needs a decision. Each handler folds one kind of report.

`todo` names instances about which something has to be decided now: it is filled here, exactly where the need arises.
"""

from collections.abc import Callable, Collection
from typing import Any

from muster.cluster.charging import charge_less
from muster.cluster.jobs import Attempt, Fault, Instance, Task
from muster.cluster.patience import note_taints
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.nodes import TaskExited, TaskMissing, TaskReady, TaskStarted


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
        if task.going:
            return
        ready = attempt.ready = attempt.ready + 1
        if attempt.phase == "prepare":
            if ready + attempt.going == len(attempt.tasks):
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
        if task.going:
            return
        attempt.ready += 1
        if attempt.phase == "prepare" and attempt.ready + attempt.going == len(attempt.tasks):
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
    if task.going:
        return
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
        fault_of(state, task, Fault("task-missing", 0, task.node.name, "node", lost=True))


def release(state: State, task: Task, phase: str) -> None:
    """The task holds nothing any more and is in this phase for good."""
    task.phase = phase
    task.holding = False
    state.ledger.release(task)
    if state.plans.on:
        state.plans.moved.append(task.node.row)
    attempt = task.attempt
    if attempt.instance.job.tagged:
        state.ledger.tags.stir(attempt.instance.job)
    if attempt.evictions:
        note_taints(state, attempt, task.node)
    attempt.held -= 1
    if task.going:
        gone(state, task)
    if attempt.charge is not None and (not task.going or not attempt.held):
        charge_less(state, attempt, task)
    if not attempt.held:
        state.todo[attempt.instance] = None


def gone(state: State, task: Task) -> None:
    """A task that was going has exited: its attempt knows it no more."""
    attempt = task.attempt
    del attempt.tasks[task.rank]
    attempt.going -= 1
    if not attempt.going:
        state.stopping -= 1
        del state.shrinking[attempt]


def fault_of(state: State, task: Task, what: Fault) -> None:
    """Something went wrong with a task: its attempt cannot go on, unless it was told to go on without it."""
    if not task.going:
        fault(state, task.attempt, what)


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
    for task in tasks:  # noqa: SIM110 -- most attempts have one task, for which a generator costs more than this does
        if (task.phase != "exited" or task.code) and not task.going:
            return False
    return True


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


def on_broken_device(task: Task) -> bool:
    """Whether a device that the task holds has failed or is gone."""
    devices = task.node.devices
    return any(devices[index].health == "failed" or not devices[index].present for index in task.devices)


def short_of_members(attempt: Attempt) -> bool:
    """Whether a member is lost, or leaves, or is placed anew and not ready yet."""
    return any(task.phase in ("lost", "leaving", "preparing") for task in attempt.tasks.values())


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    TaskReady: _task_ready,
    TaskStarted: _task_started,
    TaskExited: _task_exited,
    TaskMissing: _task_missing,
}
