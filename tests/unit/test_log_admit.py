"""The table of `muster.log.admit`, row by row."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.events.base import Event
from muster.events.codec import decode_cycle, digest, encode, encode_cycle, encode_frame
from muster.events.record import GENESIS, Cycle, TermStarted
from muster.events.registry import DECISIONS, INPUTS
from muster.log.admit import (
    LATE_START,
    NO_RECORD,
    OTHER_CELL,
    RECENT,
    REPLACED,
    TWICE,
    Admitted,
    Halt,
    Head,
    Void,
    admit,
    admit_own,
    genesis,
)
from tests.unit.test_events_codec import events


def start(
    head: Head, term: int, *, number: int | None = None, previous: str | None = None, cell: str = "main", nonce: int = 0
) -> bytes:
    return record(head, term, number=number, previous=previous, cell=cell, started=_started(nonce))


def record(
    head: Head,
    term: int,
    *,
    number: int | None = None,
    previous: str | None = None,
    cell: str = "main",
    started: TermStarted | None = None,
    at_us: int = 0,
) -> bytes:
    return encode_cycle(
        Cycle(
            cell=cell,
            number=head.number + 1 if number is None else number,
            term=term,
            at_us=at_us,
            started=started,
            inputs=(),
            decisions=(),
            positions={},
            policy="default/1",
            previous=head.digest if previous is None else previous,
        )
    )


def _started(nonce: int) -> TermStarted:
    return TermStarted(nonce=f"{nonce:032x}", host="here", build="test", state=GENESIS)


def admitted(head: Head, data: bytes) -> Head:
    verdict = admit(head, data)
    assert isinstance(verdict, Admitted), verdict
    return verdict.head


def void(head: Head, data: bytes) -> str:
    verdict = admit(head, data)
    assert isinstance(verdict, Void), verdict
    return verdict.reason


@pytest.fixture
def led() -> Head:
    """Term 3 was started and has one cycle."""
    head = admitted(genesis("main"), start(genesis("main"), 3))
    return admitted(head, record(head, 3))


def test_the_next_record_of_the_term_is_admitted_and_moves_the_head(led: Head) -> None:
    data = record(led, 3)
    head = admitted(led, data)
    assert (head.number, head.term, head.digest, head.recent[-1]) == (3, 3, digest(data), digest(data))


def test_a_higher_term_starts_at_the_head_only(led: Head) -> None:
    assert admitted(led, start(led, 4)).term == 4
    assert admitted(led, start(led, 9)).term == 9
    assert void(led, start(led, 3)) == LATE_START
    assert void(led, start(led, 2)) == LATE_START
    assert void(led, start(led, 4, number=2)) == LATE_START
    assert void(led, start(led, 4, number=4)) == LATE_START
    assert void(led, start(led, 4, previous=GENESIS)) == LATE_START


def test_of_two_starts_of_one_term_the_first_is_admitted_and_the_second_void(led: Head) -> None:
    head = admitted(led, start(led, 4, nonce=1))
    assert void(head, start(led, 4, nonce=2)) == LATE_START
    assert void(head, start(led, 4, nonce=1)) == LATE_START


def test_a_replaced_writer_is_not_heard(led: Head) -> None:
    head = admitted(led, start(led, 4))
    assert void(head, record(led, 3)) == REPLACED
    assert void(head, record(head, 3)) == REPLACED


@pytest.mark.parametrize("between", [0, 1, RECENT - 1])
def test_a_copy_is_void_while_it_is_among_the_last_admitted(led: Head, between: int) -> None:
    data = record(led, 3)
    head = admitted(led, data)
    for _ in range(between):
        head = admitted(head, record(head, 3))
    assert void(head, data) == TWICE
    assert isinstance(admit(admitted(head, record(head, 3)), data), Void if between < RECENT - 1 else Halt)
    assert len(head.recent) <= RECENT


@pytest.mark.parametrize("alter", [{"number": 2}, {"number": 4}, {"number": 9}, {"previous": GENESIS}, {"previous": "f" * 64}])
def test_a_record_of_the_term_that_does_not_follow_halts(led: Head, alter: dict[str, int | str]) -> None:
    assert isinstance(admit(led, record(led, 3, at_us=7, **alter)), Halt)  # type: ignore[arg-type]


def test_a_cycle_of_a_term_that_was_never_started_halts(led: Head) -> None:
    assert isinstance(admit(led, record(led, 4)), Halt)
    assert isinstance(admit(genesis("main"), record(genesis("main"), 1)), Halt)


def test_another_cell_is_void(led: Head) -> None:
    assert void(led, record(led, 3, cell="other")) == OTHER_CELL
    assert void(led, start(led, 4, cell="other")) == OTHER_CELL


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"cell":"main","number":1e3}',
        b'{"cell":"\\ud800"}',
        b'{"cell":"main","number":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_record_is_void(led: Head, data: bytes) -> None:
    assert void(led, data) == NO_RECORD


def test_a_start_with_entries_or_with_unknown_fields_is_no_record(led: Head) -> None:
    plain = msgspec.json.decode(start(led, 4))
    assert void(led, encode({**plain, "inputs": [["NodesHeard", 1, {}]]})) == NO_RECORD
    assert void(led, encode({**plain, "extra": 1})) == NO_RECORD


def test_a_verdict_depends_on_nothing_but_the_head_and_the_bytes(led: Head) -> None:
    for data in (record(led, 3), start(led, 4), record(led, 2), b"", record(led, 4)):
        before = msgspec.json.encode(led)
        assert admit(led, data) == admit(led, data)
        assert msgspec.json.encode(led) == before


@settings(max_examples=200, deadline=None)
@given(
    st.lists(events(INPUTS), max_size=4),
    st.lists(events(DECISIONS), max_size=4),
    st.sampled_from([3, 3, 3, 3, 2, 4, 0]),
    st.sampled_from([1, 1, 1, 1, 0, -1, 2]),
    st.sampled_from(["main"] * 5 + ["other", "", "x" * 64]),
    st.sampled_from(["default/1"] * 5 + ["x" * 129]),
    st.just({"muster.jobs/0": 7}) | st.dictionaries(st.sampled_from(["muster.jobs/0", "x" * 129]), st.integers(-1, 2)),
    st.sampled_from([0, 0, 0, 1, 2, 3]),
)
def test_our_own_record_is_judged_by_its_frame_as_it_is_whole(
    inputs: list[Event],
    decisions: list[Event],
    term: int,
    ahead: int,
    cell: str,
    policy: str,
    positions: dict[str, int],
    followed: int,
) -> None:
    """Also where something is wrong with it, and where the head has moved on since, over this record or others."""
    head = LED
    cycle = Cycle(
        cell=cell,
        number=max(0, head.number + ahead),
        term=term,
        at_us=0,
        started=None,
        inputs=tuple(inputs),
        decisions=tuple(decisions),
        positions=positions,
        policy=policy,
        previous=head.digest,
    )
    data, frame = encode_cycle(cycle), encode_frame(cycle)
    for _ in range(followed):
        verdict = admit(head, data)
        head = verdict.head if isinstance(verdict, Admitted) else admitted(head, record(head, head.term))
    whole, own = admit(head, data), admit_own(head, frame, data)
    if isinstance(whole, Admitted):
        assert isinstance(own, Admitted)
        assert own.head == whole.head
        assert own.envelope == msgspec.structs.replace(whole.envelope, inputs=(), decisions=())
        assert decode_cycle(data) == cycle
    else:
        assert own == whole


LED = admitted(genesis("main"), start(genesis("main"), 3))
