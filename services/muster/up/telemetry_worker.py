"""The process of `muster telemetry worker`: a worker of `muster.telemetry.worker` until it is told to stop, or ends by itself."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from muster.events.cloudevents import GPU_HEALTH, TELEMETRY
from muster.log.bus import Bus
from muster.log.topics import declared, require_fit
from muster.metrics import Metrics, Sample, serve
from muster.scheduler.build import build
from muster.scheduler.loop import EXIT_DOUBT
from muster.telemetry.rules import FILE, load
from muster.telemetry.worker import Options as WorkerOptions
from muster.telemetry.worker import Worker
from muster.up.places import EXIT_PORT, url
from muster.up.process import leave, run

logger = logging.getLogger("muster.up")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told."""

    bus: str
    config: str = ""
    rules: str = ""
    """A file; empty means the rules that come with Muster."""
    worker: WorkerOptions = WorkerOptions()
    metrics: str = ""
    """HOST:PORT where Prometheus reads them; empty for none."""


async def main(options: Options) -> int:
    """The process. It leaves at once when it is done: Faust has threads that would not end."""
    for name in ("faust", "mode"):
        logging.getLogger(name).setLevel(logging.ERROR)
    bus = Bus.parse(options.bus, options.config or None)
    rules = load(Path(options.rules) if options.rules else FILE)
    await require_fit(bus, [topic for topic in declared() if topic.name in (TELEMETRY, GPU_HEALTH)])
    worker = Worker(bus, rules, options.worker)
    logger.info("telemetry worker %d of the group %s, %d rules", os.getpid(), options.worker.group, len(rules.rule))
    if options.metrics:
        try:
            endpoint = await serve(metrics_of(worker), options.metrics)
        except OSError as error:
            logger.error("metrics cannot be served at %s: %s", options.metrics, error.strerror or error)
            return EXIT_PORT
        logger.info("metrics are at %s/metrics", url(endpoint.host, endpoint.port))
    status = 0
    try:
        await worker.run()
    except Exception as error:
        logger.error("the telemetry worker ends: %s", error or type(error).__name__)
        status = EXIT_DOUBT
    return leave(status)


def metrics_of(worker: Worker) -> Metrics:
    """The metrics of this worker."""
    metrics = Metrics("telemetry", version=build())

    def samples() -> Iterator[Sample]:
        counts = worker.counts
        folded = counts.samples - counts.late - counts.repeated - counts.ahead
        for result, count in (("taken", folded), ("late", counts.late), ("repeated", counts.repeated), ("ahead", counts.ahead)):
            yield "muster_telemetry_samples_total", (result,), count
        yield "muster_telemetry_refused_total", (), worker.refused
        for (rule, health), count in sorted(worker.sent.items()):
            yield "muster_telemetry_proposals_total", (rule, health), count
        yield "muster_telemetry_repeated_total", (), worker.repeated
        yield "muster_telemetry_devices", (), worker.devices
        yield "muster_follower_lag_records", ("telemetry",), worker.lag()

    metrics.source(samples)
    return metrics


if __name__ == "__main__":
    run(main, Options, logger)
