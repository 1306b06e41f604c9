"""What a leader's time goes to: how long its cycles take, and in which phase. It changes nothing.

A cycle is counted from when its messages are taken until its record was read back, admitted, and told to whoever follows.
"""

from collections import deque
from typing import Final, Protocol

KEPT: Final = 50_000
"""So many of the last cycles are kept one by one."""


class Also(Protocol):
    """Somebody else who counts, in a way of its own."""

    def cycle(self, take_us: int, decide_us: int, append_us: int, tell_us: int) -> None:
        """See `Spent`."""
        ...

    def served(self, serve_us: int) -> None:
        """See `Spent`."""
        ...


class Spent:
    """Counts since the start, or since `clear`. Times are microseconds."""

    __slots__ = ("also", "cycles", "cycles_us", "phases_us")

    def __init__(self) -> None:
        self.also: Also | None = None
        """Told of everything as well."""
        self.clear()

    def clear(self) -> None:
        """Count anew."""
        self.cycles = 0
        self.phases_us = {"take": 0, "decide": 0, "append": 0, "tell": 0, "serve": 0}
        """`take`: what has arrived is handed to the core; `decide`: inputs are made, the engine steps, the record is encoded;
        `append`: until the log gives it back; `tell`: it is judged, and followers are told; `serve`: between two cycles, senders,
        polls and reads that wait are answered."""
        self.cycles_us: deque[int] = deque(maxlen=KEPT)
        """The last cycles, each as a whole."""

    def cycle(self, take_us: int, decide_us: int, append_us: int, tell_us: int) -> None:
        """One cycle was made and admitted."""
        self.cycles += 1
        phases = self.phases_us
        phases["take"] += take_us
        phases["decide"] += decide_us
        phases["append"] += append_us
        phases["tell"] += tell_us
        self.cycles_us.append(take_us + decide_us + append_us + tell_us)
        if self.also is not None:
            self.also.cycle(take_us, decide_us, append_us, tell_us)

    def served(self, serve_us: int) -> None:
        """Those who waited for the cycle were answered."""
        self.phases_us["serve"] += serve_us
        if self.also is not None:
            self.also.served(serve_us)
