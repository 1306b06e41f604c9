"""The cell's figures as a gateway shows them: what was counted, and what stands, looked up a bounded piece at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Protocol

from muster.cluster.state import State
from muster.engine.deadline import outcome
from muster.engine.shares import ONE, share
from muster.measures.book import Book
from muster.measures.nodes import NodeBook
from muster.metrics import Sample
from muster.metrics.catalogue import OTHER, VALUES_MAX

AIM_US: Final = 60_000_000
"""At each such boundary of log time the target workload is taken anew."""
CLASSES_MAX: Final = 10_000
"""So many classes of equal instances are asked why they wait; those of further ones count as `other`."""


class Read(Protocol):
    """`muster.gateway.live.Live.read`: what the function makes of a state that has happened."""

    def __call__(self, look: Callable[[State], bool], /) -> Awaitable[bool]: ...


class CellMeasures:
    """One cell's figures."""

    def __init__(self, book: Book, read: Read, phases: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        """`phases` gives queue, phase and how many instances are in it, of all the cell knows."""
        self.book = book
        self.nodes = NodeBook()
        self._read = read
        self._phases = phases
        self._queues: dict[str, tuple[float, int]] = {}
        """What part of the whole each is promised, and its weight."""
        self._pending: dict[tuple[str, str], int] = {}
        self._instances: dict[tuple[str, str], int] = {}
        self._deadlines: dict[str, int] = {}
        """How many jobs with a deadline kept it, missed it, or have it ahead."""
        self._minute = -1

    async def refresh(self) -> None:
        """Look at what has changed. Between two pieces whoever else waits for this process goes first."""
        more = await self._read(self._look)
        while more:
            await asyncio.sleep(0)
            more = await self._read(self.nodes.advance)

    def samples(self) -> Iterator[Sample]:
        """All of it, as of the last `refresh`."""
        yield from self.book.counts.samples()
        yield from self.nodes.samples(self._queues)
        for key, count in self._instances.items():
            yield "muster_instances", key, count
        for became, count in self._deadlines.items():
            yield "muster_deadlines", (became,), count
        for key, count in self._pending.items():
            yield "muster_pending_instances", key, count

    def _look(self, state: State) -> bool:
        """Everything but the nodes, and which of these have changed."""
        self._queues = _queues(state)
        minute = state.at_us // AIM_US
        if minute != self._minute:
            self._minute = minute
            self.nodes.aim(state.policy.targets or self.book.counts.targets())
        self.nodes.notice(state)
        self._instances = {}
        waiting: dict[str, int] = {}
        for queue, phase, count in self._phases():
            queue = self._label(queue, waiting)
            self._instances[queue, phase] = self._instances.get((queue, phase), 0) + count
            if phase == "pending":
                waiting[queue] = waiting.get(queue, 0) + count
        self._count_pending(state, waiting)
        self._deadlines = {"met": 0, "missed": 0, "ahead": 0}
        for job in state.dated:
            self._deadlines[outcome(job, state.at_us)] += 1
        return True

    def _count_pending(self, state: State, waiting: dict[str, int]) -> None:
        """Who waits, by queue and leading reason. Cost: the classes that wait, and `CLASSES_MAX` at most."""
        pending: dict[tuple[str, str], int] = {}
        deferred = state.deferred
        asked = 0
        for each in state.pending.classes.values():
            if each.count:
                if asked == CLASSES_MAX:
                    break
                asked += 1
                alone = each.key[-1]
                if alone is None:
                    reason = deferred.get((each.queue, each.gang.digest), "unsaid")
                else:
                    reason = "nominated" if alone in state.nominations else "planned"
                key = (each.queue if each.queue in waiting else OTHER, reason)
                pending[key] = pending.get(key, 0) + each.count
                waiting[key[0]] = waiting.get(key[0], 0) - each.count
        rest = OTHER if asked == CLASSES_MAX else "backing-off"
        for queue, count in waiting.items():
            if count > 0:
                pending[queue, rest] = pending.get((queue, rest), 0) + count
        self._pending = pending

    def _label(self, queue: str, known: dict[str, int]) -> str:
        if queue in known or len(known) < VALUES_MAX:
            known.setdefault(queue, 0)
            return queue
        return OTHER


def _queues(state: State) -> dict[str, tuple[float, int]]:
    """The queues that there are, so many as have a label of their own."""
    tree = state.tree
    if tree is None:
        return dict.fromkeys(state.policy.queues, (0.0, 1))
    if tree.stale:
        tree.settle()
    found = {}
    for name in islice(tree.said, VALUES_MAX):
        queue = tree.of(name)
        found[name] = (share(queue.guarantee, tree.dimensions) / ONE, queue.weight)
    return found
