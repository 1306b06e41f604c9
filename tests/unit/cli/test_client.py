"""The client of the gateway against a small real HTTP server: what it repeats, what it says, and its exit statuses."""

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from muster.cli.gateway_client import REFUSED, UNREACHABLE, Gateway, exit_status, find_token
from muster.cli.main import run
from muster.cli.output import USAGE, Failure
from muster.client.ids import new_id
from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.gateway.shown import JobRow

Answer = tuple[int, Any]


class Server:
    """Answers with what it was given, in order, and remembers what it was asked. The last answer is given again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                server.asked.append((self.command, self.path, {key.lower(): value for key, value in self.headers.items()}, body))
                status, told = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                data = told if isinstance(told, bytes) else json.dumps(told).encode()
                if status:
                    self.send_response(status)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                self.close_connection = not status

            do_GET = do_POST = _answer

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    monkeypatch.setenv("MUSTER_GATEWAY", made.url)
    monkeypatch.delenv("MUSTER_TOKEN", raising=False)
    yield made
    made.close()


def row(state: str = "finished", **fields: Any) -> JobRow:
    usual: dict[str, Any] = dict.fromkeys(
        ("priority", "tasks", "gpus", "attempts", "submitted_us", "started_us", "ended_us", "code"), 0
    )
    usual |= {
        "job": new_id(),
        "name": "train",
        "user": "ada",
        "queue": "default",
        "instances": {state: 1},
        "nodes": (),
        "reason": "",
    }
    return JobRow(state=state, **(usual | fields))


def listed(*rows: JobRow) -> Any:
    return {"cycle": 9, "at_us": 1, "jobs": msgspec.to_builtins(rows), "more": False}


def job(name: str = "train") -> JobSubmitted:
    return JobSubmitted(job=new_id(), name=name, user="ada", request=JobRequest(groups=(GroupRequest(),)))


def test_a_submission_is_repeated_with_its_id_until_it_is_taken(server: Server) -> None:
    one = job()
    server.answers = [(503, {"detail": "busy"}), (0, b""), (429, {}), (202, {"job": one.job, "cycle": 4})]
    with Gateway() as gateway:
        (taken,) = gateway.submit([one])
    assert (taken.job, taken.cycle, taken.state) == (one.job, 4, "recorded")
    assert [json.loads(body)["job"] for _, _, _, body in server.asked] == [one.job] * 4


def test_many_submissions_go_together_and_come_back_in_their_order(server: Server) -> None:
    jobs = [job(f"j{number}") for number in range(3)]
    server.answers = [(202, [{"job": each.job, "cycle": 4} for each in jobs])]
    with Gateway() as gateway:
        assert [each.job for each in gateway.submit(jobs)] == [each.job for each in jobs]
    ((_, path, _, _),) = server.asked
    assert path == "/v1/submissions"


@pytest.mark.parametrize(
    ("status", "code"), [(404, USAGE), (422, USAGE), (401, REFUSED), (403, REFUSED), (503, UNREACHABLE), (500, UNREACHABLE)]
)
def test_what_the_gateway_says_is_one_sentence_and_an_exit_status(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    monkeypatch.setattr("muster.cli.gateway_client.AGAIN_S", 20.0)
    server.answers = [(status, {"title": "No", "detail": "there is no job 'x'"})]
    assert run(["job", new_id()]) == code
    assert capsys.readouterr().err == "muster: there is no job 'x'\n"


def test_without_a_gateway_it_is_said_where_none_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.cli.gateway_client.AGAIN_S", 20.0)
    assert run(["jobs", "--gateway", "http://127.0.0.1:1"]) == UNREACHABLE
    said = capsys.readouterr().err
    assert said.startswith("muster: no gateway answers at http://127.0.0.1:1 (")
    assert said.count("\n") == 1
    assert run(["jobs", "--gateway", "nonsense"]) in (USAGE, UNREACHABLE)


def test_what_is_no_gateway_is_said_to_be_none(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [(200, b"<html>")]
    assert run(["nodes"]) == UNREACHABLE
    assert "is no gateway of this build" in capsys.readouterr().err


def test_the_token_comes_from_the_environment_or_a_file(server: Server, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers = [(200, listed())]
    (tmp_path / "token").write_text("of-the-file\n")
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(tmp_path / "token"))
    assert run(["jobs"]) == 0
    monkeypatch.setenv("MUSTER_TOKEN", "of-the-variable")
    assert run(["jobs"]) == 0
    assert [headers["authorization"] for _, _, headers, _ in server.asked] == ["Bearer of-the-file", "Bearer of-the-variable"]
    monkeypatch.delenv("MUSTER_TOKEN")
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(Failure, match="cannot be read"):
        find_token("http://127.0.0.1:8470")


def test_a_job_is_found_by_the_beginning_of_its_id_or_by_its_name(server: Server) -> None:
    older, newer = row(name="train"), row(name="train")
    server.answers = [(200, listed(older, newer))]
    with Gateway() as gateway:
        assert gateway.find("train") == newer.job
        assert gateway.find(older.job) == older.job
        with pytest.raises(Failure, match="give more of it"):
            gateway.find(older.job[:6])
        with pytest.raises(Failure, match="no job has 'other'"):
            gateway.find("other")


def test_pages_are_read_to_the_last_as_of_one_cycle(server: Server) -> None:
    first, second = row(), row()
    server.answers = [(200, {**listed(first), "more": True}), (200, listed(second))]
    with Gateway() as gateway:
        assert [each.job for each in gateway.jobs().jobs] == [first.job, second.job]
    assert f"after={first.job}" in server.asked[1][1]
    assert "at=9" in server.asked[1][1]


@pytest.mark.parametrize(
    ("state", "code", "status"),
    [
        ("finished", 0, 0),
        ("failed", 5, 5),
        ("failed", -9, 137),
        ("failed", 0, 1),
        ("failed", 300, 255),
        ("cancelled", 0, 1),
        ("rejected", 0, 1),
    ],
)
def test_who_waits_returns_the_exit_status_of_the_job(
    server: Server, capsys: pytest.CaptureFixture[str], state: str, code: int, status: int
) -> None:
    ended = row(state, code=code)
    assert exit_status(ended) == status
    server.answers = [(202, {"job": ended.job, "cycle": 4}), (200, listed(row("running", job=ended.job))), (200, listed(ended))]
    assert run(["submit", "--name", "train", "--wait", "--", "true"]) == status
    printed = capsys.readouterr()
    assert printed.out == ended.job + "\n"
    assert (state in printed.err) == (state != "finished")


def test_an_id_says_when_it_was_made_and_is_never_the_same() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", each) for each in ids)
    assert abs(int(ids[0].replace("-", "")[:12], 16) - time.time() * 1000) < 60_000


def test_listings_are_tables_or_json(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [(200, listed(row("running", nodes=("a", "b"))))]
    assert run(["jobs", "--state", "running"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["JOB", "NAME", "USER"]
    assert "a,b" in line
    assert run(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["state"] == "running"
    assert "state=running" in server.asked[0][1]
    assert run(["jobs", "--state", "asleep"]) == USAGE
    assert "there are pending, starting" in capsys.readouterr().err


def test_a_fence_wants_to_be_meant(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [(202, {"cycle": 5})]
    assert run(["fence", "gpu-1"]) == USAGE
    assert "say --yes" in capsys.readouterr().err
    assert server.asked == []
    assert run(["fence", "gpu-1", "--yes"]) == 0
    assert run(["drain", "gpu-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"node": "gpu-1", "cycle": 5}]
    assert [path for _, path, _, _ in server.asked] == ["/v1/nodes/gpu-1/fence", "/v1/nodes/gpu-1/drain"]
