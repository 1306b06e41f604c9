"""Many clients that ask again, and two agents that claim one name, against a real `muster up` and a real cell on Kafka."""

import contextlib
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from muster.events.codec import open_envelope
from muster.events.decisions import InstanceBound
from muster.events.jobs import JobSubmitted
from muster.events.record import Cycle
from muster.log.reader import read_admitted
from muster.replay.audit import audit
from muster.verify import verify
from tests.support.agents import Node
from tests.support.bus_up import BusUp
from tests.support.cell import free_port
from tests.support.gateway import Simulated, job
from tests.support.kafka import bus_broker
from tests.support.up import Up, until, up

CLIENTS = 20
EACH = 50


def submit(stack: Up, bodies: list[dict[str, Any]], answers: dict[str, int], tries: Counter[str]) -> None:
    """Submit each until it is acknowledged, and then once more."""
    with stack.client(10.0) as client:
        for again in (False, True):
            for body in bodies:
                while True:
                    try:
                        answer = client.post("/jobs", json=body)
                    except httpx.TransportError:
                        tries["not answered"] += 1
                        continue
                    if answer.status_code < 500:
                        break
                    tries["answered later"] += 1
                assert answer.status_code == 202, answer.text
                cycle = answer.json()["cycle"]
                known = answers[body["job"]] = answers.get(body["job"]) or cycle
                assert cycle in (known, 0), f"another answer to the same, {again}"  # 0: it is on the bus, and recorded later


def has_many(answers: dict[str, int], least: int) -> bool:
    """Whether so many were acknowledged."""
    return len(answers) >= least


def test_a_thousand_at_once_from_twenty_clients_are_a_thousand_jobs_each_bound_once_although_the_scheduler_dies(
    tmp_path: Path,
) -> None:
    with up(tmp_path / "up", "--no-agent") as stack:
        cycles = many_at_once(stack, stack.folder)
    assert len([cycle for cycle in cycles if cycle.started is not None]) == 3


def test_the_same_holds_on_kafka_although_all_schedulers_and_gateways_die(tmp_path: Path) -> None:
    with (
        bus_broker(tmp_path / "brokers") as broker,
        contextlib.closing(BusUp(tmp_path / "up", broker.address, (free_port(), free_port()))) as stack,
    ):
        stack.start()
        cycles = many_at_once(stack, broker.address)
    assert len([cycle for cycle in cycles if cycle.started is not None]) >= 3


def many_at_once(stack: Up, log: Path | str) -> list[Cycle]:
    """All of it, with two deaths of whatever schedules and answers; the cycles of the log, which is in order."""
    bodies = [[job(name=f"j-{client}-{number}") for number in range(EACH)] for client in range(CLIENTS)]
    answers: dict[str, int] = {}
    tries: Counter[str] = Counter()
    with stack.ready() as client, ThreadPoolExecutor(CLIENTS) as pool:
        agents = Simulated(client, nodes=16, gpus=64)
        agents.turn()
        running = [pool.submit(submit, stack, mine, answers, tries) for mine in bodies]
        led = 0
        for share in (0.2, 0.6):
            until(partial(has_many, answers, min(max(int(share * CLIENTS * EACH), led), CLIENTS * EACH)))
            for item in stack.schedulers():
                os.kill(item.pid, signal.SIGKILL)
            led = len(answers) + CLIENTS + 1  # more than were under way: a successor has recorded some
        for each in running:
            each.result()
        all_over = {"finished": CLIENTS * EACH}
        agents.until(lambda: client.get("/queues").json()["queues"][0]["instances"] == all_over, 200)
        assert stack.stop() == 0
    cycles = [open_envelope(envelope) for envelope, _ in read_admitted(log)]
    submitted = Counter(event.job for cycle in cycles for event in cycle.inputs if isinstance(event, JobSubmitted))
    bound = Counter(event.job for cycle in cycles for event in cycle.decisions if isinstance(event, InstanceBound))
    ids = [body["job"] for mine in bodies for body in mine]
    assert submitted == bound == Counter(ids)
    assert audit(log).difference is None
    assert list(verify(cycles)) == []
    assert tries["not answered"] > 0, "no client had to ask again"
    return cycles


def test_of_two_agents_with_one_name_the_second_runs_nothing_and_both_say_so(tmp_path: Path) -> None:
    with up(tmp_path / "up", "--no-agent") as stack, stack.ready() as client:
        url = stack.url.removesuffix("/v1")
        first, second = [Node(url, tmp_path / name, "--devices", "2xH100-80GB", name="twin") for name in ("first", "second")]
        try:
            first.start()
            until(lambda: client.get("/nodes").json()["nodes"])
            second.start()
            uids = [(tmp_path / "first" / "uid").read_text(), until(lambda: read(tmp_path / "second" / "uid"))]
            until(lambda: f"another agent, with uid {uids[0]}, has the name twin and is heard" in second.said.read_text())
            until(lambda: f"another agent, with uid {uids[1]}, claims the name twin and was refused" in first.said.read_text())
            assert client.get("/nodes/twin").json()["uid"] == uids[0]
            gang = job("gang", groups=[{"count": 2, "min": 2, "gpus": 1}], command=("true",))
            assert client.post("/jobs", json=gang).status_code == 202
            until(lambda: client.get(f"/jobs/{gang['job']}").json()["job"]["state"] == "finished")
            assert (tmp_path / "first" / "output" / gang["job"]).exists()
            assert not (tmp_path / "second" / "output" / gang["job"]).exists()
        finally:
            first.end()
            second.end()
        assert stack.stop() == 0


def read(path: Path) -> str:
    """The text of a file; empty where there is none."""
    return path.read_text() if path.exists() else ""
