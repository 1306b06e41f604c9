"""What queues and their users have used, with a half-life: the policy's `history_half_life_us`; off where it says nothing.

Used is the dominant share of what was charged, in 2^-32 of all there is, times seconds: it grows while something is charged,
and is multiplied by one factor at each boundary of log time, a multiple of 60 s. Everything is an integer. What is charged, and
what there is, counts from the instant on at which it became so.

There is an entry for each queue, and for each user of a fair queue, for which something is charged or was of late: what has
faded to nothing is dropped. Cost: the way up at each change of a charge, and all entries at a boundary and, once a cycle, where
there is more or less than before.
"""

from collections.abc import Iterable
from math import isqrt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from muster.cluster.queuetree import Charge, Queue, QueueTree

EACH_US: Final = 60_000_000
UNIT_BITS: Final = 32
SECOND: Final = 1_000_000
ONE: Final = 1 << 32
LOOPS_MAX: Final = 64
LEAST: Final = 256
"""Less than this of what is not charged any more is nothing: a second of a 2^-24 of all there is."""

Key = tuple[str, str]
"""Queue, and user; an empty user for the queue itself, which no user is called."""


class Used:
    """What was used until an instant."""

    __slots__ = ("amount", "since_us")

    def __init__(self, amount: int, since_us: int) -> None:
        self.amount = amount
        self.since_us = since_us


class Usage:
    """The history of a tree of queues."""

    __slots__ = ("_all_us", "_boundary", "_factor", "entries", "now_us")

    def __init__(self, half_life_us: int, at_us: int) -> None:
        self.entries: dict[Key, Used] = {}
        self.now_us = at_us
        self._all_us = -1
        """When all was last added up; what came to be charged since then was so from now on."""
        self._boundary = at_us // EACH_US
        self._factor = factor(half_life_us)

    def fade_by(self, half_life_us: int) -> None:
        """The half-life is another from now on."""
        self._factor = factor(half_life_us)

    def begin(self, queues: "Iterable[Queue]") -> None:
        """What these are charged with already, and nothing was noted of, is used from now on."""
        for queue in queues:
            if any(queue.charged.values()):
                self.entries.setdefault((queue.name, ""), Used(0, self.now_us))
            for user in queue.users if queue.fair else ():
                self.entries.setdefault((queue.name, user), Used(0, self.now_us))

    def touch(self, tree: "QueueTree", queue: "Queue", user: str) -> None:
        """What is charged on the way up from the queue is about to change."""
        for each in queue.path:
            self._accrue((each.name, ""), _rate(tree, each.charged))
            if each.fair:
                self._accrue((each.name, user), _rate(tree, each.users.get(user, {})))

    def touch_all(self, tree: "QueueTree") -> None:
        """What is charged anywhere, or what there is, is about to change."""
        if self._all_us < self.now_us:
            self._all_us = self.now_us
            for key in self.entries:
                self._accrue(key, _rate(tree, _charged(tree, key)))

    def of(self, tree: "QueueTree", queue: "Queue", user: str = "") -> int:
        """What the queue, or a user in it, has used until now."""
        key = queue.name, user
        used = self.entries.get(key)
        if used is None:
            return 0
        return used.amount + _rate(tree, _charged(tree, key)) * (self.now_us - used.since_us) // SECOND

    def pass_time(self, tree: "QueueTree", at_us: int) -> None:
        """A cycle begins then."""
        passed = at_us // EACH_US - self._boundary
        if passed:
            first_us = (self._boundary + 1) * EACH_US
            self._boundary += passed
            last_us = self._boundary * EACH_US
            gone = []
            for key, used in self.entries.items():
                rate = _rate(tree, _charged(tree, key))
                amount = (used.amount + rate * (first_us - used.since_us) // SECOND) * self._factor >> 32
                used.amount = self._fade(amount, rate * (EACH_US // SECOND), passed - 1)
                used.since_us = last_us
                if not rate and used.amount < LEAST:
                    gone.append(key)
            for key in gone:
                del self.entries[key]
        self.now_us = at_us

    def _fade(self, amount: int, more: int, times: int) -> int:
        """So much more each time, and then less by the factor; many times at once, as one sum."""
        if times <= LOOPS_MAX:
            for _ in range(times):
                amount = (amount + more) * self._factor >> 32
            return amount
        left = _power(self._factor, times)
        return (amount * left >> 32) + (more * self._factor * (ONE - left) // (ONE - self._factor) >> 32)

    def _accrue(self, key: Key, rate: int) -> None:
        used = self.entries.get(key)
        if used is None:
            self.entries[key] = Used(0, self.now_us)
        else:
            used.amount += rate * (self.now_us - used.since_us) // SECOND
            used.since_us = self.now_us


def factor(half_life_us: int) -> int:
    """What is left after a boundary, in 2^-32: 2 to the power of -60 s / half-life, by roots of one half."""
    whole, part = divmod((EACH_US << 40) // half_life_us, 1 << 40)
    left, root = 1 << 64, isqrt(1 << 127)
    for bit in reversed(range(40)):
        if part >> bit & 1:
            left = left * root >> 64
        root = isqrt(root << 64)
    return left >> 32 + whole


def _power(base: int, times: int) -> int:
    """A power of a number in 2^-32."""
    result = ONE
    while times:
        if times & 1:
            result = result * base >> 32
        base = base * base >> 32
        times >>= 1
    return result


def _charged(tree: "QueueTree", key: Key) -> "Charge":
    queue = tree.queues.get(key[0])
    if queue is None:
        return {}
    return queue.users.get(key[1], {}) if key[1] else queue.charged


def _rate(tree: "QueueTree", charged: "Charge") -> int:
    """The dominant share of what is charged, in 2^-32."""
    if tree.stale:
        tree.settle()
    return max([0, *[(charged.get(what, 0) << UNIT_BITS) // there for what, there in tree.dimensions]])
