"""When something is due, by log time.

A timer is `key -> instant`. The instants stand in the objects they belong to; this is the index over them and can be
made anew from the state.

Most timers of one sort are set a fixed span ahead, so that they come in order: each sort has a lane, to whose end they are
put; what would stand out of order goes to a heap.
"""

import heapq
from collections import defaultdict, deque
from typing import Final

TimerKey = tuple[str, str, int]
"""What for, whose (a job's id or a node's name), and which (an instance or a row)."""

Due = tuple[int, TimerKey]

NOTES_MIN: Final = 4096


class Timers:
    """Instants by key, the earliest first. Setting costs O(1) in order and O(log n) out of it, cancelling O(1), amortised."""

    __slots__ = ("_at", "_heap", "_lanes", "_most")

    def __init__(self) -> None:
        self._at: dict[TimerKey, int] = {}
        self._lanes: defaultdict[str, deque[Due]] = defaultdict(deque)
        self._heap: list[Due] = []
        self._most = NOTES_MIN
        """A lane or heap that has more notes than this is tidied: most are of timers that were set anew or cancelled."""

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: TimerKey, at_us: int, lane_name: str = "") -> None:
        """Make it due at this instant, whatever it was before. Those of one lane should come in order."""
        self._at[key] = at_us
        lane = self._lanes[lane_name or key[0]]
        if lane and lane[-1][0] > at_us:
            heapq.heappush(self._heap, (at_us, key))
            if len(self._heap) > self._most:
                self._tidy()
            return
        lane.append((at_us, key))
        if len(lane) > self._most:
            self._tidy()

    def cancel(self, key: TimerKey) -> None:
        """Make it never due."""
        self._at.pop(key, None)

    def get(self, key: TimerKey) -> int | None:
        """The instant, or None."""
        return self._at.get(key)

    def next_us(self) -> int | None:
        """The earliest instant, or None."""
        at = self._at
        soonest: int | None = None
        for lane in self._lanes.values():
            while lane:
                at_us, key = lane[0]
                if at.get(key) == at_us:
                    if soonest is None or at_us < soonest:
                        soonest = at_us
                    break
                lane.popleft()
        heap = self._heap
        while heap:
            at_us, key = heap[0]
            if at.get(key) == at_us:
                return at_us if soonest is None else min(soonest, at_us)
            heapq.heappop(heap)
        return soonest

    def due(self, now_us: int) -> list[TimerKey]:
        """What is due by now, in order of (instant, key). It stays due until it is set or cancelled."""
        at = self._at
        found: dict[Due, None] = {}
        for lane in self._lanes.values():
            for note in lane:
                if note[0] > now_us:
                    break
                if at.get(note[1]) == note[0]:
                    found[note] = None
        taken = []
        heap = self._heap
        while heap and heap[0][0] <= now_us:
            note = heapq.heappop(heap)
            if at.get(note[1]) == note[0]:
                taken.append(note)
                found[note] = None
        for note in taken:
            heapq.heappush(heap, note)
        return [key for _, key in sorted(found)]

    def items(self) -> list[tuple[TimerKey, int]]:
        """All of them, sorted by key."""
        return sorted(self._at.items())

    def _tidy(self) -> None:
        """Drop the notes that no timer stands behind, or that stand twice."""
        at = self._at
        for lane in self._lanes.values():
            kept = dict.fromkeys([note for note in lane if at.get(note[1]) == note[0]])
            lane.clear()
            lane.extend(kept)
        self._heap = list(dict.fromkeys([note for note in self._heap if at.get(note[1]) == note[0]]))
        heapq.heapify(self._heap)
        self._most = max(NOTES_MIN, 3 * len(at))
