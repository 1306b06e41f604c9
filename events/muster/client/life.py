"""The life of one job, told from the entries about it: a pure fold, the same for every way by which entries come.

The states are those that a gateway shows: pending, starting, running, stopping; and for good finished, failed, cancelled,
rejected. Of several instances the liveliest counts.
"""

from typing import Final, Literal

import msgspec

from muster.events.base import Event
from muster.events.decisions import (
    AttemptEnded,
    InstanceBound,
    InstanceEnded,
    InstancePreempted,
    InstanceStarted,
    JobRejected,
    StopOrdered,
)
from muster.events.jobs import JobCancelRequested, JobSubmitted
from muster.events.services import ReplicaOpened

State = Literal["unknown", "pending", "starting", "running", "stopping", "finished", "failed", "cancelled", "rejected"]

OVER: Final[tuple[State, ...]] = ("finished", "failed", "cancelled", "rejected")
LIVELIEST: Final[tuple[State, ...]] = (
    "running",
    "starting",
    "stopping",
    "pending",
    "failed",
    "cancelled",
    "rejected",
    "finished",
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry about a job, as it was recorded."""

    cycle: int
    at_us: int
    """Log time."""
    event: Event


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One entry about a job, and what it made of the job."""

    cycle: int
    at_us: int
    """Log time."""
    event: Event
    state: State
    """The job's state from here on."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended."""

    job: str
    state: State
    """finished, failed, cancelled or rejected."""
    code: int
    """Exit status of the first instance that did not end well, -n for signal n; 0 where all ended well."""
    reason: str
    cycle: int
    """In which its last instance ended."""

    @property
    def finished(self) -> bool:
        """Whether it did what it was to do."""
        return self.state == "finished"


class _Instance(msgspec.Struct):
    state: State = "pending"
    code: int = 0
    reason: str = ""


class Life:
    """One job so far."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.state: State = "unknown"
        self._instances: list[_Instance] = []
        self._open = 0
        self._kept = False
        """A service is over when it was cancelled, or rejected, and none of its replicas is left."""
        self._cycle = 0

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in OVER

    def take(self, entry: Entry) -> Change:
        """The next entry about this job. One that was told before changes nothing."""
        event = entry.event
        if isinstance(event, JobSubmitted):
            if not self._instances and event.job == self.job:
                asked = event.request.service
                self._kept = bool(asked)
                self._open = asked.replicas if asked else event.request.array or 1
                self._instances = [_Instance() for _ in range(self._open)]
        elif isinstance(event, JobCancelRequested):
            self._kept = self._kept and event.instance is not None
        elif isinstance(event, ReplicaOpened):
            self._open_again(event.instance)
        elif isinstance(event, JobRejected):
            self._kept = False
            for index in range(len(self._instances)):
                self._end(index, "rejected", event.reason, 0)
        elif isinstance(event, InstanceBound):
            self._become(event.job, event.instance, "starting")
        elif isinstance(event, InstanceStarted):
            self._become(event.job, event.instance, "running")
        elif isinstance(event, (InstancePreempted, StopOrdered)):
            self._become(event.job, event.instance, "stopping")
        elif isinstance(event, AttemptEnded):
            if event.then == "pending":
                self._become(event.job, event.instance, "pending")
            elif event.job == self.job:
                self._end(event.instance, event.then, event.reason, event.code)
        elif isinstance(event, InstanceEnded) and event.job == self.job:
            self._end(event.instance, event.outcome, event.reason, 0)
        self._cycle = entry.cycle
        self.state = self._liveliest()
        return Change(cycle=entry.cycle, at_us=entry.at_us, event=event, state=self.state)

    def outcome(self) -> Outcome:
        """How it ended. Only for a job that is over."""
        bad = next((instance for instance in self._instances if instance.state != "finished"), _Instance())
        return Outcome(job=self.job, state=self.state, code=bad.code, reason=bad.reason, cycle=self._cycle)

    def _become(self, job: str, index: int, state: State) -> None:
        if job == self.job and index < len(self._instances) and self._instances[index].state not in OVER:
            self._instances[index].state = state

    def _end(self, index: int, state: State, reason: str, code: int) -> None:
        if index < len(self._instances) and self._instances[index].state not in OVER:
            self._instances[index] = _Instance(state, code, reason)
            self._open -= 1

    def _open_again(self, index: int) -> None:
        """A replica that was over, or one more, is wanted."""
        if index == len(self._instances):
            self._instances.append(_Instance())
            self._open += 1
        elif index < len(self._instances) and self._instances[index].state in OVER:
            self._instances[index] = _Instance()
            self._open += 1

    def _liveliest(self) -> State:
        if not self._instances:
            return "unknown"
        if self._kept and not self._open:
            return "pending"
        present = dict.fromkeys([instance.state for instance in self._instances])
        return next(state for state in LIVELIEST if state in present)
