"""A reader that begins in the middle of a log admits what one that began at the beginning does, from some record on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.client.joining import WAITING_MAX, Joining
from muster.events.codec import decode_envelope, digest, encode
from muster.events.record import GENESIS, Envelope, TermStarted
from muster.log.admit import RECENT, Admitted, admit, genesis
from muster.log.errors import LogHalted
from tests.golden.recorded import LOGS, read

CELL = "main"
STARTED = TermStarted(nonce="0" * 32, host="h", build="b", state=GENESIS)
MOVES = st.sampled_from(["cycle", "cycle", "cycle", "cycle", "term", "twice", "replaced", "late-start", "garbage", "elsewhere"])


def record(number: int, term: int, previous: str, *, cell: str = CELL, start: bool = False, at_us: int = 0) -> bytes:
    started = STARTED if start else None
    return encode(Envelope(cell=cell, number=number, term=term, at_us=at_us, started=started, previous=previous))


def written(moves: list[tuple[str, int]]) -> list[bytes]:
    """A log as writers that keep the rules make it: each builds on a record that it has read, admitted."""
    records = [record(1, 1, GENESIS, start=True)]
    chain = [(1, 1, records[0])]
    for at_us, (move, back) in enumerate(moves, 1):
        number, term, head = chain[-1]
        older_number, older_term, older = chain[max(0, len(chain) - 1 - back)]
        if move in ("cycle", "term"):
            term += move == "term"
            data = record(number + 1, term, digest(head), start=move == "term", at_us=at_us)
            chain.append((number + 1, term, data))
        elif move == "twice":
            data = records[-1 - min(back, len(records) - 1)]
            if all(data is not each for _, _, each in chain):
                continue
        elif move == "replaced":
            if older_term == term:
                continue
            data = record(older_number + 1, older_term, digest(older), at_us=at_us)
        elif move == "late-start":
            if older is head:
                continue
            data = record(older_number + 1, older_term + 1, digest(older), start=True, at_us=at_us)
        elif move == "elsewhere":
            data = record(number + 1, term, digest(head), cell="other", at_us=at_us)
        else:
            data = b"garbage"
        records.append(data)
    return records


def admitted(records: list[bytes]) -> list[Envelope]:
    """What a reader from the beginning admits."""
    head = genesis(CELL)
    found = []
    for data in records:
        verdict = admit(head, data)
        if isinstance(verdict, Admitted):
            head = verdict.head
            found.append(verdict.envelope)
        else:
            assert type(verdict).__name__ == "Void", verdict
    return found


def joined(records: list[bytes], begin: int) -> list[Envelope]:
    """What a reader from there admits."""
    joining = Joining(CELL, from_beginning=begin == 0)
    return [envelope for place, data in enumerate(records[begin:], begin + 1) for envelope in joining.take(place, data)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(MOVES, st.integers(0, 60)), max_size=250), st.data())
def test_from_anywhere_the_same_is_admitted_from_some_record_on(moves: list[tuple[str, int]], data: st.DataObject) -> None:
    records = written(moves)
    whole = admitted(records)
    begin = data.draw(st.integers(0, len(records)))
    found = joined(records, begin)
    assert found == whole[len(whole) - len(found) :]
    if begin == 0:
        assert found == whole
    appended = len(whole) - len(admitted(records[: begin + RECENT]))
    assert begin == 0 or appended < 2 or len(found) >= appended - 1, "after the first 64 only one may be passed over"


def test_a_real_log_is_joined_anywhere() -> None:
    records = read(LOGS, "story-11")
    whole = [decode_envelope(data) for data in records]
    for begin in range(1, len(records) - RECENT - 1, 7):
        joining = Joining(whole[0].cell, from_beginning=False)
        found = [envelope for place, data in enumerate(records[begin:], 1) for envelope in joining.take(place, data)]
        assert found == whole[begin + RECENT :]


def test_a_log_that_was_cut_stops_whoever_has_joined() -> None:
    records = written([("cycle", 0)] * 200)
    whole = joined(records, 5)
    assert len(whole) == 196 - RECENT
    with pytest.raises(LogHalted, match="cycle 120 stands here; 100 would be right"):
        joined([*records[:99], *records[119:]], 5)
    with pytest.raises(LogHalted, match="cycle 2 stands here; 181 would be right"):
        joined([*records[:180], *records[:3]], 5)


def test_what_was_read_before_the_place_was_found_is_bounded() -> None:
    joining = Joining(CELL, from_beginning=False)
    for number in range(3 * WAITING_MAX):
        assert joining.take(number, record(number, 1, GENESIS, at_us=number)) == []
    assert len(joining._waiting) == WAITING_MAX
