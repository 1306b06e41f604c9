"""Indexes over what is free on the nodes, kept up to date task by task.

One bit a node in a big integer, so that a placement reads and writes a few words and not every node:

    whole[k]     nodes on which k devices are entirely free
    partial[l]   nodes with a device in use of which l to l + 1 thousandths are free (`levels`: the l there are, sorted)
    cpu_at[k]    nodes with at least 2^(k-1) cores free

`freed` and `altered` tell caches of the engine which nodes changed: `freed` when something became available, `altered`
when what does not depend on holdings changed (labels, taints, cordon, health, liveness).
"""

from bisect import bisect_left, insort
from typing import Final

from muster.cluster.jobs import Task
from muster.cluster.nodes import Node

HISTORY_MAX: Final = 4096
CPU_LEVELS: Final = 54


class Ledger:
    """The nodes by row, and the indexes over them."""

    __slots__ = (
        "altered",
        "altered_base",
        "cpu_at",
        "free_rows",
        "freed",
        "freed_base",
        "levels",
        "nodes",
        "partial",
        "pending_freed",
        "registered",
        "rows",
        "touched",
        "touched_base",
        "whole",
    )

    def __init__(self) -> None:
        self.nodes: list[Node | None] = []
        self.rows: dict[str, int] = {}
        """Row by name."""
        self.free_rows: list[int] = []
        """Rows below `len(nodes)` that no node has: a heap."""
        self.registered = 0
        """A bit for each row that a node has."""
        self.whole: list[int] = [0]
        self.partial: dict[int, int] = {}
        self.levels: list[int] = []
        self.cpu_at: list[int] = [0] * CPU_LEVELS
        self.freed: list[int] = []
        self.freed_base = 0
        self.pending_freed = 0
        self.altered: list[int] = []
        self.altered_base = 0
        self.touched: list[int] = []
        """Rows on which something was held or freed, in order, again and again."""
        self.touched_base = 0

    def node(self, row: int) -> Node:
        """The node of a row that has one."""
        node = self.nodes[row]
        assert node is not None
        return node

    # What holds and frees

    def hold(self, task: Task) -> None:
        """The task holds its place from now on. Cost: its devices."""
        node = task.node
        node.tasks[task] = None
        self.touched.append(node.row)
        if not node.plain:
            self.recount(node)
            return
        shape = task.shape
        node.cpu_free -= shape.cpu_milli
        node.memory_free -= shape.memory_mib
        node.disk_free -= shape.disk_mib
        node.tasks_free -= 1
        if shape.cpu_milli:
            level = (node.cpu_free // 1000).bit_length() if node.cpu_free > 0 else 0
            if level != node.cpu_level:
                self._cpu_moved(node, level)
        devices = task.devices
        if devices:
            free = node.device_free
            if shape.gpus:
                units = node.device_units
                for index in devices:
                    free[index] -= units[index]
                bit = 1 << node.row
                whole = self.whole
                before = node.whole_free
                after = node.whole_free = before - len(devices)
                whole[before] ^= bit
                whole[after] ^= bit
            else:
                index = devices[0]
                free[index] -= shape.units(node.devices[index].memory_mib)
                self._reindex(node)

    def release(self, task: Task) -> None:
        """The task holds nothing any more. Cost: its devices."""
        node = task.node
        del node.tasks[task]
        self.touched.append(node.row)
        if not node.plain:
            self.recount(node)
            return
        shape = task.shape
        node.cpu_free += shape.cpu_milli
        node.memory_free += shape.memory_mib
        node.disk_free += shape.disk_mib
        node.tasks_free += 1
        if shape.cpu_milli:
            level = (node.cpu_free // 1000).bit_length() if node.cpu_free > 0 else 0
            if level != node.cpu_level:
                self._cpu_moved(node, level)
        bit = 1 << node.row
        self.pending_freed |= bit
        devices = task.devices
        if devices:
            free = node.device_free
            if shape.gpus:
                units = node.device_units
                for index in devices:
                    free[index] += units[index]
                whole = self.whole
                before = node.whole_free
                after = node.whole_free = before + len(devices)
                whole[before] ^= bit
                whole[after] ^= bit
            else:
                index = devices[0]
                free[index] += shape.units(node.devices[index].memory_mib)
                self._reindex(node)

    def _reindex(self, node: Node) -> None:
        """Bring the indexes up to the node's devices."""
        whole, levels = node.whole_free, node.levels
        node.count_devices()
        bit = 1 << node.row
        if node.whole_free != whole:
            self.whole[whole] ^= bit
            self.whole[node.whole_free] ^= bit
        self._flip(node.levels ^ levels, bit)

    def _flip(self, levels: int, bit: int) -> None:
        """The node of this bit joins or leaves each of these levels of shared devices."""
        partial = self.partial
        while levels:
            low = levels & -levels
            levels ^= low
            level = low.bit_length() - 1
            bits = partial.get(level)
            if bits is None:
                partial[level] = bit
                insort(self.levels, level)
            elif bits != bit:
                partial[level] = bits ^ bit
            else:
                del partial[level]
                del self.levels[bisect_left(self.levels, level)]

    def _cpu_moved(self, node: Node, level: int) -> None:
        """The node's free CPU is of another level now."""
        before, node.cpu_level = node.cpu_level, level
        bit = 1 << node.row
        at = self.cpu_at
        for each in range(min(before, level) + 1, max(before, level) + 1):
            at[each] ^= bit

    def recount(self, node: Node) -> None:
        """After anything but a plain hold or release: count the node anew. It may have become freer."""
        self.touched.append(node.row)
        whole, levels, cpu = node.whole_free, node.levels, node.cpu_level
        node.recount()
        bit = 1 << node.row
        if node.cpu_level != cpu:
            now, node.cpu_level = node.cpu_level, cpu
            self._cpu_moved(node, now)
        while len(self.whole) <= max(len(node.devices), whole):
            self.whole.append(0)
        if node.whole_free != whole:
            self.whole[whole] ^= bit
            self.whole[node.whole_free] ^= bit
        self._flip(node.levels ^ levels, bit)
        self.pending_freed |= bit

    # What comes and goes

    def add(self, node: Node) -> None:
        """A node takes its row, which must be free: `len(nodes)` or one of `free_rows` already taken off."""
        if node.row == len(self.nodes):
            self.nodes.append(node)
        else:
            self.nodes[node.row] = node
        self.rows[node.name] = node.row
        bit = 1 << node.row
        self.registered |= bit
        while len(self.whole) <= len(node.devices):
            self.whole.append(0)
        self.whole[node.whole_free] |= bit
        self._flip(node.levels, bit)
        for level in range(1, node.cpu_level + 1):
            self.cpu_at[level] |= bit
        self.pending_freed |= bit
        self.alter(node.row)

    def remove(self, node: Node) -> None:
        """The node gives up its row; nothing may be held on it."""
        bit = 1 << node.row
        self.whole[node.whole_free] ^= bit
        self._flip(node.levels, bit)
        for level in range(1, node.cpu_level + 1):
            self.cpu_at[level] ^= bit
        self.registered ^= bit
        self.nodes[node.row] = None
        del self.rows[node.name]
        node.liveness = "removed"
        self.alter(node.row)

    # What caches follow

    def alter(self, row: int) -> None:
        """What does not depend on holdings has changed on this row."""
        self.altered.append(row)
        self.pending_freed |= 1 << row
        if len(self.altered) > HISTORY_MAX:
            del self.altered[: HISTORY_MAX // 2]
            self.altered_base += HISTORY_MAX // 2

    def freed_upto(self) -> int:
        """The position after the newest note of freed rows: a cache that stands here has seen them all."""
        if self.pending_freed:
            self.freed.append(self.pending_freed)
            self.pending_freed = 0
            if len(self.freed) > HISTORY_MAX:
                del self.freed[: HISTORY_MAX // 2]
                self.freed_base += HISTORY_MAX // 2
        return self.freed_base + len(self.freed)

    def freed_since(self, position: int) -> int:
        """A bit for each row on which something became available since; every row if that is too long ago."""
        upto = self.freed_upto()
        if position == upto:
            return 0
        if position < self.freed_base:
            return self.registered
        bits = 0
        for note in self.freed[position - self.freed_base :]:
            bits |= note
        return bits

    def touched_upto(self) -> int:
        """The position after the newest touched row."""
        return self.touched_base + len(self.touched)

    def trim(self) -> None:
        """Drop old notes of touched rows, so that they stay bounded."""
        if len(self.touched) > 16 * HISTORY_MAX:
            drop = len(self.touched) - 8 * HISTORY_MAX
            del self.touched[:drop]
            self.touched_base += drop

    def touched_since(self, position: int) -> list[int] | None:
        """The rows touched since, or None if that is too long ago to say."""
        if position < self.touched_base:
            return None
        return self.touched[position - self.touched_base :]

    def altered_upto(self) -> int:
        """The position after the newest altered row."""
        return self.altered_base + len(self.altered)

    def altered_since(self, position: int) -> list[int] | None:
        """The rows altered since, or None if that is too long ago to say."""
        if position < self.altered_base:
            return None
        return self.altered[position - self.altered_base :]
