"""Places for an instance whose job asks more of them than each task needs: in one domain, apart, near others, alone.

First the rows are found on which the job may be at all (`JOB_FILTERS`). Then, for the levels within which its tasks stay:

1. all levels that are required and all that are preferred count, then fewer and fewer of the preferred ones, the narrowest
   dropped first; where some were dropped, as few domains as possible of the widest of these are taken;
2. the domain is the smallest that holds the whole instance: that in which the least room is left over; ties by name. Where
   none holds all its tasks, the one that holds the most, if these are enough to start;
3. in the domain the tasks are placed as those of any other job (`muster.engine.place`), or one after the other where they
   are to stand apart.

For several groups the room is an estimate from above, so that domains are tried in this order, at most `DOMAINS_MAX`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from muster.cluster.jobs import Instance, Job
from muster.cluster.rules import LEVELS, Rules
from muster.cluster.state import Nomination
from muster.cluster.tags import Counted
from muster.engine.around import Around
from muster.engine.caps import Cap, Caps
from muster.engine.domains import Domains
from muster.engine.filters import JOB_FILTERS
from muster.events.decisions import Placement

if TYPE_CHECKING:
    from muster.engine.place import Placer

DOMAINS_MAX: Final = 64

Part = tuple[tuple[str, ...], int]
"""A domain of several levels: its values, and its rows as bits."""


class Bound:
    """Finds places by the rules of a job. Holds only caches."""

    __slots__ = ("around", "domains", "only", "placer")

    def __init__(self, placer: "Placer") -> None:
        self.placer = placer
        self.around = Around(placer.state)
        self.domains = Domains(placer.state.ledger, placer.cache, self.around.topology)
        self.only = -1
        """The rows to which a caller restricts the search, as bits."""

    def allowed(self, job: Job) -> int:
        """The rows on which the job may be, whatever is free there, as bits."""
        among = self.placer.state.ledger.registered & ~self.placer.excluded(job.avoid)
        for each in JOB_FILTERS.values():
            if among:
                among = each.passes(self.around, job, among)
        return among

    def code(self, job: Job) -> str:
        """The first filter of jobs that leaves no row, or `resources`."""
        among = self.placer.state.ledger.registered & ~self.placer.excluded(job.avoid)
        for each in JOB_FILTERS.values():
            among = each.passes(self.around, job, among)
            if not among:
                return each.code
        return "resources"

    def closed(self, job: Job) -> int:
        """The rows from which others keep a job away that asks for nothing of the kind, as bits."""
        return self.around.unwelcome(job) | self.around.closed(job)

    def find(self, job: Job, rules: Rules) -> tuple[Placement, ...] | None:
        """Places for a new attempt of an instance of this job, or None. Changes nothing."""
        gang = job.gang
        allowed = self.allowed(job) & self.only
        if not allowed:
            return None
        wished = self._wished(job, rules, allowed)
        required = self.required(job, rules)
        for rows in [wished, allowed] if wished != allowed else [allowed]:
            for kept in range(len(rules.preferred), -1, -1):
                levels = tuple(sorted(dict.fromkeys([*required, *rules.preferred[:kept]]), key=LEVELS.index))
                if kept < len(rules.preferred):
                    found = self._fewest(job, rules, rules.preferred[kept], levels, rows)
                    if found is not None:
                        return found
                for part in self._parts(job, levels, rows, gang.minima, gang.counts):
                    found = self._place(job, rules, part, gang.minima, gang.counts, gang.offsets)
                    if found is not None:
                        return found
        return None

    def refill(
        self, instance: Instance, counts: tuple[int, ...], closed: int, minima: tuple[int, ...] | None = None
    ) -> tuple[Placement, ...] | None:
        """Places for so many more members (by group; at least the minima) of a running attempt, in the domains of the others.

        Not on `closed` rows (bits).
        """
        job, attempt = instance.job, instance.attempt
        rules = job.gang.rules
        assert attempt is not None
        assert rules is not None
        topology = self.around.topology
        rows = self.allowed_more(instance) & ~closed
        there = [task.node.row for _, task in sorted(attempt.tasks.items()) if task.holding]
        for level in rules.required if there else ():
            rows &= topology.rows(level, topology.of(there[0], level))
        kept = rows
        for level in rules.preferred if there else ():
            kept &= topology.rows(level, topology.of(there[0], level))
        offsets = tuple([sum(counts[:group]) for group in range(len(counts))])
        for part in [kept, rows] if kept != rows else [rows]:
            found = self._place(job, rules, part, minima or counts, counts, offsets, there)
            if found is not None:
                return found
        return None

    def allowed_more(self, instance: Instance) -> int:
        """The rows on which more members of a running attempt may stand."""
        job = instance.job
        among = self.placer.state.ledger.registered & ~self.placer.excluded(job.avoid)
        for name, each in JOB_FILTERS.items():
            if name != "licences":  # it has them
                among = each.passes(self.around, job, among)
        return among

    def parts(self, job: Job, rules: Rules) -> list[Part]:
        """The domains within which the job could stay if enough were free, with the rows in them that pass what is fixed."""
        rows = 0
        for shape in job.gang.shapes:
            rows |= self.placer.cache.of(shape).bits
        return self._split(self.required(job, rules), rows & ~self.placer.excluded(job.avoid))

    def matters(self, job: Job, other: Job) -> bool:
        """Whether what the other job holds may be in the way of this one elsewhere than on its nodes."""
        mine, theirs = job.gang.rules, other.gang.rules
        if mine is not None and theirs is not None and any(name in theirs.licences for name in mine.licences):
            return True
        return _apart(job, other) is not None or _apart(other, job) is not None

    def beside(self, given: Sequence[tuple[Job, Sequence[Placement]]], other: Nomination) -> bool:
        """Whether the places of a nomination, which is lifted, can be had beside those that were given already."""
        job = other.instance.job
        licences: dict[str, int] = {}
        for each in (job, *[one for one, _ in given]):
            for name, count in each.gang.rules.licences.items() if each.gang.rules is not None else ():
                licences[name] = licences.get(name, 0) + count
        if any(self.around.licences_left(name) < count for name, count in licences.items()):
            return False
        for taker, places in given:
            if taker.id != job.id and not self._side_by_side(taker, places, job, other.placements):
                return False
        return True

    def _side_by_side(self, job: Job, places: Sequence[Placement], other: Job, theirs: Sequence[Placement]) -> bool:
        topology = self.around.topology
        topology.refresh()
        shared = dict.fromkeys([place.row for place in places])
        rows = [place for place in theirs if place.row in shared]
        alone = any(each.gang.rules is not None and each.gang.rules.exclusive for each in (job, other))
        if rows and alone:
            return False
        for place in rows:
            ports = other.gang.shapes[other.gang.group_of(place.rank)].ports
            for mine in places if ports else ():
                if mine.row == place.row and any(port in ports for port in job.gang.shapes[job.gang.group_of(mine.rank)].ports):
                    return False
        for level in [term for term in (_apart(job, other), _apart(other, job)) if term is not None]:
            mine_in = dict.fromkeys([topology.of(place.row, level) for place in places])
            if any(topology.of(place.row, level) in mine_in for place in theirs):
                return False
        return True

    def in_place(self, job: Job, places: Sequence[Placement]) -> bool:
        """Whether the job may stand at these places as things are, apart from what is free there."""
        if job.gang.rules is None and not self.around.crowded:
            return True
        allowed = self.allowed(job)
        return all(allowed >> place.row & 1 for place in places)

    def required(self, job: Job, rules: Rules) -> tuple[str, ...]:
        """The levels within which the job stays: those it names, and those of its own likes where it is the first of them."""
        own = [
            term.by
            for term in rules.affinity
            if term.required and Counted(term).about(job) and not self.around.holding(term, kept=False)
        ]
        return (*rules.required, *own)

    def _wished(self, job: Job, rules: Rules, allowed: int) -> int:
        """Those of the allowed rows that meet the terms which are only preferred too; all of them where none does."""
        rows = allowed
        for term in rules.affinity:
            if not term.required:
                rows &= self.around.holding(term, kept=False)
        for term in rules.anti_affinity:
            if not term.required:
                rows &= ~self.around.holding(term, own=job)
        return rows or allowed

    def _split(self, levels: Sequence[str], among: int) -> list[Part]:
        self.around.topology.refresh()
        parts: list[Part] = [((), among)]
        for level in levels:
            parts = [
                ((*values, value), rows) for values, bits in parts for value, rows in self.around.topology.split(level, bits)
            ]
        return parts

    def _parts(
        self, job: Job, levels: tuple[str, ...], among: int, minima: Sequence[int], counts: Sequence[int]
    ) -> Iterator[int]:
        """The domains that may hold the instance, in the order in which they are tried."""
        if not levels:
            yield among
            return
        gang = job.gang
        groups = [group for group in range(len(counts)) if counts[group]]
        rooms: dict[tuple[str, ...], list[int]] = {}
        rows_of_part = dict(self._split(levels, among))
        for group in groups:
            shape = gang.shapes[group]
            by_value: dict[tuple[str, ...], int] = {}
            if len(levels) == 1:
                for value, _, total in self.domains.rooms(shape, levels[0], among):
                    by_value[(value,)] = total
            else:
                for values, rows in rows_of_part.items():
                    by_value[values] = self.domains.room_in(shape, rows)
            for values in rows_of_part:
                rooms.setdefault(values, []).append(by_value.get(values, 0))
        whole, some = [], []
        for values, found in rooms.items():
            if all(room >= counts[group] for room, group in zip(found, groups, strict=True)):
                spare = sum([(room - counts[group]) * _weight(job, group) for room, group in zip(found, groups, strict=True)])
                whole.append((spare, values))
            elif all(room >= minima[group] for room, group in zip(found, groups, strict=True)):
                most = sum([min(room, counts[group]) for room, group in zip(found, groups, strict=True)])
                some.append((-most, values))
        for _, values in [*sorted(whole), *sorted(some)][:DOMAINS_MAX]:
            yield rows_of_part[values]

    def _place(
        self,
        job: Job,
        rules: Rules,
        rows: int,
        minima: tuple[int, ...],
        counts: tuple[int, ...],
        offsets: tuple[int, ...],
        there: Sequence[int] = (),
    ) -> tuple[Placement, ...] | None:
        """Places on these rows, beside the members that are `there`."""
        placer = self.placer
        excluded = placer.state.ledger.registered & ~rows
        placer.caps = self._caps(job, rules, rows, there)
        try:
            return placer.places(job, job.gang, minima, counts, offsets, excluded)
        finally:
            placer.caps = None

    def _caps(self, job: Job, rules: Rules, rows: int, there: Sequence[int]) -> Caps | None:
        bounds = [(one.level, one.most, one.skew) for one in rules.spread]
        bounds += [(one.by, 1, 0) for one in rules.anti_affinity if one.required and Counted(one).about(job)]
        if not bounds:
            return None
        candidates = 0
        for shape in job.gang.shapes:
            candidates |= self.placer.cache.of(shape).bits
        topology = self.around.topology
        caps = [
            Cap(level, most, skew, [value for value, _ in topology.split(level, candidates & rows)])
            for level, most, skew in bounds
        ]
        made = Caps(topology, caps)
        for row in there:
            made.add(row)
        return made

    def _fewest(self, job: Job, rules: Rules, level: str, required: tuple[str, ...], among: int) -> tuple[Placement, ...] | None:
        """Places in as few domains of this level as are enough; the last of them the smallest that will do."""
        gang = job.gang
        best: tuple[int, tuple[Placement, ...]] | None = None
        for _, rows in self._split(required, among)[:DOMAINS_MAX]:
            order: list[tuple[int, str, int]] = []
            for value, bits in self.around.topology.split(level, rows):
                room = sum(
                    [
                        min(self.domains.room_in(shape, bits), count) * _weight(job, group)
                        for group, (shape, count) in enumerate(zip(gang.shapes, gang.counts, strict=True))
                    ]
                )
                if room:
                    order.append((-room, value, bits))
            order.sort()
            taken = 0
            for number, (_, _, bits) in enumerate(order[:DOMAINS_MAX]):
                if best is not None and number + 1 >= best[0]:
                    break
                found = self._place(job, rules, taken | bits, gang.counts, gang.counts, gang.offsets)
                if found is not None:
                    for _, _, smaller in reversed(order[number:]):
                        found = self._place(job, rules, taken | smaller, gang.counts, gang.counts, gang.offsets)
                        if found is not None:
                            best = number + 1, found
                            break
                    break
                taken |= bits
        return None if best is None else best[1]


def _weight(job: Job, group: int) -> int:
    """What room for one task of a group counts among others: its devices."""
    return max(1, job.gang.shapes[group].gpus)


def _apart(job: Job, other: Job) -> str | None:
    """The widest level at which the job wants to be away from the other one, or None."""
    rules = job.gang.rules
    levels = (
        [term.by for term in rules.anti_affinity if term.required and Counted(term).about(other)] if rules is not None else []
    )
    return min(levels, key=LEVELS.index, default=None)
