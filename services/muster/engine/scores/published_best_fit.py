"""Best fit as the published openb experiment has it: a task goes where the least CPU and the least of all GPUs is left.

Source: the authors' simulator of Weng et al., USENIX ATC 2023: int(100 * (1 - (a + b) / 2)), where a is the CPU that would be
left over 128 cores, and b the GPUs that would be left over 8. In integers: x = CPU left in thousandths + 16 * GPU left in
thousandths, and 100 * (256000 - x) // 256000. The simulator then stretches the values to 0..100, which changes no order. On
nodes larger than that the value is negative, and the order still right.

A share goes to the device in use or not with the least that is enough; whole devices are the first free ones.
"""

import numpy as np
from numpy.typing import NDArray

from muster.engine.scores.fgd import WHOLE_MILLI, asked_units, first_free, fitting, idle_milli
from muster.engine.view import Shape, View

Int = NDArray[np.int64]

_CPU_MILLI = 128_000
_GPU_MILLI = 8000


class PublishedBestFit:
    """100 where nothing would be left, 0 where the largest node of the experiment would be empty."""

    __slots__ = ()

    def row(self, view: View, shape: Shape, rows: Int) -> Int:
        """The score of each of these rows. Bound: CPU is at most 2^53, GPUs 64000 a node, so under 2^61."""
        idle = idle_milli(view.device_free[rows], view.device_cap[rows]).sum(axis=1)
        left = view.cpu_free[rows] - shape.cpu_milli + _CPU_MILLI // _GPU_MILLI * (idle - asked_milli(view, shape, rows))
        score: Int = 100 * (2 * _CPU_MILLI - left) // (2 * _CPU_MILLI)
        return score

    def devices(self, view: View, shape: Shape, row: int) -> tuple[int, ...] | None:
        """The device for a share, or the devices for a task that takes whole ones."""
        rows = np.array([row])
        if shape.share:
            free = view.device_free[rows]
            enough = (free >= asked_units(view, shape, rows)) & fitting(view, shape, rows)
            return (int(np.where(enough, free, np.iinfo(np.int64).max).argmin()),)
        if not shape.gpus:
            return ()
        return tuple(np.flatnonzero(first_free(view, shape, rows)[0]).tolist())


def asked_milli(view: View, shape: Shape, rows: Int) -> Int | int:
    """Thousandths of a GPU; an amount of memory is so much of the node's first device."""
    if shape.gpus or shape.gpu_milli or not shape.share:
        return shape.gpus * WHOLE_MILLI + shape.gpu_milli
    cap: Int = view.device_cap[rows].max(axis=1)
    return asked_units(view, shape, rows)[:, 0] * WHOLE_MILLI // np.maximum(cap, 1)
