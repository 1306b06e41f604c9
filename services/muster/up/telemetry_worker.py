"""The process of `muster telemetry worker`: a worker of `muster.telemetry.worker` until it is told to stop, or ends by itself."""

import logging
import os
from pathlib import Path

import msgspec

from muster.events.cloudevents import GPU_HEALTH, TELEMETRY
from muster.log.bus import Bus
from muster.log.topics import declared, require_fit
from muster.scheduler.loop import EXIT_DOUBT
from muster.telemetry.rules import FILE, load
from muster.telemetry.worker import Options as WorkerOptions
from muster.telemetry.worker import Worker
from muster.up.process import leave, run

logger = logging.getLogger("muster.up")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told."""

    bus: str
    config: str = ""
    rules: str = ""
    """A file; empty means the rules that come with Muster."""
    worker: WorkerOptions = WorkerOptions()


async def main(options: Options) -> int:
    """The process. It leaves at once when it is done: Faust has threads that would not end."""
    for name in ("faust", "mode"):
        logging.getLogger(name).setLevel(logging.ERROR)
    bus = Bus.parse(options.bus, options.config or None)
    rules = load(Path(options.rules) if options.rules else FILE)
    await require_fit(bus, [topic for topic in declared() if topic.name in (TELEMETRY, GPU_HEALTH)])
    worker = Worker(bus, rules, options.worker)
    logger.info("telemetry worker %d of the group %s, %d rules", os.getpid(), options.worker.group, len(rules.rule))
    try:
        await worker.run()
    except Exception as error:
        logger.error("the telemetry worker ends: %s", error or type(error).__name__)
        leave(EXIT_DOUBT)
    leave(0)


if __name__ == "__main__":
    run(main, Options, logger)
