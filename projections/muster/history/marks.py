"""What each entry touches: the jobs, instances, attempts, tasks and nodes whose rows are to be made again after it.

`BEFORE` looks at the state before the entry is folded, `AFTER` at the state after it. An entry that changes nothing may be said
to touch something, which costs a row that is written again; one that changes what a row says must never be missed. How each
entry changes the state stands in `muster.cluster.evolve_jobs` and `evolve_nodes`, whose order this follows.
"""

from collections.abc import Callable
from typing import Any, Protocol

from muster.cluster.jobs import TERMINAL, Attempt, Instance, Job, Task
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.decisions import (
    AttemptEnded,
    InstanceBound,
    InstanceEnded,
    InstanceGrown,
    InstancePreempted,
    InstanceShrunk,
    InstanceStarted,
    JobRejected,
    JobsForgotten,
    MemberLost,
    MembersReplaced,
    NodeLost,
    NodeQuarantined,
    NodeReleased,
    NodeReturned,
    NodeSilent,
    StopOrdered,
)
from muster.events.jobs import JobCancelRequested, JobReprioritised, JobResizeRequested, JobSubmitted
from muster.events.nodes import (
    DeviceHealthChanged,
    ForeignUseChanged,
    NodeRegistered,
    NodeRemoved,
    TaskExited,
    TaskMissing,
    TaskReady,
    TaskStarted,
)
from muster.events.operations import NodeCordoned, NodeDrained, NodeFenced, NodeUncordoned
from muster.events.services import ReplicaOpened, RevisionAccepted

AttemptKey = tuple[str, int, int]
"""Job, instance, attempt."""


class Marks:
    """What a cycle touched so far, in the order in which it did."""

    __slots__ = ("attempts", "instances", "jobs", "nodes", "tasks")

    def __init__(self) -> None:
        self.jobs: dict[Job, None] = {}
        self.instances: dict[Instance, str] = {}
        """With the phase in which it was before; empty for one that is new."""
        self.attempts: dict[Attempt, tuple[AttemptEnded, list[Task]] | None] = {}
        """With how it ended and the tasks that it had, if it ended."""
        self.tasks: dict[Task, bool] = {}
        """With whether it held its place before."""
        self.nodes: dict[Node, None] = {}

    def instance(self, instance: Instance) -> None:
        """It may be about to change."""
        self.instances.setdefault(instance, instance.phase)

    def attempt(self, attempt: Attempt) -> None:
        """It, and its instance, may be about to change."""
        self.attempts.setdefault(attempt, None)
        self.instance(attempt.instance)

    def node(self, node: Node, tasks: bool = False) -> None:
        """It may be about to change, and with it the tasks that hold something there."""
        self.nodes[node] = None
        if tasks:
            for task in node.tasks:
                self.tasks.setdefault(task, True)

    def clear(self) -> None:
        """Forget everything."""
        for each in (self.jobs, self.instances, self.attempts, self.tasks, self.nodes):
            each.clear()


class Folding(Protocol):
    """What the marks need of a fold."""

    state: State
    submitted: dict[str, int]
    by: dict[AttemptKey, tuple[str, int]]
    replaced: dict[AttemptKey, dict[int, int]]

    def flush(self) -> None:
        """Make the rows of what is marked, as it is now."""
        ...


def key_of(attempt: Attempt) -> AttemptKey:
    """Which attempt it is."""
    return (*attempt.instance.key, attempt.number)


# Jobs


def _job_submitted(fold: Folding, marks: Marks, event: JobSubmitted) -> None:
    arrived = fold.state.arrived
    if arrived and arrived[-1].id == event.job:
        job = arrived[-1]
        if job not in marks.jobs:
            fold.submitted[job.id] = event.submitted_us
        marks.jobs[job] = None
        for instance in job.instances:
            marks.instances.setdefault(instance, "")


def _job_cancel_requested(fold: Folding, marks: Marks, event: JobCancelRequested) -> None:
    job = fold.state.jobs.get(event.job)
    if job is not None and job.service is not None:
        marks.jobs[job] = None
    for instance in job.instances if job is not None else ():
        if (event.instance is None or event.instance == instance.index) and instance.phase not in TERMINAL:
            marks.instance(instance)


def _job_reprioritised(fold: Folding, marks: Marks, event: JobReprioritised | JobResizeRequested) -> None:
    job = fold.state.jobs.get(event.job)
    if job is not None:
        marks.jobs[job] = None


def _job_rejected(fold: Folding, marks: Marks, event: JobRejected) -> None:
    job = fold.state.jobs.get(event.job)
    if job is not None:
        marks.jobs[job] = None
        for instance in job.instances:
            marks.instance(instance)


def _jobs_forgotten(fold: Folding, marks: Marks, event: JobsForgotten) -> None:
    fold.flush()  # what this cycle changed of them cannot be told afterwards
    for job in event.jobs:
        fold.submitted.pop(job, None)


# Tasks


def _task(fold: Folding, marks: Marks, event: TaskReady | TaskStarted | TaskExited | TaskMissing) -> None:
    try:
        attempt = fold.state.jobs[event.job].instances[event.instance].attempt
        if attempt is not None and attempt.number == event.attempt:
            task = attempt.tasks[event.rank]
            if task.holding:
                marks.tasks.setdefault(task, True)
    except LookupError:
        pass


# Attempts and instances


def _current(fold: Folding, event: Any) -> Attempt | None:
    return fold.state.attempt(event.job, event.instance, event.attempt)


def _instance(fold: Folding, marks: Marks, event: InstanceBound | InstanceEnded) -> None:
    instance = fold.state.instance(event.job, event.instance)
    if instance is not None:
        marks.instance(instance)


def _bound(fold: Folding, marks: Marks, event: InstanceBound) -> None:
    attempt = _current(fold, event)
    if attempt is not None:
        marks.attempt(attempt)
        for task in attempt.tasks.values():
            marks.tasks[task] = False


def _attempt(fold: Folding, marks: Marks, event: InstanceStarted | StopOrdered) -> None:
    attempt = _current(fold, event)
    if attempt is not None:
        marks.attempt(attempt)


def _preempted(fold: Folding, marks: Marks, event: InstancePreempted) -> None:
    attempt = _current(fold, event)
    if attempt is not None:
        marks.attempt(attempt)
        fold.by[key_of(attempt)] = (event.by_job, event.by_instance)


def _ended(fold: Folding, marks: Marks, event: AttemptEnded) -> None:
    attempt = _current(fold, event)
    if attempt is not None:
        marks.attempt(attempt)
        marks.attempts[attempt] = (event, list(attempt.tasks.values()))


def _member_lost(fold: Folding, marks: Marks, event: MemberLost) -> None:
    attempt = _current(fold, event)
    if attempt is not None:
        marks.attempt(attempt)
        for task in attempt.tasks.values():
            if task.phase == "leaving":
                marks.tasks.setdefault(task, True)


def _replaced(fold: Folding, marks: Marks, event: MembersReplaced | InstanceGrown) -> None:
    attempt = _current(fold, event)
    if attempt is not None:
        marks.attempt(attempt)
        state = fold.state
        fold.replaced.setdefault(key_of(attempt), {})[state.number] = state.at_us
        for placement in event.placements:
            marks.tasks[attempt.tasks[placement.rank]] = False


def _shrunk(fold: Folding, marks: Marks, event: InstanceShrunk) -> None:
    attempt = _current(fold, event)
    if attempt is not None:
        marks.attempt(attempt)


# Nodes


def _registered_before(fold: Folding, marks: Marks, event: NodeRegistered) -> None:
    node = fold.state.node(event.node)
    if node is not None:
        marks.node(node, node.uid != event.uid or node.boot != event.boot)


def _registered(fold: Folding, marks: Marks, event: NodeRegistered) -> None:
    node = fold.state.node(event.node)
    if node is not None:
        marks.node(node)


def _removed(fold: Folding, marks: Marks, event: NodeRemoved) -> None:
    node = fold.state.node(event.node)
    if node is not None and node.uid == event.uid:
        marks.node(node, True)


def _said(fold: Folding, marks: Marks, event: Any) -> None:
    node = fold.state.node(event.node)
    if node is not None:
        marks.node(node)


def _over(fold: Folding, marks: Marks, event: NodeLost | NodeFenced) -> None:
    node = fold.state.node(event.node)
    if node is not None:
        marks.node(node, True)


Marker = Callable[[Any, Marks, Any], None]


def _opened_before(fold: Folding, marks: Marks, event: ReplicaOpened) -> None:
    job = fold.state.jobs.get(event.job)
    if job is not None:
        marks.jobs[job] = None
        if event.instance < len(job.instances):
            marks.instance(job.instances[event.instance])


def _opened(fold: Folding, marks: Marks, event: ReplicaOpened) -> None:
    instance = fold.state.instance(event.job, event.instance)
    if instance is not None:
        marks.instances.setdefault(instance, "")


def _job(fold: Folding, marks: Marks, event: RevisionAccepted) -> None:
    job = fold.state.jobs.get(event.job)
    if job is not None:
        marks.jobs[job] = None


BEFORE: dict[type[Event], Marker] = {
    ReplicaOpened: _opened_before,
    RevisionAccepted: _job,
    JobCancelRequested: _job_cancel_requested,
    JobReprioritised: _job_reprioritised,
    JobResizeRequested: _job_reprioritised,
    JobRejected: _job_rejected,
    JobsForgotten: _jobs_forgotten,
    TaskReady: _task,
    TaskStarted: _task,
    TaskExited: _task,
    TaskMissing: _task,
    InstanceBound: _instance,
    InstanceStarted: _attempt,
    InstancePreempted: _preempted,
    StopOrdered: _attempt,
    AttemptEnded: _ended,
    InstanceEnded: _instance,
    NodeRegistered: _registered_before,
    NodeRemoved: _removed,
    NodeSilent: _said,
    NodeReturned: _said,
    NodeLost: _over,
    NodeFenced: _over,
    NodeQuarantined: _said,
    NodeReleased: _said,
    NodeCordoned: _said,
    NodeUncordoned: _said,
    NodeDrained: _said,
    DeviceHealthChanged: _said,
    ForeignUseChanged: _said,
}
"""What is about to change."""

AFTER: dict[type[Event], Marker] = {
    JobSubmitted: _job_submitted,
    ReplicaOpened: _opened,
    InstanceBound: _bound,
    MemberLost: _member_lost,
    MembersReplaced: _replaced,
    InstanceGrown: _replaced,
    InstanceShrunk: _shrunk,
    NodeRegistered: _registered,
}
"""What has just changed, or come."""
