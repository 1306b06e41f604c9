"""Messages decoded together: each is taken or refused as it is alone."""

import json
import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.events.base import BODY_MAX_BYTES, JOB_PATTERN, NAME_PATTERN, UID_PATTERN, Event
from muster.events.codec import Malformed, encode_entry
from muster.events.edge import TAIL_MAX_BYTES, TAILS_MAX, Edge
from muster.events.entries import Entries
from muster.events.jobs import GroupRequest, JobCancelRequested, JobRequest, JobRun, JobSubmitted
from muster.events.nodes import TaskExited, TaskReady
from muster.events.patterns import Lines
from muster.events.registry import DECISIONS, INPUTS, KINDS, VERSIONS
from tests.unit.test_events_codec import BYTES, MUTATIONS, SUBMITTED, events, mutated

READY = encode_entry(TaskReady(job="a", instance=0, attempt=1, rank=0))
NAMED = {"job": "a", "instance": 0, "attempt": 1, "rank": 0, "port": 0}


def edge() -> Edge:
    return Edge(Entries(KINDS, VERSIONS), INPUTS)


SEEN, NEW, ALONE = edge(), edge(), edge()


def together(messages: list[bytes], by: Edge) -> list[Any]:
    """What `decode_input` returns of each message, or the sentence with which it refuses it."""
    return [
        str(event) if isinstance(event, Malformed) else (event, data)
        for event, data in zip(*by.decode_inputs(list(messages)), strict=True)
    ]


def alone(messages: list[bytes], by: Edge) -> list[Any]:
    outcomes: list[Any] = []
    for data in messages:
        try:
            outcomes.append(by.decode_input(data))
        except Malformed as refused:
            outcomes.append(str(refused))
    return outcomes


def check(messages: list[bytes]) -> list[Any]:
    """Decode them together, with what was seen before and with nothing, and one by one."""
    NEW._tails.clear()
    outcomes = together(messages, SEEN)
    assert outcomes == alone(messages, ALONE)
    assert outcomes == together(messages, SEEN)
    assert outcomes == together(messages, NEW)
    return outcomes


def submissions(event: Event, job: str, name: str) -> bytes:
    return encode_entry(msgspec.structs.replace(event, job=job, name=name) if isinstance(event, JobSubmitted) else event)


MESSAGES = st.one_of(
    events(INPUTS).map(encode_entry),
    events(INPUTS).map(encode_entry),
    st.builds(submissions, st.just(SUBMITTED), st.text("ab.-\n", max_size=3), st.text("ab.-\n", max_size=3)),
    events(INPUTS).map(lambda event: json.dumps(json.loads(encode_entry(event))).encode()),
    events(DECISIONS).map(encode_entry),
    st.builds(mutated, events(INPUTS).map(encode_entry), MUTATIONS),
    st.builds(mutated, st.just(BYTES), MUTATIONS),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(MESSAGES, max_size=5))
def test_messages_decoded_together_are_what_each_is_alone(messages: list[bytes]) -> None:
    check(messages)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.one_of(events(INPUTS).map(encode_entry), st.just(BYTES), st.just(READY)), min_size=1, max_size=4),
    st.lists(st.integers(0, 2**16), max_size=4),
    st.sampled_from([b"", b"\n", b",", b"\n\n", b"],["]),
)
def test_however_entries_are_cut_into_messages_only_whole_ones_are_taken(
    entries: list[bytes], cuts: list[int], between: bytes
) -> None:
    joined = between.join(entries)
    at = sorted({0, len(joined), *[cut % (len(joined) + 1) for cut in cuts]})
    check([joined[start:end] for start, end in pairwise(at)])


@pytest.mark.parametrize(
    "messages",
    [
        [b"", READY],
        [READY + b"\n" + READY],
        [READY + b"\n" + READY, b""],
        [READY[:20], READY[20:]],
        [READY[:-1], b"]" + b"\n" + READY],
        [READY + b",", READY],
        [b"[" + READY, READY + b"]"],
        [b'["TaskReady",1,{"job":"a', b'b","instance":0,"attempt":1,"rank":0,"port":0}]', READY + b"\n" + READY],
        [BYTES, BYTES.partition(b',"request":')[0] + b"}]"],
        [BYTES, BYTES.replace(b'"job":', b'"job":"b","job":')],
        [BYTES, BYTES.replace(b'"user":"ann"', b'"user":"ann","colour":"red"')],
        [BYTES, BYTES.replace(b',"request":', b',"request":{"groups":[{}]},"request":')],
    ],
)
def test_what_is_a_message_only_with_its_neighbours_is_none(messages: list[bytes]) -> None:
    assert any(isinstance(outcome, str) for outcome in check(messages))


@pytest.mark.parametrize("spelled", [READY + b"\n", b"\n" + READY, READY.replace(b",", b",\n"), READY.replace(b"T", b"\\u0054")])
def test_a_message_with_foreign_spelling_is_taken_among_others_as_what_it_says(spelled: bytes) -> None:
    assert len(dict.fromkeys([json.dumps(json.loads(outcome[1])) for outcome in check([READY, spelled, READY])])) == 1


@pytest.mark.parametrize("job", ["a\nb", "-a", "a b", "", "ä", "a\n", "\na", "x" * 64, "x" * 65])
def test_a_key_is_refused_among_others_as_it_is_alone(job: str) -> None:
    messages = [
        encode_entry(kind)
        for kind in (
            TaskExited(job="a", instance=0, attempt=1, rank=0),
            TaskReady(job=job, instance=0, attempt=1, rank=0),
            msgspec.structs.replace(SUBMITTED, job=job),
            JobCancelRequested(job="b"),
        )
    ]
    outcomes = check(messages)
    assert [isinstance(outcome, str) for outcome in outcomes] == [False, *[job != "x" * 64] * 2, False]


@pytest.mark.parametrize("field", ["name", "user", "queue"])
@pytest.mark.parametrize("text", ["a\nb", "-a", "a-", "A", "", "ä", "a\n", "x" * 63, "x" * 64])
def test_a_name_is_refused_among_others_as_it_is_alone(field: str, text: str) -> None:
    outcomes = check([BYTES, encode_entry(msgspec.structs.replace(SUBMITTED, **{field: text})), BYTES])
    assert [isinstance(outcome, str) for outcome in outcomes] == [False, text != "x" * 63, False]


@settings(max_examples=500)
@given(
    st.sampled_from([JOB_PATTERN, NAME_PATTERN, UID_PATTERN]),
    st.lists(st.text(st.sampled_from("aZ0-._:\n \x00ä"), max_size=4) | st.text("ab0", min_size=1, max_size=5), max_size=4),
)
def test_texts_match_as_lines_if_each_does(pattern: str, texts: list[str]) -> None:
    match = re.compile(pattern.removeprefix("^").removesuffix("$")).fullmatch
    assert Lines(pattern).fit(texts) == all(match(text) for text in texts)


def test_a_message_is_bounded_among_others_too() -> None:
    large = encode_entry(JobCancelRequested(job="a", by="x")).replace(b'"x"', b'"' + b"x" * BODY_MAX_BYTES + b'"')
    first, second = check([READY, large])
    assert not isinstance(first, str)
    assert f"at most {BODY_MAX_BYTES} are taken" in second


def test_jobs_decoded_together_share_their_request_and_run() -> None:
    by = edge()
    messages = [encode_entry(msgspec.structs.replace(SUBMITTED, job=f"job-{number}")) for number in range(5)]
    jobs: list[Any] = []
    for outcome in [*together(messages, by), *together([READY, *messages], by)]:
        assert isinstance(outcome, tuple)
        jobs.append(outcome[0])
    del jobs[5]
    assert len(jobs) == 10
    for job in jobs:
        assert job.request is jobs[0].request
        assert job.run is jobs[0].run


def test_what_is_too_large_or_too_much_to_be_kept_is_decoded_all_the_same() -> None:
    large = msgspec.structs.replace(SUBMITTED, run=JobRun(command=("x" * 4000,) * 3))
    requests = [JobRequest(groups=(GroupRequest(),), priority=number) for number in range(TAILS_MAX + 100)]
    messages = [encode_entry(msgspec.structs.replace(SUBMITTED, request=request)) for request in requests]
    messages[7] = encode_entry(large)
    assert len(messages[7]) > TAIL_MAX_BYTES
    by = edge()
    for _ in range(2):
        outcomes = together(messages, by)
        assert [outcome[1] for outcome in outcomes if isinstance(outcome, tuple)] == messages
        assert outcomes[7] == (large, messages[7])
        assert outcomes[-1] == (msgspec.structs.replace(SUBMITTED, request=requests[-1]), messages[-1])
        assert len(by._tails) <= TAILS_MAX
