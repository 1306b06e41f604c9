"""The node first whose CPU, memory and GPUs would be used most alike: none runs out while the others idle.

As in Kubernetes, BalancedAllocation, with the distance of the extremes where that takes the deviation.
"""

import numpy as np
from numpy.typing import NDArray

from muster.cluster.shapes import Shape
from muster.engine.scores.used import WHOLE, used_milli
from muster.engine.view import View


class Balanced:
    """1000 less the distance, in thousandths, of what would be used most from what would be used least."""

    __slots__ = ()

    def row(self, view: View, shape: Shape, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The score of each of these rows."""
        used, there = used_milli(view, shape, rows)
        most = np.where(there, used, 0).max(axis=1)
        least = np.where(there, used, WHOLE).min(axis=1)
        score: NDArray[np.int64] = WHOLE - np.maximum(most - least, 0)
        return score

    def devices(self, view: View, shape: Shape, row: int) -> tuple[int, ...] | None:
        """Left to the engine."""
        return None
