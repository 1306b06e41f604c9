"""A plain tailer: the same writer where there is no Kafka, following the log file of one machine.

It asks the file again and again, in a thread, and needs nothing of whoever writes it. An error ends it, as it ends a worker on
Kafka: a supervisor starts it again, and it goes on from where the rows end.
"""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from muster.history.writer import Source, Writer
from muster.log.port import Record
from muster.log.reader import Reader, open_log

POLL_S: Final = 0.2
"""So often the file is looked at when nothing comes."""
AT_ONCE: Final = 500

Answer = TypeVar("Answer")


class FileSource:
    """A log that is read synchronously, by its own thread."""

    def __init__(self) -> None:
        """Use `open`."""
        self._thread = ThreadPoolExecutor(1, "log")
        self._reader: Reader | None = None

    @classmethod
    async def open(cls, place: str | Path, cell: str | None = None) -> "FileSource":
        """Open the log that `place` names: its folder or its file, or a bus.

        Raises:
            LogError: see `muster.log.reader.open_log`.
        """
        source = cls()
        try:
            source._reader = await source._run(functools.partial(open_log, place, cell))
        except BaseException:
            source._thread.shutdown()
            raise
        return source

    @property
    def cell(self) -> str:
        """Whose log it is."""
        return self._open().cell

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        """See `muster.log.port.Log.read`."""
        return await self._run(lambda: self._open().read(after, limit))

    async def end(self) -> int:
        """See `muster.log.port.Log.end`."""
        return await self._run(lambda: self._open().end())

    async def close(self) -> None:
        """Let go of the file."""
        if self._reader is not None:
            reader, self._reader = self._reader, None
            await self._run(reader.close)
        self._thread.shutdown()

    def _open(self) -> Reader:
        assert self._reader is not None, "it was closed"
        return self._reader

    async def _run(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


async def follow(
    source: Source, writer: Writer, *, until: int | None = None, stopped: asyncio.Future[None] | None = None
) -> None:
    """Write whatever comes: up to the position `until`, or until `stopped` is done, or for ever.

    Raises:
        LogError, HistoryError: see `Writer.take`.
    """
    while (until is None or writer.seen < until) and (stopped is None or not stopped.done()):
        records = await source.read(writer.seen, AT_ONCE)
        if records:
            await writer.take(records)
        elif stopped is not None:
            await asyncio.wait([stopped], timeout=POLL_S)
        else:
            await asyncio.sleep(POLL_S)
