"""Fragmentation gradient descent: a task goes where the GPUs that its cluster can still use shrink least.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, section 4; and the authors' simulator, of which the score's truncation is copied, because wide ties
that go to the first node are a part of what was published.

Fragmentation. Let M be the target workload (`Policy.targets`): classes c with weight w_c, T = sum of w_c. For a node with
the idle thousandths r_g of its GPUs, R = sum of r_g, F = sum over c of w_c / T times

- all of R, where c asks for no GPU, or the node could not host c (model, CPU, or too few GPUs with r_g >= m_c);
- else the r_g of the GPUs with r_g < m_c.

So F * T = R * T - sum over hosted c of w_c * (sum of the r_g >= m_c), an integer. Memory is not looked at.

Score. The published one is int(100 * sigmoid(d / 1000)) with d = F before - F after. sigmoid rises, so that is the
number of k in 1..99 with d / 1000 >= ln(k / (100 - k)), that is, with d * T >= 1000 * T * ln(k / (100 - k)): d * T is an
integer, so it is compared with the right side rounded up (`thresholds`). But for k = 50 the right side is irrational, so
no tie can be decided wrongly. The float version differs from this one only where d = 0 exactly and rounding made it less.

Which device. A share tries every device and takes the first of the best; whole devices are the first free ones.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muster.engine.view import Shape, View
from muster.events.operations import Policy, TargetClass

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

WHOLE_MILLI = 1000
_ROWS_AT_ONCE = 1024


class Fgd:
    """100 times the sigmoid of what the target workload loses less by going here, truncated."""

    __slots__ = ("_allowed", "_models", "_target")

    def __init__(self, policy: Policy) -> None:
        self._target = Target(policy.targets)
        self._models: list[str] = []
        self._allowed = self._target.allowed([""])  # where there is no device at all

    def row(self, view: View, shape: Shape, rows: Int) -> Int:
        """The score of each of these rows, 0 to 99."""
        found = np.empty(len(rows), dtype=np.int64)
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[begin : begin + _ROWS_AT_ONCE]
            if shape.share:
                found[begin : begin + len(part)] = self._shares(view, shape, part).max(axis=1)
            else:
                found[begin : begin + len(part)] = self._whole(view, shape, part)
        return found

    def devices(self, view: View, shape: Shape, row: int) -> tuple[int, ...] | None:
        """The first of the best devices for a share, the first free ones for whole devices."""
        if shape.share:
            return (int(self._shares(view, shape, np.array([row])).argmax()),)
        if not shape.gpus:
            return ()
        return tuple(np.flatnonzero(first_free(view, shape, np.array([row]))[0]).tolist())

    def _shares(self, view: View, shape: Shape, rows: Int) -> Int:
        """[row, device]."""
        free, cap, cpu = view.device_free[rows], view.device_cap[rows], view.cpu_free[rows]
        left = free - asked_units(view, shape, rows)
        after = np.where((left >= 0) & fitting(view, shape, rows), idle_milli(left, cap), -1)
        return share_scores(self._target, cpu, idle_milli(free, cap), after, cpu - shape.cpu_milli, self._may_host(view, rows))

    def _whole(self, view: View, shape: Shape, rows: Int) -> Int:
        """[row]."""
        milli, cpu = idle_milli(view.device_free[rows], view.device_cap[rows]), view.cpu_free[rows]
        after = np.where(first_free(view, shape, rows), 0, milli) if shape.gpus else milli
        return whole_scores(self._target, cpu, milli, after, cpu - shape.cpu_milli, self._may_host(view, rows))

    def _may_host(self, view: View, rows: Int) -> Bool:
        """[row, device, group]: whether the device's model may host the group."""
        if len(self._models) != len(view.models):
            self._models = list(view.models)
            self._allowed = self._target.allowed(self._models)
        found: Bool = self._allowed[view.device_model[rows]]
        return found


class Target:
    """The target workload in arrays. Classes that ask the same of the GPUs are one group with a table over CPU.

    Bound: a node has at most 64 devices of 1000, the weights sum to at most 2.56e8, so F * T stays under 2^44.
    """

    __slots__ = ("_cpu", "_gpus", "_milli", "_models", "_table", "thresholds", "total")

    def __init__(self, targets: Sequence[TargetClass]) -> None:
        self.total = max(1, sum(target.weight for target in targets))
        self.thresholds = thresholds(self.total)
        groups: dict[tuple[int, int, tuple[str, ...]], list[TargetClass]] = {}
        for target in targets:
            if target.gpus or target.gpu_milli:
                key = (target.gpus or 1, target.gpu_milli or WHOLE_MILLI, target.gpu_models)
                groups.setdefault(key, []).append(target)
        cpu = sorted(dict.fromkeys(target.cpu_milli for group in groups.values() for target in group))
        table = [[sum(t.weight for t in group if t.cpu_milli <= least) for group in groups.values()] for least in cpu]
        self._cpu = np.array(cpu, dtype=np.int64)
        self._table = np.array([[0] * len(groups), *table], dtype=np.int64)
        self._gpus = np.array([gpus for gpus, _, _ in groups], dtype=np.int64)
        self._milli = np.array([milli for _, milli, _ in groups], dtype=np.int64)
        self._models = [models for _, _, models in groups]

    def allowed(self, models: Sequence[str]) -> Bool:
        """[model, group]: whether a device of this model may host this group."""
        return np.array([[not wanted or model in wanted for wanted in self._models] for model in models], dtype=np.bool_)

    def weights(self, cpu_milli: Int) -> Int:
        """[row, group]: the weight of the classes that so much CPU is enough for."""
        found: Int = self._table[np.searchsorted(self._cpu, cpu_milli, side="right")]
        return found

    def usable(self, milli: Int, allowed: Bool) -> tuple[Int, Int]:
        """[..., device, group] of what each device gives to each group: idle thousandths, and 1 where it is enough."""
        enough = (milli[..., None] >= self._milli) & allowed
        return np.where(enough, milli[..., None], 0), enough.astype(np.int64)

    def hosted(self, weights: Int, idle: Int, count: Int) -> Int:
        """Sum over the groups of weight times idle thousandths, where there are enough devices."""
        found: Int = (weights * np.where(count >= self._gpus, idle, 0)).sum(axis=-1)
        return found

    def score(self, gradient: Int) -> Int:
        """0 to 99 for (F before - F after) * T."""
        return np.searchsorted(self.thresholds, gradient, side="right").astype(np.int64)


def thresholds(total: int) -> Int:
    """For k in 1..99, 1000 * total * ln(k / (100 - k)) rounded up, exactly, for a `total` below 10^12.

    ln n = ln (n - 1) + 2 artanh(1 / (2n - 1)), in integers scaled by 10^40; each of the 98 steps errs by less than
    10^-38, and a product of up to 10^15 brings that to 10^-21, below the distance of any of them from an integer.
    """
    scale = 10**40
    logs = [0, 0]
    for n in range(2, 100):
        x = 2 * n - 1
        power, total_terms, odd = scale // x, 0, 1
        while power:
            total_terms += power // odd
            power //= x * x
            odd += 2
        logs.append(logs[-1] + 2 * total_terms)
    return np.array([-(-1000 * total * (logs[k] - logs[100 - k]) // scale) for k in range(1, 100)], dtype=np.int64)


def share_scores(target: Target, cpu: Int, milli: Int, after: Int, cpu_after: Int, allowed: Bool) -> Int:
    """[row, device]: the score of taking a share of this device, -1 where it has not so much left.

    `milli` and `after` are [row, device]: idle thousandths now, and those that would be left of the one taken from.
    """
    idle, enough = target.usable(milli, allowed)
    idle_after, enough_after = target.usable(np.maximum(after, 0), allowed)
    idle_sum, enough_sum = idle.sum(axis=1), enough.sum(axis=1)
    before = milli.sum(axis=1) * target.total - target.hosted(target.weights(cpu), idle_sum, enough_sum)
    left = (milli.sum(axis=1)[:, None] - milli + after) * target.total - target.hosted(
        target.weights(cpu_after)[:, None, :],
        idle_sum[:, None, :] - idle + idle_after,
        enough_sum[:, None, :] - enough + enough_after,
    )
    return np.where(after >= 0, target.score(before[:, None] - left), -1)


def whole_scores(target: Target, cpu: Int, milli: Int, after: Int, cpu_after: Int, allowed: Bool) -> Int:
    """[row]: the score of coming from idle thousandths `milli` to `after`, both [row, device]."""
    idle, enough = target.usable(milli, allowed)
    idle_after, enough_after = target.usable(after, allowed)
    before = milli.sum(axis=1) * target.total - target.hosted(target.weights(cpu), idle.sum(axis=1), enough.sum(axis=1))
    left = after.sum(axis=1) * target.total - target.hosted(
        target.weights(cpu_after), idle_after.sum(axis=1), enough_after.sum(axis=1)
    )
    return target.score(before - left)


def idle_milli(units: Int, cap: Int) -> Int:
    """Thousandths of each device, rounded down; 0 where nothing is left or there is no device."""
    idle: Int = np.maximum(units, 0) // np.maximum(cap // WHOLE_MILLI, 1)
    return idle


def asked_units(view: View, shape: Shape, rows: Int) -> Int:
    """[row, device]: what a share would take of each device, in units."""
    cap: Int = view.device_cap[rows]
    return cap // WHOLE_MILLI * shape.gpu_milli if shape.gpu_milli else np.full_like(cap, 1000 * shape.gpu_memory_mib)


def fitting(view: View, shape: Shape, rows: Int) -> Bool:
    """[row, device]: whether new work may have the device, and the shape takes its model and memory."""
    fitting: Bool = (view.device_cap[rows] > 0) & (view.device_memory[rows] >= shape.gpu_memory_mib)
    taken = view.taken(shape)
    if taken is not None:
        fitting &= taken[view.device_model[rows]]
    return fitting


def first_free(view: View, shape: Shape, rows: Int) -> Bool:
    """[row, device]: the first entirely free devices that the shape takes, as many as it asks for."""
    free = (view.device_free[rows] == view.device_cap[rows]) & fitting(view, shape, rows)
    taken: Bool = free & (np.cumsum(free, axis=1) <= shape.gpus)
    return taken
