"""What a scheduler says of itself: whether it leads, what its cycles took, what waits, and what was void."""

from collections.abc import Iterator
from typing import Final

from muster.log.admit import LATE_START, NO_RECORD, OTHER_CELL, REPLACED, TWICE
from muster.metrics import Histogram, Sample
from muster.metrics.catalogue import METRICS
from muster.scheduler.core import Core

CYCLE: Final = "muster_scheduler_cycle_seconds"
MICROS: Final = 1_000_000
REASONS: Final = (NO_RECORD, OTHER_CELL, LATE_START, REPLACED, TWICE)


class Phases:
    """Where a leader's time goes, in histograms. To a `Spent` it is who counts as well."""

    __slots__ = ("histograms",)

    def __init__(self) -> None:
        buckets = METRICS[CYCLE].buckets
        self.histograms = {name: Histogram(buckets, MICROS) for name in ("take", "decide", "append", "admit", "serve", "whole")}

    def cycle(self, take_us: int, decide_us: int, append_us: int, tell_us: int) -> None:
        """See `Spent`."""
        histograms = self.histograms
        histograms["take"].observe(take_us)
        histograms["decide"].observe(decide_us)
        histograms["append"].observe(append_us)
        histograms["admit"].observe(tell_us)
        histograms["whole"].observe(take_us + decide_us + append_us + tell_us)

    def served(self, serve_us: int) -> None:
        """See `Spent`."""
        self.histograms["serve"].observe(serve_us)

    def samples(self) -> Iterator[Sample]:
        """As metrics."""
        for phase, histogram in self.histograms.items():
            yield CYCLE, (phase,), histogram.copy()


def scheduler(core: Core, phases: Phases) -> Iterator[Sample]:
    """The metrics of a scheduler."""
    yield "muster_scheduler_leads", (), int(core.leads)
    yield "muster_scheduler_waiting_messages", (), len(core.recorder.buffer)
    yield from phases.samples()


def follower(core: Core) -> Iterator[Sample]:
    """What everybody says who follows the log."""
    yield "muster_head_cycle", (), core.head.number
    for reason in dict.fromkeys(
        (*REASONS, *core.voids)
    ):  # those too that there were none of: Prometheus sees no increase in what was not there
        yield "muster_records_void_total", (reason,), core.voids.get(reason, 0)
