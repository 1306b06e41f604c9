"""The last resort for an instance of several groups: places by trial, a bounded number of times.

The greedy orders of `muster.engine.place` put each task where it fits best and never take one back, so they can miss that a
small group must leave a device to another. Here each task is tried on each row and on each choice of devices, depth first,
until all stand or `TRIES_MAX` rows were looked at. Nodes and devices that are alike are tried once. Few tasks only: beyond
`TASKS_MAX` nothing is tried, and a packing that exists may be missed.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from muster.cluster.nodes import Node
from muster.cluster.shapes import Shape
from muster.cluster.state import State
from muster.engine.bestfit import Spot
from muster.engine.overlay import Overlay
from muster.engine.room import fitting

TASKS_MAX: Final = 16
TRIES_MAX: Final = 1000

Wanted = tuple[Shape, int]
"""One task: its shape, and the rows that it may go to, as bits."""


def pack(state: State, wanted: Sequence[Wanted]) -> list[Spot] | None:
    """A spot for each of these tasks, or None. Equal tasks stand next to each other."""
    if len(wanted) > TASKS_MAX:
        return None
    return _Trial(state, wanted).run()


class _Trial:
    __slots__ = ("overlay", "spots", "state", "tries", "wanted")

    def __init__(self, state: State, wanted: Sequence[Wanted]) -> None:
        self.state = state
        self.wanted = wanted
        self.overlay = Overlay()
        self.spots: list[Spot] = []
        self.tries = 0

    def run(self) -> list[Spot] | None:
        return self.spots if self._place(0, 0) else None

    def _place(self, at: int, first: int) -> bool:
        """Place the tasks from `at` on; this one not before row `first`, which an equal one before it has."""
        if at == len(self.wanted):
            return True
        shape, bits = self.wanted[at]
        again = at + 1 < len(self.wanted) and self.wanted[at + 1][0] is shape
        seen: dict[tuple[object, ...], None] = {}
        bits = bits >> first << first
        while bits:
            low = bits & -bits
            bits ^= low
            row = low.bit_length() - 1
            self.tries += 1
            if self.tries > TRIES_MAX:
                return False
            node = self.state.ledger.node(row)
            free = self.overlay.free(node)
            alike = self._alike(node, free)
            if alike in seen:
                continue
            seen[alike] = None
            for devices in _choices(node, free, shape):
                self.overlay.take(node, shape, devices)
                self.spots.append((row, devices))
                if self._place(at + 1, row if again else 0):
                    return True
                self.spots.pop()
                self.overlay.take(node, shape, devices, -1)
        return False

    def _alike(self, node: Node, free: Sequence[int]) -> tuple[object, ...]:
        """Equal for nodes that are the same to every task that is wanted."""
        row = node.row
        kinds = tuple([(device.model, device.memory_mib, device.profile, device.usable) for device in node.devices])
        return tuple(free), kinds, tuple([bits >> row & 1 for _, bits in self.wanted])


def _choices(node: Node, free: Sequence[int], shape: Shape) -> Iterator[tuple[int, ...]]:
    """The devices that one task could take here, those that differ in nothing once."""
    if free[0] < shape.cpu_milli or free[1] < shape.memory_mib or free[2] < shape.disk_mib or free[3] < 1 or min(free[:3]) < 0:
        return
    if not shape.needs_device:
        yield ()
        return
    alike: dict[tuple[str, int, int], list[int]] = {}
    for index, device in enumerate(node.devices):
        units = free[4 + index]
        needed = device.units if shape.gpus else shape.units(device.memory_mib)
        if device.usable and units > 0 and units >= needed and fitting(node, shape, index):
            alike.setdefault((device.model, device.memory_mib, units), []).append(index)
    if shape.gpus:
        yield from _whole(list(alike.values()), shape.gpus)
    else:
        for _, indices in sorted(alike.items(), key=lambda item: item[0][2]):
            yield (indices[0],)


def _whole(kinds: Sequence[list[int]], count: int) -> Iterator[tuple[int, ...]]:
    """So many devices, by how many of each kind."""
    if not kinds:
        if not count:
            yield ()
        return
    for some in range(min(count, len(kinds[0])), -1, -1):
        for rest in _whole(kinds[1:], count - some):
            yield tuple(sorted([*kinds[0][:some], *rest]))
