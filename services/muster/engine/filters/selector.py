"""Only nodes whose labels meet every requirement of the job."""

from collections.abc import Mapping

from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex, rows_of
from muster.events.jobs import Requirement


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


def meets(labels: Mapping[str, str], requirement: Requirement) -> bool:
    """Whether the labels meet one requirement. A value that is no integer meets neither `Gt` nor `Lt`."""
    value = labels.get(requirement.key)
    op = requirement.op
    if op == "Exists":
        return value is not None
    if op == "DoesNotExist":
        return value is None
    if op == "NotIn":
        return value not in requirement.values
    if value is None:
        return False
    if op == "In":
        return value in requirement.values
    if not value.lstrip("-").isdecimal() or len(value) > 16 or "-" in value[1:]:
        return False
    bound = int(requirement.values[0])
    return int(value) > bound if op == "Gt" else int(value) < bound
