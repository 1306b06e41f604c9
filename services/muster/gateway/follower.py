"""A gateway's own view of the log, where the scheduler is another process: it folds what was admitted, and decides nothing.

It also says how far behind it is. A gateway that is cut off goes on to serve what it knows: an assignment that is old is
obeyed by nobody who has seen a newer one, a report is not answered before Kafka has it, and so no lease is moved here that
the log does not hear of.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from muster.log.admit import Admitted, Halt
from muster.log.errors import LogHalted, LogUnreachable, OperatingError
from muster.log.port import Log, Record
from muster.scheduler.recovery import Recovered
from muster.scheduler.snapshots import Snapshots
from muster.scheduler.terms import Anchor, Clock, SystemClock

WAIT_S: Final = 1.0
ASK_EVERY_S: Final = 1.0
"""So often the end of the log is asked for, to know whether this gateway is there."""
STUCK_US: Final = 60_000_000
"""So long nothing of a log that goes on may arrive."""
BEHIND_US: Final = 10_000_000
"""A gateway that is so far behind says so."""

logger = logging.getLogger(__name__)


class Follower:
    """Follows the log with a core of its own."""

    def __init__(
        self,
        recovered: Recovered,
        log: Log,
        *,
        snapshots: Snapshots | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`recovered` stands where the log ended when it was read."""
        self.core = recovered.core
        self.log = log
        self.position = recovered.position
        self.head_position = recovered.head_position
        self.admitted: Callable[[Record], None] = lambda record: None
        """Told of each record that was admitted and folded."""
        self._snapshots = snapshots
        self._clock: Clock = clock if clock is not None else SystemClock()
        now_us = self._clock.monotonic_us()
        self._anchor = Anchor(self.core.state.at_us, now_us)
        self._at_end_us = now_us
        """When the end of the log was last asked for that was reached."""
        self.behind = 0
        """How many records there were after those that were read, when the end of the log was last asked for."""
        self._sought: tuple[int, int] | None = None
        """An end that was not reached when it was told, and when it was asked for."""

    async def run(self) -> None:
        """Follow, until cancelled.

        Raises:
            LogHalted: the log was cut or altered.
            LogUnreachable: this connection to the log does not go on, and another may.
            OperatingError: what else is wrong with the log.
        """
        both = [asyncio.create_task(self._follow_on()), asyncio.create_task(self._ask())]
        try:
            ended, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                why = None if each.cancelled() else each.exception()
                if isinstance(why, OperatingError):
                    raise why
                raise LogUnreachable(f"the log is not followed any more: {why!r}") from why
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def now_us(self) -> int:
        """Log time, as far as it can be told: that of the last cycle, and what has passed here since it was read."""
        return self._anchor.now_us(self._clock.monotonic_us())

    def behind_us(self) -> int:
        """For how long this gateway has not been known to be at the end of the log."""
        behind_us = self._clock.monotonic_us() - self._at_end_us
        return behind_us if behind_us > 3 * int(1_000_000 * ASK_EVERY_S) else 0

    def snapshot(self) -> None:
        """Write the state down, if the last one is old."""
        core = self.core
        if self._snapshots is not None and self._snapshots.due(core.head.number):
            self._snapshots.write(core.state, core.head, self.head_position)

    async def _follow_on(self) -> None:
        while True:
            await self._follow()

    async def _follow(self) -> None:
        try:
            records = await self.log.read(self.position)
        except LogUnreachable as error:
            logger.warning("the log cannot be read: %s", error)
            await asyncio.sleep(WAIT_S)
            return
        for record in records:
            verdict = self.core.follow(record.data)
            self.position = record.position
            if isinstance(verdict, Halt):
                raise LogHalted(record.position, self.core.head.number, verdict.reason)
            if isinstance(verdict, Admitted):
                self.head_position = record.position
                self._anchor = Anchor(verdict.envelope.at_us, self._clock.monotonic_us())
                self.admitted(record)
        if self._sought is not None and self.position >= self._sought[0]:
            self._at_end_us = max(self._at_end_us, self._sought[1])
            self._sought = None
        if records:
            await asyncio.sleep(0)
        else:
            await self.log.wait(self.position, WAIT_S)

    async def _ask(self) -> None:
        """Ask for the end of the log, again and again.

        Raises:
            LogUnreachable: the log goes on and nothing of it arrives here.
        """
        said = False
        stood, stood_us = -1, 0
        while True:
            asked_us = self._clock.monotonic_us()
            try:
                end = await self.log.end()
                self.behind = max(0, end - self.position)
            except LogUnreachable:
                end = -1
            if 0 <= end <= self.position:
                self._at_end_us = asked_us
            elif end >= 0 and self._sought is None:  # of a log that grows all the time, the end is always a little further
                self._sought = (end, asked_us)
            if end <= self.position or self.position != stood:
                stood, stood_us = self.position, asked_us
            elif asked_us - stood_us > STUCK_US:
                raise LogUnreachable(f"the log goes on to position {end}, and nothing after {stood} arrives here")
            behind = self.behind_us() > BEHIND_US
            if behind != said:
                said = behind
                logger.warning("this gateway is %s the end of the log", "behind" if behind else "at")
            await asyncio.sleep(ASK_EVERY_S)
