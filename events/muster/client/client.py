"""`Muster`: one cell, as a program speaks to it.

    async with Muster("http://gateway:8470") as muster:            # or "kafka://broker:9092"
        job = await muster.submit(new_job("train", gpus=2, command=["python", "train.py"]))
        outcome = await muster.wait(job)

Whatever is sent carries an id that is made once, and is sent again until there is an answer: a cell that gets it twice takes
it once. Errors are `muster.client.errors`, each one sentence. One `Muster` is for one event loop; any number of its calls may
be made at the same time.

Not here: reading files (`muster submit` does), and looking at nodes, queues or the past (the gateway's API does).
"""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from muster.client.channel import Channel, Reported
from muster.client.errors import ClientError, NotInstalled, Refused
from muster.client.life import Change, Life, Outcome
from muster.client.making import checked
from muster.events.cloudevents import GPU_HEALTH, JOBS, OPERATIONS, TELEMETRY, Input
from muster.events.codec import Malformed, decode_input, decode_report, encode, encode_entry
from muster.events.jobs import (
    JobCancelRequested,
    JobCheckpointed,
    JobReprioritised,
    JobRequest,
    JobResizeRequested,
    JobRevised,
    JobRun,
    JobSubmitted,
)
from muster.events.levels import NodeReport
from muster.events.nodes import DeviceHealthChanged, NodeRemoved
from muster.events.operations import NodeCordoned, NodeDrained, NodeFenced, NodeUncordoned
from muster.events.services import JobMetricReported, JobScaleRequested
from muster.events.telemetry import GpusSampled, decode_sampled

USUAL: Final = "http://127.0.0.1:8470"
PATIENCE_S: Final = 30.0
OPERATIONS_TAKEN: Final = (NodeCordoned, NodeUncordoned, NodeDrained, NodeFenced, NodeRemoved)


class Muster:
    """A client of one cell.

    Every call may raise `ClientError`: `Refused`, `NotKnown`, or `Unavailable` after `patience_s` without an answer.
    """

    def __init__(
        self,
        address: str = "",
        *,
        token: str | None = None,
        config: str | Path | None = None,
        cell: str = "main",
        partition: int = 0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """
        Args:
            address: `http://HOST:PORT` of a gateway, or `kafka://HOST:PORT[,HOST:PORT...]` of the bus. Empty means what
                MUSTER_GATEWAY says, else http://127.0.0.1:8470.
            token: the gateway's; None means what MUSTER_TOKEN says, or the file that MUSTER_TOKEN_FILE names.
            config: a file of settings for the bus (TLS, SASL), under librdkafka's or Java's names.
            cell: whose log is followed on the bus.
            partition: of `muster.log`, in which that cell's log is.
            patience_s: so long a call goes on trying.

        Raises:
            ClientError: the address is none, or the file cannot be followed.
            NotInstalled: a package is missing that this address needs.
        """
        self._address = (address or os.environ.get("MUSTER_GATEWAY") or USUAL).rstrip("/")
        self._channel = _channel(self._address, token, config, cell, partition, patience_s)

    async def __aenter__(self) -> Self:
        try:
            await self._channel.open()
        except BaseException:
            await self._channel.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the connections. What was sent and not answered may be taken yet."""
        await self._channel.close()

    async def submit(self, job: JobSubmitted) -> str:
        """Hand a job in; returns its id when it is durable.

        The same job again, with the same id, is no second job. Over the bus the cell may still refuse it, if it was made long
        ago: `watch` and `wait` say so.
        """
        await self._channel.put(JOBS, checked(job))
        return job.job

    async def cancel(self, job: str, instance: int | None = None, *, by: str = "") -> None:
        """Tell a job, or one instance of it, to end. Over the bus nobody says whether there is such a job."""
        await self._say(JOBS, JobCancelRequested(job=job, instance=instance, by=by))

    async def reprioritise(self, job: str, priority: int, *, by: str = "") -> None:
        """Give a job another priority. Over the bus nobody says whether there is such a job."""
        await self._say(JOBS, JobReprioritised(job=job, priority=priority, by=by))

    async def scale(self, job: str, replicas: int, *, by: str = "") -> None:
        """Give a service so many replicas. Over the bus nobody says whether there is such a service."""
        await self._say(JOBS, JobScaleRequested(job=job, replicas=replicas, by=by))

    async def revise(self, job: str, request: JobRequest, run: JobRun, *, follows: int = 0, by: str = "") -> None:
        """Replace the replicas of a service one after the other by such as these; `follows`: only if that is its revision."""
        await self._say(JOBS, JobRevised(job=job, request=request, run=run, follows=follows, by=by))

    async def metric(self, job: str, value_milli: int, name: str = "", *, by: str = "") -> None:
        """Say what the metric is by which a service is scaled, in thousandths, over all its replicas."""
        await self._say(JOBS, JobMetricReported(job=job, value_milli=value_milli, metric=name, by=by))

    async def resize(self, job: str, count: int, *, by: str = "") -> None:
        """Give a gang so many tasks: an elastic one at any time, another before it runs. Over the bus nobody says if it can."""
        await self._say(JOBS, JobResizeRequested(job=job, count=count, by=by))

    async def checkpoint(self, job: str, instance: int | None = None, *, by: str = "") -> None:
        """Say that a job, or one instance of it, has saved its work: what is told to stop is told so by what it would lose."""
        await self._say(JOBS, JobCheckpointed(job=job, instance=instance, by=by))

    async def watch(self, job: str) -> AsyncGenerator[Change, None]:
        """What is recorded about a job, from its submission until it is over, each entry once, as it happens.

        Connections that break are made again, and nothing is missed.
        """
        life = Life(job)
        async with aclosing(self._channel.follow(job)) as entries:
            async for entry in entries:
                yield life.take(entry)
                if life.over:
                    return

    async def wait(self, job: str) -> Outcome:
        """How the job ended, once it has."""
        return (await self._channel.outcomes((job,)))[job]

    async def wait_all(self, jobs: Sequence[str]) -> dict[str, Outcome]:
        """How these jobs ended, once all have."""
        return await self._channel.outcomes(jobs)

    async def report(self, report: NodeReport) -> Reported:
        """Say all that is true of a node; returns when that is durable. For agents other than Muster's.

        A report is a level, to be said again every few seconds with the next `sequence`; `docs/agents.md` says what follows.
        """
        try:
            said = decode_report(encode(report))
        except Malformed as error:
            raise Refused(str(error)) from None
        except (TypeError, msgspec.MsgspecError) as error:
            raise Refused(f"the report cannot be written as JSON: {error}") from None
        return await self._channel.report(said)

    async def device_health(self, event: DeviceHealthChanged) -> None:
        """Say that a device is now in this health: for whoever watches devices beside their node's agent. By the bus only."""
        await self._say(GPU_HEALTH, event)

    async def gpus_sampled(self, sampled: GpusSampled) -> None:
        """Say what GPUs of a node measured: for whoever samples them beside the node's agent. By the bus only."""
        try:
            said = decode_sampled(encode(sampled))
        except Malformed as error:
            raise Refused(str(error)) from None
        except (TypeError, msgspec.MsgspecError) as error:
            raise Refused(f"the samples cannot be written as JSON: {error}") from None
        await self._channel.put(TELEMETRY, said)

    async def operate(self, event: NodeCordoned | NodeUncordoned | NodeDrained | NodeFenced | NodeRemoved) -> None:
        """Say what an operator says of a node: for programs that power nodes off, or repair them."""
        if not isinstance(event, OPERATIONS_TAKEN):
            raise Refused(f"{type(event).__name__} is nothing that an operator says of a node")
        await self._say(OPERATIONS, event)

    async def _say(self, topic: str, event: Input) -> None:
        try:
            decode_input(encode_entry(event))  # type: ignore[arg-type]  # no report goes this way
        except Malformed as error:
            raise Refused(str(error)) from None
        except (TypeError, msgspec.MsgspecError) as error:
            raise Refused(f"the event cannot be written as JSON: {error}") from None
        await self._channel.put(topic, event)


def _channel(address: str, token: str | None, config: str | Path | None, cell: str, partition: int, patience_s: float) -> Channel:
    """The way that an address names."""
    if address.startswith("kafka://"):
        if token is not None:
            raise ClientError("a token is for a gateway; the bus is told who you are by the file that `config` names")
        try:
            from muster.client.kafka import KafkaChannel
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        return KafkaChannel(address, config, cell, partition, patience_s)
    if not address.startswith(("http://", "https://")):
        raise ClientError(f"the address {address[:200]!r} must begin with http://, https:// or kafka://")
    if config is not None:
        raise ClientError("a file of settings is for the bus, and the address is a gateway's")
    try:
        from muster.client.http import HttpChannel
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return HttpChannel(address, _token() if token is None else token, patience_s)


def _missing(error: ModuleNotFoundError) -> Exception:
    missing = error.name or ""
    if not missing or missing.partition(".")[0] == "muster":
        return error
    return NotInstalled(f"{missing} is not installed: pip install 'muster-scheduler[client]' brings it")


def _token() -> str:
    if token := os.environ.get("MUSTER_TOKEN"):
        return token.strip()
    named = os.environ.get("MUSTER_TOKEN_FILE")
    if not named:
        return ""
    try:
        return Path(named).read_text().strip()
    except OSError as error:
        raise ClientError(f"the token cannot be read from {named}: {error.strerror}") from None
