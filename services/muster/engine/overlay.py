"""What would be free on some nodes, tried beside the ledger: it may go below nothing, which the ledger cannot.

For the question whether places could stand side by side. Only nodes that are asked about are looked at, and only
devices that new work may have.
"""

from collections.abc import Iterable, Sequence

from muster.cluster.nodes import Node
from muster.cluster.shapes import Shape


class Overlay:
    """Amounts by row: CPU, memory, disk, tasks, then units of each device; at first as in the ledger."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}

    def take(self, node: Node, shape: Shape, devices: tuple[int, ...], sign: int = 1) -> None:
        """As if a task of this shape stood there too; with sign -1, as if it did not."""
        free = self.free(node)
        free[0] -= sign * shape.cpu_milli
        free[1] -= sign * shape.memory_mib
        free[2] -= sign * shape.disk_mib
        free[3] -= sign
        for index in devices:
            device = node.devices[index]
            if device.usable:
                free[4 + index] -= sign * (device.units if shape.gpus else shape.units(device.memory_mib))

    def less(self, node: Node, amounts: Sequence[int]) -> None:
        """As if so much less were free there."""
        free = self.free(node)
        for at, amount in enumerate(amounts):
            free[at] -= amount

    def enough(self, nodes: Iterable[Node]) -> bool:
        """Whether on none of these nodes more is taken than there is."""
        return all(min(self.free(node)) >= 0 for node in nodes)

    def free(self, node: Node) -> list[int]:
        """What is free there."""
        free = self._free.get(node.row)
        if free is None:
            free = [node.cpu_free, node.memory_free, node.disk_free, node.tasks_free, *node.device_free]
            self._free[node.row] = free
        return free
