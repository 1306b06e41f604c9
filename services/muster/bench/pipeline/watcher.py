"""One client on an idle stack: it submits a job, and watches until its own watch shows it bound.

It watches the job itself, as `muster submit --wait` does, from when the submission was answered; and, over a second
connection, the whole log, from before. Between the jobs it measures what an fsync takes on the disk of the log.
"""

import asyncio
import os
import random
import re
import time

import msgspec

from muster.bench.pipeline.http import Connection
from muster.bench.pipeline.submitters import COMMAND, body_of, new_id
from muster.bench.pipeline.workers import Orders, say, work
from muster.events.jobs import GroupRequest
from muster.log.errors import OperatingError

PROBE_BYTES = 4096
BOUND = re.compile(rb'"kind":"InstanceBound","body":\{[^}]*?"job":"([^"]+)"')
PATIENCE_S = 30.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to do."""

    url: str
    group: GroupRequest
    count: int
    gaps_s: tuple[float, float]
    """Random gaps between two submissions are between these."""
    folder: str
    """Of the log: on its disk fsync is measured."""
    command: tuple[str, ...] = COMMAND
    seed: int = 1


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from before each submission until its answer, until the watch of the log and that of the job showed
    the binding; and of each fsync."""

    jobs: tuple[str, ...]
    answered_ms: tuple[float, ...]
    log_ms: tuple[float, ...]
    job_ms: tuple[float, ...]
    fsync_ms: tuple[float, ...]


class Refused(OperatingError):
    """The gateway did not do what it was asked."""


class Watch:
    """A stream of events in which bindings are looked for."""

    def __init__(self) -> None:
        self.bound: dict[bytes, float] = {}
        """When the binding of each job came."""
        self.came = asyncio.Event()
        self._rest = b""

    def told(self, data: bytes) -> None:
        """A piece of the stream came."""
        now = time.perf_counter()
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        for job in BOUND.findall(whole):
            self.bound[job] = now
        self.came.set()

    async def see(self, job: bytes) -> float:
        """When the binding of this job came."""
        async with asyncio.timeout(PATIENCE_S):
            while job not in self.bound:
                self.came.clear()
                await self.came.wait()
        return self.bound[job]


async def watch(options: Options) -> Watched:
    """Submit and watch, one job after another."""
    chance = random.Random(options.seed)
    first, last = body_of(options.group, "ada", options.command)
    log = Watch()
    following = await Connection.to(options.url, log.told)
    following.ask(b"GET", b"/v1/log")
    submitting = await Connection.to(options.url)
    probe = os.open(os.path.join(options.folder, "fsync.probe"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    found: dict[str, list[float]] = {"answered": [], "log": [], "job": [], "fsync": []}
    jobs = []
    try:
        for _ in range(options.count):
            await asyncio.sleep(chance.uniform(*options.gaps_s))
            begun = time.perf_counter()
            os.pwrite(probe, os.urandom(PROBE_BYTES), 0)
            os.fsync(probe)
            found["fsync"].append(time.perf_counter() - begun)
            await asyncio.sleep(chance.uniform(*options.gaps_s))
            job = new_id()
            own = Watch()
            watching = await Connection.to(options.url, own.told)
            begun = time.perf_counter()
            status, said = await submitting.ask(b"POST", b"/v1/jobs", first + job + last)
            if status != 202:
                raise Refused(f"a submission was answered with {status}: {said.decode(errors='replace')[:500]}")
            found["answered"].append(time.perf_counter() - begun)
            watching.ask(b"GET", b"/v1/jobs/%b/events" % job)
            found["job"].append(await own.see(job) - begun)
            found["log"].append(await log.see(job) - begun)
            watching.close()
            jobs.append(job.decode())
    finally:
        os.close(probe)
    following.close()
    return Watched(jobs=tuple(jobs), **{f"{name}_ms": tuple([each * 1000 for each in spans]) for name, spans in found.items()})


async def begin(options: Options, orders: Orders) -> None:
    """Each order begins anew."""
    say("ready")
    while await orders.next():
        say(await watch(options))


if __name__ == "__main__":
    work(Options, begin)
