"""The gateway does what its OpenAPI document says: schemathesis sends to every operation what fits it and what does not.

A real server answers over real HTTP, from a fixed seed. Names in paths are often those of jobs and nodes that there are, so
that more than 404 is answered. With tokens on, the same requests show what each role may see and change.
"""

import json as json_text
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.config import PositiveDataAcceptanceConfig

from muster.gateway.app import litestar
from muster.replay.audit import audit
from tests.support.gateway import Simulated, Stack, job, running

EXAMPLES = 10
LOOK = settings(
    max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
ENDLESS_S = 0.1
"""What goes on and on is looked at for so long."""
JOBS = ("schema-1", "schema-2", "schema-3")
SERVICES = {
    "PUT /v1/jobs/{job}": "schema-4",
    "POST /v1/jobs/{job}/scale": "schema-4",
    "POST /v1/jobs/{job}/rollback": "schema-4",
    "POST /v1/jobs/{job}/metric": "schema-5",
}
"""What only services take, and a service that takes it."""
REAL = {
    "job": st.sampled_from(JOBS),
    "name": st.just("n0"),
    "node": st.just("n0"),
    "operation": st.sampled_from(["cordon", "uncordon", "drain"]),
    "queue": st.sampled_from(["schema", "other"]),
    "reservation": st.just("night"),
    "wanted": st.just("nothing"),
}
REFUSED = (400, 401, 403, 404, 409, 410, 411, 413, 422, 429)


def _operations() -> list[str]:
    paths = litestar(None).openapi_schema.to_schema()["paths"]
    return [f"{method.upper()} {path}" for path, item in paths.items() for method in item]


OPERATIONS = _operations()
ENDLESS = ("GET /v1/log", "GET /v1/jobs/{job}/events", "GET /v1/jobs/{job}/output", "GET /v1/nodes/{name}/assignment")
NEVER_WRONG = (
    "GET /v1/jobs/{job}/events",
    "GET /v1/submissions/{job}",
    "POST /v1/nodes/{name}/{operation}",
    "DELETE /v1/queues/{queue}",
    "DELETE /v1/reservations/{reservation}",
    "POST /v1/jobs/{job}/rollback",
)
"""They take text in their path and nothing else: there is no request that their schema forbids."""


@dataclass
class Described:
    """A stack, what it says of itself, and how often each operation answered what."""

    stack: Stack
    client: httpx.Client
    schema: Any
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)

    def ask(self, operation: str, case: Case[Any], token: str = "") -> schemathesis.Response | None:
        """Send the request; None if nothing was answered in the time for which what is endless is looked at."""
        told = case.as_transport_kwargs(base_url=self.stack.url)
        headers = {**dict(told["headers"]), **({"Authorization": f"Bearer {token}"} if token else {})}
        body = json_text.dumps(told["json"]).encode() if "json" in told else told.get("data") or b""
        query = urlencode(told.get("params") or {}, doseq=True)
        url = told["url"] + (f"?{query}" if query else "")
        patience = httpx.Timeout(ENDLESS_S if operation in ENDLESS else 35, connect=5, pool=5)
        request = self.client.build_request(told["method"], url, headers=headers, content=body, timeout=patience)
        data = b""
        try:
            answer = self.client.send(request, stream=True)
            try:
                for chunk in answer.iter_raw():
                    data += chunk
            except httpx.ReadTimeout:
                assert operation in ENDLESS
            finally:
                answer.close()
        except httpx.ReadTimeout:
            assert operation in ENDLESS, f"{operation} does not answer"
            return None
        self.answers[operation, answer.status_code] += 1
        whole = httpx.Response(answer.status_code, headers=answer.headers, content=data, request=request)
        whole.elapsed = answer.elapsed
        return schemathesis.Response.from_httpx(whole, verify=False)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    folder = tmp_path_factory.mktemp("schema")
    with running(folder) as stack, stack.client() as client:
        agents = Simulated(client, nodes=1)
        agents.turn()
        for id in JOBS:
            assert client.post("/jobs", json=job("known", id=id, groups=[{"count": 2, "gpus": 3}])).status_code == 202
        agents.turn()
        for id, service in (("schema-4", {}), ("schema-5", {"autoscale": {"metric": "load", "target_milli": 1, "max": 2}})):
            wanted = {"groups": [{"gpus": 1}], "service": service}
            assert client.post("/jobs", json={**job("served", id=id), "request": wanted}).status_code == 202
            assert client.put(f"/jobs/{id}", json={"request": wanted | {"labels": {"v": "2"}}}).status_code == 202
        schema = schemathesis.openapi.from_dict(client.get("/schema/openapi.json").json())
        # What no schema says: the id is of today, a report is of the node in its path, a list fits what it speaks of.
        taken = PositiveDataAcceptanceConfig(expected_statuses=["2xx", "404", "409", "410", "422"])
        schema.config.checks.update(included_check_names=None)
        schema.config.checks.positive_data_acceptance = taken
        yield Described(stack, client, schema)
        assert client.get("/state").json()["cycle"] > 1
        assert stack.stop() == 0
    assert audit(folder).difference is None


def _operation(schema: Any, operation: str) -> Any:
    method, path = operation.split()
    return schema[path][method]


def _with_names(case: Case[Any], names: dict[str, str] | None) -> None:
    for key in (case.path_parameters or {}) if names else ():
        assert names is not None
        case.path_parameters[key] = names[key]


def _plain(value: Any) -> Any:
    """Whole numbers without a point: JSON Schema takes 2.0 for one, and the gateway does not."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_fits_the_document_is_answered_as_the_document_says(described: Described, operation: str) -> None:
    @seed(1)
    @LOOK
    @given(
        case=_operation(described.schema, operation).as_strategy(generation_mode=GenerationMode.POSITIVE),
        names=st.one_of(st.none(), st.fixed_dictionaries(REAL)),
    )
    def look(case: Case[Any], names: dict[str, str] | None) -> None:
        _with_names(case, names)
        body = _plain(case.body)
        if names and operation in SERVICES:
            _with_names(case, {"job": SERVICES[operation]})
            body = {"request": {"groups": [{"gpus": 1}], "service": {}}} if operation.startswith("PUT") else body
            body = {"value_milli": body["value_milli"]} if operation.endswith("/metric") else body
        case.body = {**body, "node": "n0"} if names and operation.endswith("/reports") else body
        if names and operation.startswith("PUT /v1/reservations"):
            case.body = {"nodes": ["n0"], "for_us": 3_600_000_000, "user": "ada"}
        if operation.endswith("/assignment"):
            case.query["wait"] = 0
        if names and operation.endswith("/output"):
            case.query.clear()
        if (answer := described.ask(operation, case)) is not None:
            case.validate_response(answer)

    look()


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each not in NEVER_WRONG])
def test_what_does_not_fit_the_document_is_refused_as_the_document_says(described: Described, operation: str) -> None:
    @seed(2)
    @LOOK
    @given(_operation(described.schema, operation).as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def look(case: Case[Any]) -> None:
        if (answer := described.ask(operation, case)) is not None:
            if answer.status_code != 413:  # which says nothing of what is in it
                case.validate_response(answer)
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == ["application/problem+json"]
                problem = answer.json()
                assert (problem["status"], bool(problem["title"]), bool(problem["detail"])) == (answer.status_code, True, True)

    look()


def test_every_operation_was_answered_well_and_badly(described: Described) -> None:
    answers = described.answers
    if len({operation for operation, _ in answers}) < len(OPERATIONS):
        pytest.skip("only with the tests before this one")
    for operation in OPERATIONS:
        well = sum(count for (name, status), count in answers.items() if name == operation and status < 300)
        badly = sum(count for (name, status), count in answers.items() if name == operation and status >= 400)
        assert well or operation == "POST /v1/nodes/{name}/output/{wanted}", operation  # nobody waits for output here
        assert badly, operation


@pytest.mark.parametrize("operation", OPERATIONS)
def test_another_method_is_refused(described: Described, operation: str) -> None:
    template = operation.split()[1]
    path = re.sub(r"{(\w+)}", lambda match: {"job": JOBS[0], "name": "n0"}.get(match[1], "x"), template)
    for method in ("PATCH", "DELETE", "TRACE", "PROPFIND"):
        if f"{method} {template}" in OPERATIONS:
            continue
        answer = described.client.request(method, described.stack.url + path)
        assert (answer.status_code, answer.headers["content-type"]) == (405, "application/problem+json")


def test_every_reference_of_the_document_leads_somewhere(described: Described) -> None:
    text = described.client.get("/schema/openapi.json").text
    found = set(re.findall(r'"\$ref":\s*"#/components/schemas/([^"]+)"', text))
    assert found <= set(json_text.loads(text)["components"]["schemas"])
