"""Only nodes whose labels meet every requirement of the job."""

from collections.abc import Mapping, Sequence

from muster.cluster.rules import meets
from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex, rows_of
from muster.events.jobs import Requirement


class SelectorFilter:
    """Passes a node if its labels meet the selector. As in Kubernetes, `NotIn` passes a node without the label."""

    code = "selector"

    def passes(self, index: NodeIndex, shape: Shape, among: int) -> int:
        """The rows of `among` whose labels fit."""
        if not shape.selector and not shape.any_of:
            return among
        for row in rows_of(among):
            labels = index.ledger.node(row).spec.labels
            if not all(meets(labels, requirement) for requirement in shape.selector) or not self.meets_one(shape, labels):
                among ^= 1 << row
        return among

    def meets_one(self, shape: Shape, labels: Mapping[str, str]) -> bool:
        """Whether one of the selectors in `any_of` is met, or there is none."""
        return not shape.any_of or any(all(meets(labels, requirement) for requirement in term) for term in shape.any_of)

    def sentence(self, shape: Shape) -> str:
        """What a person is told."""
        parts = [_said(shape.selector)] if shape.selector else []
        if shape.any_of:
            parts.append(" or ".join(_said(term) for term in shape.any_of))
        wanted = " and ".join(parts)
        return f"have labels that do not meet the selector ({wanted})"


def _said(term: Sequence[Requirement]) -> str:
    return ", ".join([f"{one.key} {one.op} {' '.join(one.values)}".strip() for one in term])
