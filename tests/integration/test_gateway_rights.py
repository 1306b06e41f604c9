"""Who may do what with a token: every operation of the OpenAPI document, asked as every role that has no right to it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode

from muster.gateway.app import litestar
from muster.gateway.tokens import Tokens
from muster.simulator.agents import Behaviour
from tests.support.gateway import Simulated, job, running

LOOK = settings(max_examples=4, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
ADA = "rights-ada"
NAMES = {
    "queue": "red",
    "reservation": "night",
    "node": "n0",
    "job": ADA,
    "name": "n0",
    "operation": "drain",
    "wanted": "nothing",
}
READS = (
    "GET /v1/elements",
    "GET /v1/jobs",
    "GET /v1/jobs/{job}",
    "GET /v1/jobs/{job}/eta",
    "GET /v1/jobs/{job}/events",
    "GET /v1/jobs/{job}/explain",
    "GET /v1/jobs/{job}/output",
    "GET /v1/jobs/{job}/why-not/{node}",
    "GET /v1/catalogue",
    "GET /v1/nodes",
    "GET /v1/nodes/{name}",
    "GET /v1/queues",
    "GET /v1/reservations",
    "GET /v1/state",
    "GET /v1/submissions/{job}",
)
SUBMITS = (
    "POST /v1/jobs",
    "POST /v1/submissions",
    "POST /v1/jobs/{job}/cancel",
    "POST /v1/jobs/{job}/priority",
    "PUT /v1/jobs/{job}",
    "POST /v1/jobs/{job}/scale",
    "POST /v1/jobs/{job}/metric",
    "POST /v1/jobs/{job}/rollback",
    "POST /v1/jobs/{job}/resize",
    "POST /v1/jobs/{job}/checkpoint",
)
OPERATES = (
    "POST /v1/lease/extend",
    "POST /v1/nodes/{name}/{operation}",
    "PUT /v1/policy",
    "PUT /v1/licences",
    "PUT /v1/catalogue",
    "PUT /v1/queues/{queue}",
    "DELETE /v1/queues/{queue}",
    "PUT /v1/reservations/{reservation}",
    "DELETE /v1/reservations/{reservation}",
)
AGENTS = ("POST /v1/nodes/{name}/reports", "GET /v1/nodes/{name}/assignment", "POST /v1/nodes/{name}/output/{wanted}")
MAY: dict[str, tuple[str, ...]] = {
    "nobody": (),
    "stranger": (),
    "read": (*READS, "GET /v1/log"),
    "submit": (*READS, *SUBMITS),
    "operate": (*READS, *SUBMITS, *OPERATES, "GET /v1/log"),
    "agent": (),
    "agent of the node": AGENTS,
}
"""By whoever asks: the operations that are not closed to them as such. `submit` is bob's, and all jobs here are ada's."""
OF_ADAS_JOB = tuple(name for name in (*READS, *SUBMITS) if "{job}" in name)
OPERATIONS = [
    f"{method.upper()} {path}" for path, item in litestar(None).openapi_schema.to_schema()["paths"].items() for method in item
]


@dataclass
class Guarded:
    """A stack that takes no request without a token, and a token of each kind."""

    url: str
    client: httpx.Client
    schema: Any
    tokens: dict[str, str]

    def get(self, path: str) -> Any:
        """What an operator reads."""
        return self.client.get(path, headers=self.headers("operate")).raise_for_status().json()

    def headers(self, who: str) -> dict[str, str]:
        """With the token of this one."""
        return {"Authorization": f"Bearer {self.tokens[who]}"} if self.tokens[who] else {}

    def world(self) -> Any:
        """All that somebody without a right might have changed."""
        node = self.get("/nodes/n0")
        return {
            "policy": self.get("/state")["policy"],
            "lease": self.get("/state")["lease_until_us"],
            "jobs": self.get("/jobs")["jobs"],
            "node": [node["node"]["state"].split()[1:], node["uid"], node["spec"], node["held"]],
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("rights")
    with running(folder, tokens=True) as stack, stack.client() as client:
        book = Tokens(folder)
        tokens = {
            "nobody": "",
            "stranger": "muster_0123456789ab_" + "x" * 43,
            "read": book.create("read", rate=10_000)[1],
            "submit": book.create("submit", user="bob", queues=("default",), priority_max=10, rate=10_000)[1],
            "operate": book.create("operate", rate=10_000)[1],
            "agent": book.create("agent", nodes=("n9",))[1],
            "agent of the node": book.create("agent", nodes=("n0",))[1],
        }
        with stack.client(tokens["operate"]) as operator, stack.client(tokens["agent of the node"]) as agent:
            schema = schemathesis.openapi.from_dict(operator.get("/schema/openapi.json").json())
            assert operator.post("/jobs", json=job("adas", id=ADA, groups=[{"gpus": 1}])).status_code == 202
            agents = Simulated(agent, nodes=1, behaviour=Behaviour(runtime_us=3_600_000_000))
            agents.until(lambda: operator.get("/nodes/n0").json().get("held"))
            long = {"for_us": 3_600_000_000}  # nobody reports from here on, and the node is not to be lost for that
            assert operator.post("/lease/extend", json=long).status_code == 202
        yield Guarded(stack.url, client, schema, tokens)
        assert stack.stop() == 0


@pytest.mark.parametrize("who", MAY)
def test_nothing_is_read_or_changed_without_the_right(guarded: Guarded, who: str) -> None:
    before = guarded.world()
    for operation in OPERATIONS:
        if operation not in MAY[who] or (who == "submit" and operation in OF_ADAS_JOB):
            _closed(guarded, who, operation)
    assert guarded.world() == before


def _closed(guarded: Guarded, who: str, operation: str) -> None:
    """Whatever is sent to the operation, this one is turned away."""
    method, path = operation.split()
    place = re.sub(r"{(\w+)}", lambda match: NAMES[match[1]], path)

    @seed(3)
    @LOOK
    @given(guarded.schema[path][method].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def ask(case: Case[Any]) -> None:
        body = case.as_transport_kwargs(base_url=guarded.url).get("json")
        answer = guarded.client.request(method, guarded.url + place, json=body, headers=guarded.headers(who))
        refusals = {"nobody": (401,), "stranger": (401, 429)}.get(who, (403, 404))
        assert answer.status_code in refusals, (operation, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert "adas" not in answer.text

    ask()


@pytest.mark.parametrize("who", [who for who, may in MAY.items() if may])
def test_what_a_role_may_do_is_not_closed_to_it(guarded: Guarded, who: str) -> None:
    for operation in MAY[who]:
        method, path = operation.split()
        if method == "GET" and not (who == "submit" and operation in OF_ADAS_JOB):
            place = re.sub(r"{(\w+)}", lambda match: NAMES[match[1]], path)
            query = {"until": 1, "from": 1} if path.endswith("/log") else {"wait": 0} if path.endswith("/assignment") else {}
            with guarded.client.stream(method, guarded.url + place, params=query, headers=guarded.headers(who)) as answer:
                assert answer.status_code in (200, 204, 409), (operation, answer.status_code)  # 409: the uid is not said


def test_a_user_sees_of_others_neither_jobs_nor_what_they_hold(guarded: Guarded) -> None:
    bob = guarded.headers("submit")
    assert guarded.client.get("/jobs", headers=bob).json()["jobs"] == []
    for path in ("/jobs", "/elements"):
        assert guarded.client.get(path, params={"id": ADA}, headers=bob).json()["jobs"] == []
        assert len(guarded.client.get(path, params={"id": ADA}, headers=guarded.headers("read")).json()["jobs"]) == 1
    assert guarded.client.get("/jobs", params={"user": "ada"}, headers=bob).json()["jobs"] == []
    assert guarded.client.get("/nodes/n0", headers=bob).json()["held"] == []
    assert guarded.get("/nodes/n0")["held"][0]["job"] == ADA
    past = {"at": guarded.get("/state")["cycle"]}
    assert guarded.client.get("/jobs", params=past, headers=bob).json()["jobs"] == []
    assert guarded.client.get(f"/jobs/{ADA}", params=past, headers=bob).status_code == 404
    assert guarded.client.get("/nodes/n0", params=past, headers=bob).json()["held"] == []


def test_whoever_has_no_token_keeps_nobody_out_who_has_one(guarded: Guarded) -> None:
    wrong = [guarded.client.get("/state", headers=guarded.headers("stranger")).status_code for _ in range(200)]
    assert set(wrong) <= {401, 429}
    assert guarded.client.get("/state", headers=guarded.headers("read")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"user": "ada"}, "user"),
        ({"queue": "other"}, "queue"),
        ({"priority": 11}, "request.priority"),
        ({"after": [{"job": ADA}]}, "request.after"),
    ],
)
def test_a_user_submits_as_nobody_else_nowhere_else_no_higher_and_after_nobody_elses(
    guarded: Guarded, fields: dict[str, Any], field: str
) -> None:
    bob = guarded.headers("submit")
    body = job("bobs", **{"user": "bob", **fields})
    for answer in (
        guarded.client.post("/jobs", json=body, headers=bob),
        guarded.client.post("/submissions", json=[job("fine", user="bob"), body], headers=bob),
    ):
        assert (answer.status_code, answer.json()["field"]) == (403, field)
    assert all(row["user"] == "ada" for row in guarded.get("/jobs")["jobs"])


def test_the_id_of_anothers_job_is_neither_told_nor_taken(guarded: Guarded) -> None:
    bob = guarded.headers("submit")
    assert guarded.client.get(f"/submissions/{ADA}", headers=bob).status_code == 404
    answer = guarded.client.post("/jobs", json=job("bobs", id=ADA, user="bob"), headers=bob)
    assert (answer.status_code, answer.json()["field"]) == (409, "job")
    assert guarded.get(f"/jobs/{ADA}")["job"]["user"] == "ada"
