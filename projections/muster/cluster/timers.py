"""When something is due, by log time.

A timer is `key -> instant`. The instants stand in the objects they belong to; this is the index over them and can be
made anew from the state.
"""

import heapq

TimerKey = tuple[str, str, int]
"""What for, whose (a job's id or a node's name), and which (an instance or a row)."""


class Timers:
    """Instants by key, the earliest first. Setting, cancelling and taking cost O(log n), amortised."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, TimerKey]] = []

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: TimerKey, at_us: int) -> None:
        """Make it due at this instant, whatever it was before."""
        if self._at.get(key) != at_us:
            self._at[key] = at_us
            heapq.heappush(self._heap, (at_us, key))
            if len(self._heap) > 64 and len(self._heap) > 2 * len(self._at):
                self._heap = [(instant, name) for name, instant in self._at.items()]
                heapq.heapify(self._heap)

    def cancel(self, key: TimerKey) -> None:
        """Make it never due."""
        self._at.pop(key, None)

    def get(self, key: TimerKey) -> int | None:
        """The instant, or None."""
        return self._at.get(key)

    def next_us(self) -> int | None:
        """The earliest instant, or None."""
        heap = self._heap
        while heap:
            at_us, key = heap[0]
            if self._at.get(key) == at_us:
                return at_us
            heapq.heappop(heap)
        return None

    def due(self, now_us: int) -> list[TimerKey]:
        """What is due by now, in order of (instant, key). It stays due until it is set or cancelled."""
        found: list[tuple[int, TimerKey]] = []
        heap = self._heap
        while heap and heap[0][0] <= now_us:
            at_us, key = heapq.heappop(heap)
            if self._at.get(key) == at_us:
                found.append((at_us, key))
        for item in found:
            heapq.heappush(heap, item)
        last: tuple[int, TimerKey] | None = None
        keys = []
        for item in found:
            if item != last:  # a timer set back and forth stands twice in the heap
                keys.append(item[1])
            last = item
        return keys

    def items(self) -> list[tuple[TimerKey, int]]:
        """All of them, sorted by key."""
        return sorted(self._at.items())
