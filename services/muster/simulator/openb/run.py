"""Plays the openb trace through the real core in virtual time, into a log: as it happened, or by the published protocol.

Agents are simulated: a bound task is ready a second later, runs as long as it did in the trace, and exits. They send
entries, as a gateway does after comparing reports. Records go to the file many in one transaction, which changes
durability and nothing else: in virtual time nobody acts on a record before the run is over.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from muster.events.base import Event
from muster.events.codec import decode_entry, decode_envelope, encode, encode_entry
from muster.events.decisions import (
    AttemptEnded,
    InstanceBound,
    InstanceEnded,
    InstancePreempted,
    InstanceStarted,
    JobRejected,
    StopOrdered,
)
from muster.events.jobs import JobCancelRequested
from muster.events.levels import NodeReport
from muster.events.nodes import TaskExited, TaskReady, TaskStarted
from muster.events.operations import Policy, PolicySet
from muster.log.sqlite import SqliteFile
from muster.scheduler.core import Core
from muster.scheduler.messages import JOBS, NODES, OPERATIONS, Message
from muster.simulator.openb.loader import WHOLE_MILLI, Node, Pod, job_id, job_submitted, node_registered
from muster.simulator.openb.protocol import TASKS_MAX, Curve

Progress = Callable[[int], None]
"""Called with how many pods have arrived so far."""

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
TICK_US = 60 * SECOND_US
"""What happens within one tick is told at its end: the trace spans 150 days."""
READY_US = SECOND_US
ARRIVALS_A_CYCLE = 100
"""Nobody departs and each pod is decided before the next, so that a cycle may take many arrivals and decide the same."""
MESSAGES_A_CYCLE = 2000
RECORDS_A_TRANSACTION = 256


class Summary(msgspec.Struct, kw_only=True):
    """What came of a run. `allocated_milli` is what is held at its end, in thousandths of a GPU."""

    nodes: int
    gpus: int
    pods: int
    bound: int = 0
    pending: int = 0
    dropped: int = 0
    rejected: int = 0
    ended: int = 0
    allocated_milli: int = 0
    peak_milli: int = 0
    cycles: int = 0
    inputs: int = 0
    decisions: int = 0
    elapsed_s: float = 0.0
    virtual_s: int = 0


class Recording:
    """A core whose records go to a log file."""

    def __init__(self, file: SqliteFile) -> None:
        self.core = Core(file.path.stem)
        self.cycles = 0
        self.inputs = 0
        self.decisions = 0
        self.now_us = 0
        self._file = file
        self._unwritten: list[bytes] = []
        self._offsets: dict[str, int] = {}
        self._write(self.core.start_term(0, "0" * 32, "virtual", "simulate", 0))

    def send(self, topic: str, data: bytes, key: str = "") -> None:
        """A message arrives now."""
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        self.core.offer(Message(f"{topic}/0", offset, data, self.now_us, key))

    def tell(self, event: Event, job: str = "") -> None:
        """An input arrives now, on the topic where its kind belongs."""
        topic = OPERATIONS if isinstance(event, PolicySet) else JOBS if isinstance(event, JobCancelRequested) else NODES
        self.send(topic, encode_entry(event), job)

    def cycle(self, at_us: int) -> list[Event]:
        """One cycle at this instant; its decisions."""
        self.now_us = at_us
        data = self.core.cycle(at_us)
        if data is None:
            return []
        self._write(data)
        envelope = decode_envelope(data)
        self.cycles += 1
        self.inputs += len(envelope.inputs)
        self.decisions += len(envelope.decisions)
        return [decode_entry(raw) for raw in envelope.decisions]

    def close(self) -> None:
        """Write what is not written yet."""
        self._file.append_many(self._unwritten)
        self._unwritten = []

    def _write(self, data: bytes) -> None:
        self.core.read_back(data)
        self._unwritten.append(data)
        if len(self._unwritten) >= RECORDS_A_TRANSACTION:
            self.close()


def replay(nodes: Sequence[Node], pods: Sequence[Pod], policy: Policy, file: SqliteFile, progress: Progress) -> Summary:
    """The trace as it happened: each pod is submitted when it was created and runs as long as it ran there.

    The run ends where the trace ends: what it deletes at its last instant is still running then.
    Every pod has times (`muster.simulator.openb.loader.check_times`).
    """
    began_s = time.perf_counter()
    calm = msgspec.structs.replace(policy, beat_us=7 * DAY_US, silent_after_us=15 * DAY_US, lease_us=30 * DAY_US)
    recording = Recording(file)
    summary = Summary(nodes=len(nodes), gpus=sum(node.gpus for node in nodes), pods=len(pods))
    _register(recording, nodes, calm, tasks_max=1000)
    _Trace(recording, nodes, pods, summary).play(progress)
    return _closed(recording, summary, began_s)


def follow_protocol(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    arrivals: Sequence[int],
    ranks: dict[str, int],
    policy: Policy,
    file: SqliteFile,
    progress: Progress,
) -> tuple[Summary, Curve]:
    """The published protocol: arrivals in the given order, no departures, no retries.

    Nodes register in the order of their rank, so that the lowest rank has the lowest row, which wins a tie.
    """
    began_s = time.perf_counter()
    recording = Recording(file)
    gpus = sum(node.gpus for node in nodes)
    summary = Summary(nodes=len(nodes), gpus=gpus, pods=len(arrivals))
    curve = Curve(gpus * WHOLE_MILLI)
    _register(recording, sorted(nodes, key=lambda node: ranks[node.name]), policy, TASKS_MAX)
    remaining = iter(enumerate(arrivals))
    dropped: list[str] = []
    at_us = recording.now_us
    while chunk := list(islice(remaining, ARRIVALS_A_CYCLE)):
        at_us += 1000
        recording.now_us = at_us
        for job in dropped:
            recording.tell(JobCancelRequested(job=job, by="the protocol drops what fits nowhere"), job)
        jobs = [(job_id(at_us, number), pods[pod]) for number, pod in chunk]
        for job, pod in jobs:
            recording.send(JOBS, encode_entry(job_submitted(pod, job, at_us)), job)
        bound = {event.job: None for event in _settle(recording, at_us) if isinstance(event, InstanceBound)}
        dropped = [job for job, _ in jobs if job not in bound]
        for job, pod in jobs:
            curve.add(pod.asked_milli, job in bound)
        summary.bound += len(bound)
        summary.dropped += len(dropped)
        progress(summary.bound + summary.dropped)
    for job in dropped:
        recording.tell(JobCancelRequested(job=job, by="the protocol drops what fits nowhere"), job)
    _settle(recording, at_us)
    summary.allocated_milli = summary.peak_milli = curve.allocated_milli
    return _closed(recording, summary, began_s), curve


class _Trace:
    """The trace's events in time, and the agents' answers to what is decided."""

    def __init__(self, recording: Recording, nodes: Sequence[Node], pods: Sequence[Pod], summary: Summary) -> None:
        self._recording = recording
        self._nodes = nodes
        self._summary = summary
        self._pods: dict[str, Pod] = {}
        self._waiting: dict[str, None] = {}
        self._held: dict[str, None] = {}
        self._order = 0
        self._coming: list[tuple[int, int, str, bytes, str]] = []
        self._reports = 0
        self._arrived = 0
        self._end_us = max(pod.deleted_s or 0 for pod in pods) * SECOND_US
        for number, pod in enumerate(pods):
            at_us = (pod.created_s or 0) * SECOND_US
            job = job_id(at_us, number)
            self._pods[job] = pod
            self._later(at_us, JOBS, encode_entry(job_submitted(pod, job, at_us)), job)

    def play(self, progress: Progress) -> None:
        """From the first creation to the last deletion."""
        recording, coming = self._recording, self._coming
        while True:
            wake_us = recording.core.next_wake_us()
            due_us = coming[0][0] if coming else None
            soonest_us = min((time for time in (wake_us, due_us) if time is not None), default=self._end_us)
            if soonest_us >= self._end_us:
                break
            tick_us = -(-soonest_us // TICK_US) * TICK_US
            at_us = max(recording.now_us, min(tick_us, self._end_us - 1))
            recording.now_us = at_us
            beat_us = recording.core.recorder.beats.due_us(recording.core.state)
            if beat_us is not None and beat_us <= at_us:
                self._report()
            for _ in range(MESSAGES_A_CYCLE):
                if not coming or coming[0][0] > at_us:
                    break
                _, _, topic, data, job = heapq.heappop(coming)
                if topic == JOBS:
                    self._arrived += 1
                    self._waiting[job] = None
                recording.send(topic, data, job)
            for event in recording.cycle(at_us):
                self._answer(event, at_us)
            progress(self._arrived)
        self._summary.virtual_s = self._end_us // SECOND_US
        self._summary.pending = len(self._waiting)

    def _answer(self, event: Event, at_us: int) -> None:
        """What the agents do about a decision, and what it changes in the summary."""
        summary = self._summary
        if isinstance(event, InstanceBound):
            del self._waiting[event.job]
            self._held[event.job] = None
            summary.bound += 1
            summary.allocated_milli += self._pods[event.job].asked_milli
            summary.peak_milli = max(summary.peak_milli, summary.allocated_milli)
            self._tell(at_us + READY_US, TaskReady(job=event.job, instance=0, attempt=event.attempt, rank=0), event.job)
        elif isinstance(event, InstanceStarted):
            end_us = at_us + self._pods[event.job].duration_us
            self._tell(at_us, TaskStarted(job=event.job, instance=0, attempt=event.attempt, rank=0), event.job)
            self._tell(end_us, TaskExited(job=event.job, instance=0, attempt=event.attempt, rank=0), event.job)
        elif isinstance(event, (StopOrdered, InstancePreempted)):
            self._tell(at_us, TaskExited(job=event.job, instance=0, attempt=event.attempt, rank=0, code=-15), event.job)
        elif isinstance(event, AttemptEnded):
            del self._held[event.job]
            summary.allocated_milli -= self._pods[event.job].asked_milli
            if event.then == "pending":
                self._waiting[event.job] = None
            else:
                summary.ended += 1
        elif isinstance(event, (JobRejected, InstanceEnded)):
            self._waiting.pop(event.job, None)
            summary.rejected += 1

    def _report(self) -> None:
        """Every agent reports before a beat, so that no node is held to be silent."""
        self._reports += 1
        for node in self._nodes:
            report = NodeReport(node=node.name, uid=f"{node.name}-uid", boot="boot-1", sequence=self._reports)
            self._recording.send(NODES, encode(report), node.name)

    def _tell(self, at_us: int, event: Event, job: str) -> None:
        self._later(at_us, NODES, encode_entry(event), job)

    def _later(self, at_us: int, topic: str, data: bytes, job: str) -> None:
        self._order += 1
        heapq.heappush(self._coming, (at_us, self._order, topic, data, job))


def _register(recording: Recording, nodes: Sequence[Node], policy: Policy, tasks_max: int) -> None:
    recording.tell(PolicySet(policy=policy, by="muster simulate openb"))
    for node in nodes:
        recording.tell(node_registered(node, tasks_max), node.name)
    _settle(recording, recording.now_us)


def _settle(recording: Recording, at_us: int) -> list[Event]:
    """Cycles at one instant until everything that was sent is taken and everything due is decided; their decisions."""
    decisions: list[Event] = []
    while True:
        cycles = recording.cycles
        decisions.extend(recording.cycle(at_us))
        if recording.cycles == cycles:
            return decisions


def _closed(recording: Recording, summary: Summary, began_s: float) -> Summary:
    recording.close()
    summary.cycles = recording.cycles
    summary.inputs = recording.inputs
    summary.decisions = recording.decisions
    summary.elapsed_s = time.perf_counter() - began_s
    return summary
