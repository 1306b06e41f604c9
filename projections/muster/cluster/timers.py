"""When something is due, by log time.

The instants stand in the objects they belong to; this is the index over them and can be made anew from the state.

Each sort has a lane of its own. Most timers of one sort are set a fixed span ahead, so that they come in order: those
stand in the order in which they were set, and what would stand out of order goes to a heap.
"""

import heapq
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from muster.cluster.jobs import Instance, Job
from muster.cluster.nodes import Node

TimerKey = tuple[str, str, int]
"""What for, whose (a job's id or a node's name), and which (an instance or a row)."""

NOTES_MIN: Final = 4096

Owner = TypeVar("Owner")


class Lane(Generic[Owner]):
    """The timers of one sort. Setting costs O(1) in order and O(log n) out of it, cancelling O(1), amortised."""

    __slots__ = ("_first", "_heap", "_key", "_late", "_noted", "_notes", "_sorted", "last_us")

    def __init__(self, key: Callable[[Owner], TimerKey]) -> None:
        self._key = key
        self.last_us = 0
        """The latest instant that stands in order."""
        self._sorted: dict[Owner, int] = {}
        self._first: Owner | None = None
        """The first of these, if it is still there: a dict from whose front much was taken is slow to say it."""
        self._late: dict[Owner, int] = {}
        """Those that stand out of order."""
        self._heap: list[tuple[int, TimerKey, int, Owner]] = []
        """Notes of these, numbered, and of what was set anew or cancelled since."""
        self._noted = 0
        self._notes = NOTES_MIN
        """With more notes than this the heap is tidied."""

    def __len__(self) -> int:
        return len(self._sorted) + len(self._late)

    @property
    def notes(self) -> int:
        """How many notes the heap holds."""
        return len(self._heap)

    def set(self, owner: Owner, at_us: int) -> None:
        """Make it due at this instant, whatever it was before."""
        self.cancel(owner)
        self.set_first(owner, at_us)

    def set_first(self, owner: Owner, at_us: int) -> None:
        """The same for one that is not set."""
        if at_us >= self.last_us or not self._sorted:
            self.last_us = at_us
            self._sorted[owner] = at_us
            return
        self._late[owner] = at_us
        self._noted += 1
        heapq.heappush(self._heap, (at_us, self._key(owner), self._noted, owner))
        if len(self._heap) > self._notes:
            self._tidy()

    def cancel(self, owner: Owner) -> None:
        """Make it never due."""
        if owner in self._sorted:
            del self._sorted[owner]
            if owner == self._first:
                self._first = None
        elif self._late:
            self._late.pop(owner, None)

    def get(self, owner: Owner) -> int | None:
        """The instant, or None."""
        at_us = self._sorted.get(owner)
        return at_us if at_us is not None else self._late.get(owner)

    def next_us(self) -> int | None:
        """The earliest instant, or None."""
        soonest = self._first_us()
        heap = self._heap
        while heap:
            at_us, _, _, owner = heap[0]
            if self._late.get(owner) == at_us:
                return at_us if soonest is None or at_us < soonest else soonest
            heapq.heappop(heap)
        return soonest

    def _first_us(self) -> int | None:
        in_order = self._sorted
        if not in_order:
            return None
        first = self._first
        if first is None or first not in in_order:
            first = self._first = next(iter(in_order))
        return in_order[first]

    def due(self, now_us: int) -> list[tuple[int, TimerKey, Owner]]:
        """What is due by now, in no order. It stays due until it is set or cancelled."""
        found = []
        first_us = self._first_us()
        for owner, at_us in self._sorted.items() if first_us is not None and first_us <= now_us else ():
            if at_us > now_us:
                break
            found.append((at_us, self._key(owner), owner))
        heap = self._heap
        late: dict[Owner, tuple[int, TimerKey, int, Owner]] = {}
        while heap and heap[0][0] <= now_us:
            note = heapq.heappop(heap)
            if self._late.get(note[3]) == note[0]:
                late[note[3]] = note
        for note in late.values():
            heapq.heappush(heap, note)
            found.append((note[0], note[1], note[3]))
        return found

    def items(self) -> list[tuple[TimerKey, int]]:
        """All of them, in no order."""
        return [(self._key(owner), at_us) for each in (self._sorted, self._late) for owner, at_us in each.items()]

    def _tidy(self) -> None:
        """Drop the notes that no timer stands behind, or that stand twice."""
        self._heap = [(at_us, self._key(owner), 0, owner) for owner, at_us in self._late.items()]
        heapq.heapify(self._heap)
        self._notes = max(NOTES_MIN, 3 * len(self._late))


class Timers:
    """All timers of a state."""

    __slots__ = (
        "backoff",
        "dependency",
        "evict",
        "forget",
        "immune",
        "lanes",
        "limit",
        "metric",
        "node",
        "nomination",
        "plan",
        "ready",
        "reservation",
        "settle",
    )

    def __init__(self) -> None:
        self.ready: Lane[Instance] = Lane(lambda instance: ("attempt", *instance.key))
        """Until when all members have to be ready."""
        self.limit: Lane[Instance] = Lane(lambda instance: ("attempt", *instance.key))
        """When what runs needs a decision although nobody reports anything."""
        self.backoff: Lane[Instance] = Lane(lambda instance: ("backoff", *instance.key))
        self.immune: Lane[Instance] = Lane(lambda instance: ("immune", *instance.key))
        self.evict: Lane[Instance] = Lane(lambda instance: ("evict", *instance.key))
        """When a taint has been put up with for long enough."""
        self.forget: Lane[Job] = Lane(lambda job: ("forget", job.id, 0))
        self.dependency: Lane[Job] = Lane(lambda job: ("dependency", job.id, 0))
        """When a job for which it waits, and which is not known, can come no more."""
        self.node: Lane[Node] = Lane(lambda node: ("node", node.name, node.row))
        self.nomination: Lane[tuple[str, int]] = Lane(lambda key: ("nomination", *key))
        self.plan: Lane[tuple[str, int]] = Lane(lambda key: ("plan", *key))
        self.reservation: Lane[str] = Lane(lambda name: ("reservation", name, 0))
        """When a window of it begins or ends."""
        self.settle: Lane[Instance] = Lane(lambda instance: ("settle", *instance.key))
        """When a replica of a service has run for long enough."""
        self.metric: Lane[Job] = Lane(lambda job: ("metric", job.id, 0))
        """When what the metric of a service asked for is long ago."""
        self.lanes: tuple[Lane[Any], ...] = (
            self.ready,
            self.limit,
            self.backoff,
            self.immune,
            self.evict,
            self.forget,
            self.dependency,
            self.node,
            self.nomination,
            self.plan,
            self.reservation,
            self.settle,
            self.metric,
        )

    def next_us(self) -> int | None:
        """The earliest instant, or None."""
        soonest: int | None = None
        for lane in self.lanes:
            at_us = lane.next_us()
            if at_us is not None and (soonest is None or at_us < soonest):
                soonest = at_us
        return soonest

    def due(self, now_us: int) -> list[tuple[TimerKey, Any]]:
        """What is due by now and whose it is, in order of (instant, key). It stays due until it is set or cancelled."""
        found: list[tuple[int, TimerKey, Any]] = []
        for lane in self.lanes:
            found += lane.due(now_us)
        found.sort(key=_instant_and_key)
        return [(key, owner) for _, key, owner in found]

    def items(self) -> list[tuple[TimerKey, int]]:
        """All of them, sorted by key."""
        return sorted([item for lane in self.lanes for item in lane.items()])


def _instant_and_key(due: tuple[int, TimerKey, Any]) -> tuple[int, TimerKey]:
    return due[:2]
