"""Constraints as flags say them."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.output import Failure
from muster.cli.submit import _said, read_jobs
from muster.doors.placing import CONSTRAINT_FIELDS, PLACE_FIELDS
from muster.doors.terms import (
    BadTerm,
    read_licence,
    read_preference,
    read_selector_text,
    read_spread,
    read_term,
    read_within,
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zone=a", [{"key": "zone", "op": "In", "values": ["a"]}]),
        (
            "zone==a,tier!=iron",
            [{"key": "zone", "op": "In", "values": ["a"]}, {"key": "tier", "op": "NotIn", "values": ["iron"]}],
        ),
        ("zone in (a, b),!spot", [{"key": "zone", "op": "In", "values": ["a", "b"]}, {"key": "spot", "op": "DoesNotExist"}]),
        ("zone notin (a)", [{"key": "zone", "op": "NotIn", "values": ["a"]}]),
        ("gpu", [{"key": "gpu", "op": "Exists"}]),
        ("gen>3, gen<9", [{"key": "gen", "op": "Gt", "values": ["3"]}, {"key": "gen", "op": "Lt", "values": ["9"]}]),
        ("kubernetes.io/hostname=n-1", [{"key": "kubernetes.io/hostname", "op": "In", "values": ["n-1"]}]),
    ],
)
def test_a_selector_is_written_as_kubectl_writes_it(text: str, said: list[dict[str, Any]]) -> None:
    assert read_selector_text(text) == said


@pytest.mark.parametrize(
    ("reader", "text", "said"),
    [
        (read_preference, "10:disk=ssd", {"labels": read_selector_text("disk=ssd"), "weight": 10}),
        (read_preference, "disk", {"labels": read_selector_text("disk")}),
        (read_term, "app=cache", {"labels": read_selector_text("app=cache")}),
        (read_term, "app=a@rack:preferred", {"labels": read_selector_text("app=a"), "by": "rack", "required": False}),
        (read_within, "rack", ("rack", "required")),
        (read_within, "block:preferred", ("block", "preferred")),
        (read_spread, "node:1", ("node", 1)),
        (read_spread, "zone:most=4,skew=2", ("zone", {"most": 4, "skew": 2})),
        (read_licence, "solver", ("solver", 1)),
        (read_licence, "solver:3", ("solver", 3)),
    ],
)
def test_each_constraint_has_a_line(reader: Callable[[str], Any], text: str, said: Any) -> None:
    assert reader(text) == said


@pytest.mark.parametrize(
    ("reader", "text", "words"),
    [
        (read_selector_text, "", "must be a selector such as"),
        (read_selector_text, "a=b=c", "is none"),
        (read_selector_text, "zone in a", "is none"),
        (read_term, "app=a@", "needs a level"),
        (read_term, "app=a:soon", "may end with :required or :preferred"),
        (read_within, "rack:maybe", "must be LEVEL"),
        (read_spread, "node", "must be LEVEL:MOST"),
        (read_spread, "node:few", "must be LEVEL:MOST"),
        (read_licence, ":2", "must be NAME"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(reader: Callable[[str], Any], text: str, words: str) -> None:
    with pytest.raises(BadTerm) as caught:
        reader(text)
    assert words in str(caught.value)


@given(
    st.text(max_size=40),
    st.sampled_from([read_selector_text, read_preference, read_term, read_within, read_spread, read_licence]),
)
def test_any_text_is_read_or_refused(text: str, reader: Callable[[str], Any]) -> None:
    with contextlib.suppress(BadTerm):
        json.dumps(reader(text))


FLAGS: dict[str, Any] = {
    "selector": ["zone=a", "tier in (x, y)"],
    "any_of": ["gpu", "fast=1"],
    "prefers": ["5:disk=ssd"],
    "tolerations": ["bad:NoExecute for 60"],
    "numa": "required",
    "ports": [8080],
    "datasets": ["imagenet"],
    "within": ["rack", "block:preferred"],
    "spread": ["node:1"],
    "affinity": ["app=cache@rack"],
    "anti_affinity": ["app"],
    "exclusive": True,
    "licences": ["solver:2"],
}


def said(**flags: Any) -> dict[str, Any]:
    class Flags(dict[str, Any]):
        def __missing__(self, key: str) -> None:
            return None

    return _said(Flags(flags), ["true"])


def test_every_constraint_that_a_flag_says_is_asked_for(tmp_path: Any) -> None:
    ((job,), _) = read_jobs([], said(**FLAGS), None)
    (group,) = job.request.groups
    asked = job.request.constraints
    assert asked
    assert all(getattr(asked, field.target) for field in CONSTRAINT_FIELDS)
    assert all(getattr(group, field.target) for field in PLACE_FIELDS if field.key in FLAGS)
    assert group.tolerations[0].seconds == 60
    assert len(group.any_of or ()) == 2
    file = tmp_path / "two.yaml"
    file.write_text("name: a\ncommand: ls\ngroups: [{name: x, gpus: 1}, {name: y, selector: {zone: b, net: c}}]\n")
    ((job,), _) = read_jobs([str(file)], said(selector=["zone=a"], numa="preferred", licences=["solver"]), None)
    assert [len(group.selector) for group in job.request.groups] == [1, 2]
    assert [group.numa for group in job.request.groups] == ["preferred", "preferred"]


def test_a_flag_that_makes_no_sense_is_named() -> None:
    with pytest.raises(Failure, match="--spread must be LEVEL:MOST"):
        said(spread=["node"])
    with pytest.raises(Failure, match="--selector must be a selector"):
        said(selector=["a=b=c"])
