"""For whom of those who wait in a tree of queues there may be a place, told without looking for one. Everything here is a cache.

A gang that was looked for in vain has no hope until something is freed on a row that it may use and that has room for a task
of it; nor has it, where attempts stop, until one of them leaves so much. A queue is *quiet* if only that could help
anybody who waits in it: nobody in it has a lower priority, and no ask can stand within its guarantee.
"""

from collections.abc import Mapping

from muster.cluster.jobs import Attempt
from muster.cluster.queues import Waiting
from muster.cluster.queuetree import Queue, QueueTree
from muster.cluster.shapes import Shape
from muster.cluster.state import State
from muster.engine.fairtree import ordered_by
from muster.engine.horizon import with_room
from muster.engine.place import Placer
from muster.engine.room import Left
from muster.engine.shares import below, share

Key = tuple[int, int, int, int, str]
"""The order of queues with one parent: `muster.engine.order`."""


class Facts:
    """What was worked out of a queue, and as of when."""

    __slots__ = ("key", "key_as_of", "lowest", "quiet", "settled", "version", "waiting", "waiting_version", "wakes")

    def __init__(self, queue: Queue, wakes: int, lowest: int) -> None:
        self.version = queue.version
        self.wakes = wakes
        self.lowest = lowest
        self.waiting: Waiting | None = None
        self.waiting_version = self.settled = -1
        self.key_as_of = -1, 0
        self.quiet = False
        self.key: Key = (0, 0, 0, 0, "")


class Hope:
    """The gangs and queues of one pass."""

    __slots__ = ("_pruned", "_rows", "alive", "placer", "state", "stopping", "tree")

    def __init__(self, state: State, tree: QueueTree, placer: Placer) -> None:
        self.state = state
        self.tree = tree
        self.placer = placer
        self.alive: dict[str, None] = {}
        """The gangs among those who wait for which there may be a free place."""
        self.stopping: dict[str, None] = {}
        """Those to which what stops may leave a place."""
        self._pruned = -1
        self._rows: dict[tuple[int, int, bool, int], tuple[Shape, dict[str, int]]] = {}
        """Those that are alive and of one shape, with the rows they may use, by what tells on which rows there is room."""

    def count(self) -> None:
        """Find them anew. Cost: all gangs; and for each what was freed since."""
        placer, ledger = self.placer, self.state.ledger
        vain, waited = placer.vain, placer.waited
        upto = ledger.truly.upto(len(ledger.nodes))
        self.alive = {}
        self.stopping = {}
        self._rows = {}
        self._pruned = -1
        stops = bool(self.tree.stopping)
        look: Look | None = None
        for gang in self.state.pending.gangs:
            position = vain.get(gang)
            if position != upto:
                look = look or Look(self.state, self.tree, placer)
                if position is None or look.has_room(gang, position, False):
                    self.alive[gang] = None
                    self._note_rows(gang)
                else:
                    vain[gang] = upto
            if stops:
                position = waited.get(gang)
                if position != upto:
                    look = look or Look(self.state, self.tree, placer)
                    if position is None or look.has_room(gang, position, True):
                        self.stopping[gang] = None
                    else:
                        waited[gang] = upto

    def _note_rows(self, gang: str) -> None:
        asked = self.placer.gangs.get(gang)
        if asked is not None and asked.rules is None and len(asked.shapes) == 1:
            shape = asked.shapes[0]
            self._rows.setdefault(_room_key(shape), (shape, {}))[1][gang] = self.placer.cache.of(shape).bits

    def of(self, gangs: Mapping[str, object]) -> list[str]:
        """Those of these gangs that have hope."""
        found = _both(self.alive, gangs)
        if self.stopping:
            found = list(dict.fromkeys([*found, *_both(self.stopping, gangs)]))
        return found

    def has(self, gang: str) -> bool:
        """Whether the gang has hope."""
        return gang in self.alive or gang in self.stopping

    def any_of(self, gangs: Mapping[str, object]) -> bool:
        """Whether one of these gangs has hope."""
        return _any_of(self.alive, gangs) or (bool(self.stopping) and _any_of(self.stopping, gangs))

    def lowest_in(self, queue: Queue) -> int:
        """The lowest priority of what is bound or nominated there."""
        return self._facts(queue).lowest

    def quiet(self, queue: Queue, waiting: Waiting) -> bool:
        """Whether only a place that is left could help those who wait in the queue."""
        facts = self._facts(queue)
        if facts.waiting is not waiting or facts.waiting_version != waiting.version or facts.settled != self.tree.settled:
            facts.waiting, facts.waiting_version, facts.settled = waiting, waiting.version, self.tree.settled
            may_be_within = self.state.policy.reclaim and bool(queue.guarantee) and _may_be_within(queue, waiting)
            facts.quiet = not may_be_within and facts.lowest >= max(waiting.priorities)
        return facts.quiet

    def key(self, queue: Queue) -> Key:
        """How the queue stands among those with one parent."""
        facts = self._facts(queue)
        history = self.tree.usage
        as_of = self.tree.settled, history.now_us if history is not None else 0
        if facts.key_as_of != as_of:
            weight = queue.weight
            facts.key_as_of = as_of
            facts.key = (
                0 if below(queue) else 1,
                -queue.tier,
                0 if weight else 1,
                ordered_by(self.tree, queue, max(1, weight), share(queue.charged, self.tree.dimensions, max(1, weight))),
                queue.name,
            )
        return facts.key

    def prune(self) -> None:
        """Without those gangs for a task of which no row has room by now."""
        if not self._rows:
            return
        alive, placer, ledger = self.alive, self.placer, self.state.ledger
        if self._pruned == ledger.touched_upto():
            return
        self._pruned = ledger.touched_upto()
        upto = ledger.truly.upto(len(ledger.nodes))
        for shape, gangs in self._rows.values():
            room = with_room(ledger, shape)
            for gang, bits in list(gangs.items()):
                if gang not in alive:
                    del gangs[gang]
                elif not bits & room:
                    del gangs[gang], alive[gang]
                    placer.vain[gang] = upto

    def _facts(self, queue: Queue) -> Facts:
        state, found = self.state, queue.memo
        if isinstance(found, Facts) and found.version == queue.version and found.wakes == state.wakes:
            return found
        lowest = min([2**62, *[attempt.instance.job.priority for attempt in queue.attempts]])
        if state.nominations:
            nominated = [nomination.instance.job for nomination in state.nominations.values()]
            lowest = min([lowest, *[job.priority for job in nominated if job.queue == queue.name]])
        queue.memo = made = Facts(queue, state.wakes, lowest)
        return made


class Look:
    """What was freed, and what those who stop would leave, as things stand."""

    __slots__ = ("_freed", "_left", "_room", "_stopping", "placer", "state")

    def __init__(self, state: State, tree: QueueTree, placer: Placer) -> None:
        self.state = state
        self.placer = placer
        self._freed: dict[int, int] = {}
        """The rows on which something was freed since a note, as bits."""
        self._room: dict[tuple[int, int, bool, int], int] = {}
        self._left: dict[int, Left] = {}
        self._stopping: dict[int, dict[Attempt, None]] = {}
        """What stops and has not ended, by the rows on which it holds something."""
        for attempt in tree.stopping:
            for task in attempt.tasks.values():
                if task.holding:
                    self._stopping.setdefault(task.node.row, {})[attempt] = None

    def has_room(self, gang: str, since: int, stopping: bool) -> bool:
        """Whether a task of the gang may fit where something was freed since; with `stopping` once those who stop are gone."""
        asked = self.placer.gangs[gang]
        freed = self._freed.get(since)
        if freed is None:
            freed = self._freed[since] = self.state.ledger.truly.since(since)
        for shape in asked.shapes:
            rows = freed & self.placer.cache.of(shape).bits
            if not rows:
                continue
            if asked.rules is not None:
                return True
            if (not stopping or not asked.single) and rows & self._with_room(shape):
                return True
            if stopping:
                for row, gone in self._stopping.items():
                    if rows >> row & 1 and self._once_gone(row, gone).may_take(shape):
                        return True
        return False

    def _with_room(self, shape: Shape) -> int:
        key = _room_key(shape)
        found = self._room.get(key)
        if found is None:
            found = self._room[key] = with_room(self.state.ledger, shape)
        return found

    def _once_gone(self, row: int, gone: dict[Attempt, None]) -> Left:
        found = self._left.get(row)
        if found is None:
            found = self._left[row] = Left(self.state.ledger.node(row), gone)
        return found


def _room_key(shape: Shape) -> tuple[int, int, bool, int]:
    """What of a shape tells on which rows there is room for it."""
    return shape.gpus, shape.cpu_level, shape.share, shape.gpu_milli


def _both(some: Mapping[str, object], others: Mapping[str, object]) -> list[str]:
    if len(some) > len(others):
        some, others = others, some
    return [each for each in some if each in others]


def _any_of(some: Mapping[str, object], others: Mapping[str, object]) -> bool:
    if len(some) > len(others):
        some, others = others, some
    return any(map(others.__contains__, some))


def _may_be_within(queue: Queue, waiting: Waiting) -> bool:
    """Whether an ask of those who wait may stand within what is promised to the queue."""
    guarantee, charged = queue.guarantee, queue.charged
    if waiting.bare and ("cpu" in guarantee or "memory" in guarantee):
        return True
    if "gpus" not in guarantee or waiting.bare == len(waiting.by_gang):
        return False
    return charged.get("gpus", 0) + 1000 * waiting.least_gpu_milli() <= guarantee["gpus"]
