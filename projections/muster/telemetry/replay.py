"""Samples from a file, one message a line as JSON: what the rules make of them, with nothing running."""

from collections.abc import Iterable, Iterator
from typing import Final

from muster.events.edge import Malformed
from muster.events.telemetry import SAMPLED_MAX_BYTES, GpusSampled, decode_sampled
from muster.log.errors import OperatingError
from muster.telemetry.proposals import Proposal
from muster.telemetry.reducer import Reducer

LINE_MAX_BYTES: Final = SAMPLED_MAX_BYTES + 2


class BadSamples(OperatingError):
    """A line is no samples. Its text names the line and the field."""


def read(lines: Iterable[bytes]) -> Iterator[GpusSampled]:
    """The messages.

    Raises:
        BadSamples: a line is none.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield decode_sampled(line.strip())
        except Malformed as error:
            raise BadSamples(f"line {number}: {error}") from None


def replay(reducer: Reducer, lines: Iterable[bytes]) -> list[Proposal]:
    """What is proposed, as if after the last line time had gone on, in the order of the windows' ends.

    Raises:
        BadSamples: a line is no samples.
    """
    made = [proposal for sampled in read(lines) for proposal in reducer.take(sampled)] + reducer.finish()
    return sorted(made, key=lambda each: (each.start_us + each.window_s * 1_000_000, each.id))
