"""The AsyncAPI document of the bus: it is that of the types, agrees with their schemas, and is one by AsyncAPI's own schema.

`asyncapi-3.0.0.json.gz` is that schema, as `@asyncapi/specs` has it (Apache-2.0): `3.0.0-without-$id.json`.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from muster.events.cloudevents import KINDS, key_of, to_data
from muster.events.codec import decode_input, decode_report
from muster.events.levels import NodeReport
from muster.events.schema import FOLDER, render, schemas
from muster.events.schema.asyncapi import EXAMPLES, LOG, document
from muster.events.telemetry import decode_sampled

MADE = document()
MESSAGES = {name: message for name, message in MADE["components"]["messages"].items() if name != "Record"}


def test_the_committed_document_is_that_of_the_types() -> None:
    text = (FOLDER.parent / "asyncapi.json").read_text(encoding="utf-8")
    assert text == render(MADE), "run: python -m muster.events.schema"


def test_it_is_an_asyncapi_document() -> None:
    schema = json.loads(gzip.decompress((Path(__file__).parent / "asyncapi-3.0.0.json.gz").read_bytes()))
    validator = jsonschema.Draft7Validator(schema)
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(MADE)] == []
    broken = {**MADE, "channels": {"jobs": {"address": 7}}}
    assert list(validator.iter_errors(broken))


def test_every_topic_is_there_with_every_kind_in_both_modes() -> None:
    channels = {channel["address"]: channel for channel in MADE["channels"].values()}
    assert set(channels) == {*KINDS, LOG}
    for topic, kinds in KINDS.items():
        names = [name for kind in kinds for name in (kind.__name__, f"{kind.__name__}Structured")]
        assert list(channels[topic]["messages"]) == names
        assert channels[topic]["bindings"]["kafka"]["topic"] == topic
    assert {type(event) for event in EXAMPLES} == {kind for kinds in KINDS.values() for kind in kinds}


def test_every_reference_leads_somewhere() -> None:
    references = list(_references(MADE))
    assert len(references) > 60
    for reference in references:
        file, _, place = reference.partition("#")
        if file:
            assert (FOLDER.parent / file).exists(), reference
            continue
        found: Any = MADE
        for step in place.strip("/").split("/"):
            found = found[step]


@pytest.mark.parametrize("kind", [kind.__name__ for kinds in KINDS.values() for kind in kinds])
def test_a_body_is_described_as_its_schema_says(kind: str) -> None:
    text = json.dumps({name: MADE["components"]["schemas"][name] for name in _needed(kind)})
    assert json.loads(text.replace("#/components/schemas/", "#/$defs/")) == json.loads(render(schemas()[kind]))["$defs"]


@pytest.mark.parametrize("name", MESSAGES)
def test_an_example_fits_its_description_and_is_taken(name: str) -> None:
    message = MESSAGES[name]
    (example,) = message["examples"]
    for part in ("headers", "payload"):
        described = {**message[part], "components": MADE["components"]}
        jsonschema.validate(example[part], described, jsonschema.Draft202012Validator)
    topic = next(channel["address"] for channel in MADE["channels"].values() if name in channel["messages"])
    headers = [(header, text.encode()) for header, text in example["headers"].items()]
    data = to_data(topic, headers, json.dumps(example["payload"]).encode())
    levels = {"muster.nodes": decode_report, "muster.telemetry": decode_sampled}
    event = levels[topic](data) if topic in levels else decode_input(data)[0]
    assert event in EXAMPLES
    assert isinstance(event, NodeReport) == (topic == "muster.nodes")
    assert message["bindings"]["kafka"]["key"]["examples"] == [key_of(event)]


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_described_as_needed_is_needed(name: str) -> None:
    message = MESSAGES[name]
    (example,) = message["examples"]
    topic = next(channel["address"] for channel in MADE["channels"].values() if name in channel["messages"])
    body = json.dumps(example["payload"]).encode()
    for missing in message["headers"]["required"]:
        headers = [(header, text.encode()) for header, text in example["headers"].items() if header != missing]
        assert to_data(topic, headers, body).startswith(b'["Refused"')
    if name.endswith("Structured"):
        headers = [(header, text.encode()) for header, text in example["headers"].items()]
        for missing in message["payload"]["required"]:
            less = {field: value for field, value in example["payload"].items() if field != missing}
            assert to_data(topic, headers, json.dumps(less).encode()).startswith(b'["Refused"')


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in ([each] if key == "$ref" else _references(each))]
    return [text for each in value for text in _references(each)] if isinstance(value, list) else []


def _needed(kind: str) -> list[str]:
    """The schemas that this one needs, itself among them."""
    found: dict[str, None] = {}
    todo = [kind]
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = None
            todo += [reference.rpartition("/")[2] for reference in _references(MADE["components"]["schemas"][name])]
    return list(found)
