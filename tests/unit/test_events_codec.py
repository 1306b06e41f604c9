"""Entries, messages and records: there and back, and what is refused with which sentence."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.events.base import BODY_MAX_BYTES, INT_MAX, Event
from muster.events.codec import (
    Malformed,
    UnknownKind,
    decode_cycle,
    decode_entry,
    decode_envelope,
    decode_input,
    decode_report,
    digest,
    encode,
    encode_cycle,
    encode_entry,
    encode_frame,
    open_envelope,
    open_record,
)
from muster.events.edge import REPORT_MAX_BYTES, Edge
from muster.events.entries import SHARED_MAX, Entries
from muster.events.jobs import GroupRequest, JobReprioritised, JobRequest, JobRun, JobSubmitted, Requirement
from muster.events.levels import DeviceReport, NodeReport, TaskReport
from muster.events.nodes import Device, NodeRegistered, NodeSpec, TaskExited
from muster.events.operations import EntryQuarantined
from muster.events.record import GENESIS, Cycle, Envelope
from muster.events.registry import DECISIONS, INPUTS, KINDS, VERSIONS

T = TypeVar("T")


def of_type(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Values that the types allow, most of them small."""
    match kind:
        case msgspec.inspect.Metadata(type=inner, extra_json_schema=extra):
            if extra and "pattern" in extra:
                return st.from_regex(extra["pattern"].replace("$", r"\Z"), fullmatch=True).filter(lambda text: len(text) <= 63)
            return of_type(inner)
        case msgspec.inspect.IntType(ge=least, le=most):
            return st.integers(least if least is not None else -INT_MAX, most if most is not None else INT_MAX)
        case msgspec.inspect.StrType(max_length=most, pattern=str(pattern)):
            return st.from_regex(pattern.replace("$", r"\Z"), fullmatch=True).filter(lambda text: len(text) <= (most or 63))
        case msgspec.inspect.StrType(min_length=least, max_length=most):
            return st.text(st.characters(codec="utf-8"), min_size=least or 0, max_size=min(most or 8, 8))
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([of_type(part) for part in types])
        case msgspec.inspect.VarTupleType(item_type=item, min_length=least):
            return st.lists(of_type(item), min_size=least or 0, max_size=3).map(tuple)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(of_type(key), of_type(value), max_size=3)
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: of_type(field.type) for field in fields})
    raise AssertionError(f"no strategy for {kind}")


def events(kinds: dict[str, type[Event]] = KINDS) -> st.SearchStrategy[Event]:
    return st.sampled_from(sorted(kinds)).flatmap(lambda kind: _of_kind[kind])


_of_kind: dict[str, st.SearchStrategy[Any]] = {kind: of_type(msgspec.inspect.type_info(cls)) for kind, cls in KINDS.items()}

SUBMITTED = JobSubmitted(
    job="0190a5b6-7c3d-7e4f-8a9b-0123456789ab",
    name="train",
    user="ann",
    submitted_us=1_700_000_000_000_000,
    request=JobRequest(
        groups=(
            GroupRequest(name="head", gpus=1, selector=(Requirement(key="zone", values=("a", "b")),)),
            GroupRequest(name="worker", count=8, min=4, gpu_models=("H100",)),
        ),
        labels={"b": "2", "a": "1"},
        success="head",
    ),
    run=JobRun(command=("python", "train.py"), environment={"HOME": "/root", "A": "ü"}),
)
BYTES = encode_entry(SUBMITTED)


def altered(data: bytes = BYTES, **fields: object) -> bytes:
    """The message with other values at `path__to__field`; a list is entered at its first item."""
    kind, version, body = json.loads(data)
    for path, value in fields.items():
        place = body
        *above, last = path.split("__")
        for step in above:
            place = place[step][0] if isinstance(place[step], list) else place[step]
        place[last] = value
    return json.dumps([kind, version, body]).encode()


def sentence(data: bytes) -> str:
    with pytest.raises(Malformed) as refused:
        decode_input(data)
    return str(refused.value)


@settings(deadline=None)
@given(events())
def test_an_entry_comes_back_as_it_was_and_has_one_encoding(event: Event) -> None:
    data = encode_entry(event)
    assert decode_entry(data) == event
    assert decode_entry(msgspec.Raw(data)) == event
    assert encode_entry(decode_entry(data)) == data
    assert json.loads(data)[:2] == [type(event).__name__, VERSIONS[type(event).__name__]]


@settings(max_examples=300, deadline=None)
@given(events(INPUTS))
def test_an_input_is_taken_with_its_canonical_bytes_however_it_was_spelled(event: Event) -> None:
    data = encode_entry(event)
    spelled = json.dumps(json.loads(data), indent=1).encode()
    outcome = _outcome(decode_input, data)
    assert isinstance(outcome, str) or outcome == (event, data)
    assert _outcome(decode_input, spelled) == outcome
    assert _outcome(decode_input, data) == outcome


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes_are_an_input_or_malformed(data: bytes) -> None:
    _taken_or_refused(data)


PIECES = [
    *(b"NaN", b"-Infinity", b"1e999", b"9" * 30, b"9" * 5000, b"1.0", b"-", b"null", b"{}", b"true", b"[" * 1200),
    *(b"\\ud800", b"\xed\xa0\x80", b"\x00", b'"a":1,', b'"job":"b",', b'"request":{},', b',"request":{"groups":[{}]}'),
]

MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "double", "insert", "swap"]),
        st.integers(0, 2**16),
        st.integers(0, 2**16),
        st.one_of(
            st.binary(min_size=1, max_size=4),
            st.sampled_from(PIECES),
        ),
    ),
    min_size=1,
    max_size=3,
)


def mutated(data: bytes, mutations: list[tuple[str, int, int, bytes]]) -> bytes:
    for how, first, second, piece in mutations:
        start, end = sorted((first % (len(data) + 1), second % (len(data) + 1)))
        if how == "flip":
            data = data[:start] + piece + data[start + len(piece) :]
        elif how == "cut":
            data = data[:start] + data[end:]
        elif how == "double":
            data = data[:end] + data[start:]
        elif how == "insert":
            data = data[:start] + piece + data[start:]
        else:
            data = data[:start] + data[end:] + data[start:end]
    return data


@settings(max_examples=1500, deadline=None)
@given(events(INPUTS), MUTATIONS)
def test_a_mutated_message_is_an_input_or_malformed(event: Event, mutations: list[tuple[str, int, int, bytes]]) -> None:
    _taken_or_refused(mutated(encode_entry(event), mutations))


@settings(max_examples=1500, deadline=None)
@given(MUTATIONS)
def test_a_mutated_submission_is_taken_or_refused_as_if_nothing_had_been_kept(
    mutations: list[tuple[str, int, int, bytes]],
) -> None:
    """`Edge._decode_slowly` keeps nothing from one message to the next, and decodes each whole."""
    decode_input(BYTES)
    data = mutated(BYTES, mutations)
    quick, slow = _outcome(decode_input, data), _outcome(SLOW._decode_slowly, data)
    assert isinstance(quick, str) == isinstance(slow, str), (quick, slow)
    if not isinstance(quick, str):
        assert quick == slow


SLOW = Edge(Entries(KINDS, VERSIONS), INPUTS)


def _outcome(decode: Callable[[bytes], T], data: bytes) -> str | T:
    """What it was, or why it was refused: one sentence on one line, whatever the bytes."""
    try:
        return decode(data)
    except Malformed as refused:
        reason = str(refused)
    assert 0 < len(reason) <= 1000
    assert reason.isprintable()
    assert reason.encode()
    return reason


def _taken_or_refused(data: bytes) -> None:
    outcome = _outcome(decode_input, data)
    if not isinstance(outcome, str):
        event, canonical = outcome
        assert decode_input(canonical) == (event, canonical)
        assert decode_entry(canonical) == event


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not an entry"),
        (b"\xff\xfe[", "not an entry"),
        (b"\xef\xbb\xbf" + BYTES, "not an entry"),
        (b"[" * 100_000, "not an entry"),
        (b'["JobSubmitted",1,' + b"[" * 100_000 + b"]" * 100_000 + b"]", "not an entry"),
        (b'["JobSubmitted",1,{"job":NaN}]', "not an entry"),
        (b'["JobSubmitted",1,{"job":"\\ud800","name":"a","user":"a"}]', "not an entry"),
        (b'["JobSubmitted",1,{"job":"a\xff"}]', "JobSubmitted"),
        (b'["JobSubmitted",2,{}]', "version: JobSubmitted has versions 1 to 1, not 2"),
        (b'["JobSubmitted",99999999999999999999999,{}]', "version: JobSubmitted has versions 1 to 1, not 9999"),
        (b'["JobBegun",1,{}]', "kind 'JobBegun' is no input; known are CatalogueSet, DeviceHealthChanged,"),
        (b'["InstanceBound",1,{}]', "kind 'InstanceBound' is no input"),
        (b'["JobSubmitted",1,{}]', "missing required field `job`"),
        (b'["JobReprioritised",1,{"job":"a","priority":1,"job":"b"}]', "the field 'job' stands twice"),
        (BYTES.replace(b'"labels":{', b'"labels":{"b":"3",'), "the field 'b' stands twice"),
        (BYTES.replace(b'{"job"', b'{"request":{"groups":[{}]},"job"'), "the field 'request' stands twice"),
        (b'["JobReprioritised",1,{"job":"a","priority":' + b"9" * 5000 + b"}]", "priority: Integer value out of range"),
        (b'["JobReprioritised",1,{"job":"a","priority":1e400}]', "priority: Number out of range"),
        (b'["JobReprioritised",1,{"job":"a","priority":1.5}]', "priority: Expected `int`, got `float`"),
        (b'["JobReprioritised",1,{"job":"a","priority":true}]', "priority: Expected `int`, got `bool`"),
        (altered(job="../etc/passwd"), "job: '../etc/passwd' must match ^[A-Za-z0-9]"),
        (altered(job="a\nb"), r"job: 'a\nb' must match"),
        (altered(name="Train"), "name: 'Train' must match"),
        (altered(user="ann\n"), r"user: 'ann\n' must match"),
        (altered(queue="a-"), "queue: 'a-' must match"),
        (altered(queue="x" * 64), "queue: Expected `str` of length <= 63"),
        (altered(submitted_us=2**53 + 1), "submitted_us: Expected `int` <= 9007199254740992"),
        (altered(submitted_us=2**64), "submitted_us: Expected `int` <= 9007199254740992"),
        (altered(request__groups__name="a b"), "request.groups[0].name: 'a b' must match"),
        (altered(request__groups__colour="red"), "request.groups[0]: Object contains unknown field `colour`"),
        (BYTES.replace(b'"job"', b'"co\\u001b[31m"'), "unknown field `co\N{REPLACEMENT CHARACTER}[31m`"),
        (altered(request__groups__count=0), "request.groups[0].count: Expected `int` >= 1"),
        (altered(request__groups__count=100_001), "request.groups[0].count: Expected `int` <= 100000"),
        (altered(request__groups__min=5), "request.groups[head].min is 5, more than its count 1"),
        (altered(request__groups__gpu_profile="3g"), "Expected `str` matching regex"),
        (
            altered(request__groups__gpus=0, request__groups__gpu_profile="3g.40gb"),
            "gpu_profile needs gpus",
        ),
        (altered(request__groups__gpu_milli=5), "request.groups[head]: gpus and gpu_milli exclude each other"),
        (altered(request__groups__name="worker"), "two groups have one name"),
        (altered(request__groups__selector__op="Near"), "request.groups[0].selector[0].op: Invalid enum value 'Near'"),
        (altered(request__groups__selector__op="Gt"), "request.groups[head].selector[zone]: Gt needs one integer"),
        (altered(request__groups__selector__values=[]), "selector[zone]: In needs values"),
        (altered(request__groups__selector__op="Exists"), "selector[zone]: Exists takes no values"),
        (altered(request__groups=[]), "request.groups: Expected `array` of length >= 1"),
        (altered(request__groups=[{"name": f"g{index}"} for index in range(65)]), "request.groups: Expected `array` of length"),
        (altered(request__groups=[{"count": 60_000}, {"name": "b", "count": 60_000}]), "120000 tasks in one instance"),
        (altered(request__groups=[{"min": 0}], request__success=""), "at least one group needs a min of 1"),
        (altered(request__success="tail"), "request.success names the group 'tail', which is not there"),
        (altered(request__groups__min=0), "request.success names the group 'head', which may start without a task"),
        (altered(request__labels={str(index): "" for index in range(65)}), "request.labels: Expected `object` of length <= 64"),
        (altered(run__environment={str(index): "x" * 60_000 for index in range(2)}), "run.environment has 120002 characters"),
        (altered(run__directory="x" * BODY_MAX_BYTES), f"at most {BODY_MAX_BYTES} are taken"),
        (altered(run__directory="x" * 5000), "run.directory: Expected `str` of length <= 4096"),
    ],
)
def test_what_is_refused_says_which_field_and_why(data: bytes, says: str) -> None:
    assert says in sentence(data)
    decode_input(BYTES)
    assert says in sentence(data)


def test_a_node_with_one_device_twice_is_refused() -> None:
    spec = NodeSpec(devices=(Device(uuid="GPU-1"), Device(uuid="GPU-1")))
    assert "spec.devices: one uuid stands twice" in sentence(encode_entry(NodeRegistered(node="n", uid="u", boot="b", spec=spec)))
    bad = NodeRegistered(node="n", uid="u", boot="b", spec=NodeSpec(devices=(Device(uuid="GPU-1"), Device(uuid="GPU 2"))))
    assert "spec.devices[1].uuid: 'GPU 2' must match" in sentence(encode_entry(bad))


def test_jobs_with_one_request_share_it_and_hold_what_they_said() -> None:
    first, _ = decode_input(BYTES)
    second, _ = decode_input(BYTES.replace(b"0123456789ab", b"0123456789ac"))
    third, _ = decode_input(altered(job="third"))
    recorded = decode_entry(BYTES.replace(b"0123456789ab", b"0123456789ad"))
    jobs = [first, second, third, recorded]
    assert all(isinstance(job, JobSubmitted) for job in jobs)
    for job in jobs:
        assert isinstance(job, JobSubmitted)
        assert isinstance(first, JobSubmitted)
        assert job.request is first.request
        assert job.run is first.run
        assert job.request == SUBMITTED.request
    assert len({job.job for job in jobs if isinstance(job, JobSubmitted)}) == 4


def test_what_is_kept_is_bounded_and_what_is_not_kept_any_more_is_decoded_again() -> None:
    edge = Edge(Entries(KINDS, VERSIONS), INPUTS)
    messages = [
        encode_entry(msgspec.structs.replace(SUBMITTED, request=_of_priority(number))) for number in range(3 * SHARED_MAX)
    ]
    for number, data in enumerate(messages):
        event, canonical = edge.decode_input(data)
        assert isinstance(event, JobSubmitted)
        assert (event.request.priority, canonical) == (number, data)
    entries = edge._entries
    assert len(entries._requests.young) + len(entries._requests._old) <= 2 * SHARED_MAX
    assert len(edge._tails) <= SHARED_MAX
    for number in (0, SHARED_MAX, 3 * SHARED_MAX - 1):
        event, _ = edge.decode_input(messages[number])
        assert isinstance(event, JobSubmitted)
        assert event.request == _of_priority(number)


def _of_priority(number: int) -> JobRequest:
    return JobRequest(groups=(GroupRequest(),), priority=number)


def test_an_unknown_kind_or_version_in_the_log_stops_the_reader() -> None:
    for data in (b'["JobTeleported",1,{}]', b'["JobSubmitted",2,{}]', b'["JobSubmitted",0,{}]'):
        with pytest.raises(UnknownKind, match="upgrade this reader"):
            decode_entry(data)
        with pytest.raises(UnknownKind):
            decode_cycle(_record(inputs=[data]))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'["JobReprioritised",1,{"job":"a"}]', "JobReprioritised"),
        (b'["JobReprioritised",1,{"job":"a","priority":1,"extra":1}]', "JobReprioritised"),
        (b'["JobSubmitted",1,{"job":"a","name":"a","user":"a","request":{"groups":[]}}]', "JobSubmitted"),
        (b'["InstanceBound",1,[]]', "InstanceBound"),
        (b'["JobReprioritised",1]', ""),
        (b"7", ""),
    ],
)
def test_a_recorded_entry_whose_body_does_not_decode_is_quarantined_alone(data: bytes, kind: str) -> None:
    good = JobReprioritised(job="b", priority=2)
    entry = decode_entry(data)
    assert isinstance(entry, EntryQuarantined)
    assert entry.kind == kind
    assert entry.reason
    cycle = decode_cycle(_record(inputs=[encode_entry(good), data, BYTES]))
    assert cycle.inputs == (good, entry, SUBMITTED)
    assert decode_entry(encode_entry(entry)) == entry


def _record(inputs: list[bytes], decisions: list[bytes] | None = None) -> bytes:
    return encode(
        Envelope(
            cell="main",
            number=1,
            term=1,
            at_us=0,
            inputs=tuple(map(msgspec.Raw, inputs)),
            decisions=tuple(map(msgspec.Raw, decisions or [])),
            previous=GENESIS,
        )
    )


@settings(deadline=None)
@given(st.lists(events(INPUTS), max_size=5), st.lists(events(DECISIONS), max_size=5))
def test_a_record_comes_back_as_it_was_and_has_one_encoding(inputs: list[Event], decisions: list[Event]) -> None:
    cycle = Cycle(
        cell="main",
        number=7,
        term=2,
        at_us=5,
        started=None,
        inputs=tuple(inputs),
        decisions=tuple(decisions),
        positions={"muster.jobs/0": 4, "a/1": 2},
        policy="default/1",
        previous=digest(b""),
    )
    data = encode_cycle(cycle)
    assert decode_cycle(data) == cycle
    assert encode_cycle(decode_cycle(data)) == data
    encoded = tuple(encode_entry(event) for event in inputs)
    assert encode_cycle(cycle, encoded) == data
    for buffer in (bytearray(), bytearray(b"x" * 100_000)):
        assert [encode_cycle(cycle, encoded, buffer), encode_cycle(cycle, None, buffer)] == [data, data]
    assert open_record(data) == (decode_envelope(encode_frame(cycle)), cycle)
    assert open_envelope(decode_envelope(data)) == cycle
    assert encode_frame(cycle) == encode_cycle(msgspec.structs.replace(cycle, inputs=(), decisions=()))
    assert json.dumps(json.loads(data), separators=(",", ":"), ensure_ascii=False).encode() == data
    assert data.index(b'"a/1"') < data.index(b'"muster.jobs/0"')


@settings(max_examples=500, deadline=None)
@given(st.lists(events(INPUTS), max_size=2), st.lists(events(DECISIONS), max_size=2), MUTATIONS)
def test_a_record_opened_in_one_step_is_what_it_is_in_two(
    inputs: list[Event], decisions: list[Event], mutations: list[tuple[str, int, int, bytes]]
) -> None:
    data = mutated(_record([encode_entry(event) for event in inputs], [encode_entry(event) for event in decisions]), mutations)
    opened = open_record(data)
    if opened is not None:
        envelope = decode_envelope(data)
        assert opened == (msgspec.structs.replace(envelope, inputs=(), decisions=()), open_envelope(envelope))


def test_a_record_with_an_entry_that_does_not_decode_is_opened_in_two_steps() -> None:
    data = _record(inputs=[BYTES, b'["JobSubmitted",1,{"job":"a"}]'])
    assert open_record(data) is None
    first, second = decode_cycle(data).inputs
    assert first == SUBMITTED
    assert isinstance(second, EntryQuarantined)


REPORT = NodeReport(
    node="n1",
    uid="u-1",
    boot="b-1",
    sequence=4,
    spec=NodeSpec(cpu_milli=8000, devices=(Device(uuid="GPU-1"),), labels={"a": "b"}),
    tasks=(TaskReport(job="j", instance=0, attempt=1, rank=0, phase="running"),),
    devices=(DeviceReport(uuid="GPU-1", health="healthy"),),
)


@settings(max_examples=300, deadline=None)
@given(MUTATIONS)
def test_a_mutated_report_is_a_report_or_malformed(mutations: list[tuple[str, int, int, bytes]]) -> None:
    outcome = _outcome(decode_report, mutated(encode(REPORT), mutations))
    if not isinstance(outcome, str):
        assert decode_report(encode(outcome)) == outcome


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        ({"node": "N1"}, "node: 'N1' must match"),
        ({"tasks": (TaskReport(job="a b", instance=0, attempt=1, rank=0, phase="ready"),)}, "tasks[0].job: 'a b' must match"),
        ({"tasks": REPORT.tasks * 2}, "tasks: one task stands twice"),
        ({"devices": REPORT.devices * 2}, "devices: one uuid stands twice"),
        ({"spec": NodeSpec(devices=(Device(uuid="a"), Device(uuid="a")))}, "spec.devices: one uuid stands twice"),
        ({"foreign_devices": ("GPU-1", "GPU/2")}, "foreign_devices[1]: 'GPU/2' must match"),
        ({"sequence": -1}, "sequence: Expected `int` >= 0"),
    ],
)
def test_a_report_that_is_refused_says_which_field_and_why(alter: dict[str, Any], says: str) -> None:
    assert decode_report(encode(REPORT)) == REPORT
    with pytest.raises(Malformed) as refused:
        decode_report(encode(msgspec.structs.replace(REPORT, **alter)))
    assert says in str(refused.value)


def test_a_report_with_a_key_twice_or_beyond_its_size_is_refused() -> None:
    with pytest.raises(Malformed, match="'sequence' stands twice"):
        decode_report(encode(REPORT).replace(b'"sequence":4', b'"sequence":4,"sequence":5'))
    with pytest.raises(Malformed, match=f"at most {REPORT_MAX_BYTES}"):
        decode_report(encode(REPORT) + b" " * REPORT_MAX_BYTES)
    with pytest.raises(Malformed, match="report: "):
        decode_report(b"[]")


def test_every_event_is_frozen_without_floats_and_named_in_the_past() -> None:
    for kind, cls in KINDS.items():
        assert cls.__struct_config__.frozen, kind
        assert cls.__struct_config__.forbid_unknown_fields, kind
        assert "float" not in str(msgspec.inspect.type_info(cls)).lower(), kind
    event = TaskExited(job="j", instance=0, attempt=1, rank=0)
    with pytest.raises(AttributeError):
        event.rank = 1  # type: ignore[misc]
