"""The process of `muster telemetry worker`: a worker of `muster.telemetry.worker` until it is told to stop, or ends by itself."""

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from muster.events.cloudevents import GPU_HEALTH, TELEMETRY
from muster.log.bus import Bus
from muster.log.topics import declared, require_fit
from muster.scheduler.loop import EXIT_DOUBT
from muster.telemetry.rules import FILE, load
from muster.telemetry.worker import Options as WorkerOptions
from muster.telemetry.worker import Worker
from muster.up.process import leave, run

STOP_S: Final = 10.0

logger = logging.getLogger("muster.up")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told."""

    bus: str
    config: str = ""
    rules: str = ""
    """A file; empty means the rules that come with Muster."""
    worker: WorkerOptions = WorkerOptions()


async def main(options: Options) -> int:
    """The process; its exit status."""
    for name in ("faust", "mode"):
        logging.getLogger(name).setLevel(logging.ERROR)
    bus = Bus.parse(options.bus, options.config or None)
    rules = load(Path(options.rules) if options.rules else FILE)
    await require_fit(bus, [topic for topic in declared() if topic.name in (TELEMETRY, GPU_HEALTH)])
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory(prefix="muster-telemetry-") as folder:
        worker = Worker(bus, rules, Path(folder), options.worker)
        logger.info("telemetry worker %d of the group %s, %d rules", os.getpid(), options.worker.group, len(rules.rule))
        ended = asyncio.create_task(worker.run())
        told = asyncio.create_task(stop.wait())
        await asyncio.wait((ended, told), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            logger.error("the worker ended: %s", ended.exception() or "nobody told it to")
            leave(EXIT_DOUBT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await worker.stop()
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
    return 0


if __name__ == "__main__":
    run(main, Options, logger)
