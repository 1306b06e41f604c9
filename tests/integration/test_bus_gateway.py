"""A gateway on Kafka without a scheduler does what the one beside a scheduler does, and says so where it cannot yet.

The tests that are imported here are those of `test_gateway`: they run against a scheduler and a gateway on a real broker.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from muster.cli.main import run
from tests.integration.test_gateway import (  # noqa: F401  # pytest runs them here, with the fixtures of this module
    submitted,
    test_a_follower_of_the_log_misses_nothing_and_gets_nothing_twice,
    test_a_page_of_another_site_is_turned_away,
    test_ids_that_never_came_are_not_known,
    test_many_submissions_in_one_request_are_answered_each,
    test_reads_say_what_was_at_a_cycle,
    test_the_api_describes_itself,
    test_what_is_answered_with_202_stands_in_the_log,
    test_what_is_no_job_is_refused_with_a_sentence,
)
from tests.support.cell import Cell, Gateway, Scheduler, cell, until
from tests.support.gateway import Simulated, job
from tests.support.kafka import Brokers, bus_broker


class BusStack:
    """A scheduler and a gateway on Kafka, as `test_gateway` knows a stack."""

    def __init__(self, made: Cell, scheduler: Scheduler, gateway: Gateway) -> None:
        self.cell = made
        self.scheduler = scheduler
        self.gateway = gateway
        self.folder = made.log
        """Where the log is read from."""

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"{self.gateway.url}/v1", timeout=40, trust_env=False)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusStack]:
    folder = tmp_path_factory.mktemp("bus")
    with bus_broker(folder / "brokers") as broker, cell(folder, broker.address) as made:
        scheduler = made.scheduler("scheduler")
        made.leader(scheduler)
        gateway = made.gateway()
        assert gateway.http.post("/jobs", json=job("first")).status_code == 202  # why it waits is said once
        yield BusStack(made, scheduler, gateway)
        made.check()


@pytest.fixture
def client(stack: BusStack) -> Iterator[httpx.Client]:
    with stack.client() as client:
        yield client


def test_submissions_at_once_from_twenty_clients_that_try_again_are_recorded_once_each(stack: BusStack) -> None:
    bodies = [[job(name=f"j-{client}-{number}") for number in range(25)] for client in range(20)]

    def submit(mine: list[dict[str, Any]]) -> None:
        with stack.client() as client:
            for body in [*mine, *mine]:
                until(lambda body=body: client.post("/jobs", json=body).status_code == 202, say="it is taken")  # type: ignore[misc]

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(submit, bodies))
    ids = [body["job"] for mine in bodies for body in mine]
    with stack.client() as client:
        for id in ids:
            until(lambda id=id: client.get(f"/submissions/{id}").json()["state"] == "recorded", say="it is recorded")  # type: ignore[misc]
    counts = submitted(stack.folder)
    assert [counts[id] for id in ids] == [1] * len(ids)


def test_agents_by_two_gateways_run_jobs_and_both_gateways_show_it(stack: BusStack, client: httpx.Client) -> None:
    other = stack.cell.gateway("other")
    agents = Simulated(other.http, nodes=3)
    gang = job("gang", groups=[{"name": "worker", "count": 16, "min": 16, "gpus": 1}])
    ids = [gang["job"], *[client.post("/jobs", json=job()).json()["job"] for _ in range(5)]]
    assert client.post("/jobs", json=gang).status_code == 202

    def finished(by: httpx.Client) -> bool:
        return all(by.get(f"/jobs/{id}").json()["job"]["state"] == "finished" for id in ids)

    agents.until(lambda: finished(client) and finished(other.http), 60)
    answer = client.get(f"/jobs/{gang['job']}/output")
    assert answer.status_code == 503
    assert "is not at this gateway: ask another one" in answer.json()["detail"]
    other.kill()


def test_operations_are_recorded_and_the_answer_says_in_which_cycle(stack: BusStack, client: httpx.Client) -> None:
    Simulated(client, nodes=1).turn()
    until(lambda: client.get("/nodes/n0").status_code == 200, say="the node is known")
    for operation, state in (("cordon", "cordoned"), ("uncordon", ""), ("drain", "drained")):
        answer = client.post(f"/nodes/n0/{operation}")
        assert answer.status_code == 202
        assert 0 < answer.json()["cycle"] <= client.get("/state").json()["cycle"]
        assert client.get("/nodes/n0").json()["node"]["state"].partition(" ")[2] == state
    until_us = client.post("/lease/extend", json={"for_us": 3_600_000_000}).json()["until_us"]
    assert client.get("/state").json()["lease_until_us"] == until_us
    assert client.put("/policy", json={"preemption": False}).status_code == 202
    assert client.get("/state").json()["policy"]["preemption"] is False


def test_what_is_sent_while_nobody_leads_is_taken_and_waits(stack: BusStack, client: httpx.Client) -> None:
    known = client.post("/jobs", json=job("known")).json()["job"]
    assert stack.scheduler.stop() == 0
    body = job("waits")
    answer = client.post("/jobs", json=body)
    assert (answer.status_code, answer.json()) == (202, {"job": body["job"], "cycle": 0})
    many = client.post("/submissions", json=[body, job("also")]).json()
    assert [each["state"] for each in many] == ["waiting", "waiting"]
    assert client.get(f"/submissions/{body['job']}").json()["state"] == "waiting"
    assert client.get(f"/jobs/{body['job']}").status_code == 404
    assert client.post(f"/jobs/{known}/cancel").json() == {"cycle": 0}
    stack.scheduler.start()
    until(lambda: client.get(f"/submissions/{body['job']}").json()["state"] == "recorded", say="it is recorded")
    stopped = ("cancelled", "stopping")  # it may have a place on a node whose agent says nothing any more
    until(lambda: client.get(f"/jobs/{known}").json()["job"]["state"] in stopped, say="the cancellation is too")
    again = client.post("/jobs", json=body).json()
    assert again["cycle"] == client.get(f"/submissions/{body['job']}").json()["cycle"] > 0


def test_commands_read_the_log_on_kafka_as_they_read_a_folder(
    stack: BusStack, client: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    id = client.post("/jobs", json=job("by-command")).json()["job"]
    place = stack.folder
    for words, said in (
        (("jobs", "--log", place), "by-command"),
        (("job", id, "--log", place), "by-command"),
        (("nodes", "--log", place), "NODE"),
        (("at", place, "0", "jobs"), "by-command"),
        (("explain", place, "by-command"), id),
        (("log", place, "--type", "JobSubmitted"), "by-command"),
        (("fsck", place), "the log is whole"),
        (("verify", place), "every decision was legal"),
        (("audit", place), "none differs"),
    ):
        assert run(words) == 0, words
        assert said in capsys.readouterr().out, words
    assert run(("audit", "kafka://127.0.0.1:1")) == 3
    assert "no broker answers" in capsys.readouterr().err


def test_a_gateway_that_starts_anew_shows_the_same(stack: BusStack, client: httpx.Client) -> None:
    answered = client.post("/jobs", json=job("before")).json()
    before = client.get("/jobs", params={"limit": 10_000, "at": answered["cycle"]}).json()
    stack.gateway.signal(9)
    until(lambda: _answers(client), say="the gateway is started again")
    found: Any = client.get("/jobs", params={"limit": 10_000, "at": answered["cycle"]}).json()
    assert found == before
    assert client.get(f"/submissions/{answered['job']}").json()["cycle"] == answered["cycle"]


def test_scheduler_gateway_and_commands_take_tls_and_sasl_from_a_file(
    tmp_path: Path, brokers: Callable[..., Brokers], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = brokers(secure=True)
    assert run(("audit", broker.secure_address)) == 3, "without the file nobody gets in"
    monkeypatch.setenv("MUSTER_BUS_CONFIG", str(broker.client_properties))
    assert run(("bus", "create", "--bus", broker.secure_address)) == 0
    with cell(tmp_path, broker.secure_address) as made:
        scheduler = made.scheduler("scheduler")
        made.leader(scheduler)
        gateway = made.gateway()
        until(lambda: gateway.http.post("/jobs", json=job("secret")).status_code == 202, say="a job is taken")
        until(lambda: (gateway.get("/jobs", at=gateway.get("/state")["cycle"]) or {"jobs": []})["jobs"], say="the past is read")
        made.check()
        password = broker.client_properties.read_text().rpartition("=")[2].strip()
        assert scheduler.stop() == 0
        assert password not in scheduler.text + gateway.text + " ".join(scheduler.words + gateway.words)
        assert run(("recover", "--accept-loss", "--bus", broker.secure_address)) == 0
        assert "nothing is lost" in capsys.readouterr().out


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/state").status_code == 200
    except httpx.TransportError:
        time.sleep(0.1)
        return False
