"""What stands in a log file, judged: synchronous reading for tools. It follows nobody; it reads to the tail once."""

from collections.abc import Iterator
from pathlib import Path

from muster.events.record import Envelope
from muster.log.admit import Admitted, Halt, admit, genesis
from muster.log.errors import LogHalted
from muster.log.port import Record
from muster.log.sqlite import SqliteFile, log_path

_AT_ONCE = 2000


def read_records(place: str | Path, cell: str | None = None) -> Iterator[Record]:
    """Every record of the log that `place` names (its folder or its file), admitted or not, in order.

    Raises:
        LogMissing: there is none.
        LogDamaged: the file is no log, or it is broken.
    """
    with SqliteFile.reader(place, cell) as file:
        after = 0
        while records := file.read(after, _AT_ONCE):
            yield from records
            after = records[-1].position


def read_admitted(place: str | Path, cell: str | None = None) -> Iterator[tuple[Envelope, bytes]]:
    """The admitted records of the log that `place` names (its folder or its file), in order, and their bytes.

    Raises:
        LogMissing: there is none.
        LogDamaged: the file is no log, or it is broken.
        LogHalted: the chain is broken; what stands before it was yielded.
    """
    path = log_path(place, cell)
    head = genesis(path.stem)
    for record in read_records(path):
        verdict = admit(head, record.data)
        if isinstance(verdict, Admitted):
            head = verdict.head
            yield verdict.envelope, record.data
        elif isinstance(verdict, Halt):
            raise LogHalted(record.position, head.number, verdict.reason)
