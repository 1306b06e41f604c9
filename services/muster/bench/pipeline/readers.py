"""People and dashboards that read from the gateway, in a process of their own, at a steady rate.

The reads take turns: the cell, a page of jobs, one job, why it is where it is, one node, the queues.
"""

import asyncio
import time
from collections.abc import Iterator

import msgspec

from muster.bench.pipeline.http import Connection
from muster.bench.pipeline.report import percentile
from muster.bench.pipeline.workers import Orders, say, work
from muster.log.errors import OperatingError

PAGE = 50
LATE_S = 0.005


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How much is read."""

    url: str
    per_s: float
    connections: int
    nodes: int


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    reads: int
    seconds: float
    p50_ms: float
    p99_ms: float
    bytes: int


class Refused(OperatingError):
    """The gateway did not answer a read."""


class _Row(msgspec.Struct, frozen=True):
    job: str


class _Page(msgspec.Struct, frozen=True):
    jobs: tuple[_Row, ...]


class Readers:
    """All connections of this process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.waits_s: list[float] = []
        self.bytes = 0
        self._job = ""
        self._handed = 0
        self._began = 0.0
        self._ends = 0.0
        self._paths = self._turns()

    async def run(self, connections: list[Connection], seconds: float) -> Read:
        """Read for so long."""
        self._began = time.perf_counter()
        self._ends = self._began + seconds
        self._handed = 0
        self.waits_s = []
        self.bytes = 0
        await asyncio.gather(*map(self._read, connections))
        return Read(
            reads=len(self.waits_s),
            seconds=time.perf_counter() - self._began,
            p50_ms=percentile(self.waits_s, 50) * 1000,
            p99_ms=percentile(self.waits_s, 99) * 1000,
            bytes=self.bytes,
        )

    async def _read(self, connection: Connection) -> None:
        while True:
            due = self._began + self._handed / self.options.per_s
            self._handed += 1
            if due >= self._ends:
                return
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            path = next(self._paths)
            begun = time.perf_counter()
            status, said = await connection.ask(b"GET", path.encode())
            if status != 200:
                raise Refused(f"{path} was answered with {status}: {said.decode(errors='replace')[:500]}")
            self.waits_s.append(time.perf_counter() - begun)
            self.bytes += len(said)
            if path.startswith("/v1/jobs?"):
                page = msgspec.json.decode(said, type=_Page)
                self._job = page.jobs[-1].job if page.jobs else ""

    def _turns(self) -> Iterator[str]:
        """What to read next, for ever."""
        number = 0
        while True:
            number += 1
            yield "/v1/state"
            yield f"/v1/jobs?limit={PAGE}"
            if self._job:
                yield f"/v1/jobs/{self._job}"
                yield f"/v1/jobs/{self._job}/explain"
            yield f"/v1/nodes/node-{number % self.options.nodes:05d}"
            yield "/v1/queues"


async def begin(options: Options, orders: Orders) -> None:
    """Connect; then each order is a number of seconds to read for."""
    connections = [await Connection.to(options.url) for _ in range(options.connections)]
    readers = Readers(options)
    say("ready")
    while order := await orders.next():
        say(await readers.run(connections, float(order)))


if __name__ == "__main__":
    work(Options, begin)
