"""How long an agent waits before it asks again a gateway that did not answer. Reads no clock, and sleeps nowhere.

Where nobody listens, asking costs nobody anything, so it is done often: a gateway that is away for a moment costs its agents
little more than that moment. One that listens and does not answer, or cannot, has too much to do and is asked less and less.
Each wait is drawn anew, so that a thousand agents which lost their gateway at once do not come back at once.
"""

import random
from typing import Final

REFUSED_S: Final = (0.05, 0.1, 0.2, 0.3, 0.4)
"""Waits while nobody listens."""
BUSY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits while somebody listens and does not answer."""


class Backoff:
    """The waits of one loop."""

    def __init__(self, draw: random.Random | None = None) -> None:
        self._random = draw if draw is not None else random.Random()
        self._failures = 0

    def next_s(self, refused: bool) -> float:
        """How long to wait after one more failure; `refused` where nobody listened."""
        waits = REFUSED_S if refused else BUSY_S
        base = waits[min(self._failures, len(waits) - 1)]
        self._failures += 1
        return base * self._random.uniform(0.5, 1.5)

    def reset(self) -> bool:
        """It was answered; whether it was not before."""
        failed = self._failures > 0
        self._failures = 0
        return failed
