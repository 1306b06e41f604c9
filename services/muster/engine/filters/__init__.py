"""Which nodes a task may go to: one filter a file, in the order of the policy.

A filter says which of some rows pass for a shape, as bits. It reads what is fixed about a node and never what is held;
what is held is the business of `muster.engine.room`. The engine keeps the result per shape and asks again only about rows
that were altered.

A new filter is a file here with one class, and its line in `FILTERS`.
"""

from typing import Protocol

from muster.cluster.shapes import Shape
from muster.engine.filters.model import ModelFilter
from muster.engine.filters.ready import ReadyFilter
from muster.engine.filters.resources import ResourcesFilter
from muster.engine.filters.selector import SelectorFilter
from muster.engine.filters.taints import TaintsFilter
from muster.engine.nodeindex import NodeIndex


class Filter(Protocol):
    """A reason not to put a task on a node."""

    code: str
    """The reason, in one word of the log."""

    def passes(self, index: NodeIndex, shape: Shape, among: int) -> int:
        """The rows of `among` that pass, as bits."""
        ...

    def sentence(self, shape: Shape) -> str:
        """What a person is told about the nodes that do not pass."""
        ...


FILTERS: dict[str, Filter] = {
    "ready": ReadyFilter(),
    "taints": TaintsFilter(),
    "selector": SelectorFilter(),
    "model": ModelFilter(),
    "resources": ResourcesFilter(),
}
"""By the name that a policy gives them."""
