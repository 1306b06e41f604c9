"""Places for a whole instance, or none.

The groups are placed one after the other, the largest tasks first, each as if those before it stood already. First every
group gets its minimum; then, in the same order, as many more as fit up to its count. Where a greedy order fails for
several groups, the other orders are tried, at most `ORDERS_MAX`, and then every place (`muster.engine.pack`).
"""

from collections.abc import Mapping, Sequence
from itertools import islice, permutations
from typing import Final, Protocol

from muster.cluster.jobs import Attempt, Instance, Job
from muster.cluster.ledger import Ledger
from muster.cluster.shapes import Gang, Shape
from muster.cluster.state import State
from muster.engine.backfill import Backfill, backfill_for
from muster.engine.bestfit import BestFit, Spot
from muster.engine.bound import Bound
from muster.engine.candidates import CandidateCache, Candidates
from muster.engine.caps import Caps
from muster.engine.pack import pack
from muster.engine.plan import Plan
from muster.engine.rows import Rows
from muster.engine.scores import HOLDINGS
from muster.engine.unsaid import Unsaid
from muster.events.decisions import Placement

ORDERS_MAX: Final = 24
VAIN_MAX: Final = 8192

Wanted = tuple[tuple[int, ...], ...]
"""By group: the ranks that are wanted at least, then the others."""


class Picker(Protocol):
    """Finds the best spot for one task."""

    def one(self, candidates: Candidates, excluded: int) -> Spot | None:
        """A spot that is not on `excluded` rows (bits), or None."""
        ...


class Placer:
    """Finds places by the policy of the state. Holds only caches."""

    __slots__ = ("backfill", "best_fit", "bound", "cache", "caps", "gangs", "picker", "state", "unsaid", "vain", "waited")

    def __init__(self, state: State) -> None:
        self.state = state
        self.cache = CandidateCache(state.ledger, state.policy)
        self.backfill: Backfill | None = backfill_for(state, self.cache)
        """What is planned, where the policy plans, and what is reserved: places are looked for behind it."""
        self.gangs: dict[str, Gang] = {}
        self.vain: dict[str, int] = {}
        """Gangs by key for which no places were found, and up to which note of freed rows that is so."""
        self.waited: dict[str, int] = {}
        """The same for gangs to which what stops anyway does not help either."""
        self.unsaid = Unsaid(state)
        scores = [(score.name, score.weight) for score in state.policy.scores if score.name in HOLDINGS]
        self.best_fit: BestFit | None = None
        if scores:
            made = [(HOLDINGS[name](state.policy), weight) for name, weight in scores]
            self.picker: Picker = Rows(state, made)
        else:
            self.picker = self.best_fit = BestFit(state.ledger, self.cache.index)
        self.bound = Bound(self)
        """For jobs with rules of their own, and for what they keep from the others."""
        self.caps: Caps | None = None
        """How many tasks of the instance in hand each domain may take, where that is bounded."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of the state."""
        return self.state.ledger

    def excluded(self, avoid: Sequence[str]) -> int:
        """The rows of the nodes with these uids, as bits."""
        if not avoid:
            return 0
        self.cache.index.refresh()
        bits = 0
        for uid in avoid:
            row = self.cache.index.uids.get(uid)
            if row is not None:
                bits |= 1 << row
        return bits

    def find(self, job: Job) -> tuple[Placement, ...] | None:
        """Places for a new attempt of an instance of this job, or None. Changes nothing."""
        gang = job.gang
        if self.backfill is not None and self.backfill.bits:
            with Plan(self.state) as plan:
                return self._find(job, gang, self.backfill.bar(plan, [self.cache.of(shape) for shape in gang.shapes]))
        return self._find(job, gang, 0)

    def _find(self, job: Job, gang: Gang, closed: int) -> tuple[Placement, ...] | None:
        """The same behind what is planned: not on `closed` rows (bits)."""
        if gang.rules is not None:
            before = self.bound.only
            self.bound.only = before & ~closed
            try:
                return self.bound.find(job, gang.rules)
            finally:
                self.bound.only = before
        excluded = closed | (self.excluded(job.avoid) if job.avoid else 0)
        tags = self.state.ledger.tags
        if (tags.carried or tags.owners or self.state.nominations) and self.bound.around.crowded:
            excluded |= self.bound.closed(job)
        if gang.single:
            shape = gang.shapes[0]
            spot = self.picker.one(self.cache.of(shape), excluded) if shape.strict is None else self.one(shape, excluded)
            return None if spot is None else (Placement(0, *spot),)
        return self.places(job, gang, gang.minima, gang.counts, gang.offsets, excluded)

    def one(self, shape: Shape, excluded: int) -> Spot | None:
        """The best spot for one task, not on `excluded` rows (bits), or None. What it prefers of a node is tried first."""
        if shape.strict is not None:
            spot = self.picker.one(self.cache.of(shape.strict), excluded)
            if spot is not None:
                return spot
        return self.picker.one(self.cache.of(shape), excluded)

    def note_vain(self, gang: Gang, freed: int) -> None:
        """No places were found for the gang, and none will be before something is freed on a row that it may use."""
        if len(self.vain) >= VAIN_MAX:
            self.vain.clear()
            self.waited.clear()
            self.gangs.clear()
        self.vain[gang.key] = freed
        self.gangs[gang.key] = gang

    def refill(
        self, instance: Instance, lost: Sequence[Sequence[int]], least: int = -1, kept: int = 0
    ) -> tuple[Placement, ...] | None:
        """Places for these ranks (by group) of a running attempt, all of them, or None.

        With `least` so many are enough, of a job with as many groups; not on the `kept` rows (bits).
        """
        counts = tuple([len(ranks) for ranks in lost])
        minima = counts if least < 0 else tuple([min(least, count) for count in counts])
        offsets = tuple([sum(counts[:group]) for group in range(len(counts))])
        job, gang = instance.job, instance.job.gang
        with Plan(self.state) as plan:
            closed = 0
            if self.backfill is not None and self.backfill.bits:
                wanted = [self.cache.of(shape) for shape, count in zip(gang.shapes, counts, strict=True) if count]
                closed = self.backfill.bar(plan, wanted)
            if gang.rules is not None:
                found = self.bound.refill(instance, counts, closed | kept, minima)
            else:
                excluded = closed | kept | self.excluded(job.avoid)
                if self.bound.around.crowded:
                    excluded |= self.bound.closed(job)
                found = self.places(job, gang, minima, counts, offsets, excluded)
        if found is None:
            return None
        ranks = [rank for group in lost for rank in group]
        placements = [Placement(ranks[placement.rank], placement.row, placement.devices) for placement in found]
        return tuple(sorted(placements, key=lambda placement: placement.rank))

    def places(
        self,
        job: Job,
        gang: Gang,
        minima: tuple[int, ...],
        counts: tuple[int, ...],
        offsets: tuple[int, ...],
        excluded: int,
    ) -> tuple[Placement, ...] | None:
        """Places for at least the minima and at most the counts of tasks of each group, not on `excluded` rows, or None."""
        groups = [group for group in range(len(counts)) if counts[group]]
        groups.sort(key=lambda group: _size(gang, group))
        if self.best_fit is not None:
            for group in groups:
                if not self.best_fit.at_most(self.cache.of(gang.shapes[group]), minima[group]):
                    return None
        ghost = Attempt(job.instances[0], 0, 0, 0)
        for order in islice(permutations(groups), ORDERS_MAX):
            with Plan(self.state) as plan:
                spots = self._in_order(plan, ghost, gang, order, minima, counts, excluded)
            if spots is not None:
                return _placements(offsets, spots)
        if len(groups) == 1 or self.caps is not None or any(gang.shapes[group].special for group in groups):
            return None
        spots = self._packed(ghost, gang, groups, minima, counts, excluded)
        return None if spots is None else _placements(offsets, spots)

    def _in_order(
        self,
        plan: Plan,
        ghost: Attempt,
        gang: Gang,
        order: Sequence[int],
        minima: tuple[int, ...],
        counts: tuple[int, ...],
        excluded: int,
    ) -> dict[int, list[Spot]] | None:
        spots: dict[int, list[Spot]] = {}
        alone = len(order) == 1
        for group in order:
            want = counts[group] if alone else minima[group]
            found = self._spots(plan, ghost, gang, group, want, excluded, hold=not alone)
            if len(found) < minima[group]:
                return None
            spots[group] = found
        if not alone:
            self._add(plan, ghost, gang, order, counts, excluded, spots)
        return spots

    def _add(
        self,
        plan: Plan,
        ghost: Attempt,
        gang: Gang,
        order: Sequence[int],
        counts: tuple[int, ...],
        excluded: int,
        spots: dict[int, list[Spot]],
    ) -> None:
        """As many more of each group as fit up to its count."""
        for group in order:
            more = counts[group] - len(spots[group])
            if more:
                spots[group] += self._spots(plan, ghost, gang, group, more, excluded, hold=True)

    def _packed(
        self,
        ghost: Attempt,
        gang: Gang,
        groups: Sequence[int],
        minima: tuple[int, ...],
        counts: tuple[int, ...],
        excluded: int,
    ) -> dict[int, list[Spot]] | None:
        """Spots found by trying, or None."""
        wanted = [group for group in groups for _ in range(minima[group])]
        found = pack(self.state, [(gang.shapes[group], self.cache.of(gang.shapes[group]).bits & ~excluded) for group in wanted])
        if found is None:
            return None
        spots: dict[int, list[Spot]] = {group: [] for group in groups}
        with Plan(self.state) as plan:
            for group, spot in zip(wanted, found, strict=True):
                spots[group].append(spot)
                plan.with_spots(ghost, gang.shapes[group], [spot])
            self._add(plan, ghost, gang, groups, counts, excluded, spots)
        return spots

    def _spots(self, plan: Plan, ghost: Attempt, gang: Gang, group: int, want: int, excluded: int, hold: bool) -> list[Spot]:
        """Up to `want` spots for the group; held in the plan if something comes after."""
        shape = gang.shapes[group]
        if self.caps is not None:
            return self.caps.spots(self, plan, ghost, shape, want, excluded)
        if self.best_fit is not None and not shape.numa:
            spots = self.best_fit.many(self.cache.of(shape), want, excluded)
            if hold:
                plan.with_spots(ghost, shape, spots)
            return spots
        spots = []
        while len(spots) < want:
            spot = self.one(shape, excluded)
            if spot is None:
                break
            spots.append(spot)
            plan.with_spots(ghost, shape, [spot])
        return spots


def _size(gang: Gang, group: int) -> tuple[int, int, int, int, int]:
    """The order in which groups are placed: the largest tasks first."""
    shape = gang.shapes[group]
    return -shape.gpus, -shape.gpu_milli, -shape.cpu_milli, -shape.memory_mib, group


def _placements(offsets: Sequence[int], spots: Mapping[int, Sequence[Spot]]) -> tuple[Placement, ...]:
    """The spots of each group with its ranks, in the order of ranks."""
    return tuple(
        [
            Placement(offsets[group] + at, row, devices)
            for group in sorted(spots)
            for at, (row, devices) in enumerate(spots[group])
        ]
    )
