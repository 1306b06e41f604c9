"""How many jobs and instances each queue has, kept from one admitted cycle to the next.

To count them anew every job has to be looked at, and in the leader's process nobody decides meanwhile. What is kept for it
is the phase of each instance, for as long as the cell knows its job.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from muster.cluster.state import State
from muster.events.decisions import (
    AttemptEnded,
    InstanceBound,
    InstanceEnded,
    InstancePreempted,
    InstanceStarted,
    JobRejected,
    JobsForgotten,
    StopOrdered,
)
from muster.events.jobs import JobSubmitted
from muster.events.record import Cycle
from muster.events.services import ReplicaOpened
from muster.gateway.queues import stands
from muster.gateway.shown import QueueList, QueueShown

MOVING: Final = frozenset((InstanceBound, InstanceStarted, InstancePreempted, StopOrdered, AttemptEnded, InstanceEnded))
"""Of all that is said of an instance only these move it to another phase."""


class QueueCounts:
    """The counts of one cell."""

    __slots__ = ("_jobs", "_known", "_phases")

    def __init__(self, state: State) -> None:
        """From a state that stands at its head."""
        self._jobs: Counter[str] = Counter()
        self._phases: dict[str, Counter[str]] = {}
        self._known: dict[str, tuple[str, list[str]]] = {}
        """Its queue and the phases of its instances, by job."""
        for job in state.jobs:
            self._look(state, job, None)

    def fold(self, state: State, cycle: Cycle) -> None:
        """Take a cycle in; `state` is the one after it."""
        looked: dict[tuple[str, int | None], None] = {}
        found: Any
        for found in cycle.inputs:
            if type(found) is JobSubmitted:
                looked[found.job, None] = None
        for found in cycle.decisions:
            kind = type(found)
            if kind in MOVING:
                looked[found.job, found.instance] = None
            elif kind is JobRejected or kind is ReplicaOpened:
                looked[found.job, None] = None
            elif kind is JobsForgotten:
                for job in found.jobs:
                    self._forget(job)
        for job, instance in looked:
            self._look(state, job, instance)

    def phases(self) -> Iterator[tuple[str, str, int]]:
        """Queue, phase, and how many instances are in it."""
        for queue, phases in self._phases.items():
            for phase, count in phases.items():
                yield queue, phase, count

    def shown(self, state: State) -> QueueList:
        """As `muster.gateway.shown.queue_list` has it; `state` is that of the last cycle."""
        jobs, phases = self._jobs, self._phases
        tree = stands(state)
        names = dict.fromkeys([*tree, *state.policy.queues, *[queue for queue, count in jobs.items() if count]])
        queues = [
            QueueShown(
                queue=queue,
                jobs=jobs[queue],
                instances={phase: count for phase, count in sorted(phases.get(queue, {}).items()) if count},
                tree=tree.get(queue),
            )
            for queue in names
        ]
        return QueueList(cycle=state.number, at_us=state.at_us, queues=tuple(queues))

    def _look(self, state: State, id: str, instance: int | None) -> None:
        """See which phase it is in now; without an instance, all of the job."""
        job = state.jobs.get(id)
        if job is None:
            return
        known = self._known.get(id)
        if known is None:
            phases = [each.phase for each in job.instances]
            self._known[id] = (job.queue, phases)
            self._jobs[job.queue] += 1
            self._phases.setdefault(job.queue, Counter()).update(phases)
            return
        counts, phases = self._phases[known[0]], known[1]
        for one in job.instances[len(phases) :]:  # replicas of a service that came later
            counts[one.phase] += 1
            phases.append(one.phase)
        if instance is not None and instance >= len(phases):
            return  # an input may name one that is not there
        for index in range(len(phases)) if instance is None else (instance,):
            phase = job.instances[index].phase
            if phases[index] != phase:
                counts[phases[index]] -= 1
                counts[phase] += 1
                phases[index] = phase

    def _forget(self, id: str) -> None:
        known = self._known.pop(id, None)
        if known is not None:
            self._jobs[known[0]] -= 1
            self._phases[known[0]].subtract(known[1])
