"""What a scene has seen in its log: counts, orders and places that expectations ask for, kept from the records alone."""

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
    MemberLost,
    MembersReplaced,
    NominationEnded,
    Placement,
)
from muster.events.nodes import NodesHeard
from muster.events.operations import InputRefused
from muster.events.record import Cycle

Unit = tuple[str, int]
"""A job's id and the number of an instance."""

CHANGES = (
    JobRejected,
    InstanceBound,
    InstanceStarted,
    InstancePreempted,
    AttemptEnded,
    InstanceEnded,
    MemberLost,
    MembersReplaced,
    InstanceGrown,
    InstanceShrunk,
)
"""Decisions that change a job: bind, start, preempt, requeue, reject, finish, and members that go and come."""


class Book:
    """The log so far, as counts."""

    def __init__(self) -> None:
        self.decisions = 0
        self.bound = 0
        self.refused: list[tuple[str, int]] = []
        """Source and offset of each refused input."""
        self.preempted: list[tuple[Unit, Unit]] = []
        """Victim and beneficiary of each preemption, in order."""
        self.nominations_ended: list[tuple[Unit, str]] = []
        self.first_bound: dict[Unit, int] = {}
        """For each instance, how many bindings there were before its first."""
        self.places: dict[tuple[str, int, int], dict[int, Placement]] = {}
        """Placements by rank of each attempt; the newest of a rank that was replaced."""
        self.outcomes: dict[Unit, str] = {}
        """How instances ended."""
        self.changed_at_us: list[int] = []
        """Virtual time of each decision that changed a job."""

    def enter(self, cycle: Cycle, now_us: int) -> None:
        """One more cycle, at this virtual time."""
        for event in cycle.inputs:
            if type(event) is InputRefused:
                self.refused.append((event.source, event.offset))
        for event in cycle.decisions:
            self.decisions += 1
            if isinstance(event, CHANGES):
                self.changed_at_us.append(now_us)
            if type(event) is InstanceBound:
                self.first_bound.setdefault((event.job, event.instance), self.bound)
                self.bound += 1
            if isinstance(event, InstanceBound | MembersReplaced | InstanceGrown):
                places = self.places.setdefault((event.job, event.instance, event.attempt), {})
                places.update({placement.rank: placement for placement in event.placements})
            elif type(event) is InstancePreempted or (type(event) is InstanceShrunk and event.reason == "preempted"):
                self.preempted.append(((event.job, event.instance), (event.by_job, event.by_instance)))
            elif type(event) is AttemptEnded and event.then != "pending":
                self.outcomes[event.job, event.instance] = event.then
            elif type(event) is InstanceEnded:
                self.outcomes[event.job, event.instance] = event.outcome
            elif type(event) is NominationEnded:
                self.nominations_ended.append(((event.job, event.instance), event.reason))


def is_beat(cycle: Cycle) -> bool:
    """Whether the cycle holds nothing but a beat."""
    return not cycle.decisions and cycle.started is None and all(type(event) is NodesHeard for event in cycle.inputs)


def entries(cycle: Cycle) -> list[tuple[str, Event]]:
    """Every entry of the cycle with its side."""
    return [("input", event) for event in cycle.inputs] + [("decision", event) for event in cycle.decisions]
