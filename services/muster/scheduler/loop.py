"""The loop: follows the log, starts a term when it may, and then appends one record at a time and reads each back.

Nothing is acted on before it was read from the log and admitted. Where that is in doubt, or another's record was admitted
in the place of ours, the process leaves at once by `exit` (`os._exit`): its supervisor starts it again and it learns by
reading what happened. So start, crash, doubt and replacement are one path.

All that waits here waits on a port (log, inbox), and all time comes from the clock port.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from muster.log.admit import Admitted, Halt
from muster.log.errors import LogHalted, LogUnreachable, OffsetsLost
from muster.log.port import Log, Record
from muster.scheduler.core import Replaced
from muster.scheduler.inbox import Inbox
from muster.scheduler.messages import BufferFull
from muster.scheduler.poison import Deaths
from muster.scheduler.recorder import MESSAGES_MAX
from muster.scheduler.recovery import Recovered
from muster.scheduler.snapshots import Snapshots
from muster.scheduler.spent import Spent
from muster.scheduler.terms import Anchor, Clock, SystemClock, Watch, takeover_delay_us

logger = logging.getLogger(__name__)

EXIT_BROKEN: Final = 70
"""Something that always holds does not; see the log of the process."""
EXIT_HALTED: Final = 74
"""The log was cut or altered: starting again does not help."""
EXIT_DOUBT: Final = 75
"""An append failed or was not answered in time: start again and read what happened."""
EXIT_REPLACED: Final = 76
"""Another scheduler leads: start again and follow it."""
EXIT_LOST: Final = 77
"""Messages are gone that no cycle has taken: an operator has to say whether to go on without them."""

IDLE_MAX_US: Final = 1_000_000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How one scheduler behaves. Spans are in microseconds, by its own monotonic clock."""

    host: str = "localhost"
    build: str = "unknown"
    identity: str = "0"
    """Tells equals apart: their waits differ by what is drawn from it."""
    takeover_after_us: int = 3_000_000
    """So long without a record or a beat of a leader, and a term may be started; 0 where the log has one writer only."""
    takeover_spread_us: int = 1_000_000
    append_deadline_us: int = 10_000_000
    """From the append until the record was read back."""
    beat_us: int = 1_000_000
    """How often a leader that appends nothing shows that it is there."""
    poll_us: int = 250_000
    """How often a follower looks for beats."""
    stall_us: int = 5_000_000
    """A leader that overslept by more has not led: it starts a new term, which says for how long."""


class Scheduler:
    """One scheduler of a cell: a follower until it leads."""

    def __init__(
        self,
        recovered: Recovered,
        log: Log,
        inbox: Inbox,
        settings: Settings,
        *,
        clock: Clock | None = None,
        snapshots: Snapshots | None = None,
        deaths: Deaths | None = None,
        exit: Callable[[int], NoReturn] = os._exit,
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
        admitted: Callable[[Record], None] | None = None,
        settled: Callable[[], None] | None = None,
        spent: Spent | None = None,
    ) -> None:
        """`admitted` is told of each record that was read, admitted and folded: what stands in it may be acted on. It must
        neither fail nor take long. `settled` is called after such records, once those whose messages they took were told, and
        before the state changes again. In `spent` is counted where the time goes.
        """
        self.core = recovered.core
        self.log = log
        self.inbox = inbox
        self.settings = settings
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.snapshots = snapshots
        self.deaths = deaths if deaths is not None else Deaths(None, self.core.positions)
        self._exit = exit
        self._nonce = nonce
        self._admitted = admitted
        self._settled = settled if settled is not None else _nothing
        self.spent = spent if spent is not None else Spent()
        self._told_us = 0
        """What judging records, and telling of them, took since the append."""
        self._position = recovered.position
        self._head_position = recovered.head_position
        self._stopping = False
        self._at_tail = False
        self._beats = inbox.beats()
        self._watch = Watch(self.clock.monotonic_us(), self.core.state.at_us)
        self._anchor = self._watch.anchor
        self._shown_us = 0
        """When the followers last had a sign of this leader, by the monotonic clock."""
        self._awake_us = 0
        """When this leader was last known to be awake, by the monotonic clock."""
        for source, offset, content in self.deaths.refused:
            self.core.refuse(source, offset, content)

    async def run(self) -> None:
        """Follow and lead until `stop`. Does not return from a failure: it leaves by `exit`."""
        try:
            while not self._stopping:
                if self.core.leads:
                    await self._lead()
                else:
                    await self._follow()
        except Replaced as error:
            logger.warning("%s", error)
            self._exit(EXIT_REPLACED)
        except LogHalted as error:
            logger.critical("%s", error)
            self._exit(EXIT_HALTED)
        except OffsetsLost as error:
            logger.critical("%s", error)
            self._exit(EXIT_LOST)
        except Exception:
            logger.critical("the scheduler of cell %s stops", self.core.cell, exc_info=True)
            self._exit(EXIT_BROKEN)

    @property
    def position(self) -> int:
        """The position in the log up to which it has read."""
        return self._position

    def stop(self) -> None:
        """Return from `run` after the present pass, within about a second."""
        self._stopping = True

    # Following

    async def _follow(self) -> None:
        """Read on; once it has been quiet for long enough, and there is nothing more to read, start a term."""
        records = await self.log.read(self._position)
        if records:
            for record in records:
                self._judge(record)
            self._settled()
            self._snapshot()
            return
        if not self._at_tail:
            self._at_tail = True
            self._snapshot()
        now_us = self.clock.monotonic_us()
        if self.inbox.beats() != self._beats:
            self._beats = self.inbox.beats()
            self._watch.beat(now_us)
        settings = self.settings
        delay_us = takeover_delay_us(settings.identity, self.core.head.term, settings.takeover_spread_us)
        patience_us = settings.takeover_after_us + (delay_us if settings.takeover_after_us else 0)
        left_us = self._watch.quiet_since_us + patience_us - now_us
        if left_us > 0:
            await self.log.wait(self._position, min(left_us, settings.poll_us) / 1e6)
        elif await self._is_end():  # asked for after the wait began
            await self._start()

    async def _is_end(self) -> bool:
        """Whether there is nothing more to read; nobody who cannot ask leads."""
        try:
            return await self.log.end() <= self._position
        except LogUnreachable as error:
            logger.warning("cell %s: %s", self.core.cell, error)
            return False

    async def _start(self) -> None:
        """Start a term. Whether this one leads then, `core.leads` says."""
        core = self.core
        now_us = self.clock.monotonic_us()
        at_us = max(core.state.at_us, self._watch.start_us(now_us, self.clock.wall_us()))
        gap_us = max(0, at_us - self._watch.led_us) if core.head.number else 0
        settings = self.settings
        await self._append(core.start_term(at_us, self._nonce(), settings.host, settings.build, gap_us))
        if core.leads:
            logger.info("cell %s: term %d starts at cycle %d", core.cell, core.term, core.head.number)
            self._anchor = Anchor(at_us, now_us)
            self._awake_us = self.clock.monotonic_us()
            await self.inbox.seek(core.positions)
        self._settled()

    # Leading

    async def _lead(self) -> None:
        """One pass: take what has arrived, make a record if there is anything to say, append it and read it back.

        Its time is taken before the ends of partitions are asked for: whoever is not heard by then is judged by then, however
        late this process gets to it.
        """
        core = self.core
        if await self._overslept():
            return
        began_us = self.clock.monotonic_us()
        drained = self._fill()
        at_us = self.now_us()
        unread: frozenset[str] = frozenset()
        if core.beat_due(at_us):
            unread = await self.inbox.catch_up()
            drained = self._fill()
        taken_us = self.clock.monotonic_us()
        data = self._make(at_us, unread, drained)
        if data is not None:
            made_us = self.clock.monotonic_us()
            await self._append(data)
            self._shown_us = now_us = self.clock.monotonic_us()
            told_us = self._told_us
            self.spent.cycle(taken_us - began_us, made_us - taken_us, now_us - made_us - told_us, told_us)
            self.inbox.moved(core.taken())
            self._settled()
            self.spent.served(self.clock.monotonic_us() - now_us)
            return
        self.inbox.moved(core.taken())
        await self._rest()

    async def _rest(self) -> None:
        """Show that this leader is there, and wait for a message or for what is due next."""
        began_us = self.clock.monotonic_us()
        if began_us - self._shown_us >= self.settings.beat_us:
            await self.inbox.beat()
            self._shown_us = began_us
        at_us = self._anchor.now_us(began_us)
        wake_us = self.core.next_wake_us()
        rest_us = min(IDLE_MAX_US, self.settings.beat_us)
        if wake_us is not None:
            rest_us = min(rest_us, max(0, wake_us - at_us))
        await self.inbox.wait(rest_us / 1e6)

    async def _overslept(self) -> bool:
        """Whether nobody led since this was last asked: then a new term starts, which says for how long."""
        before_us, now_us = self._awake_us, self.clock.monotonic_us()
        self._awake_us = now_us
        if now_us - before_us <= self.settings.stall_us:
            return False
        logger.warning("cell %s: nobody led for %d s", self.core.cell, (now_us - before_us) // 1_000_000)
        self._watch.record(max(self.core.state.at_us, self._anchor.now_us(before_us)), before_us, live=True)
        await self._start()
        return True

    def _make(self, at_us: int, unread: frozenset[str], drained: bool) -> bytes | None:
        """The next record. After two deaths with the same messages ahead: of no message, and then of one."""
        core, deaths = self.core, self.deaths
        taken = core.taken()
        if not deaths.careful(taken):
            deaths.enter(taken, core.ahead())
            data = core.cycle(at_us, unread, take=MESSAGES_MAX, beat=drained)
        else:
            deaths.enter(taken, core.ahead())
            data = core.cycle(at_us, unread, take=0, beat=drained)
            if data is None:
                deaths.enter(taken, core.ahead(), core.first())
                data = core.cycle(at_us, unread, take=1, beat=drained)
        deaths.leave()
        return data

    def _fill(self) -> bool:
        """Hand on what has arrived. Whether that was all."""
        inbox, core = self.inbox, self.core
        while (message := inbox.first()) is not None:
            try:
                core.offer(message)
            except BufferFull:
                return False
            inbox.pop()
        return True

    def now_us(self) -> int:
        """Log time now, as a leader counts it."""
        return max(self.core.state.at_us, self._anchor.now_us(self.clock.monotonic_us()))

    # The log

    async def _append(self, data: bytes) -> None:
        """Append a record and read until it was judged. Any doubt ends the process."""
        self._told_us = 0
        try:
            async with asyncio.timeout(self.settings.append_deadline_us / 1e6):
                await self.log.append(data)
                await self._read_back(data)
        except (Replaced, LogHalted):
            raise
        except Exception as error:
            logger.warning("cell %s: the append after cycle %d: %r", self.core.cell, self.core.head.number, error)
            self._exit(EXIT_DOUBT)

    async def _read_back(self, data: bytes) -> None:
        seen = False
        while not seen:
            records = await self.log.read(self._position)
            for record in records:
                self._judge(record)
                seen = seen or record.data == data
            if not records:
                await self.log.wait(self._position, self.settings.poll_us / 1e6)

    def _judge(self, record: Record) -> None:
        """Follow the next record of the log."""
        core = self.core
        began_us = self.clock.monotonic_us()
        verdict = core.follow(record.data)
        self._position = record.position
        if isinstance(verdict, Admitted):
            self._head_position = record.position
            self._watch.record(verdict.envelope.at_us, self.clock.monotonic_us(), live=self._at_tail)
            if self._admitted is not None:
                self._admitted(record)
        elif isinstance(verdict, Halt):
            raise LogHalted(record.position, core.head.number, verdict.reason)
        self._told_us += self.clock.monotonic_us() - began_us

    def _snapshot(self) -> None:
        """A follower, which has time, writes the state down now and then."""
        core = self.core
        if self.snapshots is not None and self.snapshots.due(core.head.number):
            self.snapshots.write(core.state, core.head, self._head_position)


def _nothing() -> None:
    """Nobody wants to know."""
