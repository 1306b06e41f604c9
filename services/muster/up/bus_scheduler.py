"""A scheduler on Kafka: the composition root. `muster.up.keeper` starts it and starts it again.

`python -m muster.up.bus_scheduler OPTIONS` (JSON) follows the log, and leads when nobody else does; it ends on SIGTERM. It
leaves by `os._exit` on any doubt; what happened then is learned by reading, at the next start. It does not start on topics
that would lose anything, nor where messages are gone that no cycle has taken.
"""

import asyncio
import logging
import secrets
import signal
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from muster.log.bus import Bus
from muster.log.errors import OperatingError
from muster.log.kafka import KafkaLog
from muster.log.topics import require_fit
from muster.measures.loop import Phases, follower
from muster.measures.loop import scheduler as leading
from muster.metrics import Metrics, serve
from muster.scheduler.build import build
from muster.scheduler.kafka_inbox import KafkaInbox
from muster.scheduler.loop import Scheduler, Settings
from muster.scheduler.memory import settle
from muster.scheduler.poison import Deaths
from muster.scheduler.recovery import recover_whole
from muster.scheduler.snapshots import EVERY, Snapshots
from muster.up import places
from muster.up.places import CELL, EXIT_LOCKED, EXIT_PORT
from muster.up.process import hold, leave, let_go, run

ASK_S: Final = 2.0
"""So long at most the bus is asked where the log ends, for the metrics."""
SPREAD_US: Final = 500_000
"""Standbys differ by so much at most in when they take over."""

logger = logging.getLogger("muster.scheduler")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What one scheduler of a bus is told."""

    bus: str
    config: str = ""
    """The file of settings."""
    folder: str
    """Of snapshots, and of what a scheduler leaves behind for its successor. One scheduler a folder."""
    cell: str = CELL
    takeover_after_us: int = 3_000_000
    append_deadline_us: int = 10_000_000
    snapshot_every: int = EVERY
    metrics: str = ""
    """HOST:PORT at which Prometheus may ask; empty: nowhere."""


async def main(options: Options) -> int:
    """The process; its exit status."""
    folder = Path(options.folder)
    if not hold(folder):
        logger.error("another scheduler uses the folder %s; give this one another with --data", folder)
        return EXIT_LOCKED
    bus = Bus.parse(options.bus, options.config or None)
    await require_fit(bus)
    async with AsyncExitStack() as closing:
        log = await KafkaLog.open(bus, writer=True, append_deadline_s=options.append_deadline_us / 1e6)
        closing.push_async_callback(let_go, log.close)
        snapshots = Snapshots(folder, options.cell, options.snapshot_every)
        began_s = time.monotonic()
        recovered = await recover_whole(log, options.cell, snapshots)
        recovery_s = time.monotonic() - began_s
        core = recovered.core
        identity = f"{socket.gethostname()[:64]}-{secrets.token_hex(4)}"
        inbox = KafkaInbox(bus, options.cell, identity)
        await inbox.start()
        closing.push_async_callback(let_go, inbox.close)
        await inbox.check(core.positions)
        settle()
        deaths = Deaths(folder / "deaths", core.positions)
        closing.callback(deaths.close)
        settings = _settings(options, identity)
        scheduler = Scheduler(recovered, log, inbox, settings, snapshots=snapshots, deaths=deaths, exit=leave)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, scheduler.stop)
        if options.metrics:
            metrics = metrics_of(scheduler, log)
            metrics.set("muster_recovery_seconds", recovery_s)
            metrics.set("muster_recovery_cycles", recovered.folded)
            try:
                endpoint = await serve(metrics, options.metrics)
            except OSError as error:
                logger.error("metrics cannot be served at %s: %s", options.metrics, error.strerror or error)
                return EXIT_PORT
            closing.push_async_callback(endpoint.close)
            logger.info("metrics are at %s/metrics", places.url(endpoint.host, endpoint.port))
        logger.info("cell %s: follows the log at cycle %d of term %d", options.cell, core.head.number, core.head.term)
        await scheduler.run()
    return 0


def metrics_of(scheduler: Scheduler, log: KafkaLog) -> Metrics:
    """The metrics of a scheduler without a gateway."""
    core = scheduler.core
    metrics = Metrics("scheduler", core.cell, build())
    phases = scheduler.spent.also = Phases()

    async def look() -> None:
        try:
            async with asyncio.timeout(ASK_S):
                end = await log.end()
        except (OperatingError, TimeoutError):
            return  # what was known last stays
        metrics.set("muster_follower_lag_records", max(0, end - scheduler.position), follower="scheduler")

    metrics.before(look)
    metrics.source(lambda: follower(core))
    metrics.source(lambda: leading(core, phases))
    return metrics


def _settings(options: Options, identity: str) -> Settings:
    usual = Settings()
    return Settings(
        host=socket.gethostname()[:128],
        build=build(),
        identity=identity,
        takeover_after_us=options.takeover_after_us,
        takeover_spread_us=min(SPREAD_US, options.takeover_after_us),
        append_deadline_us=options.append_deadline_us,
        beat_us=min(usual.beat_us, options.takeover_after_us // 3),  # or followers would take a quiet leader for a dead one
    )


if __name__ == "__main__":
    run(main, Options, logger)
