"""The assignment of a node: what it should hold, as a function of the state."""

from typing import Literal

from muster.cluster.jobs import Task
from muster.cluster.state import State
from muster.events.levels import Assignment, TaskAssignment


def assignment(state: State, row: int) -> Assignment:
    """All that the node in this row is to hold, as of the state's cycle.

    A task that gave up its place (it exited) is no longer named: the agent may forget it. Placeholders are never named.
    """
    node = state.ledger.node(row)
    tasks = sorted(
        [task for task in node.tasks if not task.attempt.instance.job.headroom],
        key=lambda task: (task.attempt.instance.place, task.rank),
    )
    return Assignment(
        node=node.name,
        uid=node.uid,
        boot=node.boot,
        number=state.number,
        at_us=state.at_us,
        tasks=tuple([assigned(task) for task in tasks]),
    )


def assigned(task: Task) -> TaskAssignment:
    """What its node is told of one task."""
    attempt = task.attempt
    instance = attempt.instance
    return TaskAssignment(
        job=instance.job.id,
        instance=instance.index,
        attempt=attempt.number,
        rank=task.rank,
        since=task.since,
        phase=_phase(task),
        kill_at_us=_kill_at_us(task),
        devices=task.devices,
    )


def _kill_at_us(task: Task) -> int:
    """A member that goes alone has an instant of its own, unless all have to go before."""
    attempt = task.attempt
    if not task.going:
        return attempt.kill_at_us
    return min(task.kill_at_us, attempt.kill_at_us) if attempt.phase == "stop" else task.kill_at_us


def _phase(task: Task) -> Literal["prepare", "run", "stop"]:
    """What the agent is to do. A task that is alone need not wait for others: it runs as soon as it is ready."""
    attempt = task.attempt
    if attempt.phase == "stop" or task.phase == "leaving" or task.going:
        return "stop"
    return "run" if attempt.phase == "run" or attempt.instance.job.gang.single else "prepare"
