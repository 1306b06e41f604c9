"""The earliest start of an instance behind what runs and behind the plans of those who rank above it.

Per node and device the *last end* that is promised on it is kept as an array, made anew for the nodes that moved. For tasks
with whole devices its order statistics bound from below when one fits; the nodes are then looked at exactly
(`muster.engine.profile`) in the order of these bounds, until no bound is below the best that was found. So few nodes are looked
at, and what is found is the earliest.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice, permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muster.cluster.jobs import Instance
from muster.cluster.ledger import Ledger
from muster.cluster.nodes import LEVELS, Node
from muster.cluster.plans import FAR, PlannedStart, length_us, task_promised_us
from muster.cluster.shapes import Gang, Shape
from muster.cluster.state import State
from muster.engine.candidates import CandidateCache
from muster.engine.profile import Amounts, Curve, Use, at_instant, curve, instants, places_amounts, starts_us, take
from muster.engine.topology import Topology
from muster.events.decisions import Placement
from muster.events.operations import Backfill

ORDERS_MAX: Final = 24
INSTANTS_MAX: Final = 32
"""For several groups: so many instants are tried beyond the first."""

Int = NDArray[np.int64]
Found = tuple[int, tuple[Placement, ...]]


class Horizon:
    """What is free over time, as the plans that were put here so far leave it."""

    __slots__ = (
        "_applied",
        "_before",
        "_closed",
        "_curves",
        "_first",
        "_last",
        "_late_us",
        "_masks",
        "_on",
        "_plain",
        "_since_us",
        "_sorted",
        "_stale",
        "_until",
        "_work",
        "cache",
        "settings",
        "state",
        "topology",
    )

    def __init__(self, state: State, cache: CandidateCache, settings: Backfill) -> None:
        self.state = state
        self.cache = cache
        self.settings = settings
        self.topology = Topology(state.ledger)
        self._stale: dict[int, None] | None = None
        """Rows whose last ends are to be made anew; None: all."""
        self._last: Int = np.zeros((0, 1), dtype=np.int64)
        """The last end that is promised on each device; 0 where it is free."""
        self._sorted: Int = np.zeros((0, 1), dtype=np.int64)
        """The same, sorted along each row."""
        self._first: Int = np.zeros(0, dtype=np.int64)
        """The first end that is promised on each row."""
        self._until: Int = np.zeros(0, dtype=np.int64)
        self._late_us = -1
        """Up to when it is known who is overdue."""
        self._work: tuple[Int, Int, Int] | None = None
        """`_last`, `_sorted` and `_first` with the plans put here."""
        self._applied = 0
        self._before: list[PlannedStart] = []
        self._on: dict[int, list[PlannedStart]] = {}
        """The plans put here, by row."""
        self._plain: dict[int, Curve] = {}
        self._curves: dict[int, Curve] = {}
        """With the plans put here."""
        self._masks: dict[int, NDArray[np.bool_]] = {}
        self._since_us = self._closed = 0
        """Nothing is planned before this, nor on these rows."""

    # What moves

    def begin(self, moved: Sequence[int] | None) -> None:
        """A round begins: no plan is put here yet."""
        self._before = []
        self._on = {}
        self._curves = {}
        self._work = None
        self._applied = 0
        self.moved(moved)

    def moved(self, rows: Sequence[int] | None) -> None:
        """These rows moved; None: any may have."""
        if rows is None or self._stale is None:
            self._stale = None
            self._plain = {}
            self._curves = {}
            self._work = None
            return
        for row in rows:
            self._stale[row] = None
            self._plain.pop(row, None)
            self._curves.pop(row, None)

    @property
    def before(self) -> list[PlannedStart]:
        """The plans put here."""
        return self._before

    def only(self, plans: Sequence[PlannedStart]) -> list[PlannedStart]:
        """Put these plans here and no others. Those that were are returned."""
        before = self._before
        self.begin(())
        for planned in plans:
            self.put(planned)
        return before

    def put(self, planned: PlannedStart) -> None:
        """Who is asked about from now on plans behind this one."""
        self._before.append(planned)
        for row in planned.by_row:
            self._on.setdefault(row, []).append(planned)
            self._curves.pop(row, None)

    def use(self, node: Node, planned: PlannedStart) -> Use:
        """What a plan takes of one node: when, until when, how much."""
        job = planned.instance.job
        length = length_us(self.state.policy, job)
        start_us = max(planned.start_us, self.state.at_us)
        end_us = FAR if length == FAR else start_us + length
        return start_us, end_us, places_amounts(node, job.gang, planned.by_row[node.row])

    def curve(self, node: Node) -> Curve:
        """The node over time, behind the plans put here."""
        row = node.row
        on = self._on.get(row)
        if on:
            found = self._curves.get(row)
            if found is None:
                found = self._curves[row] = curve(self.state, node, [self.use(node, planned) for planned in on])
            return found
        found = self._plain.get(row)
        if found is None or found.until_us < self.state.at_us:
            found = self._plain[row] = curve(self.state, node)
        return found

    # What is asked

    def relies_until(self, planned: PlannedStart, later: Sequence[PlannedStart] = ()) -> int:
        """Until when the plan's nodes surely stay as they are known, if nothing moves: until somebody is overdue who is not now.

        Whoever was to begin there before now, by a plan or once his victims are gone, begins later and later: now alone.
        `later`: plans that it was looked at behind beside those put here.
        """
        state = self.state
        now = state.at_us
        until = max(planned.start_us, now)
        for row in planned.by_row:
            node = state.ledger.nodes[row]
            if node is None:
                continue
            begin = [each.start_us for each in (*self._on.get(row, ()), *later) if row in each.by_row]
            begin += [starts_us(state, state.nominations[key]) for key in node.claims]
            until = min([until, self.curve(node).until_us, *[max(begun_us, now) for begun_us in begin]])
        return until

    def any_sooner(self, planned: PlannedStart, rows: Int) -> bool:
        """Whether one of the rows has room for a task of the planned instance before its start."""
        shapes = planned.instance.job.gang.shapes
        if not len(rows) or not all(shape.gpus for shape in shapes):
            return any(self._sooner(planned, row) for row in rows.tolist())
        self._refresh()
        ends = self._ends()
        some = rows[rows < len(ends)]
        step = self.settings.resolution_us
        for shape in shapes:
            if shape.gpus <= ends.shape[1]:
                first = np.maximum(ends[some, shape.gpus - 1], self.state.at_us)
                early = some[-(-first // step) * step < planned.start_us]
                if any(self._sooner(planned, row) for row in early.tolist()):
                    return True
        return False

    def _sooner(self, planned: PlannedStart, row: int) -> bool:
        """Whether the row has room for a task of the planned instance before its start."""
        nodes = self.state.ledger.nodes
        node = nodes[row] if row < len(nodes) else None
        if node is None:
            return False
        for shape in planned.instance.job.gang.shapes:
            if self.cache.of(shape).bits >> row & 1:
                found = instants(node, shape, self.curve(node), 1)
                if found and self._rounded(found[0]) < planned.start_us:
                    return True
        return False

    def holds(self, planned: PlannedStart, lenient: bool) -> bool:
        """Whether the plan can be had as it stands; `lenient`, or could if who is overdue went now."""
        state = self.state
        job = planned.instance.job
        length = length_us(state.policy, job)
        start_us = max(planned.start_us, state.at_us)
        if job.gang.rules is not None and not self._in_one(job.gang.rules.required, list(planned.by_row)):
            return False
        for row, places in planned.by_row.items():
            node = state.ledger.nodes[row] if row < len(state.ledger.nodes) else None
            if node is None or node.uid in job.avoid:
                return False
            for placement in places:
                shape = job.gang.shapes[job.gang.group_of(placement.rank)]
                if not self.cache.of(shape).bits >> row & 1:
                    return False
                if any(index >= len(node.devices) or not node.devices[index].usable for index in placement.devices):
                    return False
            if lenient:
                here = curve(state, node, [self.use(node, each) for each in self._on.get(row, ())], lenient=True)
            else:
                here = self.curve(node)
            free = here.least(start_us, FAR if length == FAR else start_us + length)
            if any(need > there for need, there in zip(places_amounts(node, job.gang, places), free, strict=True) if need):
                return False
        return True

    def _in_one(self, levels: Sequence[str], rows: Sequence[int]) -> bool:
        """Whether these rows are in one domain of each level."""
        if not levels:
            return True
        wanted = sum([1 << row for row in rows])
        return any(wanted & ~bits == 0 for bits in self._domains(levels))

    def earliest_from(self, instance: Instance, since_us: int, closed: int) -> Found | None:
        """The same, not before an instant and not on `closed` rows (bits)."""
        self._since_us, self._closed = since_us, closed
        found = self.earliest(instance)
        self._since_us = self._closed = 0
        return found

    def earliest(self, instance: Instance) -> Found | None:
        """When and where the instance can start at the earliest, within the horizon.

        What has to stay within a domain starts in the one that has room first; ties by the names of the domains.
        """
        self._refresh()
        rules = instance.job.gang.rules
        if rules is None or not rules.required:
            return self._earliest(instance)
        best: Found | None = None
        closed = self._closed
        for rows in self._domains(rules.required):
            self._closed = closed | ~rows
            found = self._earliest(instance)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        self._closed = closed
        return best

    def _domains(self, levels: Sequence[str]) -> list[int]:
        """The rows of each domain of all these levels, as bits."""
        self.topology.refresh()
        parts = [self.state.ledger.registered]
        for level in levels:
            parts = [rows for bits in parts for _, rows in self.topology.split(level, bits)]
        return parts

    def _earliest(self, instance: Instance) -> Found | None:
        gang = instance.job.gang
        groups = [group for group in range(len(gang.shapes)) if gang.minima[group]]
        groups.sort(
            key=lambda group: (-gang.shapes[group].gpus, -gang.shapes[group].gpu_milli, -gang.shapes[group].cpu_milli, group)
        )
        masks = [self._mask(instance, gang.shapes[group]) for group in groups]
        firsts = []
        for group, mask in zip(groups, masks, strict=True):
            found = self._group(gang.shapes[group], gang.minima[group], mask)
            if found is None:
                return None
            firsts.append(found)
        if not groups:
            return None
        if len(groups) == 1:
            start_us, rows = firsts[0]
            return self._placed(gang, groups, masks, start_us, rows)
        start_us = max([found[0] for found in firsts])
        return self._together(gang, groups, masks, start_us)

    # One group

    def _group(self, shape: Shape, wanted: int, mask: NDArray[np.bool_]) -> tuple[int, list[int]] | None:
        """The earliest instant for so many tasks of one shape, and rows that have room for them then, the latest first."""
        if wanted == 1:
            ends = self._ends()
            if not len(ends) or shape.gpus > ends.shape[1]:
                return None
            assert self._work is not None
            return self._one(shape, np.where(mask, ends[:, shape.gpus - 1] if shape.gpus else self._work[2], FAR))
        bounds = self._bounds(shape, wanted, mask)
        if not bounds.size:
            return None
        exact: dict[int, list[int]] = {}
        limit_us = self.state.at_us + self.settings.horizon_us
        while True:
            time_us = self._nth(bounds, wanted, limit_us)
            if time_us is None:
                return None
            rows = np.nonzero(bounds[:, 0] <= time_us)[0]
            order = rows[np.lexsort((rows, -bounds[rows, 0]))].tolist()
            count = 0
            enough: list[int] = []
            new = False
            for row in order:
                times = exact.get(row)
                if times is None:
                    node = self.state.ledger.node(row)
                    times = exact[row] = instants(node, shape, self.curve(node), min(wanted, bounds.shape[1]))
                    new = True
                    bounds[row] = FAR
                    bounds[row, : len(times)] = times
                some = sum([time <= time_us for time in times])
                if some:
                    count += some
                    enough.append(row)
                    if count >= wanted:
                        return time_us, enough
            assert new, "the bounds are exact, and yet too few"

    def _one(self, shape: Shape, bounds: Int) -> tuple[int, list[int]] | None:
        """The same for one task: nodes are looked at in the order of their bounds."""
        limit_us = self.state.at_us + self.settings.horizon_us
        while True:
            row = int(bounds.argmin())
            time_us = int(bounds[row])
            start_us = self._within(time_us, limit_us)
            if start_us is None:
                return None
            node = self.state.ledger.node(row)
            found = instants(node, shape, self.curve(node), 1)
            bounds[row] = found[0] if found else FAR
            if found and self._rounded(found[0]) <= start_us:
                return start_us, [row]

    def _bounds(self, shape: Shape, wanted: int, mask: NDArray[np.bool_]) -> Int:
        """By row: before which instants the first task cannot fit, the second, and so on; as many as may matter."""
        if shape.gpus:
            ends = self._ends()
            columns = ends[:, shape.gpus - 1 :: shape.gpus][:, :wanted]
            bounds = columns.copy()
        else:
            self._ends()
            assert self._work is not None
            first = self._work[2].copy()
            room = with_room(self.state.ledger, shape) & self.state.ledger.registered
            first[self._rows(room)] = 0  # some of them may have room there now
            bounds = np.repeat(first[:, None], min(wanted, 64), axis=1)
        bounds[~mask] = FAR
        return bounds

    def _nth(self, bounds: Int, wanted: int, limit_us: int) -> int | None:
        """The earliest possible start by which so many of the bounds have passed."""
        now, step = max(self.state.at_us, self._since_us), self.settings.resolution_us
        flat = bounds[bounds <= limit_us]
        if len(flat) < wanted:
            return None
        low, high = -(-now // step) - 1, limit_us // step  # not yet by low, enough by high, if ever
        if np.count_nonzero(flat <= high * step) < wanted:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if np.count_nonzero(flat <= middle * step) >= wanted:
                high = middle
            else:
                low = middle
        return high * step

    def _within(self, time_us: int, limit_us: int) -> int | None:
        if time_us == FAR:
            return None
        start_us = self._rounded(time_us)
        return start_us if start_us <= limit_us else None

    def _rounded(self, time_us: int) -> int:
        """The earliest start at or after this instant."""
        return -(-max(time_us, self.state.at_us, self._since_us) // self.settings.resolution_us) * self.settings.resolution_us

    # Places

    def _placed(
        self, gang: Gang, groups: Sequence[int], masks: Sequence[NDArray[np.bool_]], start_us: int, rows: Sequence[int]
    ) -> Found | None:
        """Places at this instant on these rows, group after group, or None."""
        free: dict[int, Amounts] = {}
        placements: list[Placement] = []
        for group, mask in zip(groups, masks, strict=True):
            shape, rank = gang.shapes[group], gang.offsets[group]
            left = gang.minima[group]
            for row in rows:
                if not left:
                    break
                if not mask[row]:
                    continue
                node = self.state.ledger.node(row)
                amounts = free.get(row)
                if amounts is None:
                    amounts = free[row] = at_instant(self.curve(node), start_us)
                while left:
                    devices = take(node, shape, amounts)
                    if devices is None:
                        break
                    placements.append(Placement(rank, row, devices))
                    rank += 1
                    left -= 1
            if left:
                return None
        return start_us, tuple(sorted(placements, key=_rank))

    def _together(self, gang: Gang, groups: Sequence[int], masks: Sequence[NDArray[np.bool_]], start_us: int) -> Found | None:
        """The first instant from `start_us` on at which all groups find places beside each other, of those that are tried."""
        limit_us = start_us + self.settings.horizon_us
        either = masks[0].copy()
        for mask in masks[1:]:
            either |= mask
        rows = np.nonzero(either)[0].tolist()
        later: dict[int, None] = {}
        for row in rows:
            node = self.state.ledger.node(row)
            for time in self.curve(node).times:
                if start_us < time <= limit_us:
                    later[self._rounded(time)] = None
        limit_us = self.state.at_us + self.settings.horizon_us
        for time_us in [start_us, *sorted(later)[:INSTANTS_MAX]]:
            if time_us > limit_us:
                return None
            for order in islice(permutations(range(len(groups))), ORDERS_MAX):
                found = self._placed(gang, [groups[at] for at in order], [masks[at] for at in order], time_us, rows)
                if found is not None:
                    return found
        return None

    # Arrays

    def _mask(self, instance: Instance, shape: Shape) -> NDArray[np.bool_]:
        """Which rows a task may go to, whatever is held there."""
        bits = self.cache.of(shape).bits & ~self._closed
        for uid in instance.job.avoid:
            row = self.cache.index.uids.get(uid)
            if row is not None:
                bits &= ~(1 << row)
        found = self._masks.get(bits)
        if found is None or len(found) != len(self._first):
            if len(self._masks) >= 256:
                self._masks.clear()
            found = self._masks[bits] = self._rows(bits)
        return found

    def _rows(self, bits: int) -> NDArray[np.bool_]:
        """The rows whose bit is set, as a mask."""
        rows = len(self._first)
        data = np.frombuffer(bits.to_bytes((rows + 7) // 8, "little"), dtype=np.uint8)
        return np.unpackbits(data, count=rows, bitorder="little").astype(np.bool_)

    def _gone_us(self, planned: PlannedStart) -> int:
        """When the planned instance would be gone."""
        length = length_us(self.state.policy, planned.instance.job)
        return FAR if length == FAR else max(planned.start_us, self.state.at_us) + length

    def _refresh(self) -> None:
        """Bring the arrays up to the rows that moved, and to those on which somebody is overdue by now."""
        nodes = self.state.ledger.nodes
        width = (
            max([1, *[len(node.devices) for node in nodes if node is not None]]) if self._stale is None else self._last.shape[1]
        )
        if self._stale is not None and (
            len(nodes) > len(self._first)
            or any(row < len(nodes) and (node := nodes[row]) is not None and len(node.devices) > width for row in self._stale)
        ):
            self._stale = None
            width = max([1, *[len(node.devices) for node in nodes if node is not None]])
        if self._stale is None:
            self._last = np.full((len(nodes), width), FAR, dtype=np.int64, order="F")
            self._first = np.full(len(nodes), FAR, dtype=np.int64)
            self._until = np.full(len(nodes), FAR, dtype=np.int64)
            self._sorted = self._last.copy(order="F")
            rows = list(range(len(nodes)))
            self._work = None
        else:
            late = np.nonzero(self._until < self.state.at_us)[0].tolist() if self._late_us < self.state.at_us else []
            rows = list(dict.fromkeys([*self._stale, *late]))
        self._late_us = self.state.at_us
        if not rows:
            return
        self._stale = {}
        for row in rows:
            if row < len(nodes):
                ends, self._first[row], self._until[row] = self._ends_on(nodes[row], width)
                self._last[row] = ends
        self._sorted[rows] = np.sort(self._last[rows], axis=1, kind="stable")
        if self._work is not None:
            for row in rows:
                self._apply(row)

    def _ends_on(self, node: Node | None, width: int) -> tuple[list[int], int, int]:
        """The last end on each device, the first end on the node, and until when nobody more is overdue."""
        ends = [FAR] * width
        if node is None:
            return ends, FAR, FAR
        now, policy = self.state.at_us, self.state.policy
        for index, device in enumerate(node.devices):
            if device.usable:
                ends[index] = 0
        first = until = FAR
        for task in node.tasks:
            end_us = task_promised_us(policy, task)
            if end_us < now:
                end_us = FAR
            elif end_us < until:
                until = end_us
            if end_us < first:
                first = end_us
            for index in task.devices:
                if end_us > ends[index]:
                    ends[index] = end_us
        for key in node.claims:
            first = 0
            waits_us = starts_us(self.state, self.state.nominations[key])
            if now <= waits_us < until:
                until = waits_us
        return ends, first, until

    def _ends(self) -> Int:
        """The sorted last ends, behind the plans put here."""
        if self._work is None:
            self._work = self._last, self._sorted, self._first
            self._applied = 0
        if self._applied < len(self._before):
            last, ordered, first = self._work
            if last is self._last:
                self._work = last.copy(order="F"), ordered.copy(order="F"), first.copy()
            rows: dict[int, None] = {}
            for planned in self._before[self._applied :]:
                rows.update(dict.fromkeys(planned.by_row))
            self._applied = len(self._before)
            for row in rows:
                self._apply(row)
        return self._work[1]

    def _apply(self, row: int) -> None:
        """Count the row's plans into the arrays."""
        assert self._work is not None
        last, ordered, firsts = self._work
        if last is self._last or row >= len(last):
            return
        ends: list[int] = self._last[row].tolist()
        first = int(self._first[row])
        for planned in self._on.get(row, ()):
            end_us = self._gone_us(planned)
            if end_us < first:
                first = end_us  # nobody has room here before somebody who runs or is planned has gone
            for placement in planned.by_row[row]:
                for index in placement.devices:
                    if index < len(ends) and ends[index] < end_us:
                        ends[index] = end_us
        last[row] = ends
        ends.sort()
        ordered[row] = ends
        firsts[row] = first


def with_room(ledger: Ledger, shape: Shape) -> int:
    """The rows on which one task might fit now, as bits; more than those on which it does."""
    ledger.look()
    bits = ledger.cpu_at[shape.cpu_level] if shape.cpu_level else -1
    if not shape.needs_device:
        return bits
    some = 0
    for row in ledger.whole[shape.gpus or 1 :]:
        some |= row
    if shape.share:
        lowest = bisect_left(ledger.levels, shape.gpu_milli * LEVELS // 1000)
        for level in ledger.levels[lowest:]:
            some |= ledger.partial[level]
    return bits & some


def _rank(placement: Placement) -> int:
    return placement.rank
