"""Best fit by index: the best row for a task without looking at every row.

The score `best-fit` ranks the nodes on which a task fits, the lowest rank first; among equals, the lowest row:

    whole devices   the number of devices now free: it goes where it leaves the fewest
    a share         what is free, in thousandths, of the fullest device in use that takes it; then, where none does, 1000
                    and the number of free devices
    no device       0 for a node without devices; else 1 and the number of free devices

So whole nodes stay whole. The ledger keeps its nodes by exactly these numbers, so the buckets are walked in order and
the first node on which the task fits is the best one. A node that was tried in vain is left out (`Candidates.vain`)
until something is freed there.

Many tasks of one shape are placed in one walk: after a task is placed, its node has a lower rank than before or the same,
so that the next task goes there too as long as it fits.
"""

from bisect import bisect_left
from collections.abc import Iterator

from muster.cluster.ledger import Ledger
from muster.cluster.nodes import LEVELS, Node
from muster.cluster.shapes import Shape
from muster.engine.candidates import Candidates
from muster.engine.nodeindex import NodeIndex
from muster.engine.room import fits, room, take_level, take_share, take_whole, whole_devices

Spot = tuple[int, tuple[int, ...]]
"""A row, and devices on it."""


class BestFit:
    """Finds spots for tasks of one shape, in the order of the score."""

    __slots__ = ("index", "ledger")

    def __init__(self, ledger: Ledger, index: NodeIndex) -> None:
        self.ledger = ledger
        self.index = index

    def one(self, candidates: Candidates, excluded: int) -> Spot | None:
        """The best spot for one task, not on `excluded` rows (bits), or None."""
        ledger = self.ledger
        if ledger.dirty:
            ledger.look()
        shape = candidates.shape
        walk = self._one_whole if shape.gpus else self._one_share if shape.share else self._one_bare
        excluded |= candidates.vain
        for _, tier in candidates.tiers:
            live = tier & ledger.cpu_at[shape.cpu_level] if shape.cpu_level else tier
            if excluded:
                live &= ~excluded
            if live:
                spot = walk(candidates, shape, live)
                if spot is not None:
                    return spot
        return None

    def _one_whole(self, candidates: Candidates, shape: Shape, live: int) -> Spot | None:
        nodes = self.ledger.nodes
        for bits in self.ledger.whole[shape.gpus :]:
            found = live & bits
            while found:
                low = found & -found
                row = low.bit_length() - 1
                node: Node = nodes[row]  # type: ignore[assignment]
                if fits(node, shape):
                    devices = take_whole(node, shape, node.device_free)
                    if devices is not None:
                        return row, devices
                found ^= low
                candidates.vain |= low
        return None

    def _one_share(self, candidates: Candidates, shape: Shape, live: int) -> Spot | None:
        ledger = self.ledger
        nodes = ledger.nodes
        levels = ledger.levels
        for level in levels[bisect_left(levels, shape.gpu_milli * LEVELS // 1000) :]:
            found = live & ledger.partial[level]
            while found:
                low = found & -found
                row = low.bit_length() - 1
                node: Node = nodes[row]  # type: ignore[assignment]
                if fits(node, shape):
                    devices = take_level(node, shape, level)
                    if devices is not None:
                        return row, devices
                else:
                    candidates.vain |= low
                found ^= low
        for bits in ledger.whole[1:]:
            found = live & bits
            while found:
                low = found & -found
                row = low.bit_length() - 1
                node = nodes[row]  # type: ignore[assignment]
                if fits(node, shape):
                    devices = take_share(node, shape, node.device_free, None, LEVELS)
                    if devices is not None:
                        return row, devices
                else:
                    candidates.vain |= low
                found ^= low
        return None

    def _one_bare(self, candidates: Candidates, shape: Shape, live: int) -> Spot | None:
        nodes = self.ledger.nodes
        bare = self.index.bare
        rest = live & ~bare
        for at, bits in enumerate((live & bare, *self.ledger.whole)):
            found = rest & bits if at else bits
            while found:
                low = found & -found
                row = low.bit_length() - 1
                if fits(nodes[row], shape):  # type: ignore[arg-type]
                    return row, ()
                found ^= low
                candidates.vain |= low
        return None

    def many(self, candidates: Candidates, want: int, excluded: int) -> list[Spot]:
        """Spots for up to `want` tasks, in order, as if each were placed after the one before."""
        self.ledger.look()
        spots: list[Spot] = []
        shape = candidates.shape
        for _, tier in candidates.tiers:
            live = tier & ~candidates.vain & ~excluded
            if shape.cpu_level:
                live &= self.ledger.cpu_at[shape.cpu_level]
            if live and len(spots) < want:
                if shape.gpus:
                    self._whole(candidates, live, want, spots)
                elif shape.share:
                    spots.extend(self._shares(candidates, live, want - len(spots)))
                else:
                    self._bare(candidates, live, want, spots)
        return spots

    def at_most(self, candidates: Candidates, want: int) -> bool:
        """False if there are surely too few free devices for so many tasks."""
        shape = candidates.shape
        needed = want * shape.gpus
        if not needed:
            return True
        self.ledger.look()
        whole = self.ledger.whole
        for count in range(len(whole) - 1, shape.gpus - 1, -1):
            needed -= count * (candidates.bits & whole[count]).bit_count()
            if needed <= 0:
                return True
        return False

    def _whole(self, candidates: Candidates, live: int, want: int, spots: list[Spot]) -> None:
        shape = candidates.shape
        gpus = shape.gpus
        whole = self.ledger.whole
        for count in range(gpus, len(whole)):
            found = live & whole[count]
            while found:
                low = found & -found
                found ^= low
                row = low.bit_length() - 1
                node = self.ledger.node(row)
                limit = room(node, shape, min(want - len(spots), count // gpus))
                if not limit:
                    candidates.vain |= low
                    continue
                if node.islands <= 1 and node.uniform:
                    free = whole_devices(node, shape, node.device_free)
                    spots.extend([(row, tuple(free[at * gpus : at * gpus + gpus])) for at in range(limit)])
                else:
                    left = list(node.device_free)
                    for _ in range(limit):
                        devices = take_whole(node, shape, left)
                        if devices is None:
                            break
                        for index in devices:
                            left[index] = 0
                        spots.append((row, devices))
                if len(spots) >= want:
                    return

    def _bare(self, candidates: Candidates, live: int, want: int, spots: list[Spot]) -> None:
        shape = candidates.shape
        bare = self.index.bare
        rest = live & ~bare
        for found in (live & bare, *[rest & bits for bits in self.ledger.whole]):
            while found:
                low = found & -found
                found ^= low
                row = low.bit_length() - 1
                limit = room(self.ledger.node(row), shape, want - len(spots))
                if not limit:
                    candidates.vain |= low
                spots.extend([(row, ())] * limit)
                if len(spots) >= want:
                    return

    def _shares(self, candidates: Candidates, live: int, want: int) -> Iterator[Spot]:
        shape = candidates.shape
        used: dict[int, list[int]] = {}
        """Devices as they would be after the spots given so far, by row."""
        counts: dict[int, int] = {}
        levels = self.ledger.levels
        lowest = bisect_left(levels, shape.gpu_milli * LEVELS // 1000)
        for level in [*levels[lowest:], None]:
            rows = [self.ledger.partial[level]] if level is not None else self.ledger.whole[1:]
            for bits in rows:
                found = live & bits
                while found:
                    low = found & -found
                    found ^= low
                    row = low.bit_length() - 1
                    node = self.ledger.node(row)
                    limit = room(node, shape, want + counts.get(row, 0)) - counts.get(row, 0)
                    if limit <= 0:
                        if row not in counts:
                            candidates.vain |= low
                        continue
                    free = used.get(row) or list(node.device_free)
                    given = 0
                    while given < limit:
                        devices = take_share(node, shape, free, level, LEVELS)
                        if devices is None:
                            break
                        index = devices[0]
                        units = shape.units(node.devices[index].memory_mib)
                        while given < limit and free[index] >= units:
                            free[index] -= units
                            given += 1
                            yield row, devices
                    if given:
                        used[row] = free
                        counts[row] = counts.get(row, 0) + given
                        want -= given
                        if want <= 0:
                            return


def rank(node: Node, shape: Shape) -> int | None:
    """The rank of a node for one task, or None if it does not fit there: what the index must agree with."""
    if not fits(node, shape):
        return None
    if shape.gpus:
        return node.whole_free if take_whole(node, shape, node.device_free) is not None else None
    if not shape.share:
        return 1 + node.whole_free if any(device.present for device in node.devices) else 0
    for level in range(LEVELS):
        if level in node.level_of and take_share(node, shape, node.device_free, level, LEVELS) is not None:
            return level
    return LEVELS + node.whole_free if take_share(node, shape, node.device_free, None, LEVELS) is not None else None
