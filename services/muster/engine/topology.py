"""Which rows stand in which domain, as bits: one big integer for each value of each level.

A cache over what the nodes say of themselves, repaired for the rows that were altered. A domain is a level with a value: a
rack and a block of one name are two, and "r1" is no part of "r10". A node that names no value for a level is in none of it.
"""

from muster.cluster.ledger import Ledger
from muster.cluster.nodes import Node
from muster.cluster.rules import LEVELS, domain_of

Domains = dict[str, int]
"""Rows, as bits, by the value of one level."""


class Topology:
    """Rows by domain. `refresh` brings them up to the ledger."""

    __slots__ = ("_known", "ledger", "levels", "named", "position")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.position = -1
        """Until somebody asks nothing is looked at."""
        self._forget()

    def _forget(self) -> None:
        self.levels: dict[str, Domains] = {level: {} for level in LEVELS}
        self.named: dict[str, int] = dict.fromkeys(LEVELS, 0)
        """The rows that are in some domain of a level."""
        self._known: dict[int, tuple[str, ...]] = {}

    def refresh(self) -> None:
        """Take in the rows that were altered since."""
        upto = self.ledger.altered_upto
        if upto == self.position:
            return
        rows = self.ledger.altered_since(self.position) if self.position >= 0 else None
        if rows is None:
            self._forget()
            rows = list(range(len(self.ledger.nodes)))
        for row in dict.fromkeys(rows):
            self._drop(row)
            node = self.ledger.nodes[row]
            if node is not None:
                self._add(node)
        self.position = upto

    def of(self, row: int, level: str) -> str:
        """The domain of this level in which a row stands; empty where it is in none."""
        return self._known[row][LEVELS.index(level)]

    def rows(self, level: str, value: str) -> int:
        """The rows of a domain, as bits."""
        return self.levels[level].get(value, 0)

    def split(self, level: str, among: int) -> list[tuple[str, int]]:
        """The domains of a level with those of their rows that are `among`, sorted by value; empty ones are left out."""
        return sorted([(value, bits & among) for value, bits in self.levels[level].items() if bits & among])

    def _drop(self, row: int) -> None:
        known = self._known.pop(row, None)
        if known is None:
            return
        bit = 1 << row
        for level, value in zip(LEVELS, known, strict=True):
            if value:
                self.named[level] &= ~bit
                left = self.levels[level][value] & ~bit
                if left:
                    self.levels[level][value] = left
                else:
                    del self.levels[level][value]

    def _add(self, node: Node) -> None:
        bit = 1 << node.row
        values = tuple([domain_of(node.name, node.spec, level) for level in LEVELS])
        self._known[node.row] = values
        for level, value in zip(LEVELS, values, strict=True):
            if value:
                self.named[level] |= bit
                self.levels[level][value] = self.levels[level].get(value, 0) | bit
