"""Logs built by hand, cycle by cycle, and the cases of the second judge's rules.

A case is a function that tells a story; with `bad` it tells it with one fault.
"""

from collections.abc import Callable
from typing import Any

import pytest

from muster.events.base import Event
from muster.events.decisions import (
    AttemptEnded,
    AttemptRef,
    InstanceBound,
    InstancePreempted,
    InstanceStarted,
    NodeQuarantined,
    NodeReturned,
    NodeSilent,
    Nominated,
    NominationEnded,
    Placement,
    StopOrdered,
)
from muster.events.jobs import (
    GroupRequest,
    JobRequest,
    JobSubmitted,
)
from muster.events.nodes import (
    Device,
    NodeRegistered,
    NodesHeard,
    NodeSpec,
    TaskExited,
    TaskReady,
)
from muster.events.operations import (
    NodeFenced,
)
from muster.events.record import GENESIS, Cycle, TermStarted

S = 1_000_000
"""A second."""


class Story:
    """A log in the making: each call adds a cycle, one second after the one before."""

    def __init__(self) -> None:
        self.cycles: list[Cycle] = []
        self.at_us = 0
        self.term = 0
        self.lead()

    def lead(self, gap_us: int = 0, **changes: Any) -> "Story":
        """A term starts."""
        self.term += 1
        started = TermStarted(nonce="0" * 32, host="h", build="b", state=GENESIS, gap_us=gap_us)
        self.at_us += gap_us
        return self._add((), (), started, **changes)

    def add(self, *inputs: Event, then: tuple[Event, ...] = (), **changes: Any) -> "Story":
        """Inputs, and what is decided then."""
        return self._add(inputs, then, None, **changes)

    def wait(self, seconds: int) -> "Story":
        """Nothing happens for so long; the next cycle comes one second later."""
        self.at_us += seconds * S
        return self

    def now(self, seconds: int = 0) -> int:
        """When the next cycle is, and so many seconds later."""
        return self.at_us + S + seconds * S

    def _add(self, inputs: tuple[Event, ...], then: tuple[Event, ...], started: TermStarted | None, **changes: Any) -> "Story":
        self.at_us += S
        fields: dict[str, Any] = {"number": len(self.cycles) + 1, "term": self.term, "at_us": self.at_us}
        fields |= {"cell": "main", "started": started, "inputs": inputs, "decisions": then, "positions": {}}
        self.cycles.append(Cycle(policy="default/1", previous=GENESIS, **fields | changes))
        return self

    # What often happens

    def node(self, name: str, devices: int = 2, boot: str = "b1", uid: str = "", **spec: Any) -> "Story":
        """A node with devices of 1000 MiB."""
        gpus = tuple(Device(uuid=f"{name}-{index}", model="H100", memory_mib=1000) for index in range(devices))
        fields: dict[str, Any] = {"cpu_milli": 8000, "memory_mib": 8000, "disk_mib": 8000, "devices": gpus}
        fields.update(spec)
        return self.add(NodeRegistered(node=name, uid=uid or f"uid-{name}", boot=boot, spec=NodeSpec(**fields)))

    def submit(self, job: str, *groups: GroupRequest, queue: str = "default", **request: Any) -> "Story":
        """A job; one task of one GPU if nothing else is said."""
        return self.submit_as("u", job, *groups, queue=queue, **request)

    def submit_as(self, user: str, job: str, *groups: GroupRequest, queue: str = "default", **request: Any) -> "Story":
        """The same by somebody."""
        asked = JobRequest(groups=groups or (GroupRequest(gpus=1),), **request)
        return self.add(JobSubmitted(job=job, name="n", user=user, queue=queue, request=asked))

    def bind(self, job: str, *places: Placement, attempt: int = 1, instance: int = 0) -> "Story":
        return self.add(then=(bound(job, *places, attempt=attempt, instance=instance),))

    def run(self, job: str, *places: Placement, attempt: int = 1) -> "Story":
        """Bound, ready, started."""
        self.bind(job, *places, attempt=attempt)
        ready = [TaskReady(job=job, instance=0, attempt=attempt, rank=place.rank) for place in places]
        return self.add(*ready, then=(InstanceStarted(job=job, instance=0, attempt=attempt),))


def at(rank: int, row: int, *devices: int) -> Placement:
    return Placement(rank, row, devices)


def bound(job: str, *places: Placement, attempt: int = 1, instance: int = 0) -> InstanceBound:
    return InstanceBound(job=job, instance=instance, attempt=attempt, placements=places)


def exited(job: str, rank: int = 0, code: int = 0, attempt: int = 1, **more: Any) -> TaskExited:
    return TaskExited(job=job, instance=0, attempt=attempt, rank=rank, code=code, **more)


def ended(job: str, then: Any, attempt: int = 1, **more: Any) -> AttemptEnded:
    return AttemptEnded(job=job, instance=0, attempt=attempt, then=then, **more)


def stop(job: str, reason: Any, kill_at_us: int, attempt: int = 1) -> StopOrdered:
    return StopOrdered(job=job, instance=0, attempt=attempt, reason=reason, kill_at_us=kill_at_us)


def preempted(job: str, by: str, kill_at_us: int) -> InstancePreempted:
    return InstancePreempted(job=job, instance=0, attempt=1, by_job=by, by_instance=0, kill_at_us=kill_at_us)


def nominated(job: str, places: tuple[Placement, ...], victims: tuple[str, ...], until_us: int) -> Nominated:
    refs = tuple(AttemptRef(victim, 0, 1) for victim in victims)
    return Nominated(job=job, instance=0, placements=places, victims=refs, until_us=until_us)


def kept(job: str, reason: Any, by: str = "") -> NominationEnded:
    return NominationEnded(job=job, instance=0, reason=reason, by=by)


def cpu(milli: int, **more: Any) -> GroupRequest:
    return GroupRequest(cpu_milli=milli, **more)


CASES: list[Any] = []


def case(rule: str) -> Callable[[Callable[[bool], Story]], Callable[[bool], Story]]:
    def add(story: Callable[[bool], Story]) -> Callable[[bool], Story]:
        CASES.append(pytest.param(rule, story, id=story.__name__))
        return story

    return add


GANG = (cpu(100, name="head"), cpu(100, name="worker", count=4, min=2))


def nominated_story(grace_s: int = 0, until_s: int = 60) -> Story:
    """One device on node a, taken by `low` (priority 1); `high` (5) is nominated for it. Node b has one that is free."""
    story = Story().node("a", devices=1).submit("low", priority=1, grace_us=grace_s * S).run("low", at(0, 0, 0))
    story.node("b", devices=1).submit("high", priority=5)
    named = nominated("high", (at(0, 0, 0),), ("low",), story.now(until_s))
    return story.add(then=(preempted("low", "high", story.now(grace_s)), named))


def quarantined_story(times: int = 3, until_s: int = 60) -> Story:
    story = Story().node("a")
    for _ in range(times):
        story.wait(30).add(NodesHeard(missing=(0,)), then=(NodeSilent(node="a", row=0),))
        story.add(NodesHeard(), then=(NodeReturned(node="a", row=0),))
    return story.add(then=(NodeQuarantined(node="a", row=0, until_us=story.now(until_s)),))


def stop_story(reason: Any, *inputs: Event, wait_s: int = 0, start: bool = True, before_us: int = 0, **request: Any) -> Story:
    story = Story().node("a").submit("j", GroupRequest(gpus=1, count=2, min=2), **request)
    places = (at(0, 0, 0), at(1, 0, 1))
    (story.run if start else story.bind)("j", *places)
    story.wait(wait_s)
    return story.add(*inputs, then=(stop("j", reason, story.now() - before_us),))


def degraded_story() -> Story:
    story = Story().node("a").node("b").submit("j", cpu(1, count=2, min=2), degraded_grace_us=60 * S)
    return story.run("j", at(0, 0), at(1, 1)).add(NodeFenced(node="b"))
