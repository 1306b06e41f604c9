"""How many more tasks of one instance each domain may take, while they are placed one after the other.

A bound of the job's own (`spread`), or of its anti-affinity to its own likes. Levels that lie inside each other, and the
room on each node, are bounds of one family: then taking the next best spot again and again reaches as many tasks as any
other way would.
"""

from typing import TYPE_CHECKING

from muster.cluster.jobs import Attempt
from muster.cluster.shapes import Shape
from muster.engine.bestfit import Spot
from muster.engine.nodeindex import rows_of
from muster.engine.topology import Topology

if TYPE_CHECKING:
    from muster.engine.place import Placer
    from muster.engine.plan import Plan


class Cap:
    """One bound over the domains of a level."""

    __slots__ = ("counts", "eligible", "level", "most", "skew")

    def __init__(self, level: str, most: int, skew: int, eligible: list[str]) -> None:
        self.level = level
        self.most = most
        self.skew = skew
        self.eligible = eligible
        """The domains in which a task could stand at all: the emptiest of them bounds the others by `skew`."""
        self.counts: dict[str, int] = {}

    def full(self) -> list[str]:
        """The domains that may take no more now."""
        counts = self.counts
        found = [value for value, count in counts.items() if self.most and count >= self.most]
        if self.skew:
            least = min([counts.get(value, 0) for value in self.eligible], default=0)
            found += [value for value, count in counts.items() if count >= least + self.skew]
        return found


class Caps:
    """All bounds of one instance. Counts follow the plan: what it takes back is not counted."""

    __slots__ = ("caps", "topology")

    def __init__(self, topology: Topology, caps: list[Cap]) -> None:
        self.topology = topology
        self.caps = caps

    def full(self) -> int:
        """The rows that may take no more now, as bits."""
        bits = 0
        for cap in self.caps:
            for value in dict.fromkeys(cap.full()):
                bits |= self.topology.rows(cap.level, value)
        return bits

    def add(self, row: int, more: int = 1) -> None:
        """So many more tasks stand on this row."""
        for cap in self.caps:
            value = self.topology.of(row, cap.level)
            if value:
                left = cap.counts.get(value, 0) + more
                if left:
                    cap.counts[value] = left
                else:
                    del cap.counts[value]

    def spots(self, placer: "Placer", plan: "Plan", ghost: Attempt, shape: Shape, want: int, excluded: int) -> list[Spot]:
        """Up to `want` spots, each held in the plan before the next is looked for."""
        found: list[Spot] = []
        while len(found) < want:
            spot = placer.one(shape, excluded | self.full())
            if spot is None:
                break
            found.append(spot)
            plan.with_spots(ghost, shape, [spot])
            self.add(spot[0])
            plan.later(lambda row=spot[0]: self.add(row, -1))  # type: ignore[misc]
        return found

    def most_in(self, room: dict[int, int], rows: int) -> int:
        """How many tasks the rows can take at most, by the room on each and the bounds `most`; an estimate from above."""
        total = sum([room.get(row, 0) for row in rows_of(rows)])
        for cap in self.caps:
            if cap.most:
                by_value: dict[str, int] = {}
                for row in rows_of(rows):
                    value = self.topology.of(row, cap.level)
                    by_value[value] = by_value.get(value, 0) + room.get(row, 0)
                total = min(total, sum([min(count, cap.most - cap.counts.get(value, 0)) for value, count in by_value.items()]))
        return total
