"""How many tasks of a shape every domain has room for, kept up to date.

Per shape one integer a row and, by level, their sums by domain. Both are repaired for the rows that were touched or altered
since; nothing is counted anew for a domain in which nothing happened. What a number says is exact for tasks of this shape
alone: each task is fitted as `muster.engine.room` would fit it.
"""

from typing import Final

from muster.cluster.ledger import Ledger
from muster.cluster.nodes import Node
from muster.cluster.shapes import Shape
from muster.engine.candidates import CandidateCache
from muster.engine.nodeindex import rows_of
from muster.engine.room import fits, fitting, room, take_whole, whole_devices
from muster.engine.topology import Topology

SHAPES_MAX: Final = 1024
MANY: Final = 1 << 30


class _Fits:
    """For one shape: tasks by row, and their sums by level and domain."""

    __slots__ = ("altered", "bits", "by_row", "sums", "touched")

    def __init__(self) -> None:
        self.by_row: dict[int, tuple[int, dict[str, str]]] = {}
        """How many tasks, and in which domains they were counted; rows without room are left out."""
        self.sums: dict[str, dict[str, int]] = {}
        self.bits = 0
        self.touched = -1
        self.altered = -1


class Domains:
    """Room by domain, for the shapes that were asked about lately."""

    __slots__ = ("_fits", "cache", "ledger", "topology")

    def __init__(self, ledger: Ledger, cache: CandidateCache, topology: Topology) -> None:
        self.ledger = ledger
        self.cache = cache
        self.topology = topology
        self._fits: dict[str, _Fits] = {}

    def room_on(self, shape: Shape, row: int) -> int:
        """For how many tasks of the shape there is room on a row."""
        found = self._of(shape).by_row.get(row)
        return 0 if found is None else found[0]

    def room_in(self, shape: Shape, rows: int) -> int:
        """For how many there is room on these rows (bits)."""
        kept = self._of(shape)
        return sum([kept.by_row[row][0] for row in rows_of(rows) if row in kept.by_row])

    def rooms(self, shape: Shape, level: str, among: int) -> list[tuple[str, int, int]]:
        """Each domain of the level: its value, its rows that are `among`, and for how many tasks there is room on these."""
        kept = self._of(shape, level)
        sums = kept.sums[level]
        found = []
        for value, rows in self.topology.split(level, among):
            whole = self.topology.rows(level, value)
            total = sums.get(value, 0)
            lacking = whole & ~rows
            if lacking and total:
                total -= sum([kept.by_row[row][0] for row in rows_of(lacking) if row in kept.by_row])
            found.append((value, rows, total))
        return found

    def _of(self, shape: Shape, level: str = "") -> _Fits:
        candidates = self.cache.of(shape)
        self.topology.refresh()
        kept = self._fits.get(shape.key)
        if kept is None:
            if len(self._fits) >= SHAPES_MAX:
                self._fits.clear()
            kept = self._fits[shape.key] = _Fits()
        ledger = self.ledger
        upto = ledger.touched_upto()
        touched = ledger.touched_since(kept.touched) if kept.touched >= 0 else None
        altered = ledger.altered_since(kept.altered) if kept.altered >= 0 else None
        if touched is None or altered is None:
            kept.by_row, kept.sums = {}, {one: {} for one in kept.sums}
            rows = list(range(len(ledger.nodes)))
        else:
            rows = [*touched, *altered]
        for row in dict.fromkeys(rows):
            self._count(kept, shape, row, candidates.bits >> row & 1)
        kept.touched, kept.altered = upto, ledger.altered_upto
        if level and level not in kept.sums:
            sums = kept.sums[level] = {}
            for row, (count, domains) in kept.by_row.items():
                value = domains[level] = self.topology.of(row, level)
                if value:
                    sums[value] = sums.get(value, 0) + count
        return kept

    def _count(self, kept: _Fits, shape: Shape, row: int, candidate: int) -> None:
        before = kept.by_row.pop(row, None)
        if before is not None:
            for level, value in before[1].items():
                if value:
                    kept.sums[level][value] -= before[0]
        node = self.ledger.nodes[row]
        count = tasks_on(node, shape) if candidate and node is not None else 0
        if count:
            domains = {level: self.topology.of(row, level) for level in kept.sums}
            kept.by_row[row] = count, domains
            for level, value in domains.items():
                if value:
                    kept.sums[level][value] = kept.sums[level].get(value, 0) + count


def tasks_on(node: Node, shape: Shape) -> int:
    """For how many tasks of a shape, each placed after the one before, there is room on a node."""
    if not fits(node, shape):
        return 0
    if shape.ports:
        limit = 1
    elif shape.numa == "required":
        return _one_by_one(node, shape)
    else:
        limit = room(node, shape, MANY)
    if shape.gpus:
        return min(limit, len(whole_devices(node, shape, node.device_free)) // shape.gpus)
    if not shape.share:
        return limit
    total = 0
    for index, units in enumerate(node.device_free):
        if units > 0 and fitting(node, shape, index):
            total += units // max(1, shape.units(node.devices[index].memory_mib))
    return min(limit, total)


def _one_by_one(node: Node, shape: Shape) -> int:
    """The devices of each NUMA node, by tasks; no more than the node as a whole has room for."""
    limit = min(
        node.cpu_free // shape.cpu_milli if shape.cpu_milli else MANY,
        node.memory_free // shape.memory_mib if shape.memory_mib else MANY,
        node.disk_free // shape.disk_mib if shape.disk_mib else MANY,
        node.tasks_free,
    )
    left = list(node.device_free)
    if not shape.gpus:
        return limit
    count = 0
    while count < limit:
        devices = take_whole(node, shape, left)
        if devices is None:
            break
        for index in devices:
            left[index] = 0
        count += 1
    return count
