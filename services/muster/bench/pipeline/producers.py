"""Clients that submit jobs by the bus, in a process of their own: `muster.client`, and the log that tells what became of it.

Each of many hands in one job after another: it waits until Kafka has the job, and then until the log shows it bound. With a
rate, jobs are handed out at that rate to whoever is free. What is counted is both waits of each job.
"""

import asyncio
import re
import time
from collections import deque

import msgspec

from muster.bench.pipeline import submitters
from muster.bench.pipeline.report import percentile
from muster.bench.pipeline.submitters import body_of, new_id
from muster.bench.pipeline.workers import Orders, say, work
from muster.client.client import Muster
from muster.events.jobs import GroupRequest, JobSubmitted
from muster.log.bus import Bus
from muster.log.kafka import KafkaLog

BOUND = re.compile(rb'\["InstanceBound",[0-9]+,\{"job":"([^"]+)"')
PATIENCE_S = 60.0
WAIT_S = 1.0
LATE_S = 0.005


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to submit, and how."""

    bus: str
    config: str = ""
    connections: int
    """So many jobs are on their way at most."""
    group: GroupRequest
    per_s: float = 0.0
    """Jobs a second; 0 is as many as are bound."""
    jobs_max: int = 0
    """No more than these in all; 0 is no limit."""
    user: str = "ada"


class Submitted(submitters.Submitted, frozen=True, kw_only=True):
    """What became of it: in the end each job was bound."""

    bound_p50_ms: float
    """From before the submission until the binding was read."""
    bound_p95_ms: float
    bound_p99_ms: float


class Producers:
    """All clients of this process."""

    def __init__(self, options: Options, client: Muster, log: KafkaLog) -> None:
        self.options = options
        first, last = body_of(options.group, options.user)
        self._job = msgspec.json.decode(first + new_id() + last, type=JobSubmitted)
        self._client = client
        self._log = log
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self._left = options.jobs_max or 2**62
        self._began = 0.0
        self._handed = 0
        self._ends = 0.0
        self._clear()

    async def run(self, seconds: float) -> Submitted:
        """Submit for so long, and wait until all is bound."""
        self._clear()
        self._began = time.perf_counter()
        self._ends = self._began + seconds
        await asyncio.gather(*[self._submit() for _ in range(self.options.connections)])
        return Submitted(
            jobs=len(self._answered_s),
            seconds=self._last - self._began,
            p50_ms=percentile(self._answered_s, 50) * 1000,
            p99_ms=percentile(self._answered_s, 99) * 1000,
            late=self._late,
            bound_p50_ms=percentile(self._bound_s, 50) * 1000,
            bound_p95_ms=percentile(self._bound_s, 95) * 1000,
            bound_p99_ms=percentile(self._bound_s, 99) * 1000,
        )

    async def watch(self, position: int) -> None:
        """Read the log after this position, for ever."""
        while True:
            records = await self._log.read(position)
            if not records:
                await self._log.wait(position, WAIT_S)
                continue
            now = time.perf_counter()
            for record in records:
                for job in BOUND.findall(record.data):
                    waiting = self._waiting.pop(job.decode(), None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(now)
            position = records[-1].position

    def _clear(self) -> None:
        self._answered_s: deque[float] = deque()
        self._bound_s: deque[float] = deque()
        self._late = self._handed = 0
        self._last = time.perf_counter()

    async def _submit(self) -> None:
        options = self.options
        loop = asyncio.get_running_loop()
        while self._left > 0:
            if options.per_s:
                due = self._began + self._handed / options.per_s
                if due >= self._ends:
                    return
                self._handed += 1
                pause_s = due - time.perf_counter()
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                self._late += pause_s < -LATE_S
            elif time.perf_counter() >= self._ends:
                return
            self._left -= 1
            job = new_id().decode()
            bound = self._waiting[job] = loop.create_future()
            begun = time.perf_counter()
            await self._client.submit(msgspec.structs.replace(self._job, job=job))
            self._last = time.perf_counter()
            self._answered_s.append(self._last - begun)
            async with asyncio.timeout(PATIENCE_S):
                self._bound_s.append(await bound - begun)


async def begin(options: Options, orders: Orders) -> None:
    """Connect; then each order is a number of seconds to submit for."""
    async with Muster(options.bus, config=options.config or None) as client:
        log = await KafkaLog.open(Bus.parse(options.bus, options.config or None), writer=False)
        try:
            producers = Producers(options, client, log)
            watching = asyncio.create_task(producers.watch(await log.end()))
            say("ready")
            while order := await orders.next():
                running = asyncio.create_task(producers.run(float(order)))
                await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    running.cancel()
                    watching.result()
                say(running.result())
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        finally:
            await log.close()


if __name__ == "__main__":
    work(Options, begin)
