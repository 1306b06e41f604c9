"""A cell's log on Kafka, synchronously: for tools that read it once and follow nobody."""

import asyncio
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from muster.events.codec import decode_envelope
from muster.log.bus import SCHEME, Bus
from muster.log.errors import LogUnreachable
from muster.log.kafka import LOG_TOPIC, KafkaLog
from muster.log.port import Record

CONFIG_VARIABLE: Final = "MUSTER_BUS_CONFIG"
"""Names the file of settings with which a log on Kafka is read, where nothing else does."""
CELL: Final = "main"
READ_S: Final = 60.0
"""So long records may take to come that are known to be there."""


def bus_at(place: str | Path) -> Bus:
    """The bus that a person named.

    Raises:
        BusConfigError: the address is none, or the file of settings cannot be followed.
    """
    text = str(place)
    return Bus.parse(text if text.startswith(SCHEME) else SCHEME + text[len(SCHEME) - 1 :], os.environ.get(CONFIG_VARIABLE))


class KafkaReader:
    """The log as of whenever it is asked. Between two calls nothing goes on."""

    def __init__(self, place: str | Path, cell: str | None = None, partition: int = 0, topic: str = LOG_TOPIC) -> None:
        """Connect to the bus at this address.

        Raises:
            BusConfigError, LogMissing, LogUnreachable: see `Bus.parse`, `KafkaLog.open`, `read`.
        """
        bus = bus_at(place)
        self._runner = asyncio.Runner()
        try:
            self._log = self._runner.run(KafkaLog.open(bus, topic, partition, writer=False))
            try:
                self.cell = cell if cell is not None else self._named()
            except BaseException:
                self._runner.run(self._log.close())
                raise
        except BaseException:
            self._runner.close()
            raise

    def read(self, after: int, limit: int = 1000) -> list[Record]:
        """See `muster.log.port.Log.read`. Nothing is returned only where the broker says that nothing more stands there.

        Raises:
            LogUnreachable: what stands there cannot be had: a tool must not take a part for the whole.
        """
        return self._runner.run(self._read(after, limit))

    def end(self) -> int:
        """See `muster.log.port.Log.end`."""
        return self._runner.run(self._log.end())

    def close(self) -> None:
        """Let go of the connections."""
        try:
            self._runner.run(self._log.close())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def _read(self, after: int, limit: int) -> list[Record]:
        until_s = time.monotonic() + READ_S
        while not (records := await self._log.read(after, limit)):
            if (end := await self._log.end()) <= after:
                return []
            if time.monotonic() > until_s:
                raise LogUnreachable(f"the log has {end} records, and those after the position {after} do not come")
        return records

    def _named(self) -> str:
        """The cell whose log it is, as its first record says that can be read."""
        for record in self.read(0, 100):
            try:
                return decode_envelope(record.data).cell
            except (msgspec.DecodeError, ValueError):
                continue
        return CELL
