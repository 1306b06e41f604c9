"""How full a node would be with one more task: the numbers that the scores about allocation share."""

import numpy as np
from numpy.typing import NDArray

from muster.engine.scores.fgd import WHOLE_MILLI, idle_milli
from muster.engine.scores.published_best_fit import asked_milli
from muster.engine.view import Shape, View

Int = NDArray[np.int64]

WHOLE = 1000
AMOUNT_MAX = 2**52


def used_milli(view: View, shape: Shape, rows: Int) -> tuple[Int, NDArray[np.bool_]]:
    """[row, resource]: thousandths of CPU, memory and GPUs that would be in use; and whether the node has any of it.

    Bound: amounts are cut off at 2^52, far above any node, so that a product stays under 2^62.
    """
    idle = idle_milli(view.device_free[rows], view.device_cap[rows]).sum(axis=1)
    gpus = (view.device_cap[rows] > 0).sum(axis=1) * WHOLE_MILLI
    caps = np.stack([view.cpu_cap[rows], view.memory_cap[rows], gpus], axis=1)
    left = np.stack(
        [view.cpu_free[rows] - shape.cpu_milli, view.memory_free[rows] - shape.memory_mib, idle - asked_milli(view, shape, rows)],
        axis=1,
    )
    used = np.minimum(np.clip(caps - left, 0, caps), AMOUNT_MAX)
    caps = np.minimum(caps, AMOUNT_MAX)
    there = caps > 0
    return np.where(there, used * WHOLE // np.maximum(caps, 1), 0), there
