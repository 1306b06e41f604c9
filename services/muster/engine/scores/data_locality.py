"""Nodes that are near more of the task's data sets, before those that are near fewer."""

from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex, rows_of


class DataLocality:
    """How many of the data sets of the request the node names; 0 for a request without any."""

    def split(self, index: NodeIndex, shape: Shape, among: int) -> list[tuple[int, int]]:
        """The rows of `among` by how many they have."""
        if not shape.datasets:
            return [(0, among)]
        found: dict[int, int] = {}
        for row in rows_of(among):
            near = index.ledger.node(row).spec.datasets or ()
            count = sum([name in near for name in shape.datasets])
            found[count] = found.get(count, 0) | 1 << row
        return sorted(found.items())
