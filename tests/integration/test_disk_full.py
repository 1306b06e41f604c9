"""A disk without room under `muster up`: nothing that was acknowledged is lost, what runs goes on, and so does the rest later."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from muster.events.codec import open_envelope
from muster.events.jobs import JobSubmitted
from muster.log.fsck import fsck
from muster.log.reader import read_admitted
from muster.replay.audit import audit
from muster.scheduler.loop import EXIT_DOUBT
from muster.verify import verify
from tests.support.agents import Gateway, Node, task
from tests.support.gateway import job
from tests.support.up import until, up

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small file system")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.system(f"mount -t tmpfs -o size=8m tmpfs {folder} 2>/dev/null"):
        pytest.skip("no file system can be mounted here")
    yield folder
    os.system(f"umount -l {folder}")


def fill(folder: Path) -> Path:
    """Leave no byte of room."""
    path = folder / "fill"
    with path.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return path


def state_of(client: httpx.Client, id: str) -> str:
    return str(client.get(f"/jobs/{id}").json()["job"]["state"])


def submit(client: httpx.Client, acknowledged: list[str], body: dict[str, Any]) -> httpx.Response:
    answer = client.post("/jobs", json=body)
    if answer.status_code == 202:
        acknowledged.append(str(body["job"]))
    return answer


def told_no(client: httpx.Client, acknowledged: list[str]) -> httpx.Response | None:
    """Submit something; the answer, if it is that this cannot be recorded now."""
    answer = submit(client, acknowledged, job("more", command=("true",)))
    return answer if answer.status_code == 503 else None


@contextlib.contextmanager
def agent(url: str, data: Path) -> Iterator[Node]:
    """An agent of that gateway, of which nothing is left afterwards."""
    node = Node(url.removesuffix("/v1"), data, "--devices", "8xH100-80GB")
    node.start()
    try:
        yield node
    except BaseException:
        print(node.said.read_text())
        raise
    finally:
        node.end()


def judge(folder: Path, acknowledged: list[str]) -> None:
    """One history, which every judge finds whole, with all that was acknowledged in it, once."""
    assert fsck(folder).halt is None
    assert audit(folder).difference is None
    cycles = [open_envelope(envelope) for envelope, _ in read_admitted(folder)]
    assert list(verify(cycles)) == []
    submitted = [event.job for cycle in cycles for event in cycle.inputs if isinstance(event, JobSubmitted)]
    assert [submitted.count(id) for id in acknowledged] == [1] * len(acknowledged)


def test_a_full_disk_under_the_log_refuses_submissions_lets_tasks_run_and_is_survived(small: Path, tmp_path: Path) -> None:
    data = small / "up"
    acknowledged: list[str] = []
    mark = tmp_path / "mark"
    said = tmp_path / "said"
    with up(data, "--no-agent", said=said) as stack, stack.ready() as client, agent(stack.url, tmp_path / "agent") as node:
        until(lambda: client.get("/nodes").json()["nodes"])
        short = job("short", command=("sh", "-c", f"while [ ! -e {mark} ]; do sleep 0.1; done; exit 3"))
        long = job("long", command=("sleep", "600"))
        assert [submit(client, acknowledged, body).status_code for body in (short, long)] == [202, 202]
        until(lambda: [state_of(client, id) for id in acknowledged] == ["running", "running"])
        filled = fill(small)
        refused = until(lambda: told_no(client, acknowledged))
        assert refused.headers["content-type"] == "application/problem+json"
        assert f"there is no room for the log in {data}" in refused.json()["detail"]
        mark.touch()  # what runs goes on, and ends, although nobody can write that down
        until(lambda: len(node.supervisors()) == 1)
        assert [state_of(client, body["job"]) for body in (short, long)] == ["running", "running"], "it is not in the log yet"
        assert client.get("/nodes").status_code == 200
        filled.unlink()
        until(lambda: state_of(client, short["job"]) == "failed")
        after = job("after", command=("true",))
        until(lambda: submit(client, acknowledged, after).status_code == 202)
        until(lambda: state_of(client, after["job"]) == "finished")
        assert state_of(client, long["job"]) == "running"
        assert [client.get(f"/jobs/{body['job']}").json()["elements"][0]["attempts"] for body in (short, long)] == [1, 1]
        client.post(f"/jobs/{long['job']}/cancel")
        until(lambda: state_of(client, long["job"]) == "cancelled")
        assert stack.process is not None
        assert stack.process.poll() is None, "muster up gave up"
        assert stack.stop() == 0
    judge(data, sorted(set(acknowledged)))
    assert f"the scheduler ended with status {EXIT_DOUBT} and is started again" in said.read_text()
    assert "Traceback" not in said.read_text()


def test_a_start_on_a_full_disk_waits_for_room_and_says_so(small: Path, tmp_path: Path) -> None:
    data, said = small / "up", tmp_path / "said"
    acknowledged: list[str] = []
    with up(data, "--no-agent", said=said) as stack:
        with stack.ready() as client:
            assert submit(client, acknowledged, job()).status_code == 202
        assert stack.stop() == 0
        filled = fill(small)
        stack.start()
        until(lambda: "there is no room for the log" in said.read_text())
        filled.unlink()
        with stack.ready() as client:
            assert client.get("/state").json()["term"] == 2
            assert submit(client, acknowledged, job()).status_code == 202
        assert stack.stop() == 0
    judge(data, acknowledged)
    assert "Traceback" not in said.read_text()


def test_an_agent_that_starts_again_on_a_full_disk_finds_what_runs_and_reports_its_end(small: Path, tmp_path: Path) -> None:
    gateway = Gateway()
    node = Node(gateway, small / "agent")
    node.said = tmp_path / "said"
    node.start()
    try:
        until(lambda: gateway.spec)
        mark = tmp_path / "mark"
        waits = task("sh", "-c", f"while [ ! -e {mark} ]; do sleep 0.1; done; exit 5", job="waits")
        gateway.assign(waits)
        gateway.reaches("running", job="waits")
        fill(small)
        node.kill()
        heard = len(gateway.reports)
        node.start()
        until(lambda: gateway.applied_after(heard))
        assert gateway.reaches("running", job="waits").attempt == 1
        gateway.assign(waits, task("true", job="new"))
        refused = gateway.reaches("exited", job="new")
        assert refused.blame == "node"
        assert "No space left on device" in refused.reason
        mark.touch()
        assert gateway.reaches("exited", job="waits").code == 5
        (small / "fill").unlink()
        gateway.assign(task("true", job="newer"))
        assert gateway.reaches("exited", job="newer").code == 0
        assert node.left() == node.supervisors() == []
    finally:
        node.end()
        gateway.close()
