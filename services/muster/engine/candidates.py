"""Per shape: which nodes may be asked at all, kept and repaired for the nodes that changed.

`bits` are the rows that pass the filters of the policy, repaired for the rows that were altered. `vain` are those on which
a task was tried in vain: a row leaves it when something is freed there. Both are caches: dropped, they are made anew and
change no decision.
"""

from collections.abc import Sequence
from typing import Final

from muster.cluster.ledger import Ledger
from muster.cluster.shapes import Shape
from muster.engine.filters import FILTERS, Filter
from muster.engine.nodeindex import NodeIndex
from muster.engine.scores import STATIC, StaticScore
from muster.engine.scores.preferred import Preferred
from muster.events.operations import Policy

PREFERRED: Final = Preferred()
SHAPES_MAX: Final = 8192
MASKS_MAX: Final = 256

Tier = tuple[int, int]
"""A fixed score, and the rows that have it, as bits."""


class Candidates:
    """The rows for one shape."""

    __slots__ = ("altered", "bits", "freed", "memo", "shape", "tiers", "vain")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.bits = 0
        self.vain = 0
        self.altered = -1
        self.freed = -1
        self.tiers: list[Tier] = []
        """`bits`, split by the fixed scores of the policy, the highest first."""
        self.memo: object | None = None
        """What a picker keeps for this shape."""


class CandidateCache:
    """The candidates of every shape that was asked about lately."""

    __slots__ = ("_by_shape", "_masks", "filters", "index", "ledger", "scores")

    def __init__(self, ledger: Ledger, policy: Policy) -> None:
        self.ledger = ledger
        self.index = NodeIndex(ledger)
        self.filters: Sequence[Filter] = [FILTERS[name] for name in policy.filters if name in FILTERS]
        self.scores: Sequence[tuple[StaticScore, int]] = [
            (STATIC[score.name], score.weight) for score in policy.scores if score.name in STATIC
        ]
        self._by_shape: dict[str, Candidates] = {}
        self._masks: dict[int, int] = {}
        """One object for equal masks: many shapes pass the same nodes."""

    def of(self, shape: Shape) -> Candidates:
        """The candidates of the shape, up to date."""
        found = self._by_shape.get(shape.key)
        if found is None:
            if len(self._by_shape) >= SHAPES_MAX:
                self._by_shape.clear()
            found = self._by_shape[shape.key] = Candidates(shape)
        ledger = self.ledger
        if found.altered != ledger.altered_upto:
            self._repair(found, ledger.altered_upto)
        freed = ledger.freed_upto() if ledger.released else ledger.noted
        if found.freed != freed:
            if found.vain:
                found.vain &= ~ledger.freed_since(found.freed)
            found.freed = freed
        return found

    def _repair(self, found: Candidates, altered: int) -> None:
        index, shape = self.index, found.shape
        index.refresh()
        rows = self.ledger.altered_since(found.altered) if found.altered >= 0 else None
        registered = self.ledger.registered
        among = registered
        if rows is not None:
            among = 0
            for row in rows:
                among |= 1 << row
        changed = among
        among &= registered
        for each in self.filters:
            if not among:
                break
            among = each.passes(index, shape, among)
        found.bits = among if rows is None else (found.bits & ~changed) | among
        if len(self._masks) >= MASKS_MAX:
            self._masks.clear()
        found.bits = self._masks.setdefault(found.bits, found.bits)
        tiers = [(0, found.bits)]
        for score, weight in self.scores:
            tiers = _split(tiers, score, weight, index, shape)
        if shape.prefers:
            tiers = _split(tiers, PREFERRED, 1, index, shape)
        tiers.sort(key=lambda tier: -tier[0])
        found.tiers = tiers
        found.altered = altered


def _split(tiers: list[Tier], score: StaticScore, weight: int, index: NodeIndex, shape: Shape) -> list[Tier]:
    """Split each tier by one more score; tiers of one total are one."""
    totals: dict[int, int] = {}
    for total, bits in tiers:
        for value, part in score.split(index, shape, bits):
            if part:
                key = total + weight * value
                totals[key] = totals.get(key, 0) | part
    return sorted(totals.items())
