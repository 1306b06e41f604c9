"""What is held and free on the nodes, and indexes over it.

A hold or a release changes the node at once, and the indexes when somebody looks (`look`): a fold that places nothing need
not keep them. They have one bit a node in a big integer, so that a placement reads and writes a few words and not every
node:

    whole[k]     nodes on which k devices are entirely free
    partial[l]   nodes with a device in use of which l to l + 1 thousandths are free (`levels`: the l there are, sorted)
    cpu_at[k]    nodes with at least 2^(k-1) cores free

`freed` and `altered` tell caches of the engine which nodes changed: `freed` when something became available, `altered`
when what does not depend on holdings changed (labels, taints, cordon, health, liveness).
"""

from bisect import bisect_left, insort
from typing import Final

from muster.cluster.jobs import Task
from muster.cluster.nodes import LEVELS, Node
from muster.cluster.tags import Tags

HISTORY_MAX: Final = 4096
CPU_LEVELS: Final = 54


class Ledger:
    """The nodes by row, and the indexes over them."""

    __slots__ = (
        "altered",
        "altered_base",
        "altered_upto",
        "cpu_at",
        "dirty",
        "free_rows",
        "freed",
        "freed_base",
        "levels",
        "nodes",
        "noted",
        "partial",
        "planning",
        "registered",
        "released",
        "rows",
        "tags",
        "touched",
        "touched_base",
        "truly",
        "whole",
    )

    def __init__(self) -> None:
        self.nodes: list[Node | None] = []
        self.tags = Tags()
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
        self.noted = 0
        """The position after the newest note of `freed`."""
        self.released: list[int] = []
        """Rows on which something became available since the newest note of `freed`."""
        self.planning = 1
        """How many plans are being tried, whose frees are taken back; one more where nobody follows `truly`."""
        self.truly = Freed()
        """Rows on which something became available and not only in a plan: noted where queues stand in a tree."""
        self.altered: list[int] = []
        self.altered_base = 0
        self.altered_upto = 0
        """The position after the newest altered row."""
        self.touched: list[int] = []
        """Rows on which something was held or freed, in order, again and again."""
        self.touched_base = 0
        self.dirty: list[int] = []
        """Rows on which something was held or freed since the last look."""

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
        if task.attempt.instance.job.tagged:
            self.tags.hold(task)
        self.dirty.append(node.row)
        if not node.plain:
            node.recount()
            return
        shape = task.shape
        node.cpu_free -= shape.cpu_milli
        node.memory_free -= shape.memory_mib
        node.tasks_free -= 1
        if shape.disk_mib:
            node.disk_free -= shape.disk_mib
        devices = task.devices
        if devices:
            free = node.device_free
            units = node.device_units
            if shape.gpus:
                for index in devices:
                    free[index] -= units[index]
                node.whole_free -= len(devices)
            else:
                index = devices[0]
                whole = units[index]
                before = free[index]
                free[index] = before - shape.units(whole // 1000)
                if before == whole:
                    node.whole_free -= 1
                node.moved.append(index)

    def release(self, task: Task) -> None:
        """The task holds nothing any more. Cost: its devices."""
        node = task.node
        del node.tasks[task]
        if task.attempt.instance.job.tagged:
            self.tags.release(task)
        row = node.row
        self.dirty.append(row)
        self.released.append(row)
        if not self.planning:
            self.truly.released.append(row)
        if not node.plain:
            node.recount()
            return
        shape = task.shape
        node.cpu_free += shape.cpu_milli
        node.memory_free += shape.memory_mib
        node.tasks_free += 1
        if shape.disk_mib:
            node.disk_free += shape.disk_mib
        devices = task.devices
        if devices:
            free = node.device_free
            units = node.device_units
            if shape.gpus:
                for index in devices:
                    free[index] += units[index]
                node.whole_free += len(devices)
            else:
                index = devices[0]
                whole = units[index]
                after = free[index] = free[index] + shape.units(whole // 1000)
                if after == whole:
                    node.whole_free += 1
                node.moved.append(index)

    def recount(self, node: Node) -> None:
        """After anything but a plain hold or release: count the node anew. It may have become freer."""
        node.recount()
        self._widen(node)
        self.dirty.append(node.row)
        self.free(node.row)

    def free(self, row: int) -> None:
        """Something may have become available on this row."""
        self.released.append(row)
        if not self.planning:
            self.truly.released.append(row)

    # The indexes

    def look(self) -> None:
        """Bring the indexes up to the nodes. Call it before reading them. Cost: the nodes that were touched since."""
        dirty = self.dirty
        if not dirty:
            return
        self.touched += dirty
        nodes = self.nodes
        whole = self.whole
        for row in dict.fromkeys(dirty) if len(dirty) > 1 else dirty:
            node = nodes[row]
            if node is None:
                continue
            bit = 1 << row
            free = node.whole_free
            if free != node.indexed_whole and free >= 0:  # a plan may hold a device twice on the way
                whole[node.indexed_whole] ^= bit
                whole[free] ^= bit
                node.indexed_whole = free
            cpu_free = node.cpu_free
            level = (cpu_free // 1000).bit_length() if cpu_free > 0 else 0
            if level != node.indexed_cpu:
                self._index_cpu(node, level, bit)
            if node.moved:
                self._index_levels(node, bit)
        dirty.clear()

    def _index_cpu(self, node: Node, now: int, bit: int) -> None:
        low = node.indexed_cpu
        node.indexed_cpu = now
        at = self.cpu_at
        if low > now:
            low, now = now, low
        while low < now:
            low += 1
            at[low] ^= bit

    def _index_levels(self, node: Node, bit: int) -> None:
        """Move the node's devices in use to the levels at which they are, one after the other."""
        level_of = node.level_of
        for index in node.moved:
            whole = node.device_units[index]
            free = node.device_free[index]
            level = free * LEVELS // whole if 0 < free < whole else -1
            before = level_of[index]
            if level != before:
                level_of[index] = level
                if before >= 0 and before not in level_of:
                    self._flip(before, bit)
                if level >= 0 and level_of.count(level) == 1:
                    self._flip(level, bit)
        node.moved.clear()

    def _flip(self, level: int, bit: int) -> None:
        """The node of this bit joins or leaves this level of shared devices."""
        partial = self.partial
        bits = partial.get(level)
        if bits is None:
            partial[level] = bit
            insort(self.levels, level)
        elif bits != bit:
            partial[level] = bits ^ bit
        else:
            del partial[level]
            del self.levels[bisect_left(self.levels, level)]

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
        self.whole[0] |= bit
        node.indexed_whole = node.indexed_cpu = 0
        node.level_of = [-1] * len(node.devices)
        node.moved = list(range(len(node.devices)))
        self._widen(node)
        self.dirty.append(node.row)
        self.alter(node.row)

    def remove(self, node: Node) -> None:
        """The node gives up its row; nothing may be held on it."""
        bit = 1 << node.row
        self.whole[node.indexed_whole] ^= bit
        for level in dict.fromkeys(node.level_of):
            if level >= 0:
                self._flip(level, bit)
        for level in range(1, node.indexed_cpu + 1):
            self.cpu_at[level] ^= bit
        self.registered ^= bit
        self.nodes[node.row] = None
        del self.rows[node.name]
        node.liveness = "removed"
        self.alter(node.row)

    def _widen(self, node: Node) -> None:
        """Make room in the index for so many devices."""
        self.whole += [0] * (len(node.devices) + 1 - len(self.whole))

    # What caches follow

    def alter(self, row: int) -> None:
        """What does not depend on holdings has changed on this row."""
        self.altered.append(row)
        self.altered_upto += 1
        self.free(row)
        if len(self.altered) > HISTORY_MAX:
            del self.altered[: HISTORY_MAX // 2]
            self.altered_base += HISTORY_MAX // 2

    def freed_upto(self) -> int:
        """The position after the newest note of freed rows: a cache that stands here has seen them all."""
        if self.released:
            self.freed.append(_bits(self.released, len(self.nodes)))
            self.released = []
            self.noted += 1
            if len(self.freed) > HISTORY_MAX:
                del self.freed[: HISTORY_MAX // 2]
                self.freed_base += HISTORY_MAX // 2
        return self.noted

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
        self.look()
        return self.touched_base + len(self.touched)

    def trim(self) -> None:
        """Drop old notes, so that they stay bounded however long nobody looks."""
        if len(self.dirty) > 16 * HISTORY_MAX:
            self.look()
        if len(self.touched) > 16 * HISTORY_MAX:
            drop = len(self.touched) - 8 * HISTORY_MAX
            del self.touched[:drop]
            self.touched_base += drop
        if len(self.released) > 16 * HISTORY_MAX:
            self.freed_upto()
        if len(self.truly.released) > 16 * HISTORY_MAX:
            self.truly.upto(len(self.nodes))

    def touched_since(self, position: int) -> list[int] | None:
        """The rows touched since, or None if that is too long ago to say."""
        if position < self.touched_base:
            return None
        return self.touched[position - self.touched_base :]

    def altered_since(self, position: int) -> list[int] | None:
        """The rows altered since, or None if that is too long ago to say."""
        if position < self.altered_base:
            return None
        return self.altered[position - self.altered_base :]


class Freed:
    """Notes of the rows on which something became available."""

    __slots__ = ("_base", "_notes", "released")

    def __init__(self) -> None:
        self.released: list[int] = []
        """Those since the newest note."""
        self._notes: list[int] = []
        self._base = 0

    def upto(self, width: int) -> int:
        """The position after the newest note: a cache that stands here has seen them all. `width`: how many rows there are."""
        notes = self._notes
        if self.released:
            notes.append(_bits(self.released, width))
            self.released.clear()
            if len(notes) > HISTORY_MAX:
                del notes[: HISTORY_MAX // 2]
                self._base += HISTORY_MAX // 2
        return self._base + len(notes)

    def since(self, position: int) -> int:
        """A bit for each row that was noted since; every row if that is too long ago."""
        if position < self._base:
            return -1
        bits = 0
        for note in self._notes[position - self._base :]:
            bits |= note
        return bits


def _bits(rows: list[int], width: int) -> int:
    """A bit for each of the rows."""
    if len(rows) < 8:
        bits = 0
        for row in rows:
            bits |= 1 << row
        return bits
    places = bytearray((max(width, max(rows) + 1) + 7) // 8)
    for row in rows:
        places[row >> 3] |= 1 << (row & 7)
    return int.from_bytes(places, "little")
