"""The node first that holds the fewest tasks of the same shape: equals stand apart where they can, and none has to."""

import numpy as np
from numpy.typing import NDArray

from muster.cluster.shapes import Shape
from muster.engine.view import View


class Spread:
    """0 where no task of the shape is held, and 1 less for each that is."""

    __slots__ = ()

    def row(self, view: View, shape: Shape, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The score of each of these rows. Cost: the tasks held there."""
        node = view.state.ledger.node
        counts = [sum([task.shape.key == shape.key for task in node(row).tasks]) for row in rows.tolist()]
        return -np.array(counts, dtype=np.int64)

    def devices(self, view: View, shape: Shape, row: int) -> tuple[int, ...] | None:
        """Left to the engine."""
        return None
