"""Placement by scores over all rows: for policies whose scores depend on what is held.

Per shape one integer a row is kept, and a mark for the rows on which no task fits; both are made anew for the rows that
were touched. The best row is the highest; among equals the lowest.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muster.cluster.nodes import Node
from muster.cluster.shapes import Shape
from muster.cluster.state import State
from muster.engine.bestfit import Spot
from muster.engine.candidates import Candidates
from muster.engine.nodeindex import rows_of
from muster.engine.room import fits, take_share, take_whole
from muster.engine.scores import HoldingsScore
from muster.engine.view import View

NEVER: Final = -(2**62)
LEVELS_ANY: Final = 1


class _Totals:
    """The totals of one shape, and up to where they are true."""

    __slots__ = ("altered", "rows", "touched")

    def __init__(self, rows: int) -> None:
        self.rows: NDArray[np.int64] = np.full(rows, NEVER, dtype=np.int64)
        self.touched = -1
        self.altered = -1


class Rows:
    """Finds spots by the weighted sum of the scores."""

    __slots__ = ("scores", "state", "view")

    def __init__(self, state: State, scores: Sequence[tuple[HoldingsScore, int]]) -> None:
        self.state = state
        self.view = View(state)
        self.scores = scores

    def one(self, candidates: Candidates, excluded: int) -> Spot | None:
        """The best spot for one task, not on `excluded` rows (bits), or None."""
        totals = self._totals(candidates)
        if excluded:
            totals = totals.copy()
            totals[rows_of(excluded)] = NEVER
        row = int(totals.argmax())
        if totals[row] == NEVER:
            return None
        node = self.state.ledger.node(row)
        for score, _ in self.scores if not candidates.shape.numa else ():
            chosen = score.devices(self.view, candidates.shape, row)
            if chosen is not None:
                return row, chosen
        devices = devices_for(node.device_free, candidates.shape, row, self.state)
        return None if devices is None else (row, devices)

    def _totals(self, candidates: Candidates) -> NDArray[np.int64]:
        view, ledger = self.view, self.state.ledger
        view.sync()
        kept = candidates.memo
        size = len(view.cpu_free)
        if not isinstance(kept, _Totals) or len(kept.rows) != size:
            kept = candidates.memo = _Totals(size)
        altered, touched = ledger.altered_upto, ledger.touched_upto()
        moved = ledger.touched_since(kept.touched) if kept.touched >= 0 else None
        if moved is None or kept.altered != altered:
            changed = np.arange(len(ledger.nodes), dtype=np.int64)
        else:
            changed = np.array(sorted(dict.fromkeys(moved)), dtype=np.int64)
        if len(changed):
            self._repair(kept.rows, candidates, changed)
        kept.altered, kept.touched = altered, touched
        return kept.rows

    def _repair(self, totals: NDArray[np.int64], candidates: Candidates, changed: NDArray[np.int64]) -> None:
        shape, bits = candidates.shape, candidates.bits
        totals[changed] = NEVER
        if len(changed) > 64:
            allowed = np.zeros(len(totals), dtype=np.bool_)
            allowed[rows_of(bits)] = True
            rows = changed[allowed[changed]]
        else:
            rows = np.array([row for row in changed.tolist() if bits >> row & 1], dtype=np.int64)
        rows = rows[self._fit(shape, rows)]
        if shape.special:
            rows = np.array([row for row in rows.tolist() if stands(self.state.ledger.node(row), shape)], dtype=np.int64)
        if not len(rows):
            return
        sums = np.zeros(len(rows), dtype=np.int64)
        for score, weight in self.scores:
            sums += weight * score.row(self.view, shape, rows)
        if len(candidates.tiers) > 1:
            for value, tier in candidates.tiers:
                sums += np.array([value if tier >> row & 1 else 0 for row in rows.tolist()], dtype=np.int64)
        totals[rows] = sums

    def _fit(self, shape: Shape, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        view = self.view
        good = (
            (view.cpu_free[rows] >= shape.cpu_milli)
            & (view.memory_free[rows] >= shape.memory_mib)
            & (view.disk_free[rows] >= shape.disk_mib)
            & (view.tasks_free[rows] > 0)
        )
        if shape.needs_device:
            memory = view.device_memory[rows]
            usable = (view.device_cap[rows] > 0) & (memory >= shape.gpu_memory_mib)
            taken = view.taken(shape)
            if taken is not None:
                usable &= taken[view.device_model[rows]]
            free = view.device_free[rows]
            if shape.gpus:
                good &= (usable & (free == view.device_cap[rows])).sum(axis=1) >= shape.gpus
            else:
                memory = np.maximum(memory, 1)
                need = shape.gpu_milli * memory if shape.gpu_milli else np.full_like(memory, shape.gpu_memory_mib * 1000)
                good &= (usable & (free >= need)).any(axis=1)
        return good


def stands(node: Node, shape: Shape) -> bool:
    """Whether one task that asks for more than amounts has a place on the node now."""
    return fits(node, shape) and (not shape.needs_device or devices_on(node, shape, node.device_free) is not None)


def devices_for(free: list[int], shape: Shape, row: int, state: State) -> tuple[int, ...] | None:
    """The devices that the engine itself would take on this row: for scores that leave the choice to it."""
    return devices_on(state.ledger.node(row), shape, free)


def devices_on(node: Node, shape: Shape, free: list[int]) -> tuple[int, ...] | None:
    """The same on a node."""
    if shape.gpus:
        return take_whole(node, shape, free)
    if not shape.share:
        return () if fits(node, shape) else None
    return take_share(node, shape, free, 0, LEVELS_ANY) or take_share(node, shape, free, None, LEVELS_ANY)
