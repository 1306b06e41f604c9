"""A scheduler of the world: the real recovery and the real loop, with the ports of this world."""

import sys
import traceback
from pathlib import Path
from typing import NoReturn

from muster.log.memory import MemoryBroker
from muster.scheduler.loop import EXIT_BROKEN, EXIT_HALTED, Scheduler, Settings
from muster.scheduler.poison import Deaths
from muster.scheduler.recovery import recover
from muster.scheduler.snapshots import Snapshots
from muster.simulator.world.bus import Topics, WorldInbox, WorldLog
from muster.simulator.world.gateway import CELL
from muster.simulator.world.network import Network
from muster.simulator.world.process import Process, leave

SNAPSHOT_EVERY = 40


class SchedulerHost:
    """Where one scheduler runs, incarnation after incarnation, and the folder that outlives it."""

    def __init__(
        self, process: Process, network: Network, topics: Topics, broker: MemoryBroker, settings: Settings, folder: Path
    ) -> None:
        self.process = process
        self.network = network
        self.topics = topics
        self.broker = broker
        self.settings = settings
        self.folder = folder
        self.scheduler: Scheduler | None = None
        self.early_starts = 0
        self._deaths: Deaths | None = None
        self._inbox: WorldInbox | None = None

    @property
    def leads(self) -> bool:
        """Whether it believes to lead."""
        return self.process.alive and self.scheduler is not None and self.scheduler.core.leads

    async def run(self, process: Process) -> None:
        """One incarnation."""
        log = WorldLog(process, self.network, self.broker, lambda: self.leads)
        log.on_early_start = self._started_early
        snapshots = Snapshots(self.folder, CELL, SNAPSHOT_EVERY)
        recovered = await recover(log, CELL, snapshots)
        self._deaths = Deaths(self.folder / "deaths", recovered.core.positions)
        self._inbox = WorldInbox(process, self.network, self.topics)
        self.topics.inboxes.append(self._inbox)
        go = leave(process)

        def exit(code: int) -> NoReturn:
            if code in (EXIT_BROKEN, EXIT_HALTED):
                process.broken.append("".join(traceback.format_exception(sys.exc_info()[1])))
            go(code)

        self.scheduler = Scheduler(
            recovered,
            log,
            self._inbox,
            self.settings,
            clock=process.clock,
            snapshots=snapshots,
            deaths=self._deaths,
            exit=exit,
            nonce=lambda: f"{process.random.getrandbits(128):032x}",
        )
        await self.scheduler.run()

    def over(self) -> None:
        """The incarnation is over; its files are closed as the kernel does."""
        self.scheduler = None
        if self._deaths is not None:
            self._deaths.close()
            self._deaths = None
        if self._inbox is not None:
            self.topics.inboxes.remove(self._inbox)
            self._inbox = None

    def _started_early(self) -> None:
        self.early_starts += 1

    def spoil(self) -> bool:
        """Tear or alter the newest snapshot. Whether there was one."""
        paths = sorted(self.folder.glob("*.snapshot"))
        if not paths:
            return False
        random = self.process.random
        data = paths[-1].read_bytes()
        at = random.randrange(len(data))
        way = random.randrange(3)
        if way == 0:
            paths[-1].write_bytes(data[:at])
        elif way == 1:
            paths[-1].write_bytes(data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :])
        else:
            paths[-1].with_suffix(".partial").write_bytes(data[:at])
            paths[-1].unlink()
        return True
