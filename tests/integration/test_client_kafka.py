"""The client by the bus, and another producer than ours: on a real broker, with a real scheduler and a real gateway."""

import asyncio
import json
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them by name only
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from muster.client import Change, ClientError, Muster, NotKnown, Refused, Unavailable, new_id, new_job, sync
from muster.events.cloudevents import GPU_HEALTH, JOBS, Input, key_of, to_message, to_structured
from muster.events.codec import digest, encode, encode_entry, open_envelope
from muster.events.decisions import InstanceBound
from muster.events.jobs import JobCancelRequested, JobSubmitted
from muster.events.levels import NodeReport, TaskReport
from muster.events.nodes import Device, DeviceHealthChanged, NodeSpec
from muster.events.operations import InputRefused, NodeCordoned
from muster.log.bus import Bus
from muster.log.reader import read_admitted
from muster.log.topics import create
from tests.support.cell import Cell, Gateway, cell
from tests.support.gateway import Simulated
from tests.support.kafka import Brokers, bus_broker

AT_US = time.time_ns() // 1000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with bus_broker(tmp_path_factory.mktemp("brokers"), "--secure") as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, broker: Brokers) -> Iterator[Cell]:
    """A cell with a scheduler that leads."""
    with cell(tmp_path_factory.mktemp("cell"), broker.address) as made:
        made.leader(made.scheduler("scheduler"))
        yield made
        made.check()


@pytest.fixture(scope="module")
def gateway(made: Cell) -> Iterator[Gateway]:
    """A gateway, and simulated agents behind it."""
    gateway = made.gateway()
    ending = threading.Event()

    def work() -> None:
        with httpx.Client(base_url=f"{gateway.url}/v1", timeout=60, trust_env=False) as client:
            Simulated(client, nodes=2).run(ending)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield gateway
    finally:
        ending.set()
        thread.join()


@pytest.fixture
async def muster(broker: Brokers, gateway: Gateway) -> AsyncGenerator[Muster, None]:
    async with Muster(broker.address) as muster:
        yield muster


async def inputs(broker: Brokers) -> list[Any]:
    """All that were recorded so far."""

    def read() -> list[Any]:
        return [event for envelope, _ in read_admitted(broker.address) for event in open_envelope(envelope).inputs]

    return await asyncio.to_thread(read)


async def test_a_job_is_handed_in_watched_and_waited_for_by_the_bus(muster: Muster, gateway: Gateway) -> None:
    job = new_job("train", gpus=1, command=["true"])
    assert await muster.submit(job) == job.job
    changes = [change async for change in muster.watch(job.job)]
    assert changes[0].event == job
    assert list(dict.fromkeys(change.state for change in changes)) == ["pending", "starting", "running", "finished"]
    assert (await muster.wait(job.job)).finished
    async with Muster(gateway.url) as other:
        assert [change async for change in other.watch(job.job)] == changes


async def test_the_same_job_by_every_way_and_often_is_one(muster: Muster, gateway: Gateway, broker: Brokers) -> None:
    job = new_job("twice", gpus=64)
    async with Muster(gateway.url) as other:
        await asyncio.gather(*(each.submit(job) for each in (muster, other) * 5))
    await muster.cancel(job.job)
    assert (await muster.wait(job.job)).state == "cancelled"
    assert (await inputs(broker)).count(job) == 1


async def test_many_jobs_are_waited_for_by_reading_the_log_once(muster: Muster) -> None:
    jobs = await asyncio.gather(*(muster.submit(new_job(f"many-{number}", gpus=1)) for number in range(50)))
    found = await muster.wait_all(jobs)
    assert list(found) == jobs
    assert all(outcome.finished for outcome in found.values())
    assert await muster.wait_all([]) == {}


async def test_a_job_is_given_another_priority_and_then_cancelled_in_that_order(muster: Muster, gateway: Gateway) -> None:
    job = await muster.submit(new_job("waits", gpus=64))
    await muster.reprioritise(job, 7)
    await muster.cancel(job, by="ada")
    changes = [change async for change in muster.watch(job)]
    assert [type(change.event).__name__ for change in changes[:3]] == ["JobSubmitted", "JobReprioritised", "JobCancelRequested"]
    assert changes[-1].state == "cancelled"
    assert gateway.get(f"/jobs/{job}")["job"]["priority"] == 7


async def test_a_job_of_another_client_is_found_by_its_id(muster: Muster, broker: Brokers) -> None:
    for job in (new_job("v7", gpus=1), msgspec.structs.replace(new_job("named", gpus=1), job=f"by-name-{new_id()[:23]}")):
        await muster.submit(job)
        async with Muster(broker.address) as other:
            assert (await other.wait(job.job)).finished


async def test_what_the_cell_refuses_or_never_got_is_said_by_who_waits(muster: Muster, broker: Brokers) -> None:
    old = msgspec.structs.replace(new_job("old"), job="01000000-0000-7000-8000-000000000000")
    await muster.submit(old)
    with pytest.raises(Refused, match="old when it arrived"):
        await muster.wait(old.job)
    with pytest.raises(Refused, match=r"name: 'UPPER' must match"):
        await muster.submit(msgspec.structs.replace(old, name="UPPER"))
    async with Muster(broker.address, patience_s=1) as other:
        with pytest.raises(NotKnown, match="is in the log: it never came"):
            await other.wait(new_id())


async def test_an_agent_of_ones_own_reports_by_the_bus(muster: Muster, broker: Brokers) -> None:
    spec = NodeSpec(cpu_milli=8000, devices=(Device(uuid="GPU-own", model="OWN", memory_mib=80_000),))
    await muster.report(NodeReport(node="own", uid="own-uid", boot="b", sequence=1, spec=spec))
    job = await muster.submit(new_job("own", gpus=1, gpu_models=["OWN"]))
    changes: list[Change] = []
    async for change in muster.watch(job):
        changes.append(change)
        if isinstance(change.event, InstanceBound):
            for sequence, phase in enumerate(("running", "exited"), 2):
                task = TaskReport(job=job, instance=0, attempt=1, rank=0, phase=phase)  # type: ignore[arg-type]
                told = NodeReport(node="own", uid="own-uid", boot="b", sequence=sequence, applied=change.cycle, tasks=(task,))
                await muster.report(told)
    assert changes[-1].state == "finished"
    health = DeviceHealthChanged(node="own", uid="own-uid", device="GPU-own", health="failed", reason="fell off the bus")
    await muster.device_health(health)
    cordon = NodeCordoned(node="own", by="ada")
    await muster.operate(cordon)
    job = await muster.submit(new_job("after"))  # on one topic or another, but the log has one order
    assert (await muster.wait(job)).finished
    found = await inputs(broker)
    assert health in found
    assert cordon in found


async def test_tls_and_sasl_are_used_as_the_file_says(broker: Brokers, made: Cell) -> None:
    async with Muster(broker.secure_address, config=broker.client_properties) as muster:
        job = await muster.submit(new_job("secret", gpus=64))
        await muster.cancel(job)
        assert (await muster.wait(job)).state == "cancelled"
    with pytest.raises(Unavailable, match="no broker answers at kafka://"):
        async with Muster(broker.secure_address, patience_s=1):
            pass


async def test_a_client_needs_the_rights_that_it_uses_and_is_told_which_it_lacks(tmp_path: Path) -> None:
    authorizer = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    options = ("--secure", f"--set={authorizer}", "--set=super.users=User:ANONYMOUS")
    with Brokers(tmp_path / "brokers", *options) as brokers:
        await create(Bus.parse(brokers.address))
        administrator = AdminClient({"bootstrap.servers": brokers.bootstrap})

        async def grant(topic: str, right: AclOperation) -> None:
            binding = AclBinding(
                ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:muster", "*", right, AclPermissionType.ALLOW
            )
            for answer in administrator.create_acls([binding]).values():
                await asyncio.to_thread(answer.result)

        async def tried(call: Callable[[Muster], Awaitable[Any]]) -> str:
            try:
                async with Muster(brokers.secure_address, config=brokers.client_properties, patience_s=5) as muster:
                    await call(muster)
            except ClientError as error:
                return str(error)
            return "done"

        async def soon(call: Callable[[Muster], Awaitable[Any]], told: str) -> None:
            """A right is known to the broker a little later."""
            async with asyncio.timeout(60):
                while told not in (found := await tried(call)):
                    print(found)

        def submit(muster: Muster) -> Awaitable[str]:
            return muster.submit(new_job("mine"))

        def wait(muster: Muster) -> Awaitable[Any]:
            return muster.wait(new_id())

        await soon(submit, "or this client may not see it (it needs the right Describe): `muster bus create` makes it")
        await grant("muster.log", AclOperation.READ)
        await soon(wait, "is in the log: it never came")
        await grant(JOBS, AclOperation.DESCRIBE)
        await soon(submit, f"this client may not write to {JOBS} at ")
        await grant(JOBS, AclOperation.WRITE)
        await soon(submit, "done")


def test_without_a_loop_it_is_the_same_by_the_bus(broker: Brokers, gateway: Gateway) -> None:
    with sync.Muster(broker.address) as muster:
        job = muster.submit(new_job("sync", gpus=1))
        assert [change.state for change in muster.watch(job)][-1] == "finished"
        assert muster.wait(job).finished


async def test_where_no_broker_answers_or_a_topic_is_missing_the_client_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no broker answers at kafka://127\.0\.0\.1:9"):
        async with Muster("kafka://127.0.0.1:9", patience_s=0.5):
            pass
    with pytest.raises(ClientError, match="must read kafka://HOST:PORT"):
        Muster("kafka://a b")
    with pytest.raises(ClientError, match="a token is for a gateway"):
        Muster("kafka://127.0.0.1:9", token="t")
    with pytest.raises(ClientError, match="a file of settings is for the bus"):
        Muster("http://127.0.0.1:9", config=tmp_path / "x")
    missing = pytest.raises(ClientError, match=r"there is no topic muster\.jobs at .*: `muster bus create` makes it")
    with Brokers(tmp_path / "empty") as empty, missing:
        async with Muster(empty.address):
            pass


async def test_a_client_outlives_a_broker_that_is_away(tmp_path: Path) -> None:
    with Brokers(tmp_path / "brokers") as brokers:
        await create(Bus.parse(brokers.address))
        with cell(tmp_path, brokers.address) as made:
            first = made.scheduler("scheduler")
            await asyncio.to_thread(made.leader, first)
            async with Muster(brokers.address, patience_s=60) as muster:
                waiting = await muster.submit(new_job("before", gpus=1))
                outcome = asyncio.create_task(muster.wait(waiting))
                brokers.kill()
                submitting = asyncio.create_task(muster.submit(new_job("during", gpus=1)))
                await asyncio.sleep(1)
                await asyncio.to_thread(brokers.restart)
                during = await submitting
                await muster.cancel(waiting)
                await muster.cancel(during)
                assert (await outcome).state == "cancelled"
                assert (await muster.wait(during)).state == "cancelled"


class Other:
    """A producer that is librdkafka's."""

    def __init__(self, broker: Brokers) -> None:
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "partitioner": "murmur2_random"})

    def send(self, topic: str, event: Input, *, structured: bool = False, id: str = "e-1", **headers: bytes | None) -> bytes:
        """Send an event, with these headers instead of its own; what its value is."""
        encoder = to_structured if structured else to_message
        made, value = encoder(topic, event, "elsewhere", id, AT_US)
        told = {**dict(made), **headers}
        self.producer.produce(
            topic, value, key_of(event), headers=[(name, text) for name, text in told.items() if text is not None]
        )
        assert self.producer.flush(30) == 0
        return value


async def test_what_another_producer_sends_is_taken_as_ours_is(broker: Brokers, muster: Muster) -> None:
    other = Other(broker)
    theirs = [new_job("same", gpus=64) for _ in range(2)]
    ours = new_job("same", gpus=64)
    other.send(JOBS, theirs[0])
    other.send(JOBS, theirs[1], structured=True)
    await muster.submit(ours)
    for job in theirs:
        other.send(JOBS, JobCancelRequested(job=job.job), structured=True)
    await muster.cancel(ours.job)
    jobs = [*theirs, ours]
    outcomes = await muster.wait_all([job.job for job in jobs])
    assert [outcome.state for outcome in outcomes.values()] == ["cancelled"] * 3
    entries = [encode_entry(event) for event in await inputs(broker) if isinstance(event, JobSubmitted) and event.name == "same"]
    assert sorted(entries) == sorted(encode_entry(job) for job in jobs)


async def test_what_another_producer_gets_wrong_is_recorded_as_refused(broker: Brokers, muster: Muster) -> None:
    other = Other(broker)
    job = new_job("wrong")
    value = other.send(JOBS, job, id="e-type", ce_type=b"com.example.Job")
    other.send(JOBS, job, id="e-bare", ce_specversion=None)
    other.send(GPU_HEALTH, DeviceHealthChanged(node="n", uid="u", device="d", health="failed"), ce_id=b"")
    with pytest.raises(Refused, match="it must be there"):
        await muster.wait(job.job)
    after = new_job("after", gpus=64)
    other.send(JOBS, after)
    other.send(JOBS, JobCancelRequested(job=after.job))
    await muster.wait(after.job)
    refused = {event.event: event for event in await inputs(broker) if isinstance(event, InputRefused)}
    told = refused["e-type"]
    assert (told.source, told.id, told.digest) == ("muster.jobs/0", job.job, digest(value))
    assert told.offset >= 0
    assert told.reason.startswith("ce_type: 'com.example.Job' is no input of muster.jobs; it takes muster.JobSubmitted.v1")
    assert refused["e-bare"].reason.startswith("ce_specversion: it has 0 characters")
    assert any(event.source == "muster.gpu-health/0" and event.reason.startswith("ce_id: ") for event in refused.values())


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")
async def test_kcat_hands_a_job_in(broker: Brokers, muster: Muster, tmp_path: Path) -> None:
    job = new_job("kcat", gpus=1)
    body = tmp_path / "job.json"
    body.write_bytes(encode(job))
    headers = [
        "ce_specversion=1.0",
        "ce_id=e-1",
        "ce_type=muster.JobSubmitted.v1",
        "ce_source=shell",
        "content-type=application/json",
    ]
    command = ["kcat", "-P", "-b", broker.bootstrap, "-t", JOBS, "-k", job.job, "-X", "topic.partitioner=murmur2_random"]
    command += [word for header in headers for word in ("-H", header)]
    done = await asyncio.to_thread(subprocess.run, [*command, str(body)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (await muster.wait(job.job)).finished
    assert json.loads(body.read_text())["job"] == job.job
