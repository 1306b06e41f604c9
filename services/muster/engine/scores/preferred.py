"""Nodes whose labels a job prefers, before the others.

It stands in no policy: who prefers nothing is not split, so it says what a job says and costs the others nothing.
"""

from muster.cluster.rules import meets
from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex, rows_of


class Preferred:
    """The weights of the preferences that a node meets, added up."""

    def split(self, index: NodeIndex, shape: Shape, among: int) -> list[tuple[int, int]]:
        """The rows of `among` by their weight."""
        found: dict[int, int] = {}
        for row in rows_of(among):
            labels = index.ledger.node(row).spec.labels
            weight = sum([wish.weight for wish in shape.prefers if all(meets(labels, one) for one in wish.labels)])
            found[weight] = found.get(weight, 0) | 1 << row
        return sorted(found.items())
