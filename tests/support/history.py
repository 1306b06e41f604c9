"""For tests of the history: logs that tell much, workers as processes, and whether their rows are what the log says."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from muster.bench.cell import Cell, Load
from muster.history.check import Checked, check, lines
from muster.history.rebuild import LogSource
from muster.history.worker import Options
from muster.log.bus import Bus
from muster.log.kafka import KafkaLog
from muster.log.port import Record
from tests.support.cell import until
from tests.support.postgres import Postgres
from tests.support.topics import make_log_topic

CELL = "bench"
START = """
import logging, os, msgspec
from muster.history.worker import Options, main
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
main(msgspec.json.decode(os.environ["OPTIONS"], type=Options))
"""


def records_of_a_load(cycles: int, nodes: int = 12, seed: int = 1) -> list[bytes]:
    """A log of at least so many records, of jobs that come, run and end on a few nodes. Its cell is `CELL`."""
    cell = Cell(seed)
    cell.register(nodes)
    load = Load(cell, nodes, 70)
    while len(cell.records) < cycles:
        load.step()
    return cell.records


class MemorySource:
    """Records that are there already, as a log."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self._records = [Record(position, data) for position, data in enumerate(records, 1)]
        self.reads = 0

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        self.reads += 1
        return self._records[after : after + limit]

    async def end(self) -> int:
        return len(self._records)


class Stream:
    """A topic of its own, into which a log is written bit by bit."""

    def __init__(self, address: str, topic: str, records: Sequence[bytes]) -> None:
        self.address = address
        self.topic = topic
        self.records = records
        self.fed = 0
        asyncio.run(make_log_topic(Bus.parse(address), topic))

    def feed(self, count: int) -> int:
        """Append so many more records; how many there are now."""
        asyncio.run(self._feed(count))
        return self.fed

    async def _feed(self, count: int) -> None:
        log = await KafkaLog.open(Bus.parse(self.address), self.topic, writer=True)
        try:
            for data in self.records[self.fed : self.fed + count]:
                await log.append(data)
                self.fed += 1
        finally:
            await log.close()

    def check(self, dsn: str) -> Checked:
        """Hold the rows against the log."""
        return asyncio.run(self._check(dsn))

    async def _check(self, dsn: str) -> Checked:
        log = await KafkaLog.open(Bus.parse(self.address), self.topic, writer=False)
        try:
            return await check(log, dsn, CELL)
        finally:
            await log.close()


class Worker:
    """A worker in a process of its own."""

    def __init__(self, said: Path, options: Options) -> None:
        self.said = said
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, again."""
        environment = {**os.environ, "OPTIONS": msgspec.json.encode(self._options).decode()}
        with self.said.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment
            )

    @property
    def text(self) -> str:
        """All that it said."""
        return self.said.read_text(errors="replace")

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """As when its machine dies."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        """Tell it to stop; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def ended(self) -> int:
        """Wait until it ends by itself; its exit status."""
        return self.process.wait(60)


def number_in(postgres: Postgres, dsn: str) -> int:
    """The cycle up to which the rows go; 0 where there are none."""
    found = postgres.fetch("select to_regclass('history.positions') is not null as there", dsn)[0]["there"]
    rows = postgres.fetch("select number from history.positions", dsn) if found else []
    return int(rows[0]["number"]) if rows else 0


def await_number(postgres: Postgres, dsn: str, number: int) -> int:
    """Return once the rows go so far; how far they go."""
    return int(until(lambda: (now := number_in(postgres, dsn)) >= number and now, say=f"the rows go to cycle {number}"))


async def checked(source: LogSource, dsn: str, cell: str = CELL) -> Checked:
    """Hold the rows against the log, and say what is wrong with them."""
    found = await check(source, dsn, cell)
    assert found.right, list(lines(found))
    return found
