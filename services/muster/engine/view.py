"""What is free, as arrays: for scores that look at many nodes at once.

A cache of the ledger, one row a node: `sync` copies the rows that were touched since. Where a row has no node, everything
is 0; where a column has no device, or one that new work may not have, its units are 0.
"""

import numpy as np
from numpy.typing import NDArray

from muster.cluster.ledger import Ledger
from muster.cluster.nodes import Node
from muster.cluster.shapes import Shape
from muster.cluster.state import State

__all__ = ["Shape", "View"]

Int = NDArray[np.int64]


class View:
    """NumPy mirrors of the ledger.

    `cpu_free`, `memory_free`, `disk_free`, `tasks_free`, `cpu_cap`, `memory_cap`: int64[row], in milli-CPU and MiB.
    `device_free`, `device_cap`, `device_memory`, `device_model`: int64[row, device]; free and cap in units
    (`muster.cluster.shapes.Shape.units`), memory in MiB, the model as its place in `models`.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.models: list[str] = []
        self.profiles: list[str] = []
        """Beside each of `models`: of slices their profile. A model stands there once for whole GPUs and once a profile."""
        self._model_ids: dict[tuple[str, str], int] = {}
        self._touched = -1
        self._altered = -1
        self._allocate()

    def _allocate(self) -> None:
        ledger = self.state.ledger
        rows = max(1, len(ledger.nodes))
        width = max([1, *[len(node.devices) for node in ledger.nodes if node is not None]])
        self.cpu_free: Int = np.zeros(rows, dtype=np.int64)
        self.memory_free: Int = np.zeros(rows, dtype=np.int64)
        self.disk_free: Int = np.zeros(rows, dtype=np.int64)
        self.tasks_free: Int = np.zeros(rows, dtype=np.int64)
        self.cpu_cap: Int = np.zeros(rows, dtype=np.int64)
        self.memory_cap: Int = np.zeros(rows, dtype=np.int64)
        self.device_free: Int = np.zeros((rows, width), dtype=np.int64)
        self.device_cap: Int = np.zeros((rows, width), dtype=np.int64)
        self.device_memory: Int = np.zeros((rows, width), dtype=np.int64)
        self.device_model: Int = np.zeros((rows, width), dtype=np.int64)

    def sync(self) -> None:
        """Copy what changed since the last time. Cost: the rows that changed."""
        ledger = self.state.ledger
        altered, touched = ledger.altered_upto, ledger.touched_upto()
        if altered == self._altered and touched == self._touched:
            return
        fixed = ledger.altered_since(self._altered) if self._altered >= 0 else None
        moved = ledger.touched_since(self._touched) if self._touched >= 0 else None
        if fixed is None or moved is None or self._outgrown(ledger, fixed):
            self._allocate()
            fixed = moved = list(range(len(ledger.nodes)))
        for row in dict.fromkeys(fixed):
            self._describe(row, ledger.nodes[row])
        for row in dict.fromkeys([*fixed, *moved]):
            node = ledger.nodes[row]
            if node is not None:
                self.cpu_free[row] = node.cpu_free
                self.memory_free[row] = node.memory_free
                self.disk_free[row] = node.disk_free
                self.tasks_free[row] = node.tasks_free
                self.device_free[row, : len(node.devices)] = node.device_free
        self._altered, self._touched = altered, touched

    def _outgrown(self, ledger: Ledger, rows: list[int]) -> bool:
        width = self.device_free.shape[1]
        return len(ledger.nodes) > len(self.cpu_free) or any(
            len(node.devices) > width for row in rows if (node := ledger.nodes[row]) is not None
        )

    def _describe(self, row: int, node: Node | None) -> None:
        mirrors = (self.cpu_free, self.memory_free, self.disk_free, self.tasks_free, self.cpu_cap, self.memory_cap)
        for mirror in (*mirrors, self.device_free, self.device_cap, self.device_memory, self.device_model):
            mirror[row] = 0
        if node is None:
            return
        self.cpu_cap[row] = node.spec.cpu_milli
        self.memory_cap[row] = node.spec.memory_mib
        for index, device in enumerate(node.devices):
            if device.usable:
                self.device_cap[row, index] = device.units
                self.device_memory[row, index] = device.memory_mib
            self.device_model[row, index] = self._model(device.model, device.profile)

    def _model(self, name: str, profile: str) -> int:
        found = self._model_ids.get((name, profile))
        if found is None:
            found = self._model_ids[name, profile] = len(self.models)
            self.models.append(name)
            self.profiles.append(profile)
        return found

    def taken(self, shape: Shape) -> NDArray[np.bool_] | None:
        """By place in `models`, whether the shape takes such devices; None where it takes all that there are."""
        if not shape.gpu_models and not shape.profile and not any(self.profiles):
            return None
        kinds = zip(self.models, self.profiles, strict=True)
        wanted = [profile == shape.profile and (not shape.gpu_models or model in shape.gpu_models) for model, profile in kinds]
        return np.array(wanted, dtype=np.bool_)
