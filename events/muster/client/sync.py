"""`Muster` for programs without an event loop: the same calls, each of which waits for its answer.

    with Muster("http://gateway:8470") as muster:
        outcome = muster.wait(muster.submit(new_job("train", gpus=2, command=["python", "train.py"])))

A loop runs in a thread of its own. Calls may come from several threads at once.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from muster.client import client
from muster.client.channel import Reported
from muster.client.errors import ClientError
from muster.client.life import Change, Outcome
from muster.events.jobs import JobRequest, JobRun, JobSubmitted
from muster.events.levels import NodeReport
from muster.events.nodes import DeviceHealthChanged, NodeRemoved
from muster.events.operations import NodeCordoned, NodeDrained, NodeFenced, NodeUncordoned
from muster.events.telemetry import GpusSampled

Answer = TypeVar("Answer")


class Muster:
    """See `muster.client.client.Muster`, whose arguments and errors these are."""

    def __init__(
        self,
        address: str = "",
        *,
        token: str | None = None,
        config: str | Path | None = None,
        cell: str = "main",
        partition: int = 0,
        patience_s: float = client.PATIENCE_S,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "token": token,
            "config": config,
            "cell": cell,
            "partition": partition,
            "patience_s": patience_s,
        }
        self._address = address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._muster: client.Muster | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="muster-client", daemon=True)
        self._thread.start()
        try:
            self._muster = self._run(self._open())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections, and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            if self._muster is not None:
                self._run(self._muster.close())
        finally:
            self._loop = self._thread = self._muster = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def submit(self, job: JobSubmitted) -> str:
        """Hand a job in; returns its id when it is durable."""
        return self._run(self._open_one.submit(job))

    def cancel(self, job: str, instance: int | None = None, *, by: str = "") -> None:
        """Tell a job, or one instance of it, to end."""
        self._run(self._open_one.cancel(job, instance, by=by))

    def reprioritise(self, job: str, priority: int, *, by: str = "") -> None:
        """Give a job another priority."""
        self._run(self._open_one.reprioritise(job, priority, by=by))

    def scale(self, job: str, replicas: int, *, by: str = "") -> None:
        """Give a service so many replicas."""
        self._run(self._open_one.scale(job, replicas, by=by))

    def revise(self, job: str, request: JobRequest, run: JobRun, *, follows: int = 0, by: str = "") -> None:
        """Replace the replicas of a service one after the other by such as these."""
        self._run(self._open_one.revise(job, request, run, follows=follows, by=by))

    def metric(self, job: str, value_milli: int, name: str = "", *, by: str = "") -> None:
        """Say what the metric is by which a service is scaled, in thousandths."""
        self._run(self._open_one.metric(job, value_milli, name, by=by))

    def resize(self, job: str, count: int, *, by: str = "") -> None:
        """Give a gang so many tasks."""
        self._run(self._open_one.resize(job, count, by=by))

    def checkpoint(self, job: str, instance: int | None = None, *, by: str = "") -> None:
        """Say that a job, or one instance of it, has saved its work."""
        self._run(self._open_one.checkpoint(job, instance, by=by))

    def watch(self, job: str) -> Iterator[Change]:
        """What is recorded about a job, from its submission until it is over, as it happens."""
        changes = self._open_one.watch(job)
        try:
            while (change := self._run(_next(changes))) is not None:
                yield change
        finally:
            if self._loop is not None:
                self._run(_end(changes))

    def wait(self, job: str) -> Outcome:
        """How the job ended, once it has."""
        return self._run(self._open_one.wait(job))

    def wait_all(self, jobs: Sequence[str]) -> dict[str, Outcome]:
        """How these jobs ended, once all have."""
        return self._run(self._open_one.wait_all(jobs))

    def report(self, report: NodeReport) -> Reported:
        """Say all that is true of a node."""
        return self._run(self._open_one.report(report))

    def device_health(self, event: DeviceHealthChanged) -> None:
        """Say that a device is now in this health. By the bus only."""
        self._run(self._open_one.device_health(event))

    def gpus_sampled(self, sampled: GpusSampled) -> None:
        """Say what GPUs of a node measured. By the bus only."""
        self._run(self._open_one.gpus_sampled(sampled))

    def operate(self, event: NodeCordoned | NodeUncordoned | NodeDrained | NodeFenced | NodeRemoved) -> None:
        """Say what an operator says of a node."""
        self._run(self._open_one.operate(event))

    @property
    def _open_one(self) -> client.Muster:
        if self._muster is None:
            raise ClientError("the client is not open: `with Muster(...) as muster:` opens it")
        return self._muster

    async def _open(self) -> client.Muster:
        return await client.Muster(self._address, **self._arguments).__aenter__()

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        loop = self._loop
        if loop is None:
            work.close()
            raise ClientError("the client is not open: `with Muster(...) as muster:` opens it")
        done = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return done.result()
        except BaseException:
            if not done.done():  # Ctrl-C, say: nobody waits for the answer any more
                done.cancel()
                with suppress(BaseException):
                    done.exception(1)
            raise


async def _next(changes: AsyncGenerator[Change, None]) -> Change | None:
    return await anext(changes, None)


async def _end(changes: AsyncGenerator[Change, None]) -> None:
    await changes.aclose()
