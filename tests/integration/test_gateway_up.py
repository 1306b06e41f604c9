"""`muster up` as people start it: with agents, twice on one folder, killed, and with tokens."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from muster.up.places import Running
from muster.up.places import running as what_runs
from tests.support.gateway import Stack, job, running
from tests.support.up import until as waited

PATIENCE_S = 90.0


until = partial(waited, patience_s=PATIENCE_S)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Up:
    """`muster up` in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.clients: list[httpx.Client] = []
        command = [sys.executable, "-m", "muster.cli", "up", "--data", str(folder), "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def ready(self) -> httpx.Client:
        """A client, once the gateway answers."""

        def found() -> Running | None:
            told = what_runs(self.folder)
            return told if told is not None and told.pid == self.process.pid and alive(told.scheduler) else None

        told: Running = until(found)
        client = httpx.Client(base_url=f"{told.url}/v1", timeout=30, trust_env=False)
        self.clients.append(client)
        until(lambda: client.get("/schema/openapi.json").status_code)
        return client

    def stop(self, with_signal: int = signal.SIGTERM) -> str:
        """End it; what it said."""
        self.process.send_signal(with_signal)
        _, said = self.process.communicate(timeout=60)
        return said


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def begin(*options: str) -> Up:
        started.append(Up(tmp_path / "data", *options))
        return started[-1]

    yield begin
    for up in started:
        for client in up.clients:
            client.close()
        if up.process.poll() is None:
            up.stop()
        elif up.process.stderr is not None:
            up.process.stderr.close()


def state_of(client: httpx.Client, id: str) -> str:
    return str(client.get(f"/jobs/{id}").json()["job"]["state"])


def test_up_runs_a_real_process_survives_kills_of_all_its_parts_and_ends_cleanly(start: Callable[..., Up]) -> None:
    up = start("--agents", "2", "--devices", "8xH100-80GB")
    client = up.ready()
    until(lambda: len(client.get("/nodes").json()["nodes"]) == 2)
    hello = job(command=("sh", "-c", "echo rank $RANK of $WORLD_SIZE"), groups=[{"count": 2, "min": 2, "gpus": 8}])
    assert client.post("/jobs", json=hello).status_code == 202
    until(lambda: state_of(client, hello["job"]) == "finished")
    assert client.get(f"/jobs/{hello['job']}/output", params={"rank": 1}).text == "rank 1 of 2\n"

    long = job(command=("sleep", "300"))
    client.post("/jobs", json=long)
    until(lambda: state_of(client, long["job"]) == "running")
    told = what_runs(up.folder)
    assert told is not None
    os.kill(told.scheduler, signal.SIGKILL)
    until(lambda: (now := what_runs(up.folder)) is not None and now.scheduler != told.scheduler)
    until(lambda: client.get("/state").json()["term"] == 2)
    up.process.kill()
    _, _ = up.process.communicate()
    children = [told.agents[name] for name in told.agents] + [now.scheduler for now in [what_runs(up.folder)] if now]
    until(lambda: not any(alive(pid) for pid in children))

    again = start("--agents", "2", "--devices", "8xH100-80GB", "--stop-tasks")
    client = again.ready()
    assert state_of(client, long["job"]) == "running"
    until(lambda: client.get("/nodes").json()["nodes"][0]["state"] == "heard")
    assert client.get(f"/jobs/{long['job']}").json()["elements"][0]["attempt"]["attempt"] == 1, "it was not found again"
    said = again.stop(signal.SIGINT)
    assert again.process.returncode == 0, said
    assert "Traceback" not in said, said

    third = start("--agents", "2", "--devices", "8xH100-80GB")
    client = third.ready()
    until(lambda: client.get(f"/jobs/{long['job']}").json()["elements"][0]["attempts"] == 2)
    assert client.post(f"/jobs/{long['job']}/cancel").status_code == 202
    until(lambda: state_of(client, long["job"]) == "cancelled")


def test_a_second_one_on_a_folder_says_so_and_leaves_or_waits(start: Callable[..., Up]) -> None:
    first = start("--no-agent")
    first.ready()
    second = start("--no-agent")
    _, said = second.process.communicate(timeout=30)
    assert second.process.returncode == 3
    assert f"process {first.process.pid}" in said
    assert "--wait" in said
    third = start("--no-agent", "--wait")
    time.sleep(1.0)
    assert third.process.poll() is None
    first.stop()
    assert third.ready().get("/state").json()["term"] == 2


def test_an_address_that_is_taken_is_said_in_a_sentence(start: Callable[..., Up], tmp_path: Path) -> None:
    first = start("--no-agent")
    port = str(first.ready().base_url.port)
    command = [sys.executable, "-m", "muster.cli", "up", "--data", str(tmp_path / "other"), "--port", port, "--no-agent"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 3
    assert f"port {port}" in ended.stderr
    assert "Traceback" not in ended.stderr


def token(folder: Path, *options: str) -> str:
    """A new token."""
    command = [sys.executable, "-m", "muster.cli", "token", "create", "--data", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_whoever_may_submit_may_not_read_cancel_or_starve_others(tmp_path: Path) -> None:
    ada = token(tmp_path, "--role", "submit", "--user", "ada", "--queue", "default", "--priority-max", "5", "--jobs-max", "3")
    bob = token(tmp_path, "--role", "submit", "--user", "bob")
    reader = token(tmp_path, "--role", "read")
    with running(tmp_path, tokens=True) as stack, stack.client(ada) as mine, stack.client(bob) as his:
        with stack.client() as nobody:
            assert nobody.get("/state").status_code == 401
        with stack.client(ada + "x") as wrong:
            assert wrong.post("/jobs", json=job()).status_code == 401
        id = mine.post("/jobs", json=job(user="ada")).json()["job"]
        other = his.post("/jobs", json=job(user="bob")).json()["job"]
        assert mine.get(f"/jobs/{id}").status_code == 200
        assert [row["job"] for row in mine.get("/jobs").json()["jobs"]] == [id]
        for path in (f"/jobs/{other}", f"/jobs/{other}/explain", f"/jobs/{other}/events", f"/jobs/{other}/output"):
            assert mine.get(path).status_code == 404, path
        assert mine.get(f"/jobs/{other}", params={"at": 10**3}).status_code == 404
        assert mine.post(f"/jobs/{other}/cancel").status_code == 404
        assert mine.post(f"/jobs/{id}/priority", json={"priority": 6}).status_code == 403
        assert mine.post("/jobs", json=job(id=other, user="ada")).status_code == 409
        for body in (job(user="bob"), job(user="ada", queue="other"), job(user="ada", priority=6)):
            assert mine.post("/jobs", json=body).status_code == 403
        for path in ("/log", f"/nodes/n0/assignment?uid={id}"):
            assert mine.get(path).status_code == 403
        assert mine.post("/nodes/n0/drain").status_code == 403
        assert mine.put("/policy", json={}).status_code == 403
        taken = [mine.post("/jobs", json=job(user="ada")).status_code for _ in range(4)]
        assert taken == [202, 202, 429, 429]
        assert mine.post(f"/jobs/{id}/cancel").status_code == 202
        assert mine.post("/jobs", json=job(user="ada")).status_code == 202
        with stack.client(reader) as look:
            assert {row["user"] for row in look.get("/jobs").json()["jobs"]} == {"ada", "bob"}
            assert look.post(f"/jobs/{id}/cancel").status_code == 403
            assert look.post("/jobs", json=job()).status_code == 403


def test_rates_are_bounded_agents_speak_for_their_nodes_and_a_revoked_token_is_nothing(tmp_path: Path) -> None:
    slow = token(tmp_path, "--role", "read", "--rate", "5")
    agent = token(tmp_path, "--role", "agent", "--node", "n1")
    with running(tmp_path, tokens=True) as stack:
        check_rates(stack, slow)
        with stack.client(agent) as client:
            assert client.get("/nodes/n1/assignment").status_code == 404
            assert client.get("/nodes/n2/assignment").status_code == 403
            assert client.post("/nodes/n2/reports", content=b"{}").status_code == 403
            assert client.get("/jobs").status_code == 403
            command = [sys.executable, "-m", "muster.cli", "token", "revoke", agent.split("_")[1], "--data", str(tmp_path)]
            subprocess.run(command, check=True, timeout=60)
            until(lambda: client.get("/nodes/n1/assignment").status_code == 401, patience_s=5)


def check_rates(stack: Stack, slow: str) -> None:
    with stack.client(slow) as client:
        answers = [client.get("/state") for _ in range(30)]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert next(answer for answer in answers if answer.status_code == 429).headers["retry-after"] == "1"
        with stack.client() as nobody:
            assert nobody.get("/state").status_code == 401
