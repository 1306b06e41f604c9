"""What is fixed about the nodes, as bits: who is open to new work, who has which devices, who is tainted.

One bit a row in a big integer. Kept for all shapes together and repaired for the rows that were altered; nothing here
depends on what is held.
"""

from muster.cluster.ledger import Ledger
from muster.cluster.nodes import Node

DeviceKind = tuple[str, int, str]
"""Model, memory in MiB, and of a slice its profile."""

Size = tuple[int, int, int]
"""milli-CPU, memory and disk in MiB."""


class NodeIndex:
    """Bits by property. `refresh` brings them up to the ledger."""

    __slots__ = ("_known", "bare", "kinds", "ledger", "open", "position", "sizes", "tainted", "uids")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.position = ledger.altered_base
        self.open = 0
        self.tainted = 0
        self.bare = 0
        """Nodes without any device."""
        self.kinds: dict[DeviceKind, dict[int, int]] = {}
        """By kind of device and how many of it a node has: bits."""
        self.uids: dict[str, int] = {}
        """Row by uid."""
        self.sizes: dict[Size, int] = {}
        """By CPU, memory and disk in all: bits."""
        self._known: dict[int, tuple[str, Size, list[tuple[DeviceKind, int]]]] = {}
        for node in ledger.nodes:
            if node is not None:
                self._add(node)
        self.position = ledger.altered_upto

    def refresh(self) -> None:
        """Take in the rows that were altered since."""
        upto = self.ledger.altered_upto
        if upto == self.position:
            return
        rows = self.ledger.altered_since(self.position)
        if rows is None:
            self.__init__(self.ledger)  # type: ignore[misc]
            return
        for row in dict.fromkeys(rows):
            self._drop(row)
            node = self.ledger.nodes[row]
            if node is not None:
                self._add(node)
        self.position = upto

    def _drop(self, row: int) -> None:
        bit = 1 << row
        self.open &= ~bit
        self.tainted &= ~bit
        self.bare &= ~bit
        known = self._known.pop(row, None)
        if known is not None:
            uid, size, kinds = known
            self.uids.pop(uid, None)
            self.sizes[size] &= ~bit
            if not self.sizes[size]:
                del self.sizes[size]
            for kind, count in kinds:
                self.kinds[kind][count] &= ~bit

    def _add(self, node: Node) -> None:
        bit = 1 << node.row
        if node.open:
            self.open |= bit
        if node.spec.taints:
            self.tainted |= bit
        counts: dict[DeviceKind, int] = {}
        for device in node.devices:
            if device.present:
                kind = (device.model, device.memory_mib, device.profile)
                counts[kind] = counts.get(kind, 0) + 1
        if not counts:
            self.bare |= bit
        for kind, count in counts.items():
            by_count = self.kinds.setdefault(kind, {})
            by_count[count] = by_count.get(count, 0) | bit
        self.uids[node.uid] = node.row
        size = (node.spec.cpu_milli, node.spec.memory_mib, node.spec.disk_mib)
        self.sizes[size] = self.sizes.get(size, 0) | bit
        self._known[node.row] = (node.uid, size, list(counts.items()))


def rows_of(bits: int) -> list[int]:
    """The rows whose bit is set, in order."""
    rows = []
    while bits:
        low = bits & -bits
        rows.append(low.bit_length() - 1)
        bits ^= low
    return rows
