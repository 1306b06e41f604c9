"""The records of the log that a person named, read with a progress bar."""

from collections.abc import Iterator

from muster.cli.output import track
from muster.events.record import Envelope
from muster.log.port import Record
from muster.log.reader import open_log, read_admitted, read_records


def admitted(log: str, cell: str | None) -> Iterator[tuple[Envelope, bytes]]:
    """The admitted records, in order.

    Raises:
        LogError: the log cannot be read.
    """
    return track(read_admitted(log, cell), "cycles", _end(log, cell))


def every(log: str, cell: str | None) -> Iterator[Record]:
    """Every record, admitted or not.

    Raises:
        LogError: the log cannot be read.
    """
    return track(read_records(log, cell), "records", _end(log, cell))


def _end(log: str, cell: str | None) -> int:
    with open_log(log, cell) as opened:
        return opened.end()
