"""Nodes with the GPU model that the job names first, before those with the next."""

from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex


class ModelPreference:
    """0 for the first model named, -1 for the second, and so on; 0 for all where no model is named."""

    def split(self, index: NodeIndex, shape: Shape, among: int) -> list[tuple[int, int]]:
        """The rows of `among` by the best of their models."""
        if len(shape.gpu_models) < 2:
            return [(0, among)]
        found = []
        for place, wanted in enumerate(shape.gpu_models):
            bits = 0
            for (model, _, _), by_count in index.kinds.items():
                if model == wanted:
                    for rows in by_count.values():
                        bits |= rows
            found.append((-place, among & bits))
            among &= ~bits
        found.append((-len(shape.gpu_models), among))
        return found
