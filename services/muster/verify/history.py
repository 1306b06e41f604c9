"""What queues, and users of fair queues, used of late, as the second judge sees it.

It shares no code with the engine: what was used is added up in decimals, in parts of all there is times microseconds, and fades
by a power of one half at each full minute.
"""

from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from muster.verify.queues import Books
    from muster.verify.world import World

MINUTE_US: Final = 60_000_000

Key = tuple[str, str]  # queue and user; no user for the queue itself


class History:
    """What was used since a policy with a half-life came, by queue, and by user of a fair queue."""

    def __init__(self, world: "World", books: "Books") -> None:
        self.world, self.books, self.used = world, books, dict[Key, Decimal]()

    def pass_time(self, at_us: int) -> None:
        """It is so late now; what is charged was so since the cycle before."""
        half_life_us, since_us = self.world.policy.history_half_life_us, self.world.at_us
        assert isinstance(half_life_us, int)
        left = Decimal("0.5") ** (Decimal(MINUTE_US) / half_life_us)
        minutes = at_us // MINUTE_US - since_us // MINUTE_US
        there = self.books.there() if at_us > since_us else Counter[str]()
        for key in self._keys() if at_us > since_us else ():
            charged = (self.books.users.get(key) if key[1] else self.books.charged.get(key[0])) or Counter()
            rate = max([Decimal(0), *[Decimal(charged[what]) / amount for what, amount in there.items()]])
            used = self.used.get(key, Decimal(0))
            if minutes:
                used = (used + rate * (MINUTE_US - since_us % MINUTE_US)) * left
                then = left ** (minutes - 1)
                used = used * then + rate * MINUTE_US * left * (1 - then) / (1 - left) + rate * (at_us % MINUTE_US)
            else:
                used += rate * (at_us - since_us)
            self.used[key] = used

    def _keys(self) -> list[Key]:
        fair = [key for key in self.books.users if key[0] in self.books.said and self.books.said[key[0]].order == "fair"]
        return list(dict.fromkeys([*self.used, *[(name, "") for name in self.books.charged], *fair]))
