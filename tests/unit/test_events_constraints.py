"""What the edge refuses of constraints: one sentence that names the field; and what it takes stays as it was written."""

from typing import Any

import msgspec
import pytest

from muster.events.codec import Malformed, decode_input, encode_entry
from muster.events.jobs import Constraints, GroupRequest, JobRequest, JobSubmitted

SUBMITTED = JobSubmitted(job="j1", name="n", user="u", request=JobRequest(groups=(GroupRequest(gpus=1),)))


def submission(group: dict[str, Any], constraints: dict[str, Any]) -> bytes:
    """A submission with these fields set."""
    entry = msgspec.json.decode(encode_entry(SUBMITTED))
    entry[2]["request"]["groups"][0].update(group)
    if constraints:
        entry[2]["request"]["constraints"] = constraints
    return msgspec.json.encode(entry)


@pytest.mark.parametrize(
    ("group", "constraints", "sentence"),
    [
        ({}, {"within": [{"level": "rack"}, {"level": "rack"}]}, "request.constraints.within: one level stands twice"),
        ({}, {"within": [{"level": "shelf"}]}, "request.constraints.within[0].level: Invalid enum value 'shelf'"),
        ({}, {"spread": [{"level": "rack"}]}, "request.constraints.spread: rack needs most or skew, of 1 or more"),
        ({}, {"licences": [{"name": "a"}, {"name": "a"}]}, "request.constraints.licences: one name stands twice"),
        ({}, {"licences": [{"name": "A b"}]}, "request.constraints.licences[0].name: 'A b' must match"),
        ({}, {"licences": [{"name": "a", "count": 0}]}, "request.constraints.licences[0].count: Expected `int` >= 1"),
        ({}, {"affinity": [{"labels": []}]}, "request.constraints.affinity[0].labels: Expected `array` of length >= 1"),
        (
            {},
            {"anti_affinity": [{"labels": [{"key": "a", "op": "NotIn", "values": ["x"]}]}]},
            "request.constraints.anti_affinity.labels: needs In, Exists, Gt or Lt",
        ),
        (
            {},
            {"affinity": [{"labels": [{"key": "a", "op": "Gt", "values": ["x"]}]}]},
            "request.constraints.affinity.labels[a]: Gt needs one integer",
        ),
        ({"ports": [80, 80]}, {}, "request.groups[task].ports: one port stands twice"),
        ({"ports": [0]}, {}, "request.groups[0].ports[0]: Expected `int` >= 1"),
        ({"numa": "always"}, {}, "request.groups[0].numa: Invalid enum value 'always'"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(group: dict[str, Any], constraints: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Malformed) as caught:
        decode_input(submission(group, constraints))
    assert str(caught.value).removeprefix("$.").startswith(sentence), caught.value


def test_a_job_that_asks_for_none_is_written_as_before_there_were_any() -> None:
    assert b"constraints" not in encode_entry(SUBMITTED)
    assert b"numa" not in encode_entry(SUBMITTED)
    event, data = decode_input(submission({}, {"exclusive": False}))
    assert isinstance(event, JobSubmitted)
    assert event.request.constraints == Constraints()
    assert b'"constraints":{}' in data
