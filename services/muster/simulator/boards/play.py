"""Plays a list of jobs on a list of nodes through the real core, in virtual time, into a log. Every board is played by this.

Agents are simulated and take no time: what is bound is ready and starts at that instant, runs as long as the list says, and
exits; what is told to stop exits at once and runs from its beginning when it is bound again. Nothing is late and no node fails,
so beats are so far apart that none falls into a run.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from muster.events.base import Event
from muster.events.codec import encode_entry
from muster.events.decisions import InstanceBound, InstancePreempted, InstanceStarted, JobRejected, StopOrdered
from muster.events.jobs import JobSubmitted
from muster.events.nodes import NodeRegistered, TaskExited, TaskReady
from muster.events.operations import Policy, PolicySet
from muster.log.sqlite import SqliteFile
from muster.scheduler.messages import JOBS, NODES, OPERATIONS
from muster.simulator.openb.run import Recording

SECOND_US = 1_000_000
MESSAGES_A_CYCLE = 2000
CALM_US = 315_576_000 * SECOND_US
"""Ten years."""


class Submission(msgspec.Struct, frozen=True):
    """A job of a list: when it comes, and how long it really runs, 0 for until it is told to stop."""

    at_us: int
    job: JobSubmitted
    runtime_us: int


class Played(msgspec.Struct, kw_only=True):
    """What came of a run. Instants by job: when it was bound first, and when it ended."""

    bound_us: dict[str, int] = {}
    ended_us: dict[str, int] = {}
    preempted: int = 0
    rejected: int = 0
    cycles: int = 0
    decisions: int = 0
    elapsed_s: float = 0.0


class Player:
    """A cell with its nodes and its jobs. `watch` is told every decision with its instant."""

    def __init__(
        self,
        file: SqliteFile,
        policy: Policy,
        queues: Iterable[Event],
        nodes: Sequence[NodeRegistered],
        watch: Callable[[int, Event], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.recording = Recording(file)
        self.played = Played()
        self._watch = watch
        self._clock = clock
        self.now_us = 0
        self._runtimes: dict[str, int] = {}
        self._tasks: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        self._coming: list[tuple[int, int, str, bytes, str, int]] = []
        self._count = 0
        calm = msgspec.structs.replace(
            policy, beat_us=CALM_US, silent_after_us=2 * CALM_US, lease_us=4 * CALM_US, kill_margin_us=0, deferrals_max=0
        )
        self._later(0, OPERATIONS, PolicySet(policy=calm, by="muster scoreboard"))
        for event in queues:
            self._later(0, OPERATIONS, event)
        for node in nodes:
            self._later(0, NODES, node, node.node)
        self.run()

    def submit(self, submissions: Iterable[Submission]) -> None:
        """These jobs come at their instants."""
        for each in submissions:
            self._runtimes[each.job.job] = each.runtime_us
            self._tasks[each.job.job] = sum(group.count for group in each.job.request.groups)
            self._later(each.at_us, JOBS, each.job, each.job.job)

    def register(self, at_us: int, node: NodeRegistered) -> None:
        """This node comes at its instant, in the place of one of its name."""
        self._later(at_us, NODES, node, node.node)

    def run(self, until_us: int | None = None) -> Played:
        """Until nothing comes any more, or this instant is over."""
        began_s = self._clock()
        recording, coming = self.recording, self._coming
        while True:
            wake_us = recording.core.next_wake_us()
            due_us = coming[0][0] if coming else None
            if due_us is None and (wake_us is None or wake_us > self.now_us + CALM_US // 10):
                break
            soonest_us = min([each for each in (wake_us, due_us) if each is not None])
            if until_us is not None and soonest_us > until_us:
                break
            self.now_us = max(self.now_us, soonest_us)
            recording.now_us = self.now_us
            for _ in range(MESSAGES_A_CYCLE):
                if not coming or coming[0][0] > self.now_us:
                    break
                _, _, topic, data, job, attempt = heapq.heappop(coming)
                if not attempt or self._attempts.get(job) == attempt:
                    recording.send(topic, data, job)
            for event in recording.cycle(self.now_us):
                self._answer(event)
                if self._watch is not None:
                    self._watch(self.now_us, event)
        recording.close()
        played = self.played
        played.cycles, played.decisions = recording.cycles, recording.decisions
        played.elapsed_s += self._clock() - began_s
        return played

    def _answer(self, event: Event) -> None:
        now_us, played = self.now_us, self.played
        if isinstance(event, InstanceBound):
            played.bound_us.setdefault(event.job, now_us)
            self._attempts[event.job] = event.attempt
            for place in event.placements:
                self._tell(now_us, TaskReady(job=event.job, instance=0, attempt=event.attempt, rank=place.rank), event)
        elif isinstance(event, InstanceStarted):
            runtime_us = self._runtimes[event.job]
            if runtime_us:
                played.ended_us[event.job] = now_us + runtime_us
                self._exit(now_us + runtime_us, event, 0)
        elif isinstance(event, (StopOrdered, InstancePreempted)):
            played.preempted += isinstance(event, InstancePreempted)
            self._exit(now_us, event, -15)
        elif isinstance(event, JobRejected):
            played.rejected += 1

    def _exit(self, at_us: int, event: InstanceStarted | StopOrdered | InstancePreempted, code: int) -> None:
        for rank in range(self._tasks[event.job]):
            self._tell(at_us, TaskExited(job=event.job, instance=0, attempt=event.attempt, rank=rank, code=code), event)

    def _tell(self, at_us: int, said: Event, about: InstanceBound | InstanceStarted | StopOrdered | InstancePreempted) -> None:
        self._later(at_us, NODES, said, about.job, about.attempt)

    def _later(self, at_us: int, topic: str, event: Event, job: str = "", attempt: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._coming, (at_us, self._count, topic, encode_entry(event), job, attempt))
