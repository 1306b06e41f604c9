"""Only nodes that are heard, not cordoned, drained or fenced, and not in quarantine."""

from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex


class ReadyFilter:
    """Passes the nodes that take new work at all."""

    code = "not-ready"

    def passes(self, index: NodeIndex, shape: Shape, among: int) -> int:
        """The rows of `among` that are open."""
        return among & index.open

    def sentence(self, shape: Shape) -> str:
        """What a person is told."""
        return "take no new work (silent, lost, cordoned, drained, fenced or in quarantine)"
