"""From a log to a core that stands at its tail: by folding what was admitted, never by deciding."""

import logging
from collections.abc import Callable

from muster.log.admit import Admitted, Halt
from muster.log.errors import LogHalted, LogUnreachable
from muster.log.port import Log, Record
from muster.scheduler import memory
from muster.scheduler.core import Core
from muster.scheduler.snapshots import Snapshots

logger = logging.getLogger(__name__)

Counted = Callable[[Core, Record], None]
"""Told of each record that was admitted, once it is folded."""


class Recovered:
    """A core, and the position in the log up to which it has read."""

    __slots__ = ("core", "folded", "head_position", "position")

    def __init__(self, core: Core, position: int) -> None:
        self.core = core
        self.position = position
        self.head_position = position
        """Where the record of the head stands."""
        self.folded = 0
        """How many cycles were folded from the log."""


async def recover(
    log: Log, cell: str, snapshots: Snapshots | None = None, until: int | None = None, counted: Counted | None = None
) -> Recovered:
    """Fold the log up to its present tail, from the newest snapshot that can be believed.

    Where somebody else appends all the time there is no tail to wait for: then only up to the position `until`, about.

    Raises:
        LogHalted: the log was cut or altered.
    """
    with memory.growing():
        found = await snapshots.newest(log) if snapshots is not None else None
    recovered = Recovered(Core(cell), 0) if found is None else Recovered(Core(cell, found.state, found.head), found.position)
    with memory.growing():
        while records := await log.read(recovered.position):
            for record in records:
                verdict = recovered.core.follow(record.data)
                recovered.position = record.position
                if isinstance(verdict, Admitted):
                    recovered.folded += 1
                    recovered.head_position = record.position
                    if counted is not None:
                        counted(recovered.core, record)
                elif isinstance(verdict, Halt):
                    raise LogHalted(record.position, recovered.core.head.number, verdict.reason)
            if until is not None and recovered.position >= until:
                break
    return recovered


async def recover_whole(log: Log, cell: str, snapshots: Snapshots | None = None) -> Recovered:
    """Fold at least what the log is known to hold when this is called: `recover` ends where nothing comes, and that may be a
    log that nobody leads just now. Who compares positions with what a bus holds must not take a part for the whole.

    Raises:
        LogHalted: the log was cut or altered.
        LogUnreachable: what the log holds cannot be had now.
    """
    end = await log.end()
    recovered = await recover(log, cell, snapshots)
    if recovered.position < end:
        raise LogUnreachable(f"the log has {end} records, and those after the position {recovered.position} do not come")
    return recovered
