"""The fold: admitted cycles in, rows out. Pure: no clock, no file, no database.

It holds the cell's state, changes it by the one `evolve` there is, notes what each entry touches (`muster.history.marks`) and,
when a cycle is folded, makes the rows of what was touched (`muster.history.making`). So the rows cannot say anything else than
the state did. What rows need and the state does not keep is here, and is small: when a producer made a job, since when a node is
known, for whom an attempt was preempted, when a member was replaced.

A fold can be written down (`encode`) and gone on with (`decode`): the rows that it makes then are the same.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, Self

import msgspec

from muster.cluster import snapshot
from muster.cluster.evolve import HANDLERS, begin_cycle
from muster.cluster.jobs import Attempt, Instance, Job, Task
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.decisions import AttemptEnded
from muster.events.record import Cycle
from muster.history.making import (
    HOLDS,
    WAITS,
    Counts,
    attempt_row,
    counted,
    cycle_row,
    decision_row,
    device_row,
    gpu_milli,
    instance_row,
    job_row,
    node_milli,
    node_row,
    placement_row,
    standing,
    total,
)
from muster.history.marks import AFTER, BEFORE, AttemptKey, Marks, key_of
from muster.history.rows import BY_NAME, DeviceRow, Row, ShareRow

SCHEMA: Final = 1
"""Of what `encode` writes. Goes up with every change of it, and with every change of what rows say."""
MINUTE_US: Final = 60_000_000

Key = tuple[Any, ...]


class FoldError(ValueError):
    """These bytes are no fold that this build goes on with."""


class Changes:
    """Rows by table and key, each the newest of its key."""

    __slots__ = ("tables",)

    def __init__(self) -> None:
        self.tables: dict[str, dict[Key, Row]] = {}

    def add(self, table: str, row: Row) -> None:
        """This row takes the place of the one with its key."""
        rows = self.tables.get(table)
        if rows is None:
            rows = self.tables[table] = {}
        rows[row[: BY_NAME[table].keys]] = row

    def merge(self, later: "Changes") -> None:
        """What the cycles after these changed."""
        for table, rows in later.tables.items():
            mine = self.tables.get(table)
            if mine is None:
                self.tables[table] = rows.copy()
            else:
                mine.update(rows)

    def rows(self, table: str) -> list[Row]:
        """The rows of one table."""
        return list(self.tables.get(table, {}).values())

    def __len__(self) -> int:
        return sum([len(rows) for rows in self.tables.values()])


class Store(Changes):
    """Every row that there is, in memory: the history of a log that no database follows. `tables` are those that it keeps."""

    __slots__ = ("kept",)

    def __init__(self, tables: Iterable[str] | None = None) -> None:
        super().__init__()
        self.kept: Collection[str] = frozenset(BY_NAME if tables is None else tables)

    def take(self, changes: Changes) -> None:
        """Take in what a cycle changed."""
        kept = Changes()
        kept.tables = {table: rows for table, rows in changes.tables.items() if table in self.kept}
        self.merge(kept)

    def in_order(self, table: str) -> Iterator[Row]:
        """The rows of one table by key."""
        rows = self.tables.get(table, {})
        for key in sorted(rows):
            yield rows[key]


class Known(msgspec.Struct, array_like=True):
    """What is known of a node that is there, and that the state does not keep."""

    registered_us: int
    changed_us: int
    liveness: str
    gpu_milli: int
    devices: list[DeviceRow] = []


class Held(msgspec.Struct):
    """What a queue holds now."""

    pending: int = 0
    running: int = 0
    tasks: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0

    def count(self, phase: str, by: int) -> None:
        """So many more instances are in this phase."""
        what = standing(phase)
        if what == WAITS:
            self.pending += by
        elif what == HOLDS:
            self.running += by

    def hold(self, task: Task, by: int) -> None:
        """The task holds its place from now on (1), or no more (-1)."""
        self.tasks += by
        self.cpu_milli += by * task.shape.cpu_milli
        self.memory_mib += by * task.shape.memory_mib
        self.gpu_milli += by * gpu_milli(task)

    def __bool__(self) -> bool:
        return bool(self.pending or self.running or self.tasks)


class _Written(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A fold as bytes."""

    schema: int
    state: bytes
    submitted: dict[str, int]
    nodes: list[tuple[str, int, int, list[int]]]
    """Name, since when it is known, since when it is as it is, the same of its devices."""
    by: list[tuple[str, int, int, str, int]]
    replaced: list[tuple[str, int, int, int, int]]


class Fold:
    """A cell's log, folded into rows."""

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.state = State(cell)
        self.submitted: dict[str, int] = {}
        """When the producer of a job made it, by the producer's clock."""
        self.by: dict[AttemptKey, tuple[str, int]] = {}
        """For whom an attempt is preempted."""
        self.replaced: dict[AttemptKey, dict[int, int]] = {}
        """When members of an attempt were placed anew, by cycle."""
        self._nodes: dict[str, Known] = {}
        self._queues: dict[str, Held] = {}
        self._gpu_milli = 0
        self._counts: dict[str, Counts] = {}
        """Of the arrays that are not over and were looked at."""
        self._marks = Marks()
        self._changes = Changes()

    @property
    def number(self) -> int:
        """The last cycle that was folded."""
        return self.state.number

    def take(self, cycle: Cycle, digest: str, position: int, size: int) -> Changes:
        """Fold the next cycle in; the rows that it adds and changes.

        Args:
            cycle: the cycle after the last one.
            digest: of its record.
            position: where its record stands in the log.
            size: of its record, in bytes.

        Raises:
            BrokenInvariant: it does not follow, or a decision in it cannot be true.
        """
        state = self.state
        changes = self._changes = Changes()
        self._sample(cycle.at_us)
        changes.add("cycles", cycle_row(cycle, digest, position, size))
        begin_cycle(state, cycle.number, cycle.term, cycle.at_us, cycle.started, cycle.positions)
        for event in cycle.inputs:
            self._evolve(event)
        for place, event in enumerate(cycle.decisions):
            changes.add("decisions", decision_row(self.cell, cycle.number, place, cycle.at_us, event))
            self._evolve(event)
        self.flush()
        return changes

    def flush(self) -> None:
        """Make the rows of what is marked, as it is now; what changes after is marked anew."""
        marks = self._marks
        for instance, before in marks.instances.items():
            self._instance(instance, before)
        for task, held in marks.tasks.items():
            self._task(task, held)
        for attempt, ended in marks.attempts.items():
            self._attempt(attempt, ended)
        for job in marks.jobs:
            self._changes.add("jobs", job_row(self.cell, job, self._counts_of(job), self.submitted.get(job.id, 0)))
            if not job.open:
                self._counts.pop(job.id, None)
        for node in marks.nodes:
            self._node(node)
        marks.clear()

    # Going on later

    def encode(self) -> bytes:
        """All that it takes to go on after the last cycle."""
        nodes = [
            (name, known.registered_us, known.changed_us, [device.changed_us for device in known.devices])
            for name, known in sorted(self._nodes.items())
        ]
        by = [(*key, *whom) for key, whom in sorted(self.by.items())]
        replaced = [(*key, number, us) for key, cycles in sorted(self.replaced.items()) for number, us in cycles.items()]
        return msgspec.msgpack.encode(_Written(SCHEMA, snapshot.encode(self.state), self.submitted, nodes, by, replaced))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The fold that was written down.

        Raises:
            FoldError: another build wrote it, or these bytes are none.
        """
        try:
            written = msgspec.msgpack.decode(data, type=_Written)
            if written.schema != SCHEMA:
                raise FoldError(f"a fold of schema {written.schema}, not {SCHEMA}")
            state = snapshot.decode(written.state)
        except (msgspec.MsgspecError, snapshot.SnapshotError) as error:
            raise FoldError(str(error)) from error
        fold = cls(state.cell)
        fold.state = state
        fold.submitted = written.submitted
        fold.by = {(name, index, attempt): (by_job, by_instance) for name, index, attempt, by_job, by_instance in written.by}
        for name, index, attempt, number, at_us in written.replaced:
            fold.replaced.setdefault((name, index, attempt), {})[number] = at_us
        for job in state.jobs.values():
            held = fold._queue(job.queue)
            for instance in job.instances:
                held.count(instance.phase, 1)
                for task in instance.attempt.tasks.values() if instance.attempt is not None else ():
                    if task.holding:
                        held.hold(task, 1)
        for name, registered_us, changed_us, devices_us in written.nodes:
            node = state.node(name)
            if node is None or len(node.devices) != len(devices_us):
                raise FoldError(f"it speaks of a node {name} that its state does not have")
            rows = [device_row(fold.cell, node, index, device, devices_us[index]) for index, device in enumerate(node.devices)]
            fold._nodes[name] = Known(registered_us, changed_us, node.liveness, node_milli(node), rows)
            fold._gpu_milli += node_milli(node)
        return fold

    # Private

    def _evolve(self, event: Event) -> None:
        kind = type(event)
        before = BEFORE.get(kind)
        if before is not None:
            before(self, self._marks, event)
        HANDLERS[kind](self.state, event)
        self.state.index += 1
        after = AFTER.get(kind)
        if after is not None:
            after(self, self._marks, event)

    def _instance(self, instance: Instance, before: str) -> None:
        """An instance that was in the phase `before`; empty where it was not there."""
        job = instance.job if instance.job.service is None else instance.job.service.job
        now = instance.phase
        held = self._queue(job.queue)
        if before:
            held.count(before, -1)
        held.count(now, 1)
        counted = self._counts.get(job.id)
        if not before and counted is not None:  # a replica more
            counted.move(now, 1)
        if before and standing(before) != standing(now):
            self._marks.jobs[job] = None
            counts = self._counts.get(job.id)
            if counts is not None:
                counts.move(before, -1)
                counts.move(now, 1)
        self._changes.add("instances", instance_row(self.cell, instance))

    def _attempt(self, attempt: Attempt, ended: tuple[AttemptEnded, list[Task]] | None) -> None:
        key = key_of(attempt)
        by = self.by.get(key)
        event = None
        tasks = list(attempt.tasks.values())
        if ended is not None:
            event, tasks = ended
            self.by.pop(key, None)
            self.replaced.pop(key, None)
        self._changes.add("attempts", attempt_row(self.cell, attempt, tasks, by, event, self.state.at_us))

    def _task(self, task: Task, held: bool) -> None:
        """A task that held its place before, or did not."""
        attempt = task.attempt
        if held != task.holding:
            self._queue(attempt.instance.job.queue).hold(task, 1 if task.holding else -1)
        placed_us = attempt.bound_us if task.since == attempt.bound_cycle else self.replaced[key_of(attempt)][task.since]
        self._changes.add("placements", placement_row(self.cell, task, placed_us, None if task.holding else self.state.at_us))

    def _node(self, node: Node) -> None:
        at_us = self.state.at_us
        known = self._nodes.get(node.name)
        if known is None:
            known = self._nodes[node.name] = Known(at_us, at_us, node.liveness, 0, [])
        if known.liveness != node.liveness:
            known.liveness = node.liveness
            known.changed_us = at_us
        gone = node.liveness == "removed"
        gpu_milli = 0 if gone else node_milli(node)
        self._gpu_milli += gpu_milli - known.gpu_milli
        known.gpu_milli = gpu_milli
        self._changes.add("nodes", node_row(self.cell, node, known.registered_us, known.changed_us))
        for index, device in enumerate(node.devices):
            before = known.devices[index] if index < len(known.devices) else None
            same = before is not None and before.health == device.health and before.present == device.present
            row = device_row(self.cell, node, index, device, before.changed_us if before is not None and same else at_us)
            if row != before:
                self._changes.add("devices", row)
                known.devices[index : index + 1] = [row]
        if gone:
            del self._nodes[node.name]

    def _counts_of(self, job: Job) -> Counts:
        if len(job.instances) == 1:
            return counted(job)
        counts = self._counts.get(job.id)
        if counts is None:
            counts = self._counts[job.id] = counted(job)
        return counts

    def _queue(self, name: str) -> Held:
        held = self._queues.get(name)
        if held is None:
            held = self._queues[name] = Held()
        return held

    def _sample(self, at_us: int) -> None:
        """What the queues held when the last minute ended before this instant, if one did since the last cycle."""
        state = self.state
        minute = at_us // MINUTE_US
        if not state.number or minute <= state.at_us // MINUTE_US:
            return
        self._queues = {name: held for name, held in self._queues.items() if held}
        for name in sorted({*state.policy.queues, *self._queues}):
            held = self._queues.get(name) or Held()
            self._changes.add(
                "shares",
                ShareRow(
                    self.cell,
                    name,
                    minute * MINUTE_US,
                    held.pending,
                    held.running,
                    held.tasks,
                    total([held.cpu_milli]),
                    total([held.memory_mib]),
                    total([held.gpu_milli]),
                    self._gpu_milli,
                ),
            )
