"""The cluster and the jobs of `muster bench engine --full`: everything that the default policy decides about, at once.

A tree of 1,000 queues, each with a guarantee; 500 shapes of single tasks and of gangs; very many jobs that wait; and a
cluster that is full, in which what ends is followed at once by somebody who waited.
"""

import heapq
import random
from collections.abc import Iterator

from muster.bench.cell import Cell
from muster.bench.mix import CORDONED_EVERY, GPUS_A_NODE, job_at
from muster.events.base import Event
from muster.events.decisions import AttemptEnded, InstanceBound, InstancePreempted, InstanceStarted
from muster.events.jobs import GroupRequest, JobRequest
from muster.events.nodes import TaskExited, TaskReady, TaskStarted
from muster.events.queues import Amounts, QueueSet
from muster.scheduler.messages import JOBS, OPERATIONS

SHAPES = 500
PARENT_EVERY = 25
"""Of so many queues one stands above the others."""
GUARANTEED_PERCENT = 50
"""What is guaranteed to all queues together, of the cluster."""
GANG_EVERY = 25
"""Of so many shapes one is a gang of several nodes."""

Attempt = tuple[str, int]
"""Job and number."""


def queues(count: int, gpus: int) -> Iterator[QueueSet]:
    """A tree of so many queues on so many GPUs: departments, and teams below them, with unequal guarantees and weights."""
    teams = count - count // PARENT_EVERY
    shares = [weight(number) for number in range(teams)]
    unit = gpus * 1000 * GUARANTEED_PERCENT // 100 // sum(shares)
    number = 0
    for parent in range(count // PARENT_EVERY):
        below = range(number, min(teams, number + PARENT_EVERY - 1))
        number += len(below)
        yield QueueSet(
            queue=f"dept-{parent}",
            guarantee=Amounts(gpu_milli=sum([unit * shares[each] for each in below])),
            weight=1 + parent % 3,
        )
        for each in below:
            yield QueueSet(
                queue=f"team-{each}",
                parent=f"dept-{parent}",
                guarantee=Amounts(gpu_milli=unit * shares[each]),
                weight=shares[each],
            )


def job_in(cell: Cell, group: GroupRequest, queue: str = "default", *, priority: int = 0, limit_us: int = 86_400_000_000) -> str:
    """A client sends a job of this group; its id."""
    event = job_at(cell.at_us, cell.jobs, JobRequest(groups=(group,), priority=priority, time_limit_us=limit_us), queue)
    cell.jobs += 1
    cell.outbox.append((JOBS, event, event.job))
    return event.job


def weight(team: int) -> int:
    """The weight of a team, and its part of what is guaranteed."""
    return 1 + team % 4


def shapes(count: int = SHAPES) -> list[GroupRequest]:
    """So many shapes: one, two, four and eight GPUs, and gangs of two to four whole nodes."""
    found = []
    for kind in range(count):
        cpu = 1000 + 10 * kind
        if kind % GANG_EVERY == GANG_EVERY - 1:
            tasks = (2, 3, 4)[kind // GANG_EVERY % 3]
            found.append(GroupRequest(count=tasks, min=tasks, cpu_milli=cpu, memory_mib=65_536, gpus=GPUS_A_NODE))
        else:
            found.append(GroupRequest(cpu_milli=cpu, memory_mib=8192, gpus=(1, 8, 2, 4, 1, 8, 8)[kind % 7]))
    return found


class FullLoad:
    """Jobs of all shapes and queues, of which very many wait; as many come as start, and what runs ends at random."""

    def __init__(self, cell: Cell, node_count: int, queue_count: int, pending: int, starts: int) -> None:
        self.cell = cell
        self.node_count = node_count
        self.pending = pending
        self.starts = starts
        """So many are to start in a cycle: so many end."""
        self.gpus = (node_count - node_count // CORDONED_EVERY) * GPUS_A_NODE
        self.shapes = shapes()
        self.teams = [f"team-{number}" for number in range(queue_count - queue_count // PARENT_EVERY)]
        self.chance = random.Random(cell.chance.random())
        self.waiting = 0
        self.running: list[Attempt] = []
        self.bound: list[InstanceBound] = []
        self.told: list[Attempt] = []
        """Attempts that were told to stop."""
        self.preempted = 0
        self._ranks: dict[Attempt, int] = {}
        """How many tasks each attempt has."""
        self._gone: dict[Attempt, None] = {}

    def set_queues(self, count: int) -> None:
        """The tree."""
        for event in queues(count, self.gpus):
            self.cell.outbox.append((OPERATIONS, event, event.queue))
        self.cell.drain()

    def fill(self) -> None:
        """Until the cluster is full, with as much for each queue as its weight says, and as many wait as are to."""
        due = [(0, number) for number in range(len(self.teams))]
        left = self.gpus
        while left > 0:
            given, number = heapq.heappop(due)
            shape = self.chance.choice(self.shapes)
            asked = shape.count * shape.gpus
            left -= asked
            heapq.heappush(due, (given + asked * 12 // weight(number), number))
            self._submit(shape, self.teams[number])
            if len(self.cell.outbox) >= 500:
                self._cycle()
        self._cycle()
        while self.waiting < self.pending or self.bound:
            self._come(min(1000, self.pending - self.waiting))
            self._cycle()

    def step(self) -> tuple[float, int]:
        """One cycle: what was bound runs, what was told to stop stops, some end, and as many come as started.

        Returns the seconds it took and how many were bound.
        """
        for attempt in self._ending():
            self._exit(attempt)
        self._come(self.pending - self.waiting)
        return self._cycle()

    def _come(self, count: int) -> None:
        for _ in range(count):
            self._submit(self.chance.choice(self.shapes), self.chance.choice(self.teams))

    def _exit(self, attempt: Attempt) -> None:
        for rank in range(self._ranks.get(attempt, 0)):
            self.cell.tell(TaskExited(job=attempt[0], instance=0, attempt=attempt[1], rank=rank))

    def _submit(self, shape: GroupRequest, queue: str) -> None:
        job_in(self.cell, shape, queue)
        self.waiting += 1

    def _ending(self) -> Iterator[Attempt]:
        running = self.running
        for _ in range(min(self.starts, len(running) - 1)):
            at = self.chance.randrange(len(running))
            running[at], running[-1] = running[-1], running[at]
            attempt = running.pop()
            if attempt not in self._gone:
                yield attempt

    def _cycle(self) -> tuple[float, int]:
        cell = self.cell
        for attempt in self.told:
            self._exit(attempt)
        self.told = []
        for event in self.bound:
            kind = TaskReady if len(event.placements) > 1 else TaskStarted
            for place in event.placements:
                cell.tell(kind(job=event.job, instance=0, attempt=event.attempt, rank=place.rank))
        took_s, decisions = cell.cycle(len(cell.outbox))
        self.bound = []
        for decision in decisions:
            self._take(decision)
        return took_s, len(self.bound)

    def _take(self, decision: Event) -> None:
        if isinstance(decision, InstanceBound):
            self.bound.append(decision)
            self.waiting -= 1
            self._ranks[decision.job, decision.attempt] = len(decision.placements)
        elif isinstance(decision, InstanceStarted):
            attempt = decision.job, decision.attempt
            self.running.append(attempt)
            if self._ranks[attempt] > 1:
                for rank in range(self._ranks[attempt]):
                    self.cell.tell(TaskStarted(job=decision.job, instance=0, attempt=decision.attempt, rank=rank))
        elif isinstance(decision, InstancePreempted):
            self.preempted += 1
            self._gone[decision.job, decision.attempt] = None
            self.told.append((decision.job, decision.attempt))
        elif isinstance(decision, AttemptEnded):
            attempt = decision.job, decision.attempt
            self._gone.pop(attempt, None)
            del self._ranks[attempt]
            if decision.then == "pending":
                self.waiting += 1
