"""A cell under load: the real core, a log in memory, and agents that answer.

What is timed is from the encoded bytes of the inputs to the encoded, chained record read back from the log. Making the
messages, and reading the decisions to know what the agents answer, are the world's work and stand outside.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from muster.bench.mix import CORDONED_EVERY, GPUS_A_NODE, Mix, asked_milli, nodes, submission
from muster.events.base import Event
from muster.events.codec import decode_entry, decode_envelope, encode_entry
from muster.events.decisions import AttemptEnded, InstanceBound, InstanceStarted, StopOrdered
from muster.events.jobs import GroupRequest, JobCancelRequested, JobSubmitted
from muster.events.nodes import TaskExited, TaskReady, TaskStarted
from muster.events.operations import NodeCordoned
from muster.log.errors import OperatingError
from muster.scheduler.core import Core
from muster.scheduler.messages import JOBS, NODES, OPERATIONS, Message

INPUTS_A_CYCLE = 500
CYCLE_US = 1000
"""Log time between cycles: short, so that no beat falls into a figure."""
NONCE = "0" * 32

Outbox = list[tuple[str, Event, str]]
Timer = Callable[[], float]


class Unexpected(OperatingError):
    """The core did not decide what a figure is about."""


class Cell:
    """A core whose inputs and records are bytes."""

    def __init__(self, seed: int, *, keep: bool = True, clock: Timer = time.perf_counter) -> None:
        self.core = Core("bench")
        self.clock = clock
        self._keep = keep
        self.records: list[bytes] = []
        self.entries = 0
        self.at_us = 0
        self.chance = random.Random(seed)
        self.mix = Mix(seed)
        self.jobs = 0
        self.outbox: Outbox = []
        """What agents and clients say next."""
        self.on_cycle: Callable[[bool], None] | None = None
        """Called with True before the timed part of a cycle, and with False after it."""
        self._offsets: dict[str, int] = {}
        data = self.core.start_term(0, NONCE, "bench", "bench", 0)
        self.core.read_back(data)
        self.records.append(data)

    def register(self, count: int) -> list[Event]:
        """So many nodes, of which every twentieth is cordoned; what is decided meanwhile."""
        for row, node in enumerate(nodes(count)):
            self.outbox.append((NODES, node, node.node))
            if row % CORDONED_EVERY == CORDONED_EVERY - 1:
                self.outbox.append((OPERATIONS, NodeCordoned(node=node.node, by="bench"), ""))
        return self.drain()

    def submit(self, group: GroupRequest) -> JobSubmitted:
        """A client sends a job of this group."""
        event = submission(self.at_us, self.jobs, group)
        self.jobs += 1
        self.outbox.append((JOBS, event, event.job))
        return event

    def cycle(self, limit: int = INPUTS_A_CYCLE) -> tuple[float, list[Event]]:
        """One cycle with the first of what was sent: seconds from bytes to bytes, and the decisions."""
        self.at_us += CYCLE_US
        sent = self.outbox[:limit]
        del self.outbox[:limit]
        messages = [self._message(topic, event, key) for topic, event, key in sent]
        core = self.core
        if self.on_cycle is not None:
            self.on_cycle(True)
        begun = self.clock()
        core.offer_all(messages)
        data = core.cycle(self.at_us)
        if data is not None:
            if self._keep:
                self.records.append(data)
            core.read_back(data)
        took_s = self.clock() - begun
        if self.on_cycle is not None:
            self.on_cycle(False)
        if data is None:
            return took_s, []
        envelope = decode_envelope(data)
        self.entries += len(envelope.inputs) + len(envelope.decisions)
        return took_s, [decode_entry(raw) for raw in envelope.decisions]

    def drain(self) -> list[Event]:
        """Cycles until everything that was sent is taken and decided; the decisions."""
        decisions: list[Event] = []
        while True:
            decisions.extend(self.cycle()[1])
            if not self.outbox and self._idle():
                return decisions

    def run_tasks(self, bound: Iterable[InstanceBound]) -> None:
        """Every task of these attempts becomes ready and, once its gang is started, runs."""
        for event in bound:
            for place in event.placements:
                self.tell(TaskReady(job=event.job, instance=event.instance, attempt=event.attempt, rank=place.rank))
        for decision in self.drain():
            if isinstance(decision, InstanceStarted):
                attempt = self.core.state.attempt(decision.job, decision.instance, decision.attempt)
                if attempt is None:
                    raise Unexpected(f"the attempt {decision.attempt} of {decision.job} was started and is not there")
                for rank in attempt.tasks:
                    self.tell(TaskStarted(job=decision.job, instance=decision.instance, attempt=decision.attempt, rank=rank))
        self.drain()

    def tell(self, event: TaskReady | TaskStarted | TaskExited) -> None:
        """An agent says this."""
        self.outbox.append((NODES, event, ""))

    def cancel(self, job: str) -> None:
        """A client wants the job to end, and its agents stop it."""
        self.outbox.append((JOBS, JobCancelRequested(job=job, by="bench"), job))
        for decision in self.drain():
            if isinstance(decision, StopOrdered):
                attempt = self.core.state.attempt(decision.job, decision.instance, decision.attempt)
                for rank in attempt.tasks if attempt is not None else ():
                    self.tell(TaskExited(job=decision.job, instance=decision.instance, attempt=decision.attempt, rank=rank))
        self.drain()

    def _message(self, topic: str, event: Event, key: str) -> Message:
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        return Message(f"{topic}/0", offset, encode_entry(event), self.at_us, key)

    def _idle(self) -> bool:
        wake_us = self.core.next_wake_us()
        return wake_us is None or wake_us > self.at_us


class Load:
    """Single-task jobs of the mix that come, run and end, so that a share of the cluster stays full."""

    def __init__(self, cell: Cell, node_count: int, full_percent: int) -> None:
        self.cell = cell
        self.target_milli = node_count * GPUS_A_NODE * 1000 * full_percent // 100
        self.held_milli = 0
        self.submissions = min(INPUTS_A_CYCLE // 4, max(1, node_count // 2))
        """Jobs a cycle; fewer where those under way would be a large part of the cluster."""
        self._asked: dict[str, int] = {}
        self._running: list[tuple[str, int]] = []
        self._bound: list[tuple[str, int]] = []

    def fill(self) -> None:
        """Submit until the share is full."""
        while self.held_milli < self.target_milli:
            self.step()

    def step(self) -> tuple[float, int]:
        """One cycle: jobs come, what was bound becomes ready, what was started runs, and jobs end.

        Returns the seconds it took and how many were bound.
        """
        cell = self.cell
        for job, attempt in self._bound:
            cell.tell(TaskStarted(job=job, instance=0, attempt=attempt, rank=0))
        room = INPUTS_A_CYCLE - len(cell.outbox) - self.submissions
        for job, attempt in islice(self._ending(), max(0, room)):
            cell.tell(TaskExited(job=job, instance=0, attempt=attempt, rank=0))
        self._bound = []
        for _ in range(self.submissions):
            group = cell.mix.draw()
            self._asked[cell.submit(group).job] = asked_milli(group)
        took_s, decisions = cell.cycle(len(cell.outbox))
        bound = 0
        for decision in decisions:
            if isinstance(decision, InstanceBound):
                bound += 1
                self._bound.append((decision.job, decision.attempt))
                self.held_milli += self._asked[decision.job]
            elif isinstance(decision, InstanceStarted):
                self._running.append((decision.job, decision.attempt))
            elif isinstance(decision, AttemptEnded):
                self.held_milli -= self._asked.pop(decision.job)
        return took_s, bound

    def _ending(self) -> Iterable[tuple[str, int]]:
        """Running jobs at random, until the share is full and no more."""
        leaving_milli = 0
        running = self._running
        while running and self.held_milli - leaving_milli > self.target_milli:
            at = self.cell.chance.randrange(len(running))
            running[at], running[-1] = running[-1], running[at]
            job, attempt = running.pop()
            leaving_milli += self._asked[job]
            yield job, attempt


def bound_in(decisions: Sequence[Event]) -> list[InstanceBound]:
    """The bindings among decisions."""
    return [decision for decision in decisions if isinstance(decision, InstanceBound)]
