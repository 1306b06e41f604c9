"""Older versions of a kind are read through numbered steps; planted here, for there is no older version yet."""

from typing import Any

import pytest

from muster.events.codec import Malformed, UnknownKind
from muster.events.edge import Edge
from muster.events.entries import Entries
from muster.events.jobs import JobReprioritised
from muster.events.operations import EntryQuarantined
from muster.events.registry import INPUTS, KINDS, VERSIONS
from muster.events.upcast import STEPS, Body, upcast

KIND = "JobReprioritised"


def one_to_two(body: Body) -> Body:
    """Version 1 said `id`."""
    rest = {key: value for key, value in body.items() if key != "id"}
    return {"job": body["id"], **rest}


def two_to_three(body: Body) -> Body:
    """Version 2 knew classes."""
    return {**body, "priority": {"low": -10, "high": 10}[body["priority"]]}


STEPS_PLANTED = {(KIND, 1): one_to_two, (KIND, 2): two_to_three}


@pytest.fixture(scope="module")
def entries() -> Entries:
    return Entries(KINDS, {**VERSIONS, KIND: 3}, STEPS_PLANTED)


@pytest.mark.parametrize(
    ("data", "by"),
    [
        (b'["JobReprioritised",1,{"id":"a","priority":"high"}]', ""),
        (b'["JobReprioritised",1,{"id":"a","priority":"high","by":"ann"}]', "ann"),
        (b'["JobReprioritised",2,{"job":"a","priority":"high","by":"ann"}]', "ann"),
        (b'["JobReprioritised",3,{"job":"a","priority":10,"by":"ann"}]', "ann"),
    ],
)
def test_every_version_comes_out_as_the_newest(entries: Entries, data: bytes, by: str) -> None:
    event = JobReprioritised(job="a", priority=10, by=by)
    assert entries.decode(data) == event
    taken, canonical = Edge(entries, INPUTS).decode_input(data)
    assert taken == event
    assert canonical == entries.encode(event)
    assert canonical.startswith(b'["JobReprioritised",3,')
    assert entries.decode(canonical) == event


@pytest.mark.parametrize(
    "data",
    [
        b'["JobReprioritised",1,{"job":"a","priority":"high"}]',
        b'["JobReprioritised",1,{"id":"a","priority":"middling"}]',
        b'["JobReprioritised",1,{"id":"a"}]',
        b'["JobReprioritised",1,["id"]]',
        b'["JobReprioritised",1,null]',
        b'["JobReprioritised",2,{"job":"a","priority":["high"]}]',
        b'["JobReprioritised",2,{"job":5,"priority":"high"}]',
        b'["JobReprioritised",2,{"job":"a","priority":"high","colour":"red"}]',
        b'["JobReprioritised",3,{"job":"a","priority":"high"}]',
    ],
)
def test_a_body_that_its_version_never_had_is_quarantined_in_the_log_and_refused_outside(entries: Entries, data: bytes) -> None:
    event = entries.decode(data)
    assert isinstance(event, EntryQuarantined)
    assert event.kind == KIND
    with pytest.raises(Malformed):
        Edge(entries, INPUTS).decode_input(data)


def test_an_old_message_with_a_key_twice_or_a_bad_name_is_refused(entries: Entries) -> None:
    edge = Edge(entries, INPUTS)
    with pytest.raises(Malformed, match="'priority' stands twice"):
        edge.decode_input(b'["JobReprioritised",1,{"id":"a","priority":"low","priority":"high"}]')
    with pytest.raises(Malformed, match="job: 'a b' must match"):
        edge.decode_input(b'["JobReprioritised",1,{"id":"a b","priority":"low"}]')


def test_a_version_beyond_the_newest_stops_the_reader_and_is_refused_outside(entries: Entries) -> None:
    with pytest.raises(UnknownKind, match="version 4"):
        entries.decode(b'["JobReprioritised",4,{}]')
    with pytest.raises(Malformed, match="versions 1 to 3, not 4"):
        Edge(entries, INPUTS).decode_input(b'["JobReprioritised",4,{}]')


def test_a_missing_step_is_found_before_anything_is_read() -> None:
    with pytest.raises(LookupError, match="no step leads from version 1"):
        Entries(KINDS, {**VERSIONS, KIND: 3}, {(KIND, 2): two_to_three})


def test_steps_are_taken_in_their_order_and_change_nothing_that_they_were_given() -> None:
    body: dict[str, Any] = {"id": "a", "priority": "low"}
    assert upcast(KIND, 1, body, 3, STEPS_PLANTED) == {"job": "a", "priority": -10}
    assert upcast(KIND, 1, body, 2, STEPS_PLANTED) == {"job": "a", "priority": "low"}
    assert body == {"id": "a", "priority": "low"}


def test_every_step_there_is_leads_to_a_version_there_is() -> None:
    assert all(KINDS[kind] and 1 <= version < VERSIONS[kind] for kind, version in STEPS)
    assert set(VERSIONS) == set(KINDS)
