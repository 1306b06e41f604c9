"""When a scheduler may lead, and what time it is then.

Log time is an anchor and the monotonic time since. Whoever has followed a living leader anchors at the last record and the
moment it was read; a cold start anchors at the wall clock, or at the last record's time if that is later. So time never goes
back, and a step of the wall clock moves it at a cold start only.
"""

import time
from typing import Protocol

import msgspec

from muster.events.codec import digest


class Clock(Protocol):
    """The only clock there is."""

    def monotonic_us(self) -> int:
        """Never goes back; its zero means nothing."""
        ...

    def wall_us(self) -> int:
        """Since 1970, as far as this machine knows."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic_us(self) -> int:
        """See `Clock`."""
        return time.monotonic_ns() // 1000

    def wall_us(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1000


class Anchor(msgspec.Struct, frozen=True):
    """One instant by log time and by the monotonic clock."""

    at_us: int
    monotonic_us: int

    def now_us(self, monotonic_us: int) -> int:
        """Log time at this reading of the monotonic clock."""
        return self.at_us + max(0, monotonic_us - self.monotonic_us)


class Watch:
    """What a follower knows of whether somebody leads."""

    __slots__ = ("anchor", "led_us", "live", "quiet_since_us")

    def __init__(self, monotonic_us: int, at_us: int) -> None:
        self.quiet_since_us = monotonic_us
        self.anchor = Anchor(at_us, monotonic_us)
        self.live = False
        """Whether any leader was seen living."""
        self.led_us = at_us
        """The last instant of log time at which somebody led."""

    def record(self, at_us: int, monotonic_us: int, live: bool) -> None:
        """A record was admitted; `live` unless it is from the time before this scheduler started."""
        self.anchor = Anchor(at_us, monotonic_us)
        self.led_us = at_us
        if live:
            self.live = True
            self.quiet_since_us = monotonic_us

    def beat(self, monotonic_us: int) -> None:
        """The leader's sign of life was seen."""
        self.led_us = self.anchor.now_us(monotonic_us)
        self.live = True
        self.quiet_since_us = monotonic_us

    def start_us(self, monotonic_us: int, wall_us: int) -> int:
        """Log time for a term that starts now."""
        if self.live:
            return self.anchor.now_us(monotonic_us)
        return max(self.anchor.at_us, wall_us)


def takeover_delay_us(identity: str, term: int, spread_us: int) -> int:
    """What this scheduler waits beyond `takeover_after`: drawn from its id and the term, so that equals seldom collide."""
    return int(digest(f"{identity}/{term}".encode())[:12], 16) % spread_us if spread_us else 0
