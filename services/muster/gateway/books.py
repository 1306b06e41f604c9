"""What the gateway remembers beside the state, from one admitted cycle to the next.

Where the newest attempt of each instance is or was, which nodes' assignments a cycle changed, what was refused of late,
and how many jobs of each user are not over. All of it is bounded as the state is, or by a count.
"""

from collections.abc import Iterable
from typing import Any, Final

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
    StopOrdered,
)
from muster.events.jobs import JobCancelRequested, JobSubmitted
from muster.events.nodes import NodeRegistered, NodeRemoved, TaskExited, TaskMissing, TaskReady
from muster.events.operations import InputRefused, NodeFenced
from muster.events.record import Cycle
from muster.gateway.counts import QueueCounts

REFUSED_MAX: Final = 10_000

_WHOLE: Final = (InstanceStarted, InstancePreempted, StopOrdered, AttemptEnded, MemberLost)
_TASK: Final = (TaskExited, TaskMissing)
_NODE: Final = (NodeRegistered, NodeRemoved, NodeFenced, NodeLost)
_OVER: Final = (AttemptEnded, InstanceEnded, JobRejected)


class Places:
    """Where the tasks of the newest attempt of an instance are, or were when it ended."""

    __slots__ = ("attempt", "nodes")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.nodes: dict[int, str] = {}
        """Names of nodes by rank."""


class Refusal:
    """Why the last message about an id was no input."""

    __slots__ = ("cycle", "reason")

    def __init__(self, cycle: int, reason: str) -> None:
        self.cycle = cycle
        self.reason = reason


class Books:
    """All of this for one cell."""

    def __init__(self, state: State) -> None:
        """From a state that stands at its head. Attempts that ended before it are not known."""
        self.places: dict[str, dict[int, Places]] = {}
        """By job and instance."""
        self.changed: dict[str, int] = {node.name: state.number for node in state.nodes if node is not None}
        """The cycle that last changed the assignment of a node, by name."""
        self.refused: dict[str, Refusal] = {}
        """By the id that the message was about, the oldest first."""
        self.open: dict[str, int] = {}
        """How many jobs of a user are not over."""
        self.lives: dict[str, tuple[str, str]] = {node.name: (node.uid, node.boot) for node in state.nodes if node is not None}
        """Uid and boot of each node, by name."""
        self.lease_us = state.policy.lease_us
        self.lease_until_us = state.lease_until_us
        self.queues = QueueCounts(state)
        self.touched: dict[tuple[str, int], None] = {}
        """Instances whose attempts were changed, until whoever wants to know it was told."""
        self._open: dict[str, str] = {}
        """The users of the jobs that are not over."""
        for job in state.jobs.values():
            if job.open:
                self._begin(job.id, job.user)
            for instance in job.instances:
                if instance.attempt is not None:
                    places = Places(instance.attempt.number)
                    places.nodes = {rank: task.node.name for rank, task in instance.attempt.tasks.items()}
                    self.places.setdefault(job.id, {})[instance.index] = places

    def fold(self, state: State, cycle: Cycle) -> dict[str, None]:
        """Take a cycle in; `state` is the one after it. Returns the names of nodes whose assignments it changed."""
        self.lease_us = state.policy.lease_us
        self.lease_until_us = state.lease_until_us
        dirty: dict[str, None] = {}
        for event in cycle.inputs:
            self._input(state, event, cycle.number, dirty)
        for event in cycle.decisions:
            self._decision(state, event, dirty)
        for name in dirty:
            self.changed[name] = cycle.number
        self.queues.fold(state, cycle)
        return dirty

    def _input(self, state: State, event: Event, number: int, dirty: dict[str, None]) -> None:
        if isinstance(event, JobSubmitted):
            self._begin(event.job, event.user)
            self.refused.pop(event.job, None)
        elif isinstance(event, JobCancelRequested):
            job_now = state.jobs.get(event.job)
            if job_now is not None and not job_now.open:  # a service without replicas is over at once
                self._over(event.job)
        elif isinstance(event, _TASK):
            places = self._attempt(event)
            if places is not None and (node := places.nodes.get(event.rank)):
                dirty[node] = None
        elif isinstance(event, TaskReady):
            self.touched[event.job, event.instance] = None  # of rank 0 it brings the port where the members meet
        elif isinstance(event, _NODE):
            dirty[event.node] = None
            now = state.node(event.node)
            if now is None:
                self.lives.pop(event.node, None)
            else:
                self.lives[event.node] = (now.uid, now.boot)
        elif isinstance(event, InputRefused) and event.id:
            self.refused.pop(event.id, None)
            self.refused[event.id] = Refusal(number, event.reason)
            if len(self.refused) > REFUSED_MAX:
                del self.refused[next(iter(self.refused))]

    def _decision(self, state: State, event: Event, dirty: dict[str, None]) -> None:
        if isinstance(event, (InstanceBound, MembersReplaced, InstanceGrown)):
            self.touched[event.job, event.instance] = None
            of_job = self.places.setdefault(event.job, {})
            places = of_job.get(event.instance)
            if places is None or places.attempt != event.attempt:
                places = of_job[event.instance] = Places(event.attempt)
            _mark(places.nodes.values(), dirty)
            for placement in event.placements:
                places.nodes[placement.rank] = node = state.ledger.node(placement.row).name
                dirty[node] = None
        elif isinstance(event, InstanceShrunk):
            self.touched[event.job, event.instance] = None
            known = self.places.get(event.job, {}).get(event.instance)
            if known is not None:
                _mark(known.nodes.values(), dirty)  # the others are told who is left
        elif isinstance(event, _WHOLE):
            self.touched[event.job, event.instance] = None
            found = self._attempt(event)
            if found is not None and not (type(event) is InstanceStarted and _runs_already(state, event)):
                _mark(found.nodes.values(), dirty)
        elif isinstance(event, NodeLost):
            dirty[event.node] = None
        elif isinstance(event, JobsForgotten):
            for job in event.jobs:
                self.places.pop(job, None)
                self._over(job)
        if isinstance(event, _OVER):
            job_now = state.jobs.get(event.job)
            if job_now is None or not job_now.open:
                self._over(event.job)

    def _attempt(self, event: Any) -> Places | None:
        """The places of the attempt that the event is about, if it is the newest."""
        places = self.places.get(event.job, {}).get(event.instance)
        return places if places is not None and places.attempt == event.attempt else None

    def _begin(self, job: str, user: str) -> None:
        if job not in self._open:
            self._open[job] = user
            self.open[user] = self.open.get(user, 0) + 1

    def _over(self, job: str) -> None:
        user = self._open.pop(job, None)
        if user is not None:
            self.open[user] -= 1
            if not self.open[user]:
                del self.open[user]


def _runs_already(state: State, event: InstanceStarted) -> bool:
    """Whether the attempt is of one task, which was to run since it was bound: its start is no news to its node."""
    job = state.jobs.get(event.job)
    return job is not None and job.gang.single


def _mark(nodes: Iterable[str], dirty: dict[str, None]) -> None:
    for node in nodes:
        dirty[node] = None
