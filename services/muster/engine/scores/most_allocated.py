"""The fullest node first: whole nodes stay free. As in Kubernetes, MostAllocated."""

import numpy as np
from numpy.typing import NDArray

from muster.cluster.shapes import Shape
from muster.engine.scores.used import used_milli
from muster.engine.view import View


class MostAllocated:
    """0 to 1000: what would be used of CPU, memory and GPUs, in thousandths, on the mean over those that the node has."""

    __slots__ = ()

    def row(self, view: View, shape: Shape, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The score of each of these rows."""
        used, there = used_milli(view, shape, rows)
        mean: NDArray[np.int64] = used.sum(axis=1) // np.maximum(there.sum(axis=1), 1)
        return mean

    def devices(self, view: View, shape: Shape, row: int) -> tuple[int, ...] | None:
        """Left to the engine."""
        return None
