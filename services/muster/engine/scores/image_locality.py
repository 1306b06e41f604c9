"""Nodes that have the image of the task already, before those that have to fetch it."""

from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex, rows_of


class ImageLocality:
    """1 where the node names the image of the request, 0 elsewhere, and for a request without one."""

    def split(self, index: NodeIndex, shape: Shape, among: int) -> list[tuple[int, int]]:
        """The rows of `among` that have it, and the others."""
        if not shape.image:
            return [(0, among)]
        have = 0
        for row in rows_of(among):
            if shape.image in (index.ledger.node(row).spec.images or ()):
                have |= 1 << row
        return [(1, have), (0, among & ~have)]
