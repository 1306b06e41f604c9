"""The short way of a connection gives the same answers as the usual one, in the order of the requests, and keeps nothing."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.gateway import Simulated, Stack, job, running

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("wire")) as found, found.client() as client:
        world = Simulated(client, nodes=1)
        world.until(lambda: client.get("/nodes").json()["nodes"])
        yield found


def connect(stack: Stack) -> socket.socket:
    where = urlsplit(stack.url)
    return socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=PATIENCE_S)


def request(method: str, path: str, body: Any = None, *headers: str, version: str = "1.1") -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


def answers(connection: socket.socket, count: int) -> list[tuple[int, dict[str, str], bytes]]:
    """The next so many answers."""
    found = []
    with closing(connection.makefile("rb")) as file:
        for _ in range(count):
            status = int(file.readline().split()[1])
            headers = {}
            while line := file.readline().strip():
                name, _, value = line.decode().partition(": ")
                headers[name] = value
            found.append((status, headers, file.read(int(headers.get("content-length", 0)))))
    return found


def test_requests_that_come_at_once_are_answered_in_their_order(stack: Stack) -> None:
    first, second = job("one"), job("two")
    with connect(stack) as connection:
        connection.sendall(
            request("POST", "/v1/jobs", first)
            + request("GET", f"/v1/jobs/{first['job']}")
            + request("POST", "/v1/jobs", second)
            + request("POST", "/v1/jobs", b"{}")
            + request("GET", "/v1/state")
        )
        found = answers(connection, 5)
    assert [status for status, _, _ in found] == [202, 200, 202, 422, 200]
    assert json.loads(found[0][2])["job"] == first["job"]
    assert json.loads(found[1][2])["job"]["name"] == "one"
    assert json.loads(found[2][2])["job"] == second["job"]
    assert found[3][1]["content-type"] == "application/problem+json"


def test_a_poll_that_waits_holds_back_what_comes_behind_it_on_its_connection(stack: Stack) -> None:
    with connect(stack) as connection:
        path = "/v1/nodes/n0/assignment?after=9000000&uid=uid-0&wait=0.3"
        connection.sendall(request("GET", path) + request("GET", "/v1/state"))
        found = answers(connection, 2)
    assert [status for status, _, _ in found] == [409, 200]


def test_a_request_may_come_in_pieces(stack: Stack) -> None:
    data = request("POST", "/v1/jobs", job("pieces"))
    with connect(stack) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), 40):
            connection.sendall(data[at : at + 40])
            time.sleep(0.002)
        assert answers(connection, 1)[0][0] == 202


@pytest.mark.parametrize(("header", "version"), [("Connection: close", "1.1"), ("X-Nothing: 1", "1.0")])
def test_a_connection_ends_behind_the_answer_when_the_client_wants_it(stack: Stack, header: str, version: str) -> None:
    with connect(stack) as connection:
        connection.sendall(request("POST", "/v1/jobs", job("last"), header, version=version))
        ((status, headers, _),) = answers(connection, 1)
        assert (status, headers["connection"]) == (202, "close")
        assert connection.recv(1) == b""


def test_both_ways_refuse_alike(stack: Stack) -> None:
    """A query of which nobody knows the meaning leads to the usual way."""
    with stack.client() as client:
        for path, body in (
            ("/jobs", b"[]"),
            ("/jobs", b'{"job": 1}'),
            ("/jobs", json.dumps(job(groups=[{"gpus": -1}])).encode()),
            ("/nodes/n0/reports", b"{}"),
            ("/nodes/n0/reports", b'{"node":"n1","uid":"u","boot":"b","sequence":1}'),
        ):
            short, usual = client.post(path, content=body), client.post(path + "?usual=1", content=body)
            assert short.status_code == usual.status_code == 422
            assert short.json() == usual.json()
            assert short.headers["content-type"] == usual.headers["content-type"]
        for query in ("after=5&uid=other", "after=-1", "wait=60", "after=1&uid=uid-0&wait=0"):
            found = client.get(f"/nodes/n0/assignment?{query}")
            assert found.status_code == client.get(f"/nodes/n0/assignment?{query}&usual=1").status_code
        missing = client.get("/nodes/nobody/assignment")
        assert (missing.status_code, missing.json()) == (404, client.get("/nodes/nobody/assignment?usual=1").json())


def test_whoever_may_not_is_refused_on_the_short_way_too(stack: Stack) -> None:
    where = urlsplit(stack.url)
    with httpx.Client(base_url=f"{stack.url}/v1", trust_env=False) as client:
        for headers, status in (
            ({"Host": "example.org"}, 403),
            ({"Origin": "http://example.org"}, 403),
            ({"Host": f"localhost:{where.port}"}, 202),
        ):
            assert client.post("/jobs", json=job(), headers=headers).status_code == status
        assert client.post("/jobs", content=b" " * 300_000).status_code == 413


def test_a_poll_whose_agent_went_waits_no_longer_and_the_next_one_is_answered(stack: Stack) -> None:
    with stack.client() as client:
        number = client.get("/state").json()["cycle"]
        for _ in range(3):
            with connect(stack) as connection:
                connection.sendall(request("GET", f"/v1/nodes/n0/assignment?after={number}&uid=uid-0"))
                time.sleep(0.05)
        path = f"/nodes/n0/assignment?after={number}&uid=uid-0&wait=0.05"
        assert client.get(path).status_code in (200, 204)
