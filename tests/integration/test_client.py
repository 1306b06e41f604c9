"""The client against a real gateway: what it says is done once, what it tells is what the log says."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from muster.client import ClientError, Muster, NotKnown, Refused, Unavailable, new_id, new_job, sync
from muster.client.life import OVER, Change
from muster.events.decisions import InstanceBound, InstanceEnded
from muster.events.jobs import JobCancelRequested, JobSubmitted
from muster.events.levels import NodeReport, TaskReport
from muster.events.nodes import Device, DeviceHealthChanged, NodeSpec
from muster.events.operations import NodeCordoned, NodeUncordoned
from muster.gateway.tokens import Tokens
from tests.support.gateway import Simulated, Stack, events, running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("stack")) as stack, agents(stack):
        yield stack


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Stack]:
    """One without nodes, for a test that brings its own."""
    with running(tmp_path) as stack:
        yield stack


@contextmanager
def agents(stack: Stack) -> Iterator[None]:
    """Simulated agents that go on in a thread."""
    ending = threading.Event()

    def work() -> None:
        with stack.client() as client:
            Simulated(client, nodes=2).run(ending)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


async def test_a_job_is_handed_in_watched_and_waited_for(stack: Stack) -> None:
    async with Muster(stack.url) as muster:
        job = new_job("train", gpus=1, command=["true"])
        assert await muster.submit(job) == job.job
        changes = [change async for change in muster.watch(job.job)]
        outcome = await muster.wait(job.job)
    assert isinstance(changes[0].event, JobSubmitted)
    assert changes[0].event == job
    states = list(dict.fromkeys(change.state for change in changes))
    assert states == ["pending", "starting", "running", "finished"]
    assert (outcome.state, outcome.code, outcome.finished, outcome.cycle) == ("finished", 0, True, changes[-1].cycle)


async def test_what_is_watched_is_what_the_gateway_tells(stack: Stack) -> None:
    async with Muster(stack.url) as muster:
        job = await muster.submit(new_job("array", gpus=1, array=3))
        changes = [change async for change in muster.watch(job)]
    with stack.client() as client, client.stream("GET", f"/jobs/{job}/events") as response:
        told = events(response, len(changes))
    assert [(each["cycle"], each["at_us"], each["kind"]) for each in told] == [
        (change.cycle, change.at_us, type(change.event).__name__) for change in changes
    ]
    assert [each["body"] for each in told] == [msgspec.json.decode(msgspec.json.encode(change.event)) for change in changes]


async def test_the_same_job_twice_is_one_and_its_id_is_made_once(stack: Stack) -> None:
    job = new_job("twice", gpus=64)
    async with Muster(stack.url) as muster:
        assert await muster.submit(job) == await muster.submit(job) == job.job
        await asyncio.gather(*(muster.submit(job) for _ in range(20)))
        await muster.cancel(job.job)
        changes = [change async for change in muster.watch(job.job)]
    assert [type(change.event) for change in changes if isinstance(change.event, JobSubmitted)] == [JobSubmitted]


async def test_a_job_is_cancelled_and_given_another_priority(stack: Stack) -> None:
    async with Muster(stack.url) as muster:
        job = await muster.submit(new_job("waits", gpus=64))
        await muster.reprioritise(job, 7)
        await muster.cancel(job)
        outcome = await muster.wait(job)
    assert (outcome.state, outcome.finished) == ("cancelled", False)
    with stack.client() as client:
        assert client.get(f"/jobs/{job}").json()["job"]["priority"] == 7


async def test_many_jobs_are_waited_for_together(stack: Stack) -> None:
    async with Muster(stack.url) as muster:
        jobs = await asyncio.gather(*(muster.submit(new_job(f"many-{number}", gpus=1)) for number in range(60)))
        found = await muster.wait_all(jobs)
        assert await muster.wait_all([]) == {}
    assert list(found) == jobs
    assert all(outcome.finished for outcome in found.values())


async def test_an_agent_of_ones_own_runs_a_job_that_fails(empty: Stack) -> None:
    spec = NodeSpec(cpu_milli=8000, memory_mib=8000)
    async with Muster(empty.url) as muster:
        await muster.report(NodeReport(node="own", uid="u", boot="b", sequence=1, spec=spec))
        job = await muster.submit(new_job("fails", cpu_milli=100))
        sequence = 1
        async for change in muster.watch(job):
            if isinstance(change.event, InstanceBound):
                for task in (
                    TaskReport(job=job, instance=0, attempt=1, rank=0, phase="running"),
                    TaskReport(job=job, instance=0, attempt=1, rank=0, phase="exited", code=3, blame="job"),
                ):
                    sequence += 1
                    told = NodeReport(node="own", uid="u", boot="b", sequence=sequence, applied=change.cycle, tasks=(task,))
                    assert (await muster.report(told)).known
        outcome = await muster.wait(job)
    assert (change.state, outcome.state, outcome.code) == ("failed", "failed", 3)
    assert outcome.reason


async def test_a_watch_outlives_the_gateway_and_misses_and_doubles_nothing(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    port = int(stack.url.rpartition(":")[2])
    seen: list[Change] = []
    begun = asyncio.Event()
    try:
        async with Muster(stack.url) as muster:
            job = await muster.submit(new_job("survives", gpus=1))

            async def watch() -> None:
                async for change in muster.watch(job):
                    seen.append(change)
                    begun.set()

            watching = asyncio.create_task(watch())
            await asyncio.wait_for(begun.wait(), 30)
            await muster.reprioritise(job, 1)
            stack.kill()
            submitting = asyncio.create_task(muster.submit(new_job("meanwhile", gpus=1)))
            await asyncio.sleep(0.5)
            stack = await asyncio.to_thread(Stack, tmp_path, port=port)
            await submitting
            await muster.reprioritise(job, 2)
            with agents(stack):
                await watching
        told = await asyncio.to_thread(_told, stack, job, len(seen))
    finally:
        stack.stop()
    assert [(change.cycle, type(change.event).__name__) for change in seen] == told
    assert seen[-1].state == "finished"


def _told(stack: Stack, job: str, count: int) -> list[tuple[int, str]]:
    with stack.client() as client, client.stream("GET", f"/jobs/{job}/events") as response:
        return [(each["cycle"], each["kind"]) for each in events(response, count)]


async def test_what_a_cell_would_refuse_is_refused_with_a_sentence(stack: Stack) -> None:
    job = new_job("right", gpus=1)
    async with Muster(stack.url) as muster:
        with pytest.raises(Refused, match=r"name: 'UPPER' must match"):
            await muster.submit(msgspec.structs.replace(job, name="UPPER"))
        with pytest.raises(Refused, match="old when it arrived"):
            await muster.submit(msgspec.structs.replace(job, job="01000000-0000-7000-8000-000000000000"))
        with pytest.raises(Refused, match="old when it arrived"):
            await muster.wait("01000000-0000-7000-8000-000000000000")
        for call in (muster.cancel("never"), muster.reprioritise("never", 1), muster.wait(new_id())):
            with pytest.raises(NotKnown):
                await call
        with pytest.raises(NotKnown, match="there is no job 'never'"):
            [change async for change in muster.watch("never")]
        with pytest.raises(Refused, match="priority"):
            await muster.reprioritise(job.job, 10**12)
    with pytest.raises(Refused, match="gpus and gpu_milli exclude each other"):
        new_job("both", gpus=1, gpu_milli=500)


async def test_an_agent_of_ones_own_reports_and_an_operator_cordons(empty: Stack) -> None:
    spec = NodeSpec(cpu_milli=8000, devices=(Device(uuid="GPU-own", model="H100", memory_mib=80_000),))
    report = NodeReport(node="own", uid="own-uid", boot="b1", sequence=1, spec=spec)
    async with Muster(empty.url) as muster:
        answer = await muster.report(report)
        assert answer.known
        assert answer.lease_us >= 1_000_000
        await muster.operate(NodeCordoned(node="own"))
        with empty.client() as client:
            assert "cordoned" in client.get("/nodes/own").json()["node"]["state"]
        await muster.operate(NodeUncordoned(node="own"))
        with pytest.raises(Refused, match="one uuid stands twice"):
            await muster.report(msgspec.structs.replace(report, spec=msgspec.structs.replace(spec, devices=spec.devices * 2)))
        with pytest.raises(Refused, match="another agent, with uid own-uid, has the name own"):
            await muster.report(msgspec.structs.replace(report, uid="other"))
        health = DeviceHealthChanged(node="own", uid="own-uid", device="GPU-own", health="failed")
        with pytest.raises(ClientError, match=r"a gateway takes no DeviceHealthChanged: it goes by muster\.gpu-health"):
            await muster.device_health(health)
        with pytest.raises(Refused, match="JobCancelRequested is nothing that an operator says"):
            await muster.operate(JobCancelRequested(job="j"))  # type: ignore[arg-type]  # it is wrong on purpose


async def test_a_token_is_sent_and_a_wrong_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_TOKEN", raising=False)
    _, secret = Tokens(tmp_path).create(role="submit", user="ada")
    with running(tmp_path, tokens=True) as stack:
        async with Muster(stack.url, token=secret) as muster:
            await muster.submit(new_job("mine", user="ada"))
            with pytest.raises(Refused, match="this token submits as ada, not as bob"):
                await muster.submit(new_job("theirs", user="bob"))
        async with Muster(stack.url) as muster:
            with pytest.raises(Refused, match="a token is needed"):
                await muster.submit(new_job("nobodys", user="ada"))
        (tmp_path / "token").write_text(secret + "\n")
        monkeypatch.setenv("MUSTER_TOKEN_FILE", str(tmp_path / "token"))
        async with Muster(stack.url) as muster:
            await muster.submit(new_job("mine-too", user="ada"))


async def test_where_nobody_answers_the_client_says_so_when_its_patience_ends() -> None:
    async with Muster("http://127.0.0.1:9", patience_s=0.3) as muster:
        for call in (muster.submit(new_job("nowhere")), muster.wait("j"), muster.cancel("j")):
            with pytest.raises(Unavailable, match=r"no gateway answers at http://127\.0\.0\.1:9"):
                await call


def test_without_a_loop_the_same_calls_wait(stack: Stack) -> None:
    with sync.Muster(stack.url) as muster:
        job = muster.submit(new_job("sync", gpus=1))
        states = [change.state for change in muster.watch(job)]
        assert states[0] == "pending"
        assert states[-1] in OVER
        assert muster.wait(job).finished
        assert muster.wait_all([job])[job].finished
        waiting = muster.submit(new_job("waits", gpus=64))
        for change in muster.watch(waiting):
            assert isinstance(change.event, (JobSubmitted, JobCancelRequested, InstanceEnded))
            muster.reprioritise(waiting, 3)
            break  # a watch may be left at any time
        muster.cancel(waiting)
        assert muster.wait(waiting).state == "cancelled"
        with pytest.raises(Refused, match="the job has the instances 0 to 0, not 7"):
            muster.cancel(job, 7)
        muster.report(NodeReport(node="sync", uid="sync-uid", boot="b", sequence=1, spec=NodeSpec(cpu_milli=100)))
        muster.operate(NodeCordoned(node="sync"))
        with pytest.raises(ClientError, match="a gateway takes no DeviceHealthChanged"):
            muster.device_health(DeviceHealthChanged(node="sync", uid="sync-uid", device="d", health="failed"))


def test_a_client_without_a_loop_that_is_not_open_says_so() -> None:
    muster = sync.Muster("http://127.0.0.1:9")
    with pytest.raises(ClientError, match="the client is not open"):
        muster.wait("j")
    muster.close()
    with pytest.raises(ClientError, match="must begin with http://"), sync.Muster("ftp://x"):
        pass


def test_it_is_bound_where_the_watch_says(stack: Stack) -> None:
    with sync.Muster(stack.url) as muster:
        job = muster.submit(new_job("gang", gpus=1, count=4))
        bound = [change.event for change in muster.watch(job) if isinstance(change.event, InstanceBound)]
    assert [len(event.placements) for event in bound] == [4]
