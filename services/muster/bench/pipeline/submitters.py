"""Clients that submit jobs, in a process of their own.

Each connection submits one job after another, and waits for the answer before the next; with a rate, jobs are handed out
at that rate to whichever connection is free. What is counted is answers, and how long each took.
"""

import asyncio
import secrets
import time

import msgspec

from muster.bench.pipeline.http import Connection
from muster.bench.pipeline.report import percentile
from muster.bench.pipeline.workers import Orders, say, work
from muster.events.jobs import GroupRequest, JobRequest, JobRun, JobSubmitted
from muster.log.errors import OperatingError

COMMAND = ("python", "train.py", "--config", "config.yaml")
AGAIN_S = 0.1
ID = "00000000-0000-7000-8000-000000000000"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to submit, and how."""

    url: str
    connections: int
    group: GroupRequest
    at_once: int = 1
    """Jobs in one request: one goes to `/v1/jobs`, more to `/v1/submissions`."""
    per_s: float = 0.0
    """Jobs a second; 0 is as many as are answered."""
    jobs_max: int = 0
    """No more than these in all; 0 is no limit."""
    user: str = "ada"


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    jobs: int
    seconds: float
    p50_ms: float
    p99_ms: float
    late: int
    """Jobs that could not be sent when their time had come, because no connection was free."""


class Refused(OperatingError):
    """The gateway did not take a job."""


def body_of(group: GroupRequest, user: str, command: tuple[str, ...] = COMMAND) -> tuple[bytes, bytes]:
    """A submission in two halves, between which the id of the job stands."""
    job = JobSubmitted(
        job=ID,
        name="bench",
        user=user,
        submitted_us=time.time_ns() // 1000,
        request=JobRequest(groups=(group,), time_limit_us=3_600_000_000),
        run=JobRun(command=command, image="registry.example/train:1" if command is COMMAND else ""),
    )
    first, _, last = msgspec.json.encode(job).partition(ID.encode())
    return first, last


def new_id() -> bytes:
    """A UUIDv7 of now (RFC 9562, 5.7)."""
    digits = b"%012x" % (time.time_ns() // 1_000_000)
    rest = secrets.token_hex(10).encode()
    return b"%b-%b-7%b-8%b-%b" % (digits[:8], digits[8:], rest[:3], rest[3:6], rest[6:18])


class Clients:
    """All connections of this process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.first, self.last = body_of(options.group, options.user)
        self.waits_s: list[float] = []
        self.jobs = 0
        self.late = 0
        self._left = options.jobs_max or 2**62
        self._began = 0.0
        self._handed = 0
        self._ends = 0.0

    async def run(self, connections: list[Connection], seconds: float) -> Submitted:
        """Submit for so long."""
        self.jobs = self.late = self._handed = 0
        self.waits_s = []
        self._began = time.perf_counter()
        self._ends = self._began + seconds
        await asyncio.gather(*map(self._submit, connections))
        return Submitted(
            jobs=self.jobs,
            seconds=time.perf_counter() - self._began,
            p50_ms=percentile(self.waits_s, 50) * 1000,
            p99_ms=percentile(self.waits_s, 99) * 1000,
            late=self.late,
        )

    async def _submit(self, connection: Connection) -> None:
        options = self.options
        while self._left > 0:
            count = min(options.at_once, self._left)
            if options.per_s:
                due = self._began + self._handed / options.per_s
                self._handed += count
                pause_s = due - time.perf_counter()
                if due >= self._ends:
                    return
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                elif pause_s < -0.005:
                    self.late += count
            elif time.perf_counter() >= self._ends:
                return
            self._left -= count
            bodies = [self.first + new_id() + self.last for _ in range(count)]
            begun = time.perf_counter()
            path, body = b"/v1/jobs", bodies[0]
            if options.at_once > 1:
                path, body = b"/v1/submissions", b"[" + b",".join(bodies) + b"]"
            status, said = await connection.ask(b"POST", path, body)
            while status == 503:  # it cannot be answered now; with the same ids nothing is taken twice
                await asyncio.sleep(AGAIN_S)
                status, said = await connection.ask(b"POST", path, body)
            if status != 202:
                raise Refused(f"a submission was answered with {status}: {said.decode(errors='replace')[:500]}")
            self.waits_s.append(time.perf_counter() - begun)
            self.jobs += count


async def begin(options: Options, orders: Orders) -> None:
    """Connect; then each order is a number of seconds to submit for."""
    connections = [await Connection.to(options.url) for _ in range(options.connections)]
    clients = Clients(options)
    say("ready")
    while order := await orders.next():
        say(await clients.run(connections, float(order)))


if __name__ == "__main__":
    work(Options, begin)
