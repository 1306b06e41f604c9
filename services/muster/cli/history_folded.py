"""The history of a log that no database follows: folded from its first cycle, in memory. Answers as `history_database` does."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from muster.cli.history_query import DAY_US, JSON_FIELDS, LARGEST_US, Each, Head, Query, Sum, columns, day
from muster.cli.output import UNREADABLE, Failure
from muster.cli.records import admitted
from muster.events.codec import open_envelope
from muster.history.fold import Fold, Store
from muster.history.rows import AttemptRow, InstanceRow, JobRow, PlacementRow

TABLES = ("jobs", "instances", "attempts", "placements")

ATTEMPT_STATES = {"prepare": "starting", "run": "running", "stop": "stopping"}
"""By phase; of an attempt that ended it is what came of it."""


class Line:
    """What there is about one line: its rows, and what hangs below them."""

    def __init__(
        self,
        each: Each,
        job: JobRow,
        instances: list[InstanceRow],
        attempts: list[AttemptRow],
        placements: list[PlacementRow],
        present_us: int,
    ) -> None:
        self.each = each
        self.job = job
        self.instances = instances
        self.attempts = attempts
        self.placements = placements
        self.present_us = present_us

    def value(self, origin: str) -> Any:
        """What stands there: `j.NAME` in the job's row, `i.NAME` in the instance's, `a.NAME` in the attempt's, else a sum."""
        letter, _, name = origin.rpartition(".")
        if not letter:
            return SUMS[origin](self)
        row = {"j": self.job, "i": self.instances[0], "a": self.attempts[0] if self.attempts else None}[letter]
        return getattr(row, name)

    @property
    def telling(self) -> InstanceRow:
        """The instance that says most of its job: the first that failed, else that was cancelled, else the first."""
        return min(self.instances, key=lambda row: (row.state != "failed", row.state != "cancelled", row.instance))


def _state(line: Line) -> str:
    attempt = line.attempts[0]
    state = ATTEMPT_STATES.get(attempt.phase) or attempt.outcome
    return "requeued" if state == "pending" else state


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _bound_us(line: Line) -> int | None:
    return _least(row.bound_us for row in line.attempts)


def _waited_us(line: Line) -> int:
    """Until it first had places, else until it ended, else until now."""
    ended_us = line.job.ended_us if line.each == "job" else line.instances[0].ended_us
    ends = (_bound_us(line), ended_us, line.present_us)
    return next(end for end in ends if end is not None) - line.job.entered_us


def _ran_us(line: Line) -> int:
    ends = [(row.started_us, line.present_us if row.ended_us is None else row.ended_us) for row in line.attempts]
    return sum(end - start for start, end in ends if start is not None)


def _held(line: Line, name: str) -> int:
    return sum(
        getattr(row, name) * ((line.present_us if row.released_us is None else row.released_us) - row.placed_us)
        for row in line.placements
    )


SUMS: dict[str, Callable[[Line], Any]] = {
    "state": _state,
    "attempts": lambda line: len(line.attempts),
    "preemptions": lambda line: sum(row.stop_reason == "preempted" for row in line.attempts),
    "bound_us": _bound_us,
    "started_us": lambda line: _least(row.started_us for row in line.attempts),
    "waited_us": _waited_us,
    "ran_us": _ran_us,
    "gpu_ns": lambda line: _held(line, "gpu_milli"),
    "cpu_ns": lambda line: _held(line, "cpu_milli"),
    "nodes": lambda line: sorted({row.node for row in line.placements}),
    "code": lambda line: line.telling.code,
    "reason": lambda line: line.job.reason or line.telling.reason,
}
"""What stands in no row by itself."""


class Folded:
    """The rows of a log, as `Source` has them."""

    def __init__(self, store: Store, head: Head) -> None:
        self._head = head
        self._jobs: list[Any] = list(store.in_order("jobs"))
        self._instances = _grouped(store.in_order("instances"), 2)
        self._attempts = _grouped(store.in_order("attempts"), 2)
        self._placements = _grouped(store.in_order("placements"), 2)

    @classmethod
    def of(cls, log: str, cell: str | None) -> "Folded":
        """Fold this log, with a progress bar.

        Raises:
            LogError: it cannot be read.
        """
        store = Store(TABLES)
        fold: Fold | None = None
        for envelope, data in admitted(log, cell):
            if fold is None:
                fold = Fold(envelope.cell)
            # Digest and position stand in the rows of cycles alone, which nobody asks for here.
            store.take(fold.take(open_envelope(envelope), "", 0, len(data)))
        if fold is None:
            raise Failure(f"the log {log} is empty: nothing has happened yet", UNREADABLE)
        return cls(store, Head(fold.cell, fold.number, fold.state.at_us))

    def head(self) -> Head:
        """How far it goes."""
        return self._head

    def lines(self, query: Query) -> list[dict[str, Any]]:
        """See `Source.lines`."""
        origins = {column.field: column.origin[query.each] for column in columns(query.each)}
        found = [line for line in self._lines(query.each) if self._fits(line, query)]
        found.sort(key=lambda line: [line.value(origin) for origin in KEYS[query.each]])
        for field, backwards in reversed(query.sort):
            known = [line for line in found if line.value(origins[field]) is not None]
            unknown = [line for line in found if line.value(origins[field]) is None]
            known.sort(key=lambda line: line.value(origins[field]), reverse=backwards)
            found = known + unknown
        if query.limit:
            found = found[: query.limit + 1]
        return [{field: decoded(field, line.value(origins[field])) for field in query.fields} for line in found]

    def sums(self, query: Query, by: tuple[str, ...]) -> list[Sum]:
        """See `Source.sums`."""
        groups: dict[tuple[str, ...], tuple[set[Any], set[Any], list[int]]] = defaultdict(lambda: (set(), set(), [0, 0]))
        since_us, until_us = query.since_us or 0, LARGEST_US if query.until_us is None else query.until_us
        for line in self._lines("job"):
            if not _is_wanted(line, query, line.job.state):
                continue
            for row in line.placements:
                if query.nodes and row.node not in query.nodes:
                    continue
                released_us = self._head.at_us if row.released_us is None else row.released_us
                start_us, end_us = max(row.placed_us, since_us), min(released_us, until_us)
                for number, held_us in _days(start_us, end_us) if "day" in by else _whole(start_us, end_us):
                    jobs, attempts, held = groups[tuple(_key(name, line.job, row, number) for name in by)]
                    jobs.add(row.job)
                    attempts.add((row.job, row.instance, row.attempt))
                    held[0] += row.gpu_milli * held_us
                    held[1] += row.cpu_milli * held_us
        return [
            Sum(by=dict(zip(by, key, strict=True)), jobs=len(jobs), attempts=len(attempts), gpu_ns=held[0], cpu_ns=held[1])
            for key, (jobs, attempts, held) in groups.items()
        ]

    def _lines(self, each: Each) -> Iterator[Line]:
        for job in self._jobs:
            instances, attempts, placements = (
                table.get((job.cell, job.job), []) for table in (self._instances, self._attempts, self._placements)
            )
            if each == "job":
                yield Line(each, job, instances, attempts, placements, self._head.at_us)
                continue
            attempts_of, placements_of = _grouped(attempts, 3), _grouped(placements, 3 if each == "instance" else 4)
            for instance in instances:
                own = attempts_of.get(instance[:3], [])
                if each == "instance":
                    yield Line(each, job, [instance], own, placements_of.get(instance[:3], []), self._head.at_us)
                    continue
                for attempt in own:
                    yield Line(each, job, [instance], [attempt], placements_of.get(attempt[:4], []), self._head.at_us)

    def _fits(self, line: Line, query: Query) -> bool:
        each = query.each
        state = _state(line) if each == "attempt" else line.instances[0].state if each == "instance" else line.job.state
        if not _is_wanted(line, query, state):
            return False
        if query.nodes and not any(row.node in query.nodes for row in line.placements):
            return False
        began_us = line.attempts[0].bound_us if each == "attempt" else line.job.entered_us
        ended_us = (line.attempts[0] if each == "attempt" else line.instances[0] if each == "instance" else line.job).ended_us
        if query.until_us is not None and began_us >= query.until_us:
            return False
        since_us = query.since_us
        return since_us is None or ended_us is None or ended_us > since_us or began_us >= since_us


KEYS: dict[Each, tuple[str, ...]] = {
    "job": ("j.job",),
    "instance": ("j.job", "i.instance"),
    "attempt": ("j.job", "a.instance", "a.attempt"),
}
"""What makes every order total."""


def decoded(field: str, value: Any) -> Any:
    """A value as it is shown in JSON; objects by their keys."""
    if field not in JSON_FIELDS:
        return value
    read = msgspec.json.decode(value)
    return dict(sorted(read.items())) if isinstance(read, dict) else read


def _is_wanted(line: Line, query: Query, state: str) -> bool:
    """Whether the filters let it through that ask what it is."""
    job = line.job
    wanted = (
        (query.users, job.user_name),
        (query.queues, job.queue),
        (query.names, job.name),
        (query.states, state),
    )
    if any(values and value not in values for values, value in wanted):
        return False
    if query.ids:
        return job.job in query.ids
    return not query.beginnings or job.job.startswith(query.beginnings)


def _grouped(rows: Iterable[Any], keys: int) -> dict[tuple[Any, ...], list[Any]]:
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(row[:keys]), []).append(row)
    return groups


def _key(name: str, job: JobRow, row: PlacementRow, number: int) -> str:
    """What it is counted under."""
    if name == "day":
        return day(number * DAY_US)
    kinds = {
        "user": job.user_name,
        "queue": job.queue,
        "name": job.name,
        "job": job.job,
        "model": row.gpu_model,
        "node": row.node,
    }
    return kinds[name]


def _whole(start_us: int, end_us: int) -> Iterator[tuple[int, int]]:
    if end_us > start_us:
        yield 0, end_us - start_us


def _days(start_us: int, end_us: int) -> Iterator[tuple[int, int]]:
    """The number of each day, and how much of it."""
    if end_us <= start_us:
        return
    for number in range(start_us // DAY_US, (end_us - 1) // DAY_US + 1):
        yield number, min(end_us, (number + 1) * DAY_US) - max(start_us, number * DAY_US)
