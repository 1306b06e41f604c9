"""The token that a running job has: it grants what its submitter may, ends with the attempt, and stands nowhere."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from muster.agent.credentials import attempt_of, token_of
from muster.gateway.job_tokens import SUBMITTED_WITH, Secrets
from muster.gateway.tokens import Tokens, TokensDamaged
from muster.simulator.agents import Behaviour
from tests.support.gateway import Simulated, Stack, job, job_id, running

LONG = Behaviour(runtime_us=3_600_000_000)


@dataclass
class Cell:
    """A stack with tokens, one simulated node, and jobs on it."""

    stack: Stack
    client: httpx.Client
    agents: Simulated
    book: Tokens
    operator: str
    ada: str
    ada_id: str

    def submit(self, token: str, **fields: Any) -> httpx.Response:
        """Submit a job with this token."""
        return self.client.post("/jobs", json=job(**{"user": "ada", **fields}), headers=bearer(token))

    def started(self, token: str, **fields: Any) -> tuple[str, str]:
        """A job that runs, and its own token."""
        answer = self.submit(token, **fields)
        assert answer.status_code == 202, answer.text
        id = answer.json()["job"]
        self.agents.until(lambda: self.shown(id)["job"]["state"] == "running")
        return id, self.token(id)

    def token(self, id: str) -> str:
        """What the agent makes for the job's present attempt."""
        told = self.agents.client.get("/nodes/n0/assignment", params={"uid": "uid-0"}).json()
        (task,) = [task for task in told["tasks"] if task["job"] == id]
        return token_of(id, task["instance"], task["attempt"], task["secret"])

    def shown(self, id: str) -> Any:
        """The job, as an operator sees it."""
        return self.client.get(f"/jobs/{id}", headers=bearer(self.operator)).raise_for_status().json()

    def state(self, token: str) -> int:
        """The status with which a read with this token is answered."""
        return self.client.get("/state", headers=bearer(token)).status_code


def bearer(token: str) -> dict[str, str]:
    """The header."""
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = tmp_path_factory.mktemp("tokens")
    with running(folder, tokens=True, queues=("gpu",)) as stack, stack.client() as client:
        book = Tokens(folder)
        ada, secret = book.create("submit", name="adas", user="ada", queues=("default", "gpu"), priority_max=5, rate=10_000)
        _, agent = book.create("agent", nodes=("n0",))
        _, operator = book.create("operate", rate=10_000)
        with stack.client(agent) as reporter:
            agents = Simulated(reporter, nodes=1, gpus=16, behaviour=LONG)
            agents.turn()
            yield Cell(stack, client, agents, book, operator, secret, ada.id)


def test_a_job_may_what_its_submitter_may_and_nothing_else(cell: Cell) -> None:
    id, token = cell.started(cell.ada)
    others = cell.submit(cell.operator, user="eve").json()["job"]
    inner = cell.submit(token, queue="gpu", priority=5)
    assert inner.status_code == 202
    assert cell.shown(inner.json()["job"])["run"]["environment"] == {SUBMITTED_WITH: cell.ada_id}
    listed = cell.client.get("/jobs", headers=bearer(token)).json()["jobs"]
    assert {row["user"] for row in listed} == {"ada"}
    for fields, field in (({"user": "eve"}, "user"), ({"queue": "x"}, "queue"), ({"priority": 6}, "request.priority")):
        answer = cell.submit(token, **fields)
        assert (answer.status_code, answer.json()["field"]) == (403, field)
    for path in (f"/jobs/{others}", f"/jobs/{others}/explain", f"/jobs/{others}/output"):
        assert cell.client.get(path, headers=bearer(token)).status_code == 404
    assert cell.client.post(f"/jobs/{others}/cancel", headers=bearer(token)).status_code == 404
    assert cell.client.post("/nodes/n0/drain", headers=bearer(token)).status_code == 403
    assert cell.client.get("/nodes/n0/assignment", headers=bearer(token)).status_code == 403
    assert cell.client.post(f"/jobs/{inner.json()['job']}/cancel", headers=bearer(token)).status_code == 202
    assert cell.client.post(f"/jobs/{id}/cancel", headers=bearer(token)).status_code == 202


def test_the_token_ends_with_the_attempt(cell: Cell) -> None:
    id, token = cell.started(cell.ada)
    assert cell.state(token) == 200
    cell.client.post(f"/jobs/{id}/cancel", headers=bearer(cell.ada)).raise_for_status()
    cell.agents.until(lambda: cell.shown(id)["job"]["state"] == "cancelled")
    assert cell.state(token) == 401


def test_the_token_ends_when_that_of_the_submitter_is_revoked(cell: Cell) -> None:
    short, secret = cell.book.create("submit", user="ada", rate=10_000)
    cell.agents.until(lambda: cell.state(secret) == 200)
    _, token = cell.started(secret)
    assert cell.state(token) == 200
    cell.book.revoke(short.id)
    cell.agents.until(lambda: cell.state(token) == 401)


def test_a_token_that_proves_nothing_is_refused(cell: Cell) -> None:
    id, token = cell.started(cell.ada)
    other, theirs = cell.started(cell.ada)
    assert token != theirs
    for wrong in (
        token[:-1],
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        token.replace(id, other),
        token.replace(".0.1_", ".0.2_"),
        token.replace(".0.1_", ".1.1_"),
        token.replace(".0.1_", ".00.1_"),
        token_of(job_id(), 0, 1, "s"),
        "muster-job_",
        "muster-job_..._",
        "muster-job_" + "9" * 1000,
        f"muster-job_{id}.0.1_",
        "muster-job_\xe9",
        "muster-job_\xe9.0.1_\xe9",
    ):
        answer = cell.client.get("/state", headers={b"Authorization": f"Bearer {wrong}".encode("latin-1")})
        assert answer.status_code in (401, 429), wrong


def test_a_job_that_an_operator_hands_in_for_somebody_is_that_users_and_no_operator(cell: Cell) -> None:
    _, token = cell.started(cell.operator, user="bob", queue="gpu", priority=3)
    assert cell.client.post("/nodes/n0/cordon", headers=bearer(token)).status_code == 403
    assert cell.client.get("/log", headers=bearer(token)).status_code == 403
    assert {row["user"] for row in cell.client.get("/jobs", headers=bearer(token)).json()["jobs"]} == {"bob"}
    for fields, status in (
        ({"queue": "gpu", "priority": 3}, 202),
        ({"queue": "gpu", "priority": 4}, 403),
        ({"queue": "default"}, 403),
        ({"queue": "gpu", "user": "ada"}, 403),
    ):
        assert cell.submit(token, **{"user": "bob", **fields}).status_code == status


def test_nobody_says_with_whose_token_a_job_was_submitted_but_the_gateway(cell: Cell) -> None:
    operate, _ = cell.book.create("operate", rate=10_000)
    said = {"command": ["true"], "environment": {SUBMITTED_WITH: operate.id, "A": "1"}}
    id, _ = cell.started(cell.ada, run=said)
    assert cell.shown(id)["run"]["environment"] == {SUBMITTED_WITH: cell.ada_id, "A": "1"}
    (answer,) = cell.client.post("/submissions", json=[job(user="ada", run=said)], headers=bearer(cell.ada)).json()
    assert cell.shown(answer["job"])["run"]["environment"] == {SUBMITTED_WITH: cell.ada_id, "A": "1"}


def test_neither_secret_nor_token_is_in_the_folder_of_the_cell(cell: Cell) -> None:
    id, token = cell.started(cell.ada)
    secret = Secrets(cell.stack.folder).of(id, 0, 1)
    assert token == token_of(id, 0, 1, secret)
    for file in [path for path in cell.stack.folder.rglob("*") if path.is_file()]:
        data = file.read_bytes()
        assert secret.encode() not in data, file
        assert token.rpartition("_")[2].encode() not in data, file
    for path in ("jobs", f"jobs/{id}", f"jobs/{id}/explain", "nodes/n0"):
        text = cell.client.get(f"/{path}", headers=bearer(cell.operator)).text
        assert secret not in text
    assert stat.S_IMODE(os.stat(cell.stack.folder / "jobs.key").st_mode) == 0o600


def test_where_no_tokens_are_needed_a_job_is_as_free_as_everybody(tmp_path: Path) -> None:
    with running(tmp_path) as stack, stack.client(token_of(job_id(), 0, 1, "s")) as client:
        assert client.get("/state").status_code == 200
        said = {"command": ["true"], "environment": {SUBMITTED_WITH: "x"}}
        id = client.post("/jobs", json=job(run=said)).json()["job"]
        assert client.get(f"/jobs/{id}").json()["run"]["environment"] == {}


def test_a_key_that_is_none_is_said_and_not_replaced(tmp_path: Path) -> None:
    first = Secrets(tmp_path).of("j", 0, 1)
    assert Secrets(tmp_path).of("j", 0, 1) == first
    assert Secrets(tmp_path).of("j", 0, 2) != first
    (tmp_path / "jobs.key").write_bytes(b"short")
    with pytest.raises(TokensDamaged, match=r"jobs\.key holds no key"):
        Secrets(tmp_path)
    assert (tmp_path / "jobs.key").read_bytes() == b"short"


@pytest.mark.parametrize("name", ["a", "a.b", "a_b.c-d", "0.1_2", "x" * 64])
def test_what_a_token_names_is_read_whatever_the_job_is_called(name: str) -> None:
    assert attempt_of(token_of(name, 3, 17, "secret")) == (name, 3, 17)
