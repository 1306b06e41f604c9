"""What the limits of queues leave of a job: all of it, fewer tasks, fewer models of GPU, or nothing.

A limit holds for the queue with all below it, a user's limit for each user in it; both count what is charged. Beside them
what queues do not lend of their guarantees is had by nobody else. Whichever way a job comes by its places (free ones,
nominated ones, those of victims, those of lost members), it is asked here.

A model whose limit the job could exceed is left out for groups that take others too: a gang is not split to use up the
last of it.
"""

import copy
from collections.abc import Sequence

import msgspec

from muster.cluster.jobs import Instance, Job
from muster.cluster.queuetree import Charge, Queue, QueueTree, places_amounts, task_amounts
from muster.cluster.shapes import Gang, Shape, intern_shape
from muster.cluster.state import State
from muster.engine.place import Placer
from muster.engine.shares import Asks, amounts
from muster.events.decisions import Placement


class Exceeded(msgspec.Struct, frozen=True):
    """A limit that a job would exceed."""

    code: str
    """closed, limit, user-limit, lend."""
    queue: str
    what: str = ""
    most: int = 0
    charged: int = 0
    asks: int = 0
    user: str = ""

    def __str__(self) -> str:
        if self.code == "closed":
            return f"queue {self.queue}: it was removed, and nothing new is bound from it"
        numbers = f"{shown(self.what, self.most)}, charged {shown(self.what, self.charged)}, asks {shown(self.what, self.asks)}"
        if self.code == "lend":
            return f"queue {self.queue}: others keep what they do not lend: {self.what} left to all {numbers}"
        if self.code == "user-limit":
            return f"queue {self.queue}: limit of user {self.user} {self.what} {numbers}"
        return f"queue {self.queue}: limit {self.what} {numbers}"


def shown(what: str, amount: int) -> str:
    """An amount in its unit for people: GPUs, cores, MiB, instances."""
    scale = 1_000_000 if what.startswith("gpus") else 1000 if what == "cpu" else 1
    whole, part = divmod(amount, scale)
    text = f"{whole}.{part:0{len(str(scale)) - 1}d}".rstrip("0").rstrip(".") if part else str(whole)
    return f"{text} MiB" if what == "memory" else text


class Limits:
    """The limits of all queues, in the state as it is."""

    __slots__ = ("asks", "state", "tree")

    def __init__(self, state: State, tree: QueueTree) -> None:
        self.state = state
        self.tree = tree
        self.asks = Asks(tree)

    def exceeded(self, queue: Queue, user: str, asks: Charge) -> Exceeded | None:
        """The first limit that so much more would exceed."""
        tree = self.tree
        if tree.stale:
            tree.settle()
        for each in queue.path:
            if each.closed:
                return Exceeded("closed", each.name)
            for what, most in each.caps.items():
                if asks.get(what) and each.charged.get(what, 0) + asks[what] > most:
                    return Exceeded("limit", each.name, what, most, each.charged.get(what, 0), asks[what])
            if each.user_caps:
                charged = each.users.get(user, {})
                for what, most in each.user_caps.items():
                    if asks.get(what) and charged.get(what, 0) + asks[what] > most:
                        return Exceeded("user-limit", each.name, what, most, charged.get(what, 0), asks[what], user)
        return self._unlent(queue, asks) if tree.lenders else None

    def _unlent(self, queue: Queue, asks: Charge) -> Exceeded | None:
        """What others neither use nor lend is not there for this queue."""
        tree = self.tree
        above = dict.fromkeys(queue.path)
        kept: Charge = {}
        for lender in tree.lenders:
            if lender not in above and not any(each is not lender and each.kept for each in lender.path):
                for what, amount in lender.kept.items():
                    kept[what] = kept.get(what, 0) + max(0, amount - lender.charged.get(what, 0))
        for what, amount in kept.items():
            most = tree.healthy.get(what, 0) - amount
            charged = tree.root.charged.get(what, 0)
            if asks.get(what) and charged + asks[what] > most:
                return Exceeded("lend", queue.name, what, max(0, most), charged, asks[what])
        return None

    def why(self, job: Job) -> Exceeded | None:
        """What keeps the job from being bound at all, wherever there is room."""
        return self.exceeded(self.tree.of(job.queue), job.user, self.asks.of(job.gang))

    def allowed(self, job: Job) -> Job | None:
        """The job as far as it may be placed now: itself, or one with fewer tasks or models; None where it may not."""
        queue = self.tree.of(job.queue)
        gang = job.gang
        if self.exceeded(queue, job.user, self.asks.of(gang)) is not None:
            return None
        if not self.tree.lenders and not any(each.caps or each.user_caps for each in queue.path):
            return job
        shapes = self._shapes(queue, job)
        if shapes is None:
            return None
        counts = self._counts(queue, job)
        if shapes == gang.shapes and counts == gang.counts:
            return job
        less = copy.copy(job)
        less.gang = copy.copy(gang)
        less.gang.shapes = shapes
        less.gang.counts = counts
        less.gang.single = sum(counts) == 1 and gang.tasks == 1
        return less

    def _shapes(self, queue: Queue, job: Job) -> tuple[Shape, ...] | None:
        """The shapes of its groups with the models that they may have; None where one is left without."""
        limited = dict.fromkeys(
            [what for each in queue.path for what in (*each.caps, *each.user_caps) if what.startswith("gpus/")]
            + [what for each in self.tree.lenders for what in each.kept if what.startswith("gpus/")]
        )
        if not limited:
            return job.gang.shapes
        out: dict[str, None] = {}
        for what in limited:
            model = what.removeprefix("gpus/")
            most = 0
            for shape, count in zip(job.gang.shapes, job.gang.counts, strict=True):
                if shape.needs_device and (not shape.gpu_models or model in shape.gpu_models):
                    most += count * (shape.part * shape.gpus or 1000 * shape.gpu_milli or 1_000_000)
            if most and self.exceeded(queue, job.user, {what: most}) is not None:
                out[model] = None
        if not out:
            return job.gang.shapes
        shapes = []
        for shape, group in zip(job.gang.shapes, job.request.groups, strict=True):
            if not shape.needs_device or len(shape.gpu_models) == 1:
                shapes.append(shape)  # what it needs at least has been compared, and the rest is left out by its counts
                continue
            known = shape.gpu_models or self.tree.models
            models = tuple([model for model in known if model not in out])
            if not models:
                return None
            shapes.append(intern_shape(msgspec.structs.replace(group, gpu_models=models)))
        return tuple(shapes)

    def _counts(self, queue: Queue, job: Job) -> tuple[int, ...]:
        """As many tasks of each group as the limits allow, the last groups cut first, none below its minimum."""
        gang = job.gang
        if gang.minima == gang.counts:
            return gang.counts
        counts = list(gang.counts)
        largest = self.tree.largest_mib
        if self.exceeded(queue, job.user, amounts(gang, gang.counts, largest)) is None:
            return gang.counts
        for group in reversed(range(len(counts))):
            low, high = gang.minima[group], counts[group]
            counts[group] = low
            if self.exceeded(queue, job.user, amounts(gang, tuple(counts), largest)) is not None:
                continue
            while low < high:
                middle = (low + high + 1) // 2
                counts[group] = middle
                if self.exceeded(queue, job.user, amounts(gang, tuple(counts), largest)) is None:
                    low = middle
                else:
                    high = middle - 1
            counts[group] = low
            break
        return tuple(counts)

    def fits(self, job: Job, places: Sequence[Placement]) -> bool:
        """Whether these very places stay within the limits."""
        return self.exceeded(self.tree.of(job.queue), job.user, self.charge(job.gang, places)) is None

    def charge(self, gang: Gang, places: Sequence[Placement]) -> Charge:
        """What an instance would be charged with on these places."""
        ledger = self.state.ledger
        return places_amounts(gang, places, {place.row: ledger.node(place.row) for place in places})

    def may_refill(self, instance: Instance, places: Sequence[Placement]) -> bool:
        """Whether a running gang may have these places for members that it lost."""
        job = instance.job
        more: Charge = {}
        for place in places:
            node = self.state.ledger.node(place.row)
            for what, amount in task_amounts(job.gang.shapes[job.gang.group_of(place.rank)], node, place.devices).items():
                more[what] = more.get(what, 0) + amount
        queue = self.tree.of(job.queue)
        found = self.exceeded(queue, job.user, more)
        return found is None or found.code == "closed"


class LimitedPlacer:
    """A placer that finds only what the limits allow."""

    __slots__ = ("backfill", "bound", "cache", "limits", "placer", "state")

    def __init__(self, placer: Placer, limits: Limits) -> None:
        self.placer = placer
        self.limits = limits
        self.cache = placer.cache
        self.backfill = placer.backfill
        self.bound = placer.bound
        self.state = placer.state

    def excluded(self, avoid: Sequence[str]) -> int:
        """As the placer's."""
        return self.placer.excluded(avoid)

    def find(self, job: Job) -> tuple[Placement, ...] | None:
        """Places for a new attempt of an instance of this job within the limits, or None."""
        allowed = self.limits.allowed(job)
        if allowed is None:
            return None
        places = self.placer.find(allowed)
        return places if places is None or self.limits.fits(job, places) else None


def within_limits(state: State, job: Job, places: Sequence[Placement]) -> bool:
    """Whether these places stay within the limits of the job's queue; without a tree there are none."""
    return state.tree is None or Limits(state, state.tree).fits(job, places)
