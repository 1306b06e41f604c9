"""What stands in a log, judged: synchronous reading for tools. It follows nobody; it reads to the tail once.

A place is a folder, a log file, or the address of a bus.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from muster.events.record import Envelope
from muster.log.admit import Admitted, Halt, admit, genesis
from muster.log.errors import LogHalted
from muster.log.port import Record
from muster.log.sqlite import SqliteFile

_AT_ONCE = 2000


class Reader(Protocol):
    """A log that was opened for reading."""

    @property
    def cell(self) -> str:
        """Whose log it is."""
        ...

    def read(self, after: int, limit: int = 1000) -> list[Record]:
        """See `muster.log.port.Log.read`."""
        ...

    def end(self) -> int:
        """See `muster.log.port.Log.end`."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...

    def __enter__(self) -> Self:
        """Itself."""
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let go of it."""
        ...


def is_bus(place: str | Path) -> bool:
    """Whether this names a bus, not a folder or a file. `Path` makes one slash of two."""
    return str(place).startswith("kafka:/")


def open_log(place: str | Path, cell: str | None = None) -> Reader:
    """Open the log that `place` names: its folder, its file, or the bus (`kafka://HOST:PORT`) that holds it.

    Raises:
        LogMissing: there is none.
        LogDamaged: the file is no log, or it is broken.
        LogUnreachable: the bus does not answer.
    """
    if is_bus(place):
        from muster.log.kafka_reader import KafkaReader  # what reads files loads no client of Kafka

        return KafkaReader(place, cell)
    return SqliteFile.reader(place, cell)


def read_records(place: str | Path, cell: str | None = None) -> Iterator[Record]:
    """Every record of the log that `place` names, admitted or not, in order. Raises as `open_log` does."""
    with open_log(place, cell) as log:
        yield from _records(log)


def read_admitted(place: str | Path, cell: str | None = None) -> Iterator[tuple[Envelope, bytes]]:
    """The admitted records of the log that `place` names, in order, and their bytes.

    Raises:
        LogHalted: the chain is broken; what stands before it was yielded.
        Others as `open_log` does.
    """
    with open_log(place, cell) as log:
        head = genesis(log.cell)
        for record in _records(log):
            verdict = admit(head, record.data)
            if isinstance(verdict, Admitted):
                head = verdict.head
                yield verdict.envelope, record.data
            elif isinstance(verdict, Halt):
                raise LogHalted(record.position, head.number, verdict.reason)


def _records(log: Reader) -> Iterator[Record]:
    after = 0
    while records := log.read(after, _AT_ONCE):
        yield from records
        after = records[-1].position
