"""Messages recorded together make what they make one by one, and positions move as far."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.events.base import Event
from muster.events.codec import Malformed, decode_inputs, digest, encode, encode_entry
from muster.events.jobs import JobCancelRequested
from muster.events.nodes import DeviceHealthChanged, NodeRegistered, NodeRemoved, TaskExited, TaskMissing, TaskReady
from muster.events.operations import NodeCordoned
from muster.scheduler import recorder
from muster.scheduler.core import BufferFull, Message, UnknownSource
from muster.scheduler.messages import Buffer
from muster.scheduler.recorder import Young, _check_age
from tests.simulation.small_world import WALL_US, job_id, report, spec, submission
from tests.unit.scheduler.driving import GPU_HEALTH, JOBS, NODES, OPERATIONS, SECOND, Driver

TOO_OLD_US = 1800 * SECOND


def _message(kind: int, number: int, odd: bool) -> tuple[str, bytes, str]:
    """Source, bytes and key; an odd one is in the wrong topic or under the wrong key."""
    job = job_id(number)
    task: dict[str, Any] = {"job": job, "instance": 0, "attempt": 1, "rank": 0}
    health = DeviceHealthChanged(node="a", uid="a-uid", device="a-gpu0", health="failed")
    entries: list[tuple[str, Event]] = [
        (NODES, TaskReady(**task)),
        (NODES, TaskExited(**task)),
        (NODES, TaskMissing(**task)),
        (JOBS, JobCancelRequested(job=job)),
        (OPERATIONS, NodeCordoned(node="a")),
        (NODES, NodeRegistered(node="a", uid="a-uid", boot="boot-0", spec=spec("a"))),
        (NODES, NodeRemoved(node="a", uid="a-uid")),
        (GPU_HEALTH, health),
    ]
    if kind < len(entries):
        source, event = entries[kind]
        return (OPERATIONS if odd and source != OPERATIONS else JOBS if odd else source), encode_entry(event), job
    if kind == len(entries):
        node = "ab"[number % 2]
        return NODES, encode(report(node, sequence=number, spec=spec(node) if odd else None, foreign_cpu_milli=number)), node
    if kind == len(entries) + 1:
        return JOBS, b"no entry", job
    if odd:
        return [(NODES, submission(job), job), (JOBS, submission(job), job_id(9)), (JOBS, submission(job), "")][number % 3]
    return JOBS, submission(job), job


MESSAGES = st.lists(
    st.builds(_message, st.sampled_from([*range(13), 8, 8]), st.integers(1, 4), st.sampled_from([False, False, False, True])),
    max_size=30,
)


def _play(messages: list[tuple[str, bytes, str]], ages: list[int], takes: list[int], room: int, *, together: bool) -> Any:
    driver = Driver()
    driver.core.state.policy = msgspec.structs.replace(driver.core.state.policy, inputs_max=room)
    offsets: dict[str, int] = {}
    offered = []
    for number, (source, data, key) in enumerate(messages):
        offset = offsets[source] = offsets.get(source, -1) + 1
        age_us = ages[number % len(ages)]
        offered.append(Message(source, offset, data, WALL_US + age_us, key))
    if offered:
        driver.core.refuse(offered[-1].source, offered[-1].offset, digest(offered[-1].data))
    if together:
        driver.core.offer_all(offered)
        driver.core.offer_all(offered)
    else:
        for message in [*offered, *offered]:
            driver.core.offer(message)
    for take in takes:
        driver.turn(1, take=take)
    return driver.records, driver.core.taken(), driver.core.ahead(), len(driver.core.recorder.buffer)


class Never:
    """Nothing is taken at a glance."""

    def __init__(self, too_old_us: int) -> None:
        pass

    def surely(self, message: Message) -> bool:
        return False


@settings(max_examples=300, deadline=None)
@given(
    MESSAGES,
    st.lists(st.sampled_from([0, SECOND, TOO_OLD_US * 2]), min_size=1, max_size=3),
    st.lists(st.integers(0, 40)),
    st.sampled_from([1, 2, 3, 5, 8, 2000]),
    st.sampled_from([1, 300, 700, 1500, 4_000_000]),
)
def test_messages_taken_together_make_what_they_make_one_by_one(
    messages: list[tuple[str, bytes, str]], ages: list[int], takes: list[int], room: int, bytes_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorder, "INPUTS_MAX_BYTES", bytes_max)
        quick = _play(messages, ages, takes, room, together=True)
        patched.setattr(recorder, "Young", Never)
        patched.setattr(recorder, "TAKEN_AS_THEY_ARE", {topic: {} for topic in recorder.TAKEN_AS_THEY_ARE})
        patched.setattr(recorder, "BATCH", 1)
        patched.setattr(recorder, "decode_inputs", lambda entries: ([None for _ in entries], entries))
        assert _play(messages, ages, takes, room, together=False) == quick


@pytest.mark.parametrize("source", [NODES, "muster.nodes/1"])
def test_a_report_that_makes_many_inputs_leaves_less_room_to_what_follows(source: str) -> None:
    driver = Driver()
    driver.core.state.policy = msgspec.structs.replace(driver.core.state.policy, inputs_max=3)
    driver.put(NODES, report("a", spec=spec("a"), foreign_cpu_milli=5))
    for number in range(3):
        driver.put(source, TaskReady(job=job_id(number), instance=0, attempt=1, rank=0))
    assert [type(event).__name__ for event in driver.inputs()] == ["NodeRegistered", "ForeignUseChanged", "TaskReady"]
    assert [getattr(event, "job", "") for event in driver.inputs()] == [job_id(1), job_id(2)]


def test_what_was_taken_meanwhile_is_dropped_without_being_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    for number in range(1, 4):
        driver.put(JOBS, submission(job_id(number)), key=job_id(number))
    driver.core.recorder.moved[JOBS] = 2
    looked: list[bytes] = []

    def look(entries: list[bytes]) -> Any:
        looked.extend(entries)
        return decode_inputs(entries)

    monkeypatch.setattr(recorder, "decode_inputs", look)
    assert [getattr(event, "job", "") for event in driver.inputs()] == [job_id(3)]
    assert looked == [submission(job_id(3))]
    assert driver.core.taken() == {JOBS: 3}


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 14), st.sampled_from("0af9AF_xXg-")), max_size=2),
    st.integers(0, 2**48) | st.integers(WALL_US, WALL_US + 2**36),
    st.integers(-120, 4000),
    st.sampled_from([0, SECOND, 60 * SECOND, TOO_OLD_US, 30 * 86_400 * SECOND]),
)
def test_an_id_that_is_young_at_a_glance_is_young(
    altered: list[tuple[int, str]], appended_us: int, age_s: int, too_old_us: int
) -> None:
    key = job_id(1, max(0, appended_us - age_s * SECOND))
    for at, character in altered:
        key = key[:at] + character + key[at + 1 :]
    young = Young(too_old_us)
    young.surely(Message(JOBS, 0, b"", max(0, appended_us - 30 * SECOND), "a"))
    if young.surely(Message(JOBS, 0, b"", appended_us, key)):
        _check_age(key, appended_us, too_old_us)


def test_an_id_that_was_just_made_is_young_at_a_glance_and_an_old_one_is_refused() -> None:
    young = Young(TOO_OLD_US)
    assert young.surely(Message(JOBS, 0, b"", WALL_US, job_id(1, WALL_US)))
    old = job_id(1, WALL_US - 2 * TOO_OLD_US)
    assert not young.surely(Message(JOBS, 0, b"", WALL_US, old))
    with pytest.raises(Malformed):
        _check_age(old, WALL_US, TOO_OLD_US)


@given(
    st.lists(
        st.tuples(st.sampled_from([JOBS, NODES, "muster.nodes/1", "x/0"]), st.integers(0, 6), st.integers(0, 4)), max_size=12
    ),
    st.dictionaries(st.sampled_from([JOBS, NODES]), st.integers(0, 3)),
)
def test_a_buffer_keeps_the_same_of_many_messages_as_of_one_after_another(
    given_: list[tuple[str, int, int]], positions: dict[str, int]
) -> None:
    messages = [Message(source, offset, b"x" * size, 0) for source, offset, size in given_]
    together, apart = Buffer(4, 10), Buffer(4, 10)
    raised: list[str] = []
    try:
        together.add_all(messages, lambda source: positions.get(source, 0))
    except (BufferFull, UnknownSource) as error:
        raised.append(repr(error))
    try:
        for message in messages:
            if message.offset >= positions.get(message.source, 0):
                apart.add(message)
    except (BufferFull, UnknownSource) as error:
        raised.append(repr(error))
    assert len(raised) in (0, 2)
    assert len(dict.fromkeys(raised)) <= 1
    for count in (0, min(1, len(apart)), max(0, len(apart) - 1)):
        assert list(together.upcoming(9)) == list(apart.upcoming(9))
        assert (together.ahead, together.reports, together._bytes) == (apart.ahead, apart.reports, apart._bytes)
        together.drop(count)
        for _ in range(count):
            apart.drop(1)
    assert (len(together), together.reports, together._bytes) == (0, 0, 0)
