"""CloudEvents: what they carry reaches the recorder as the direct path would bring it, and everything else is refused."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.events.base import BODY_MAX_BYTES
from muster.events.cloudevents import (
    ENVELOPE_MAX_BYTES,
    GPU_HEALTH,
    HEADERS_MAX,
    JOBS,
    KINDS,
    NODES,
    OPERATIONS,
    TELEMETRY,
    Input,
    key_of,
    open_message,
    refusal,
    to_data,
    to_message,
    to_structured,
    type_of,
)
from muster.events.codec import decode_input, decode_report, digest, encode, encode_entry
from muster.events.edge import REPORT_MAX_BYTES, Malformed
from muster.events.jobs import GroupRequest, JobCancelRequested, JobRequest, JobSubmitted
from muster.events.levels import NodeReport
from muster.events.nodes import DeviceHealthChanged, NodeRegistered, NodeSpec
from muster.events.operations import InputRefused, LeaseExtended, NodeCordoned, Policy, PolicySet
from muster.events.telemetry import GpusSampled, decode_sampled
from muster.log.fsck import check_records
from muster.log.port import Record
from muster.scheduler.messages import TOPICS, Message
from muster.scheduler.recorder import TAKEN
from tests.simulation.small_world import WALL_US, job_id
from tests.unit.scheduler.driving import Driver
from tests.unit.test_events_codec import of_type

JOB = "0190a5b6-7c3d-7e4f-8a9b-0123456789ab"
CANCEL = JobCancelRequested(job=JOB, by="ada")
REPORT = NodeReport(node="n1", uid="u1", boot="b1", sequence=7)
AT_US = 1_760_000_000_123_456
ENCODERS = (to_message, to_structured)

events = st.sampled_from([(topic, kind) for topic, kinds in KINDS.items() for kind in kinds]).flatmap(
    lambda pair: st.tuples(st.just(pair[0]), of_type(msgspec.inspect.type_info(pair[1])))
)
SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
Change = Callable[[dict[str, bytes]], None]


def direct(topic: str, event: Input) -> bytes:
    """The data of the message on the way without a bus."""
    return encode(event) if isinstance(event, NodeReport | GpusSampled) else encode_entry(event)


def sentence(data: bytes) -> str:
    """Why it is refused."""
    found = refusal(data)
    assert found is not None, data
    return found.reason


@SLOW
@given(events, st.sampled_from(ENCODERS), st.text(max_size=8), st.text(min_size=1, max_size=8), st.integers(0, 2**52))
def test_what_is_sent_as_a_cloudevent_arrives_as_the_same_bytes_as_without(
    pair: tuple[str, Input], encoder: Any, source: str, id: str, time_us: int
) -> None:
    topic, event = pair
    headers, value = encoder(topic, event, f"muster:{source}", id, time_us)
    assert to_data(topic, headers, value) == direct(topic, event)


@SLOW
@given(events, st.integers(0, 4), st.booleans())
def test_another_spelling_of_the_body_is_the_same_input(pair: tuple[str, Input], indent: int, ascii: bool) -> None:
    topic, event = pair
    headers, value = to_message(topic, event, "elsewhere", "1", AT_US)
    spelled = "\n " + json.dumps(json.loads(value), indent=indent, ensure_ascii=ascii) + "\r\n"
    data = to_data(topic, headers, spelled.encode())
    if isinstance(event, NodeReport):
        assert _either(decode_report, data) == _either(decode_report, value)
    elif isinstance(event, GpusSampled):
        assert _either(decode_sampled, data) == _either(decode_sampled, value)
    else:
        assert _either(decode_input, data) == _either(decode_input, encode_entry(event))


def _either(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """What is made of it, or the sentence: a drawn event may break a rule that the types cannot say."""
    try:
        return decode(data)
    except Malformed as error:
        return str(error)


@SLOW
@given(
    st.sampled_from([*TOPICS, "elsewhere"]),
    st.lists(
        st.tuples(st.sampled_from(["ce_id", "ce_type", "content-type", "ce_", "x"]) | st.text(max_size=4), st.binary(max_size=8))
    ),
    st.none() | st.binary(max_size=64),
)
def test_whatever_the_message_is_there_is_an_answer(topic: str, headers: list[tuple[str, bytes]], value: bytes | None) -> None:
    opened = open_message(topic, headers, value)
    assert refusal(opened.data) is not None
    assert len(opened.id) <= 128


@settings(SLOW, max_examples=300)
@given(events, st.sampled_from(ENCODERS), st.data())
def test_a_message_that_was_damaged_is_refused_or_says_what_its_body_says(
    pair: tuple[str, Input], encoder: Any, data: st.DataObject
) -> None:
    topic, event = pair
    headers, value = encoder(topic, event, "muster:x", "1", AT_US)
    begin = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(begin, len(value)))
    damaged = value[:begin] + data.draw(st.binary(max_size=4)) + value[end:]
    entry = to_data(topic, headers, damaged)
    if refusal(entry) is None and topic != NODES:
        try:
            found, canonical = decode_input(entry)
        except Malformed:
            return
        assert type(found) is type(event)
        assert canonical == encode_entry(found)


def test_nothing_that_a_body_holds_makes_two_entries_of_it() -> None:
    headers, value = to_message(JOBS, CANCEL, "x", "1", AT_US)
    for middle in (b"],[", b"]\n[", b'],["JobCancelRequested",1,', b']\n["JobCancelRequested",1,', b","):
        entry = to_data(JOBS, headers, value + middle + value)
        with pytest.raises(Malformed):
            decode_input(entry)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_brings_what_the_recorder_takes_from_it(topic: str) -> None:
    assert set(KINDS) == {*TOPICS, TELEMETRY}
    kinds = [kind for kind in KINDS[topic] if kind is not NodeReport]
    assert set(kinds) <= set(TAKEN[topic])
    if topic != NODES:
        assert set(kinds) == set(TAKEN[topic])


def test_a_type_says_kind_and_version_and_a_key_says_what_the_event_is_about() -> None:
    assert type_of(CANCEL) == "muster.JobCancelRequested.v1"
    assert type_of(REPORT) == "muster.NodeReport.v1"
    health = DeviceHealthChanged(node="n1", uid="u1", device="GPU-1", health="failed")
    assert [key_of(event) for event in (CANCEL, REPORT, health, NodeCordoned(node="n2"))] == [JOB, "n1", "n1", "n2"]
    assert [key_of(event) for event in (LeaseExtended(until_us=1), PolicySet(policy=Policy()))] == ["lease", "policy"]


def test_binary_mode_is_headers_and_the_bare_body() -> None:
    headers, value = to_message(JOBS, CANCEL, "muster:tests", "e-1", AT_US)
    assert headers == [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"e-1"),
        ("ce_type", b"muster.JobCancelRequested.v1"),
        ("ce_source", b"muster:tests"),
        ("ce_time", b"2025-10-09T08:53:20.123456Z"),
        ("content-type", b"application/json"),
    ]
    assert json.loads(value) == {"job": JOB, "instance": None, "by": "ada"}


def test_structured_mode_is_one_object() -> None:
    headers, value = to_structured(JOBS, CANCEL, "muster:tests", "e-1", AT_US)
    assert headers == [("content-type", b"application/cloudevents+json")]
    assert json.loads(value) == {
        "specversion": "1.0",
        "id": "e-1",
        "type": "muster.JobCancelRequested.v1",
        "source": "muster:tests",
        "time": "2025-10-09T08:53:20.123456Z",
        "datacontenttype": "application/json",
        "data": {"job": JOB, "instance": None, "by": "ada"},
    }


def test_no_topic_is_sent_what_it_does_not_bring() -> None:
    for encoder in ENCODERS:
        with pytest.raises(ValueError, match="no input of the topic"):
            encoder(OPERATIONS, CANCEL, "x", "1", AT_US)


def without(name: str) -> Change:
    return lambda headers: headers.__delitem__(name)


def having(name: str, value: bytes) -> Change:
    return lambda headers: headers.__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("ce_id"), "ce_id: it has 0 characters; it must be there"),
        (without("ce_type"), "ce_type: it has 0 characters"),
        (without("ce_source"), "ce_source: it has 0 characters"),
        (without("ce_specversion"), "ce_specversion: it has 0 characters"),
        (without("content-type"), "content-type: must be application/json or application/cloudevents+json, not ''"),
        (having("content-type", b"application/json;" + b" " * 128), "content-type: must be application/json or "),
        (having("content-type", b"application/avro"), "content-type: must be application/json or "),
        (having("content-type", b"application/cloudevents-batch+json"), "content-type: must be application/json or "),
        (having("content-type", b"application/json; charset=latin-1"), "content-type: must be application/json or "),
        (having("content-type", b"application/cloudevents+json"), "data: it is missing"),
        (having("ce_specversion", b"0.3"), "ce_specversion: must be '1.0', not '0.3'"),
        (having("ce_id", b"x" * 129), "ce_id: it has 129 characters"),
        (having("ce_source", b"\xff"), "the header 'ce_source' is no UTF-8"),
        (having("ce_time", b"yesterday"), "ce_time: must be a time as in RFC 3339"),
        (
            having("ce_type", b"muster.JobLevitated.v1"),
            "is no input of muster.jobs; it takes muster.JobSubmitted.v1, muster.JobC",
        ),
        (having("ce_type", b"com.example.Job"), "is no input of muster.jobs"),
        (having("ce_type", b"muster.NodeCordoned.v1"), "is no input of muster.jobs"),
        (having("ce_type", b"muster.InputRefused.v1"), "is no input of muster.jobs"),
        (having("ce_type", b"muster.Refused.v1"), "is no input of muster.jobs"),
        (having("ce_type", b"muster.JobCancelRequested.v2"), "JobCancelRequested has versions 1 to 1, not 2"),
        (having("ce_type", b"muster.JobCancelRequested.v0"), "is no input of muster.jobs"),
    ],
)
def test_what_is_no_cloudevent_of_ours_is_refused_with_a_sentence(change: Change, said: str) -> None:
    made, value = to_message(JOBS, CANCEL, "x", "1", AT_US)
    headers = dict(made)
    change(headers)
    data = to_data(JOBS, list(headers.items()), value)
    assert said in sentence(data)
    found = refusal(data)
    assert found is not None
    assert found.digest == digest(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "the message has no value"),
        (b"", "the body is no JSON object"),
        (b"[1]", "the body is no JSON object: a JobCancelRequested is one"),
        (b'["JobCancelRequested",1,{"job":"a"}]', "the body is no JSON object"),
        (b"x" * (BODY_MAX_BYTES + ENVELOPE_MAX_BYTES + 1), f"at most {BODY_MAX_BYTES + ENVELOPE_MAX_BYTES} are taken"),
    ],
)
def test_what_is_no_body_is_refused_with_a_sentence(value: bytes | None, said: str) -> None:
    headers, _ = to_message(JOBS, CANCEL, "x", "1", AT_US)
    assert said in sentence(to_data(JOBS, headers, value))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("specversion", None, "Expected `str`, got `null`"),
        ("specversion", "1.1", "specversion: must be '1.0', not '1.1'"),
        ("id", "", "id: it has 0 characters; it must be there"),
        ("id", 7, "id: Expected `str`, got `int`"),
        ("type", "muster.NodeReport.v1", "type: 'muster.NodeReport.v1' is no input of muster.jobs"),
        ("time", "2026-13-30", "time: must be a time as in RFC 3339"),
        ("datacontenttype", "text/xml", "datacontenttype: must be application/json, not 'text/xml'"),
        ("data", "text", "the body is no JSON object"),
    ],
)
def test_a_structured_message_is_refused_by_the_names_of_its_fields(field: str, value: Any, said: str) -> None:
    headers, whole = to_structured(JOBS, CANCEL, "x", "1", AT_US)
    changed = {**json.loads(whole), field: value}
    assert said in sentence(to_data(JOBS, headers, json.dumps(changed).encode()))


def test_a_structured_message_without_data_or_with_a_field_twice_or_cut_off_is_refused() -> None:
    headers, whole = to_structured(JOBS, CANCEL, "x", "1", AT_US)
    fields = json.loads(whole)
    base64 = {key: value for key, value in fields.items() if key != "data"} | {"data_base64": "e30="}
    assert "data: it is missing" in sentence(to_data(JOBS, headers, json.dumps(base64).encode()))
    twice = whole[:-1] + b',"id":"2"}'
    assert "the field 'id' stands twice" in sentence(to_data(JOBS, headers, twice))
    assert "not a CloudEvent" in sentence(to_data(JOBS, headers, whole[:-1]))


def test_a_header_may_not_stand_twice_and_there_may_not_be_many() -> None:
    headers, value = to_message(JOBS, CANCEL, "x", "1", AT_US)
    assert "the header 'ce_type' stands twice" in sentence(to_data(JOBS, [*headers, ("ce_type", b"x")], value))
    many = [*headers, *(("x", b"") for _ in range(HEADERS_MAX))]
    assert "headers; at most" in sentence(to_data(JOBS, many, value))


def test_headers_of_others_and_extensions_change_nothing() -> None:
    headers, value = to_message(JOBS, CANCEL, "x", "1", AT_US)
    more = [("traceparent", b"00-\xff"), ("traceparent", b"twice"), *headers, ("ce_subject", b"y"), ("ce_partitionkey", b"z")]
    assert to_data(JOBS, more, value) == encode_entry(CANCEL)
    structured, whole = to_structured(JOBS, CANCEL, "x", "1", AT_US)
    extended = json.dumps({**json.loads(whole), "traceparent": "00", "dataschema": "https://example.com"}).encode()
    assert decode_input(to_data(JOBS, structured, extended))[0] == CANCEL
    beside = [("ce_type", b"muster.JobSubmitted.v1"), ("ce_id", b"other"), *structured]
    assert open_message(JOBS, beside, whole).id == "1"
    assert to_data(JOBS, beside, whole) == encode_entry(CANCEL)


@pytest.mark.parametrize("said", [b"application/json", b"application/json; charset=utf-8", b'Application/JSON;charset="UTF-8"'])
def test_a_content_type_is_read_as_everywhere(said: bytes) -> None:
    headers, value = to_message(JOBS, CANCEL, "x", "1", AT_US)
    assert to_data(JOBS, [*headers[:-1], ("content-type", said)], value) == encode_entry(CANCEL)


def test_a_time_is_no_must_and_an_id_is_recorded_on_one_line() -> None:
    headers, value = to_message(JOBS, CANCEL, "x", "a\nb", AT_US)
    timeless = [header for header in headers if header[0] != "ce_time"]
    opened = open_message(JOBS, timeless, value)
    assert opened.data == encode_entry(CANCEL)
    assert opened.id == "a\N{REPLACEMENT CHARACTER}b"


def test_a_report_may_be_larger_than_another_input_and_none_comes_as_an_entry() -> None:
    headers, value = to_message(NODES, REPORT, "x", "1", AT_US)
    padded = value + b" " * BODY_MAX_BYTES * 2
    assert decode_report(to_data(NODES, headers, padded)) == REPORT
    assert "at most" in sentence(to_data(NODES, headers, value + b" " * (REPORT_MAX_BYTES + ENVELOPE_MAX_BYTES)))
    entry = encode_entry(NodeRegistered(node="n", uid="u", boot="b", spec=NodeSpec(cpu_milli=1)))
    assert "the body is no JSON object" in sentence(to_data(NODES, headers, entry))


class Bus:
    """A driver whose messages came by the bus, or would have come without one."""

    def __init__(self, bus: bool) -> None:
        self.driver = Driver()
        self.bus = bus

    def put(self, topic: str, event: Input, *, key: str | None = None, id: str = "e-1", **changes: bytes) -> None:
        """One more message."""
        driver = self.driver
        source = f"{topic}/0"
        if not self.bus:
            driver.put(source, direct(topic, event), key=key_of(event) if key is None else key)
            return
        made, value = to_message(topic, event, "muster:tests", id, AT_US)
        headers = {**dict(made), **changes}
        opened = open_message(topic, list(headers.items()), value)
        offset = driver.offsets[source] = driver.offsets.get(source, -1) + 1
        driver.core.offer(Message(source, offset, opened.data, driver.at_us, key_of(event) if key is None else key, opened.id))


def test_what_comes_by_the_bus_is_recorded_byte_for_byte_as_without_it() -> None:
    job = job_id(1, WALL_US)
    submitted = JobSubmitted(job=job, name="train", user="ada", request=JobRequest(groups=(GroupRequest(cpu_milli=100),)))
    told: list[tuple[str, Input]] = [
        (NODES, NodeReport(node="n1", uid="u1", boot="b1", sequence=1, spec=NodeSpec(cpu_milli=8000))),
        (JOBS, submitted),
        (JOBS, submitted),
        (JOBS, JobCancelRequested(job=job)),
        (OPERATIONS, NodeCordoned(node="n1", by="ada")),
        (OPERATIONS, LeaseExtended(until_us=AT_US)),
    ]
    buses = [Bus(True), Bus(False)]
    for bus in buses:
        for topic, event in told:
            bus.put(topic, event)
            bus.driver.turn(after_s=1)
    assert buses[0].driver.records == buses[1].driver.records
    assert len(buses[0].driver.records) > 4


def test_ids_sources_and_times_of_events_steer_nothing() -> None:
    buses = []
    for id, time in ((b"1", b"1999-01-01T00:00:00Z"), (b"2", b"2999-01-01T00:00:00+14:00")):
        bus = Bus(True)
        bus.put(JOBS, CANCEL, ce_id=id, ce_time=time, ce_source=b"from:" + id)
        bus.driver.turn()
        buses.append(bus)
    assert buses[0].driver.records == buses[1].driver.records


def test_a_refusal_is_recorded_with_topic_offset_key_id_reason_and_digest() -> None:
    bus = Bus(True)
    bus.put(JOBS, CANCEL)
    bus.put(JOBS, CANCEL, id="e-2", ce_type=b"muster.NodeCordoned.v1")
    bus.put(JOBS, JobCancelRequested(job=JOB, by="x" * 2000), id="e-3")
    _, wrong, long = bus.driver.inputs()
    assert isinstance(wrong, InputRefused)
    assert (wrong.source, wrong.offset, wrong.id, wrong.event) == ("muster.jobs/0", 1, JOB, "e-2")
    assert wrong.reason.startswith("ce_type: 'muster.NodeCordoned.v1' is no input of muster.jobs")
    assert wrong.digest == digest(encode(CANCEL))
    assert isinstance(long, InputRefused)
    assert (long.source, long.offset, long.id, long.event) == ("muster.jobs/0", 2, JOB, "e-3")
    assert long.reason.startswith("by: ")
    assert long.digest == digest(encode_entry(JobCancelRequested(job=JOB, by="x" * 2000)))
    found = check_records("main", [Record(place, data) for place, data in enumerate(bus.driver.records, 1)])
    assert found.refused == {"muster.jobs": 2}


@pytest.mark.parametrize("topic", [NODES, GPU_HEALTH])
def test_a_refusal_is_recorded_on_each_topic(topic: str) -> None:
    bus = Bus(True)
    event: Input = REPORT if topic == NODES else DeviceHealthChanged(node="n1", uid="u1", device="GPU-1", health="failed")
    bus.put(topic, event, ce_specversion=b"2.0")
    (refused,) = bus.driver.inputs()
    assert isinstance(refused, InputRefused)
    assert refused.reason == "ce_specversion: must be '1.0', not '2.0'"


@pytest.mark.parametrize("key", ["", "another"])
def test_what_came_by_the_bus_under_another_key_or_none_is_refused(key: str) -> None:
    health = DeviceHealthChanged(node="n1", uid="u1", device="GPU-1", health="failed")
    bus = Bus(True)
    pairs: list[tuple[str, Input]] = [(JOBS, CANCEL), (NODES, REPORT), (GPU_HEALTH, health)]
    for topic, event in pairs:
        bus.put(topic, event, key=key)
    refused = bus.driver.inputs()
    assert [type(event) for event in refused] == [InputRefused] * 3
    for event, what in zip(refused, ("job", "node", "node"), strict=True):
        assert isinstance(event, InputRefused)
        assert event.reason.startswith(f"key: {key!r} is not the {what} ")
