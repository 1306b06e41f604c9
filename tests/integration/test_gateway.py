"""The gateway as a real server with real HTTP: what is acknowledged is in the log, once, and reads say what the log says."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from muster.events.codec import open_envelope
from muster.events.jobs import JobSubmitted
from muster.log.reader import read_admitted
from muster.replay.audit import audit
from tests.support.gateway import Simulated, Stack, events, job, job_id, running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with stack.client() as client:
        yield client


def submitted(folder: Path | str) -> Counter[str]:
    """How often each job stands in the log as submitted."""
    inputs = [event for envelope, _ in read_admitted(folder) for event in open_envelope(envelope).inputs]
    return Counter(event.job for event in inputs if isinstance(event, JobSubmitted))


def test_what_is_answered_with_202_stands_in_the_log(stack: Stack, client: httpx.Client) -> None:
    body = job()
    answer = client.post("/jobs", json=body)
    assert answer.status_code == 202
    assert submitted(stack.folder)[body["job"]] == 1
    assert client.post("/jobs", json=body).json() == answer.json()
    assert client.get(f"/submissions/{body['job']}").json()["cycle"] == answer.json()["cycle"]
    assert submitted(stack.folder)[body["job"]] == 1


def test_a_thousand_submissions_at_once_from_twenty_clients_that_try_again_are_a_thousand_jobs(stack: Stack) -> None:
    bodies = [[job(name=f"j-{client}-{number}") for number in range(50)] for client in range(20)]
    answers: list[tuple[str, int]] = []

    def submit(mine: list[dict[str, Any]]) -> None:
        with stack.client() as client:
            for again in (False, True):
                for body in mine:
                    answer = client.post("/jobs", json=body)
                    assert answer.status_code == 202, (again, answer.text)
                    answers.append((answer.json()["job"], answer.json()["cycle"]))

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(submit, bodies))
    ids = [body["job"] for mine in bodies for body in mine]
    assert len(answers) == 2000
    assert sorted(dict.fromkeys(answers)) == sorted(dict(answers).items()), "a repeat got another answer"
    counts = submitted(stack.folder)
    assert [counts[id] for id in ids] == [1] * 1000


def test_many_submissions_in_one_request_are_answered_each(client: httpx.Client) -> None:
    bodies = [job(name=f"many-{number}") for number in range(30)]
    old = job(id="01000000-0000-7000-8000-000000000000")
    answer = client.post("/submissions", json=[*bodies, old])
    assert answer.status_code == 202
    assert [each["state"] for each in answer.json()] == ["recorded"] * 30 + ["refused"]
    assert "old" in answer.json()[-1]["reason"]
    wrong = client.post("/submissions", json=[bodies[0], {**bodies[1], "job": "-"}])
    assert (wrong.status_code, wrong.json()["field"]) == (422, "[1]")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 422, "no JSON object"),
        (b'{"job":"a"},{}', 422, "not an entry"),
        (b'{"job":"a","job":"a","name":"n","user":"u","request":{"groups":[{}]}}', 422, "stands twice"),
        (b'{"job":"a","name":"UPPER","user":"u","request":{"groups":[{}]}}', 422, "name"),
        (b'{"job":"a","name":"n","user":"u","request":{"groups":[{"gpus":65}]}}', 422, "request.groups"),
        (b'{"job":"01000000-0000-7000-8000-000000000000","name":"n","user":"u","request":{"groups":[{}]}}', 422, "old"),
        (b'{"job":"' + b"a" * 300_000 + b'"}', 413, "bytes"),
    ],
)
def test_what_is_no_job_is_refused_with_a_sentence(client: httpx.Client, body: bytes, status: int, said: str) -> None:
    answer = client.post("/jobs", content=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]
    assert answer.json()["status"] == status


def test_reads_say_what_was_at_a_cycle(client: httpx.Client) -> None:
    first = client.post("/jobs", json=job(name="early", user="eve")).json()
    second = client.post("/jobs", json=job(name="late", user="eve")).json()
    client.post(f"/jobs/{first['job']}/cancel")

    def names(**query: Any) -> list[str]:
        return [row["name"] for row in client.get("/jobs", params={"user": "eve", **query}).json()["jobs"]]

    assert names() == ["early", "late"]
    assert names(at=first["cycle"]) == ["early"]
    assert names(at=first["cycle"] - 1) == []
    assert names(state="pending") == ["late"]
    assert client.get(f"/jobs/{first['job']}").json()["job"]["state"] == "cancelled"
    assert client.get(f"/jobs/{first['job']}", params={"at": second["cycle"]}).json()["job"]["state"] == "pending"
    assert client.get(f"/jobs/{second['job']}", params={"at": first["cycle"]}).status_code == 404
    explained = client.get(f"/jobs/{second['job']}/explain", params={"at": second["cycle"]}).json()
    assert explained["cycle"] == second["cycle"]
    advised = client.get(f"/jobs/{second['job']}/explain", params={"advise": "true"}).json()
    assert isinstance(advised["advice"], list)
    assert client.get(f"/jobs/{second['job']}/why-not/nowhere").status_code == 404
    licences = client.put("/licences", json={"licences": {"solver": 3}})
    assert licences.status_code == 202
    assert client.put("/licences", json={"licences": {"solver": -1}}).status_code == 422
    assert client.get("/state", params={"at": 2}).json()["cycle"] == 2
    assert client.get("/state", params={"at": 10**9}).status_code == 404


def test_a_follower_of_the_log_misses_nothing_and_gets_nothing_twice(client: httpx.Client) -> None:
    before = client.get("/state").json()["cycle"]
    ids = [client.post("/jobs", json=job(name="followed")).json()["job"] for _ in range(3)]
    with client.stream("GET", "/log", params={"from": before + 1}) as response:
        old = events(response, 3)
    more: list[str] = []
    with client.stream("GET", "/log", headers={"Last-Event-ID": old[0]["id"]}) as response:
        late = threading.Timer(0.2, lambda: more.append(httpx.post(f"{client.base_url}jobs", json=job()).json()["job"]))
        late.start()
        seen = [event for event in events(response, 3) if event["kind"] == "JobSubmitted"]
        late.join()
    assert [event["body"]["job"] for event in old if event["kind"] == "JobSubmitted"] == ids
    assert [event["body"]["job"] for event in seen] == [*ids[1:], *more]


def test_agents_over_http_run_jobs_and_whoever_watches_a_job_sees_its_life(tmp_path: Path) -> None:
    with running(tmp_path) as stack, stack.client() as client:
        agents = Simulated(client, nodes=3)
        gang = job("gang", groups=[{"name": "worker", "count": 16, "min": 16, "gpus": 1}])
        ids = [gang["job"], *[client.post("/jobs", json=job()).json()["job"] for _ in range(5)]]
        assert client.post("/jobs", json=gang).status_code == 202
        agents.until(lambda: all(client.get(f"/jobs/{id}").json()["job"]["state"] == "finished" for id in ids))
        with client.stream("GET", f"/jobs/{gang['job']}/events") as response:
            kinds = [event["kind"] for event in events(response, 19)]
        assert kinds[:2] == ["JobSubmitted", "InstanceBound"]
        assert Counter(kinds)["TaskReady"] == 16
        assert "InstanceStarted" in kinds
        assert client.get(f"/jobs/{gang['job']}/output", params={"rank": 16}).status_code == 404
        assert stack.stop() == 0
    assert audit(tmp_path).difference is None


def test_the_assignment_has_what_a_task_needs(tmp_path: Path) -> None:
    with running(tmp_path) as stack, stack.client() as client:
        agents = Simulated(client, nodes=2, gpus=4)
        agents.turn()
        groups = [{"name": "head", "count": 1, "cpu_milli": 1000}, {"name": "worker", "count": 8, "min": 8, "gpus": 1}]
        body = job("gang", groups=groups, command=("train", "--fast"), queue="default")
        client.post("/jobs", json=body)
        tasks: dict[int, Any] = {}
        for name in ("n0", "n1"):
            told = client.get(f"/nodes/{name}/assignment", params={"uid": f"uid-{name[1]}"}).json()
            assert (told["uid"], told["boot"]) == (f"uid-{name[1]}", f"uid-{name[1]}-boot1")
            assert told["now_us"] >= told["at_us"]
            tasks.update({task["rank"]: {**task, "node": name} for task in told["tasks"]})
        assert sorted(tasks) == list(range(9))
        assert [tasks[rank]["group"] for rank in range(9)] == ["head", *["worker"] * 8]
        assert [tasks[rank]["group_rank"] for rank in range(9)] == [0, *range(8)]
        ranks = tasks[0]["ranks"]
        assert (ranks["world_size"], sum(ranks["ranks_per_node"])) == (9, 9)
        assert all(task["ranks"] == ranks for task in tasks.values())
        for node, count in zip(ranks["nodes"], ranks["ranks_per_node"], strict=True):
            assert sorted(task["local_rank"] for task in tasks.values() if task["node"] == node) == list(range(count))
        assert tasks[3]["run"]["command"] == ["train", "--fast"]
        assert len(tasks[3]["device_uuids"]) == 1
        assert tasks[0]["master"] is None


def test_a_second_agent_of_a_name_is_refused_while_the_first_is_heard_and_both_are_told(tmp_path: Path) -> None:
    with running(tmp_path) as stack, stack.client() as client:
        agents = Simulated(client, nodes=1)
        agents.turn()
        first = agents.fleet.agents["n0"]
        rival = Simulated(client, nodes=1).fleet.agents["n0"]
        rival.uid = "uid-rival"
        refused = client.post("/nodes/n0/reports", content=rival.report(0))
        assert refused.status_code == 409
        assert "uid-0" in refused.json()["detail"]
        assert client.get("/nodes/n0/assignment", params={"uid": "uid-rival"}).status_code == 409
        assert "uid-rival" in client.post("/nodes/n0/reports", content=first.report(0)).json()["warning"]
        assert client.get("/nodes/n0").json()["uid"] == "uid-0"


def test_a_poll_waits_for_a_change_of_its_own_node(tmp_path: Path) -> None:
    with running(tmp_path) as stack, stack.client() as client:
        agents = Simulated(client, nodes=2)
        agents.turn()
        agents.turn()
        after = [agents.fleet.agents[f"n{n}"].applied for n in range(2)]
        assert client.get("/nodes/n0/assignment", params={"after": after[0], "uid": "uid-0", "wait": 0.2}).status_code == 204
        assert client.get("/nodes/nobody/assignment").status_code == 404
        with ThreadPoolExecutor(2) as pool:
            waits = [
                pool.submit(client.get, f"/nodes/n{n}/assignment", params={"after": after[n], "uid": f"uid-{n}", "wait": 2})
                for n in range(2)
            ]
            time.sleep(0.3)
            client.post("/jobs", json=job())
            first, second = sorted([wait.result() for wait in waits], key=lambda answer: answer.status_code)
        assert (first.status_code, second.status_code) == (200, 204)
        assert len(first.json()["tasks"]) == 1


def test_output_comes_from_the_agent_that_has_it(tmp_path: Path) -> None:
    with running(tmp_path) as stack, stack.client() as client:
        agents = Simulated(client, nodes=1)
        agents.turn()
        id = client.post("/jobs", json=job()).json()["job"]
        agents.until(lambda: client.get(f"/jobs/{id}").json()["job"]["state"] == "finished")
        stack.kill()  # a gateway that starts anew looks up in the log where the attempt was
        with running(tmp_path) as again, again.client() as client, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(client.get, f"/jobs/{id}/output", params={"stream": "stderr", "offset": 2})
            wanted: list[dict[str, Any]] = []
            end = time.monotonic() + 10
            while not wanted and time.monotonic() < end:
                told = client.get("/nodes/n0/assignment", params={"after": 10**6, "uid": "uid-0", "wait": 0.2})
                wanted = told.json()["wanted"] if told.status_code == 200 else []
            (want,) = wanted
            assert (want["job"], want["rank"], want["stream"], want["offset"]) == (id, 0, "stderr", 2)
            place = f"/nodes/n0/output/{want['id']}"
            assert client.post(place, params={"offset": 2}, content=b"hello ").status_code == 204
            assert client.post(place, params={"offset": 5}, content=b"lo wor").status_code == 204
            assert client.post(place, params={"offset": 99}, content=b"?").status_code == 409
            assert client.post(place, params={"offset": 11, "end": True}, content=b"ld").status_code == 204
            assert reading.result().content == b"hello world"
            assert client.post(place, params={"offset": 13}, content=b"!").status_code == 410


def test_operators_cordon_drain_fence_extend_and_set_the_policy(tmp_path: Path) -> None:
    with running(tmp_path) as stack, stack.client() as client:
        Simulated(client, nodes=1).turn()
        for operation, state in (("cordon", "heard cordoned"), ("uncordon", "heard"), ("drain", "heard drained")):
            assert client.post(f"/nodes/n0/{operation}").status_code == 202
            assert client.get("/nodes/n0").json()["node"]["state"] == state
        assert client.post("/nodes/n9/cordon").status_code == 404
        assert client.post("/nodes/n0/explode").status_code == 404
        until_us = client.post("/lease/extend", json={"for_us": 3_600_000_000}).json()["until_us"]
        assert client.get("/state").json()["lease_until_us"] == until_us
        for body, field in (({"for_us": 0}, "for_us"), ({"for_us": 1, "by": "me"}, None), ([], None)):
            wrong = client.post("/lease/extend", json=body)
            assert (wrong.status_code, wrong.json().get("field")) == (422, field)
        assert client.put("/policy", json={"preemption": False}).status_code == 202
        assert client.get("/state").json()["policy"]["preemption"] is False
        unknown = client.put("/policy", json={"filters": ["nonsense"]})
        assert unknown.status_code == 422
        assert "nonsense" in unknown.json()["detail"]


def test_a_page_of_another_site_is_turned_away(client: httpx.Client) -> None:
    assert client.get("/state", headers={"Host": "evil.example"}).status_code == 403
    assert client.post("/jobs", json=job(), headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.get("/state", headers={"Host": "localhost:1", "Origin": "http://localhost:1"}).status_code == 200


def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    acknowledged: dict[str, int] = {}
    sent: list[dict[str, Any]] = []

    def submit() -> None:
        with stack.client() as client:
            while True:
                body = job()
                sent.append(body)
                try:
                    answer = client.post("/jobs", json=body)
                except httpx.TransportError:
                    return
                acknowledged[body["job"]] = answer.json()["cycle"]

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(acknowledged) <= 20 and any(thread.is_alive() for thread in threads):
        time.sleep(0.01)
    stack.kill()
    for thread in threads:
        thread.join()
    assert len(acknowledged) > 20
    with running(tmp_path) as again, again.client() as client:
        assert client.get("/state").json()["term"] == 2
        for id, cycle in acknowledged.items():
            assert client.get(f"/submissions/{id}").json() == {"job": id, "cycle": cycle, "state": "recorded", "reason": ""}
        for body in sent:
            assert client.post("/jobs", json=body).status_code == 202
    assert sorted(submitted(tmp_path).items()) == sorted((body["job"], 1) for body in sent)


def test_ids_that_never_came_are_not_known(client: httpx.Client) -> None:
    assert client.get(f"/submissions/{job_id()}").status_code == 404
    assert client.get("/jobs/nothing/events").status_code == 404
    assert client.get("/nodes/nothing").json()["title"] == "Not Found"


def test_the_api_describes_itself(client: httpx.Client) -> None:
    document = client.get("/schema/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/JobSubmitted"}
    assert "pattern" in document["components"]["schemas"]["JobSubmitted"]["properties"]["name"]
