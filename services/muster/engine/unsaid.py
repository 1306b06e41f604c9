"""The classes of which nothing is recorded, in the order in which they stand: a cache, repaired for those that stirred."""

import heapq
from collections.abc import Iterator

from muster.cluster.jobs import Place
from muster.cluster.queues import PendingClass
from muster.cluster.state import State


class Unsaid:
    """Kept where queues stand in a tree. The heap may hold more than there are, and places earlier than there are."""

    __slots__ = ("_heap", "_number", "_position", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._heap: list[tuple[int, Place, int, PendingClass]] = []
        self._number = 0
        self._position = -1
        """Up to where of `PendingQueue.stirred` this knows."""

    def first(self) -> Iterator[PendingClass]:
        """One after the other, while the one given before is recorded."""
        self._follow()
        heap, deferred = self._heap, self.state.deferred
        while heap:
            _, place, _, waiting = heap[0]
            head = waiting.head() if waiting.count and waiting.named not in deferred else None
            if head is None:
                heapq.heappop(heap)
            elif head.place != place:
                heapq.heapreplace(heap, (-waiting.priority, head.place, self._next(), waiting))
            else:
                yield waiting

    def _follow(self) -> None:
        pending, deferred = self.state.pending, self.state.deferred
        since, self._position = self._position, pending.stirred_base + len(pending.stirred)
        if since < pending.stirred_base or len(self._heap) > 4 * len(pending.classes) + 1024:
            self._heap = []
            for waiting in pending.classes.values():
                if waiting.named not in deferred:
                    self._push(waiting)
            return
        stirred = dict.fromkeys(pending.stirred[since - pending.stirred_base :])
        for waiting in pending.spare.values() if stirred else ():
            if (waiting.queue, waiting.gang.key) in stirred and waiting.named not in deferred:
                self._push(waiting)
        for queue, gang in stirred:
            among = pending.queues[queue].by_gang.get(gang) if queue in pending.queues else None
            for waiting in among.values() if among else ():
                if waiting.named not in deferred:
                    self._push(waiting)

    def _push(self, waiting: PendingClass) -> None:
        head = waiting.head() if waiting.count and waiting.key[-1] is None else None
        if head is not None:
            heapq.heappush(self._heap, (-waiting.priority, head.place, self._next(), waiting))

    def _next(self) -> int:
        self._number += 1
        return self._number
