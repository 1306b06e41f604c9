"""Which of the nodes that would do is taken: one score a file, with weights in the policy.

There are two sorts. A *fixed* score depends on what a node is and not on what is held on it: it splits rows by value, and
is kept per shape. A score *by holdings* gives an integer to each row; the engine keeps these integers per shape too, and
asks again only about rows on which something was held or freed. The total is the weighted sum; a tie goes to the lowest
row.

`best-fit` is a score by holdings that has an index of its own (`muster.engine.bestfit`), which finds its best row without
looking at every one. It is used where `best-fit` is the only score by holdings of the policy.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex
from muster.engine.scores.balanced import Balanced
from muster.engine.scores.data_locality import DataLocality
from muster.engine.scores.fgd import Fgd
from muster.engine.scores.image_locality import ImageLocality
from muster.engine.scores.least_allocated import LeastAllocated
from muster.engine.scores.model_preference import ModelPreference
from muster.engine.scores.most_allocated import MostAllocated
from muster.engine.scores.published_best_fit import PublishedBestFit
from muster.engine.scores.spread import Spread
from muster.engine.view import View
from muster.events.operations import Policy


class StaticScore(Protocol):
    """A score that depends on what a node is."""

    def split(self, index: NodeIndex, shape: Shape, among: int) -> list[tuple[int, int]]:
        """The rows of `among`, as bits by value."""
        ...


class HoldingsScore(Protocol):
    """A score that depends on what is held. It is made for a policy, which may configure it."""

    def row(self, view: View, shape: Shape, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """A value for each of these rows, on each of which one task fits."""
        ...

    def devices(self, view: View, shape: Shape, row: int) -> tuple[int, ...] | None:
        """Which devices a task takes on this row; None leaves it to the engine."""
        ...


STATIC: dict[str, StaticScore] = {
    "model-preference": ModelPreference(),
    "image-locality": ImageLocality(),
    "data-locality": DataLocality(),
}

HOLDINGS: dict[str, Callable[[Policy], HoldingsScore]] = {
    "fgd": Fgd,
    "published-best-fit": lambda _: PublishedBestFit(),
    "least-allocated": lambda _: LeastAllocated(),
    "most-allocated": lambda _: MostAllocated(),
    "balanced": lambda _: Balanced(),
    "spread": lambda _: Spread(),
}
