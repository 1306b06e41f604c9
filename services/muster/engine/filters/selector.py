"""Only nodes whose labels meet every requirement of the job."""

from muster.cluster.rules import meets
from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex, rows_of


class SelectorFilter:
    """Passes a node if its labels meet the selector. As in Kubernetes, `NotIn` passes a node without the label."""

    code = "selector"

    def passes(self, index: NodeIndex, shape: Shape, among: int) -> int:
        """The rows of `among` whose labels fit."""
        if not shape.selector:
            return among
        for row in rows_of(among):
            labels = index.ledger.node(row).spec.labels
            if not all(meets(labels, requirement) for requirement in shape.selector):
                among ^= 1 << row
        return among

    def sentence(self, shape: Shape) -> str:
        """What a person is told."""
        wanted = ", ".join(f"{r.key} {r.op} {' '.join(r.values)}".strip() for r in shape.selector)
        return f"have labels that do not meet the selector ({wanted})"
