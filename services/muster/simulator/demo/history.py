"""What the log says became of every job: read from its records alone, with nothing of the engine."""

from collections import Counter
from collections.abc import Iterable

from muster.events.base import Event
from muster.events.decisions import (
    AttemptEnded,
    InstanceBound,
    InstanceEnded,
    InstancePreempted,
    InstanceStarted,
    JobRejected,
    NodeLost,
)
from muster.events.jobs import JobSubmitted
from muster.events.nodes import DeviceHealthChanged, NodeRegistered
from muster.events.record import Cycle

InstanceKey = tuple[str, int]


class Attempt:
    """One binding of an instance."""

    def __init__(self, number: int, bound_us: int) -> None:
        self.number = number
        self.bound_us = bound_us
        self.starts = 0
        self.ended_us: int | None = None
        self.then = ""
        self.reason = ""
        self.preempted_by = ""
        self.places: dict[tuple[str, int], None] = {}
        """Node and device index of everything it was bound to."""


class History:
    """What the log says."""

    def __init__(self) -> None:
        self.submitted: Counter[str] = Counter()
        self.names: dict[str, str] = {}
        self.instances: dict[str, int] = {}
        """How many instances each job has."""
        self.alone: dict[str, None] = {}
        """Jobs whose instances are of one task: these need no start, they run once they are ready."""
        self.attempts: dict[InstanceKey, list[Attempt]] = {}
        self.outcomes: dict[InstanceKey, str] = {}
        self.overlapping: list[str] = []
        """Bound while an earlier attempt was held."""
        self.lost_nodes: list[str] = []
        self.failed_devices: dict[tuple[str, str], int] = {}
        """Instant by node and device."""
        self.terms = 0
        self.cycles = 0
        self.inputs = 0
        self.decisions = 0
        self.rows: dict[int, str] = {}
        self.devices: dict[str, list[str]] = {}

    def read(self, cycles: Iterable[Cycle]) -> "History":
        """Fold these cycles in."""
        for cycle in cycles:
            self.cycles += 1
            self.terms += cycle.started is not None
            self.inputs += len(cycle.inputs)
            self.decisions += len(cycle.decisions)
            for event in (*cycle.inputs, *cycle.decisions):
                self._fold(event, cycle.at_us)
        return self

    def title(self, key: InstanceKey) -> str:
        """The instance as a person calls it."""
        name = self.names.get(key[0], key[0])
        return f"{name}/{key[1]}" if self.instances.get(key[0], 1) > 1 else name

    def of(self, name: str) -> list[Attempt]:
        """Every attempt of the jobs of this name."""
        return [attempt for key, attempts in self.attempts.items() if self.names[key[0]] == name for attempt in attempts]

    def _fold(self, event: Event, at_us: int) -> None:
        if isinstance(event, JobSubmitted):
            self.submitted[event.job] += 1
            self.names[event.job] = event.name
            self.instances[event.job] = event.request.array or 1
            if sum(group.count for group in event.request.groups) == 1:
                self.alone[event.job] = None
        elif isinstance(event, NodeRegistered):
            self._register(event)
        elif isinstance(event, DeviceHealthChanged) and event.health == "failed":
            self.failed_devices[event.node, event.device] = at_us
        elif isinstance(event, NodeLost):
            self.lost_nodes.append(event.node)
        elif isinstance(event, JobRejected):
            for index in range(self.instances.get(event.job, 1)):
                self.outcomes[event.job, index] = "rejected"
        elif isinstance(event, InstanceEnded):
            self.outcomes[event.job, event.instance] = event.outcome
        elif isinstance(event, InstanceBound):
            self._bound(event, at_us)
        elif isinstance(event, (InstanceStarted, InstancePreempted, AttemptEnded)):
            self._moved(event, at_us)

    def _register(self, event: NodeRegistered) -> None:
        """The row of a new node is the lowest that is free; here no node ever leaves its row."""
        if event.node not in self.devices:
            self.rows[len(self.rows)] = event.node
        self.devices[event.node] = [device.uuid for device in event.spec.devices]

    def _bound(self, event: InstanceBound, at_us: int) -> None:
        attempts = self.attempts.setdefault((event.job, event.instance), [])
        if attempts and attempts[-1].ended_us is None:
            self.overlapping.append(
                f"{self.title((event.job, event.instance))} was bound again while its attempt {attempts[-1].number} was held"
            )
        attempt = Attempt(event.attempt, at_us)
        for place in event.placements:
            for device in place.devices:
                attempt.places[self.rows[place.row], device] = None
        attempts.append(attempt)

    def _moved(self, event: InstanceStarted | InstancePreempted | AttemptEnded, at_us: int) -> None:
        attempt = next(attempt for attempt in self.attempts[event.job, event.instance] if attempt.number == event.attempt)
        if isinstance(event, InstanceStarted):
            attempt.starts += 1
        elif isinstance(event, InstancePreempted):
            attempt.preempted_by = self.names[event.by_job]
        else:
            attempt.ended_us, attempt.then, attempt.reason = at_us, event.then, event.reason
            if event.then != "pending":
                self.outcomes[event.job, event.instance] = event.then
