"""What is counted of a cell, folded from its admitted cycles.

`fold` stands in the way of a leader's every cycle, so it looks at as little as it can: into bindings, ends and preemptions, each
once. The times are the log's, so every fold
of one log comes to the same. `dump` and `load` carry the counts over a restart, beside the snapshot of the same cycle.
"""

from collections.abc import Iterator
from typing import Any, Final, get_args

import msgspec

from muster.cluster.jobs import Job
from muster.cluster.state import State
from muster.events.decisions import AttemptEnded, InstanceBound, InstanceGrown, InstancePreempted, MembersReplaced, Outcome
from muster.events.operations import InputRefused, TargetClass
from muster.events.record import Cycle
from muster.metrics import Histogram, Sample
from muster.metrics.catalogue import METRICS, OTHER, VALUES_MAX
from muster.scheduler.messages import TOPICS

LATENCY: Final = "muster_scheduling_latency_seconds"
MICROS: Final = 1_000_000
LANES_MAX: Final = 4096
"""So many pairs of queue and shape are told apart; what comes later is counted with its queue and size, and not in the mix."""
FADE_US: Final = 86_400 * MICROS
"""At each such boundary of log time the mix of what was bound counts half."""
MILLI: Final = 1000
DEFAULT: Final = "default"
REQUEUES: Final = ("preempted", "node-lost", "member-failed", "start-failed")
SIZES: Final = ((1, "1"), (8, "2-8"), (64, "9-64"), (512, "65-512"))

Class = tuple[int, int, int, tuple[str, ...]]
"""What a task asks for: CPU in thousandths, devices, thousandths of one, models."""


class Lane:
    """The instances of one queue and one shape."""

    __slots__ = ("at_once", "bound", "classes", "histogram", "later", "size")

    def __init__(self, histogram: Histogram, size: str, classes: tuple[tuple[Class, int], ...]) -> None:
        self.histogram = histogram
        """Of its queue and size: several lanes share it."""
        self.size = size
        self.classes = classes
        """What its tasks ask for, each with their number in one instance."""
        self.bound = 0
        """How many instances were bound of late: see `FADE_US`."""
        self.at_once = 0
        """Those that were bound in the cycle that took them, and are not in the histogram yet."""
        self.later = 0
        """The others that are not in `bound` yet."""

    def settle(self) -> None:
        """What was noted since is counted."""
        self.histogram.counts[0] += self.at_once
        self.bound += self.at_once + self.later
        self.at_once = self.later = 0


class _Mix(msgspec.Struct, frozen=True, array_like=True):
    queue: str
    shape: str
    size: str
    bound: int
    classes: tuple[tuple[Class, int], ...]


class _Latency(msgspec.Struct, frozen=True, array_like=True):
    queue: str
    size: str
    counts: list[int]
    total_us: int


class _Dump(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The counts as of a cycle."""

    cell: str
    number: int
    since: int
    bytes: int
    inputs: int
    decisions: int
    terms: int
    leaderless_us: int
    placements: int
    refused: dict[str, int]
    preempted: dict[str, int]
    requeued: dict[str, int]
    ended: dict[str, int]
    latencies: tuple[_Latency, ...]
    mix: tuple[_Mix, ...]
    day: int


class Counts:
    """The counts of one cell."""

    def __init__(self, cell: str, since: int = 0) -> None:
        """They count what comes after cycle `since`."""
        self.cell = cell
        self.since = since
        self.number = since
        """The last cycle that was folded."""
        self.bytes = 0
        self.inputs = 0
        self.decisions = 0
        self.terms = 0
        self.leaderless_us = 0
        self.placements = 0
        # What there was none of is there too: Prometheus sees no increase in what was not there.
        self.refused: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.preempted: dict[str, int] = {DEFAULT: 0}
        self.requeued: dict[str, int] = dict.fromkeys(REQUEUES, 0)
        self.ended: dict[str, int] = dict.fromkeys(get_args(Outcome), 0)
        self._latencies: dict[tuple[str, str], Histogram] = {}
        self._queues: dict[str, None] = {}
        """Those that have a label of their own."""
        self._lanes: dict[str, dict[str, Lane]] = {}
        """By queue and shape."""
        self._lane_count = 0
        self._beyond: dict[Histogram, Lane] = {}
        """For shapes for which there is no room, by the histogram of queue and size."""
        self._day = 0

    def fold(self, state: State, cycle: Cycle, size_bytes: int) -> None:
        """A cycle was admitted and folded into `state`; its record has so many bytes."""
        self.number = cycle.number
        self.bytes += size_bytes
        self.inputs += len(cycle.inputs)
        self.decisions += len(cycle.decisions)
        for event in cycle.inputs:
            if type(event) is InputRefused:
                _count(self.refused, event.source.partition("/")[0])
        if cycle.decisions:
            self._decisions(state, cycle)
        if cycle.started is not None:
            self.terms += 1
            self.leaderless_us += cycle.started.gap_us
        day = cycle.at_us // FADE_US
        if day != self._day:
            self._fade(day)

    def _decisions(self, state: State, cycle: Cycle) -> None:
        """The most frequent kinds first, and each with no more work than it needs."""
        jobs = state.jobs
        at_us = cycle.at_us
        lanes = self._lanes
        placed = finished = 0
        event: Any
        for event in cycle.decisions:
            kind = type(event)
            if kind is InstanceBound:
                placed += len(event.placements)
                if event.attempt == 1:
                    job = jobs[event.job]
                    try:
                        lane = lanes[job.queue][job.gang.digest]
                    except KeyError:
                        lane = self._lane(job)
                    waited_us = at_us - job.submitted_us
                    if waited_us:
                        lane.later += 1
                        lane.histogram.observe(waited_us)
                    else:
                        lane.at_once += 1
            elif kind is AttemptEnded:
                then = event.then
                if then == "finished":
                    finished += 1
                elif then == "pending":
                    _count(self.requeued, event.reason or "unsaid")
                else:
                    self.ended[then] += 1
            elif kind is InstancePreempted:
                _count(self.preempted, jobs[event.job].queue)
            elif kind is MembersReplaced or kind is InstanceGrown:
                placed += len(event.placements)
        self.placements += placed
        self.ended["finished"] += finished

    def targets(self) -> tuple[TargetClass, ...]:
        """What was bound of late as a target workload: the most frequent classes that cover 95 % of the tasks.

        Of two that are equally frequent the larger comes first. Weights are thousandths, so that a little more of the same
        changes nothing. Source: Weng et al., ATC 2023, and the authors' simulator. Cost: the lanes.
        """
        self._settle()
        counts: dict[Class, int] = {}
        for of_queue in self._lanes.values():
            for lane in of_queue.values():
                if lane.bound:
                    for each, count in lane.classes:
                        counts[each] = counts.get(each, 0) + count * lane.bound
        total = sum(counts.values())
        found: list[TargetClass] = []
        covered = 0
        for (cpu_milli, gpus, gpu_milli, models), count in sorted(
            counts.items(), key=lambda item: (item[1], item[0]), reverse=True
        ):
            weight = max(1, MILLI * count // total)
            found.append(TargetClass(cpu_milli=cpu_milli, gpus=gpus, gpu_milli=gpu_milli, gpu_models=models, weight=weight))
            covered += count
            if covered * 100 >= 95 * total or len(found) == VALUES_MAX:
                break
        return tuple(found)

    def samples(self) -> Iterator[Sample]:
        """As metrics. Cost: the labels and the lanes, which are bounded."""
        self._settle()
        yield "muster_measured_from_cycle", (), self.since
        yield "muster_log_cycles_total", (), self.number - self.since
        yield "muster_log_bytes_total", (), self.bytes
        yield "muster_log_entries_total", ("input",), self.inputs
        yield "muster_log_entries_total", ("decision",), self.decisions
        yield "muster_terms_total", (), self.terms
        yield "muster_leaderless_seconds_total", (), self.leaderless_us / MICROS
        yield "muster_placements_total", (), self.placements
        yield from _labelled("muster_inputs_refused_total", self.refused)
        yield from _labelled("muster_preemptions_total", self.preempted)
        yield from _labelled("muster_requeues_total", self.requeued)
        yield from _labelled("muster_attempts_ended_total", self.ended)
        for (queue, size), histogram in self._latencies.items():
            yield LATENCY, (queue, size), histogram.copy()

    def dump(self) -> bytes:
        """The counts, written down."""
        self._settle()
        mix = [
            _Mix(queue, shape, lane.size, lane.bound, lane.classes)
            for queue, of_queue in self._lanes.items()
            for shape, lane in of_queue.items()
        ]
        latencies = [_Latency(queue, size, found.counts, int(found.total)) for (queue, size), found in self._latencies.items()]
        return msgspec.json.encode(
            _Dump(
                cell=self.cell,
                number=self.number,
                since=self.since,
                bytes=self.bytes,
                inputs=self.inputs,
                decisions=self.decisions,
                terms=self.terms,
                leaderless_us=self.leaderless_us,
                placements=self.placements,
                refused=self.refused,
                preempted=self.preempted,
                requeued=self.requeued,
                ended=self.ended,
                latencies=tuple(latencies),
                mix=tuple(mix),
                day=self._day,
            )
        )

    @classmethod
    def load(cls, data: bytes, cell: str, number: int) -> "Counts | None":
        """The counts that were written down at this cycle; None where `data` is not that."""
        try:
            dump = msgspec.json.decode(data, type=_Dump)
        except (msgspec.DecodeError, ValueError):
            return None
        buckets = len(METRICS[LATENCY].buckets) + 1
        if (dump.cell, dump.number) != (cell, number) or any(len(each.counts) != buckets for each in dump.latencies):
            return None
        found = cls(cell, dump.since)
        found.number = dump.number
        found.bytes = dump.bytes
        found.inputs, found.decisions = dump.inputs, dump.decisions
        found.terms, found.leaderless_us, found.placements = dump.terms, dump.leaderless_us, dump.placements
        found.refused, found.preempted, found.requeued, found.ended = dump.refused, dump.preempted, dump.requeued, dump.ended
        found._day = dump.day
        for each in dump.latencies:
            histogram = found._histogram(each.queue, each.size)
            histogram.counts[:] = each.counts
            histogram.total = each.total_us
        for mix in dump.mix:
            found._add(mix.queue, mix.shape, mix.size, mix.classes).bound = mix.bound
        return found

    def _lane(self, job: Job) -> Lane:
        """The lane of a job whose shape is new in its queue."""
        gang = job.gang
        devices, milli = 0, 0
        classes: list[tuple[Class, int]] = []
        for shape, count in zip(gang.shapes, gang.counts, strict=True):
            devices += shape.gpus * count
            milli += count if shape.share else 0
            share = shape.gpu_milli or (MILLI // 2 if shape.share else 0)  # an amount of memory: half a device, about
            classes.append(((shape.cpu_milli, shape.gpus, 0 if shape.gpus else share, shape.gpu_models), count))
        if not devices:
            size = "share" if milli else "none"
        else:
            size = next((name for most, name in SIZES if devices + milli <= most), "513+")
        return self._add(job.queue, gang.digest, size, tuple(classes))

    def _add(self, queue: str, shape: str, size: str, classes: tuple[tuple[Class, int], ...]) -> Lane:
        """A new lane, if there is room for one more; else the one of its queue and size."""
        histogram = self._histogram(queue, size)
        if self._lane_count >= LANES_MAX:
            return self._beyond.setdefault(histogram, Lane(histogram, size, ()))
        self._lane_count += 1
        lane = self._lanes.setdefault(queue, {})[shape] = Lane(histogram, size, classes)
        return lane

    def _settle(self) -> None:
        for of_queue in self._lanes.values():
            for lane in of_queue.values():
                lane.settle()
        for lane in self._beyond.values():
            lane.settle()

    def _histogram(self, queue: str, size: str) -> Histogram:
        found = self._latencies.get((queue, size))
        if found is None:
            if queue not in self._queues:
                if len(self._queues) >= VALUES_MAX and queue != OTHER:
                    return self._histogram(OTHER, size)
                self._queues[queue] = None
            found = self._latencies[queue, size] = Histogram(METRICS[LATENCY].buckets, MICROS)
        return found

    def _fade(self, day: int) -> None:
        """What was bound of late counts half; lanes of which nothing is left are forgotten."""
        self._settle()
        for _ in range(min(day - self._day, 64)):
            for of_queue in self._lanes.values():
                for lane in of_queue.values():
                    lane.bound //= 2
        self._day = day
        lanes = {queue: {shape: lane for shape, lane in of.items() if lane.bound} for queue, of in self._lanes.items()}
        self._lanes = {queue: of for queue, of in lanes.items() if of}
        self._lane_count = sum(len(of) for of in self._lanes.values())


def _count(counts: dict[str, int], label: str) -> None:
    """One more of this label, or of `other` where there are too many already."""
    if label not in counts and len(counts) >= VALUES_MAX:
        label = OTHER
    counts[label] = counts.get(label, 0) + 1


def _labelled(name: str, counts: dict[str, int]) -> Iterator[Sample]:
    for label, count in counts.items():
        yield name, (label,), count
