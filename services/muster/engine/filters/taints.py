"""Only nodes whose taints the task tolerates."""

from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex, rows_of


class TaintsFilter:
    """Passes a node unless a taint `NoSchedule` or `NoExecute` of it is not tolerated."""

    code = "taint"

    def passes(self, index: NodeIndex, shape: Shape, among: int) -> int:
        """The rows of `among` that are not tainted, or tolerated."""
        for row in rows_of(among & index.tainted):
            taints = index.ledger.node(row).spec.taints
            if any(taint.effect != "PreferNoSchedule" and not shape.tolerates(taint) for taint in taints):
                among ^= 1 << row
        return among

    def sentence(self, shape: Shape) -> str:
        """What a person is told."""
        return "have a taint that the job does not tolerate"
