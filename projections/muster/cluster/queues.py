"""Who waits, in which order.

Pending instances stand in *classes*: those of one queue, one priority, one gang, the same labels and the same nodes to
avoid, and of one length where starts are planned. If one of them cannot be placed then none of its class can, so a pass asks
each class once. Inside a class the order is that of submission; between classes it is priority, then the place of the first
in each. A requeued instance keeps its place.
"""

import heapq

from muster.cluster.jobs import Instance, Job, Place, Running
from muster.cluster.shapes import Gang

ClassKey = tuple[str, int, str, tuple[str, ...], str, int, tuple[str, int] | None]
"""Queue, priority, gang, what to avoid, the user where a queue tells them apart, how long it runs where that counts, and the
instance if it is a class of its own."""


class PendingClass:
    """Pending instances that are equal for placement. `memo` is the engine's: what it found when it last asked."""

    __slots__ = ("avoid", "count", "gang", "heap", "key", "memo", "named", "priority", "queue", "spare", "turn", "user")

    def __init__(self, key: ClassKey, job: Job) -> None:
        self.key = key
        self.queue = job.queue
        self.priority = job.rank
        self.spare = job.spare
        self.turn = job.turn
        self.gang: Gang = job.gang
        self.avoid = job.avoid
        self.user = key[4]
        self.named = self.queue, self.gang.digest
        """How the log names its shape: by the queue and the digest of the gang."""
        self.heap: list[tuple[Place, Instance]] = []
        self.count = 0
        self.memo: object | None = None

    def head(self) -> Instance | None:
        """The first that waits here, or None."""
        heap = self.heap
        while heap:
            instance: Instance = heap[0][1]
            if instance.waits is self:
                return instance
            heapq.heappop(heap)
        return None

    def places(self) -> dict[Place, Instance]:
        """Who waits here, by place, in no order: one who left and came back stands in the heap twice."""
        return {place: instance for place, instance in self.heap if instance.waits is self}

    def tidy(self) -> None:
        """Drop the notes of those who left."""
        self.heap = list(self.places().items())
        heapq.heapify(self.heap)


class Waiting:
    """Who waits in one queue: the classes in which somebody does, by key and by gang."""

    __slots__ = ("_least", "alone", "bare", "by_gang", "classes", "priorities", "version")

    def __init__(self) -> None:
        self.classes: dict[ClassKey, PendingClass] = {}
        self.by_gang: dict[str, dict[ClassKey, PendingClass]] = {}
        self.alone = 0
        """How many of the classes are of one instance that is nominated or planned."""
        self.priorities: dict[int, int] = {}
        """How many of the classes have each priority."""
        self.bare = 0
        """How many of the gangs need no device."""
        self._least: int | None = None
        self.version = 0
        """Counts how often a class came or left."""

    def least_gpu_milli(self) -> int:
        """What a gang that needs a device asks for at least: no one that waits asks for less."""
        if self._least is None:
            gangs = [next(iter(among.values())).gang for among in self.by_gang.values()]
            self._least = min([gang.gpu_milli for gang in gangs if gang.gpu_milli is not None], default=0)
        return self._least

    def enter(self, waiting: PendingClass) -> bool:
        """Somebody waits in the class from now on. Whether nobody did with its gang."""
        self.version += 1
        self.classes[waiting.key] = waiting
        priority, gang = waiting.priority, waiting.gang
        self.priorities[priority] = self.priorities.get(priority, 0) + 1
        self.alone += waiting.key[-1] is not None
        among = self.by_gang.get(gang.key)
        if among is not None:
            among[waiting.key] = waiting
            return False
        self.by_gang[gang.key] = {waiting.key: waiting}
        if gang.gpu_milli is None:
            self.bare += 1
        elif self._least is not None and (gang.gpu_milli < self._least or len(self.by_gang) == self.bare + 1):
            self._least = gang.gpu_milli
        return True

    def leave(self, waiting: PendingClass) -> bool:
        """Nobody waits in the class any more. Whether nobody does with its gang."""
        self.version += 1
        del self.classes[waiting.key]
        priority, gang = waiting.priority, waiting.gang
        self.priorities[priority] -= 1
        if not self.priorities[priority]:
            del self.priorities[priority]
        self.alone -= waiting.key[-1] is not None
        among = self.by_gang[gang.key]
        del among[waiting.key]
        if among:
            return False
        del self.by_gang[gang.key]
        if gang.gpu_milli is None:
            self.bare -= 1
        elif gang.gpu_milli == self._least:
            self._least = None
        return True


EMPTY_MAX = 4096
"""So many classes in which nobody waits are kept for the next who comes."""


STIRRED_MAX = 65_536


class PendingQueue:
    """All pending instances that may be bound now (those backing off are not here)."""

    __slots__ = ("classes", "count", "empty", "gangs", "indexed", "queues", "running", "spare", "stirred", "stirred_base")

    def __init__(self) -> None:
        self.classes: dict[ClassKey, PendingClass] = {}
        self.count = 0
        self.empty = 0
        """Classes in which nobody waits."""
        self.indexed = False
        self.queues: dict[str, Waiting] = {}
        """The queues in which somebody waits: kept from `index` on, where queues stand in a tree."""
        self.spare: dict[ClassKey, PendingClass] = {}
        """The classes of best-effort jobs in which somebody waits, which stand in none of these queues; kept likewise."""
        self.gangs: dict[str, int] = {}
        """In how many of these queues somebody waits with each gang."""
        self.stirred: list[tuple[str, str]] = []
        """Queues and gangs of which another stands first than before, or nothing is recorded any more: kept from `index` on."""
        self.stirred_base = 0
        """How many notes of these were dropped."""
        self.running: dict[tuple[str, int], Running] = {}
        """How many attempts may be victims, by queue and priority."""

    def running_of(self, job: Job) -> Running:
        """Those of the job's queue and priority that may be victims."""
        key = (job.queue, job.priority)
        found = self.running.get(key)
        if found is None:
            if len(self.running) >= EMPTY_MAX:
                self.running = {key: each for key, each in self.running.items() if each.count}
            found = self.running[key] = Running()
        return found

    def add(self, instance: Instance, alone: bool, user: str = "", length_us: int = 0, mark: str = "") -> None:
        """It waits from now on. One that is nominated or planned is a class of its own, `alone`; `user` where the queue tells
        users apart; `mark` by what is reserved for its job."""
        job = instance.job
        gang = f"{job.gang.key}{job.apart}{mark}" if job.apart or mark else job.gang.key
        key: ClassKey = (job.queue, job.priority, gang, job.avoid, user, length_us, instance.key if alone else None)
        found = self.classes.get(key)
        if found is None:
            found = self.classes[key] = PendingClass(key, job)
            if self.indexed:
                self._enter(found)
        elif not found.count:
            self.empty -= 1
            if self.indexed:
                self._enter(found)
        heap = found.heap
        heapq.heappush(heap, (instance.place, instance))
        if self.indexed and heap[0][1] is instance:
            self.stir(job)
        found.count += 1
        instance.waits = found
        self.count += 1
        if len(heap) > 64 and len(heap) > 3 * found.count:
            found.tidy()

    def discard(self, instance: Instance) -> None:
        """It waits no more (or did not)."""
        waits = instance.waits
        if waits is None:
            return
        waits.count -= 1
        instance.waits = None
        self.count -= 1
        if not waits.count:
            waits.heap.clear()
            if self.indexed:
                self._leave(waits)
            if waits.key[-1] is not None:
                del self.classes[waits.key]
                return
            self.empty += 1
            if self.empty > EMPTY_MAX:
                self.classes = {key: each for key, each in self.classes.items() if each.count}
                self.empty = 0

    def stir(self, job: Job) -> None:
        """Another of this job's queue and gang may stand first, or nothing is recorded of them any more."""
        self.stirred.append((job.queue, job.gang.key))
        if len(self.stirred) > STIRRED_MAX:
            self.forget_stirred()

    def forget_stirred(self) -> None:
        """Drop the notes: any may have stirred."""
        self.stirred_base += len(self.stirred) + 1
        self.stirred = []

    def index(self) -> None:
        """From now on it is known who waits in each queue."""
        self.indexed = True
        self.forget_stirred()
        self.queues = {}
        self.spare = {}
        self.gangs = {}
        for waiting in self.classes.values():
            if waiting.count:
                self._enter(waiting)

    def _enter(self, waiting: PendingClass) -> None:
        """Somebody waits in the class from now on."""
        if waiting.spare:
            self.spare[waiting.key] = waiting
            return
        queue = self.queues.get(waiting.queue)
        if queue is None:
            queue = self.queues[waiting.queue] = Waiting()
        if queue.enter(waiting):
            gang = waiting.gang.key
            self.gangs[gang] = self.gangs.get(gang, 0) + 1

    def _leave(self, waiting: PendingClass) -> None:
        """Nobody waits in the class any more."""
        if waiting.spare:
            del self.spare[waiting.key]
            return
        queue = self.queues[waiting.queue]
        if queue.leave(waiting):
            gang = waiting.gang.key
            self.gangs[gang] -= 1
            if not self.gangs[gang]:
                del self.gangs[gang]
        if not queue.classes:
            del self.queues[waiting.queue]

    def last_of_class(self, instance: Instance) -> bool:
        """Whether no other waits in its class."""
        return instance.waits is not None and instance.waits.count == 1
