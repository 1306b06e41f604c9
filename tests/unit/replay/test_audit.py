"""Audit finds what this build decides otherwise, and says where."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.cluster import snapshot
from muster.cluster.state import State
from muster.engine.step import Engine
from muster.events.base import Event
from muster.events.codec import decode_cycle, decode_envelope, digest, encode_cycle
from muster.events.decisions import InstanceBound, InstanceStarted
from muster.events.record import Cycle, Envelope, TermStarted
from muster.log.sqlite import SqliteLog
from muster.replay.audit import Audited, audit
from muster.replay.travel import fold_to
from tests.simulation.small_world import job_id, report, spec, submission
from tests.unit.scheduler.driving import JOBS, NODES, Driver


def history() -> list[bytes]:
    """Two nodes, and three jobs of which each is bound."""
    driver = Driver()
    for name in ("n1", "n2"):
        driver.put(NODES, report(name, spec=spec(name)))
    driver.turn()
    for number in range(3):
        driver.put(JOBS, submission(job_id(number)))
        driver.turn(after_s=1)
    return driver.records


def judge(records: list[bytes], **options: Any) -> Audited:
    """Audit these records."""
    envelopes: list[tuple[Envelope, bytes]] = [(decode_envelope(data), data) for data in records]
    return audit(lambda: envelopes, **options)


def altered(records: list[bytes], at: int, **fields: Any) -> list[bytes]:
    """A log in which a record was written otherwise from the beginning, so that the chain is whole."""
    written: list[bytes] = []
    for index, data in enumerate(records):
        cycle: Cycle = decode_cycle(data)
        if index == at:
            cycle = msgspec.structs.replace(cycle, **fields)
        if written:
            cycle = msgspec.structs.replace(cycle, previous=digest(written[-1]))
        written.append(encode_cycle(cycle))
    return written


def bound(records: list[bytes], at: int) -> InstanceBound:
    """The only decision of that record."""
    (decision,) = decode_cycle(records[at]).decisions
    assert isinstance(decision, InstanceBound)
    return decision


def test_a_log_that_this_build_wrote_agrees() -> None:
    records = history()
    found = judge(records)
    assert found.difference is None
    assert (found.cycles, found.terms, found.inputs, found.decisions) == (5, 1, 5, 3)
    assert "none differs" in str(found)


def test_a_changed_decision_is_found_with_its_cycle_both_sides_and_the_state_before() -> None:
    records = history()
    right = bound(records, 3)
    wrong = msgspec.structs.replace(right, placements=(msgspec.structs.replace(right.placements[0], devices=(3,)),))
    planted = altered(records, 3, decisions=(wrong,))
    difference = judge(planted).difference
    assert difference is not None
    assert (difference.number, difference.index) == (4, 0)
    assert difference.recorded == (wrong,)
    assert difference.decided == (right,)
    before = fold_to([(decode_envelope(data), data) for data in planted], 3)
    assert snapshot.digest(difference.before) == snapshot.digest(before)
    lines = "\n".join(difference.lines())
    assert "cycle 4" in lines
    assert right.job in lines
    assert "[0,0,[3]]" in lines or "[0,1,[3]]" in lines
    assert "recorded" in lines
    assert "decided" in lines


def test_a_decision_that_was_dropped_is_found() -> None:
    records = history()
    difference = judge(altered(records, 2, decisions=())).difference
    assert difference is not None
    assert (difference.number, difference.recorded, difference.decided) == (3, (), (bound(records, 2),))
    assert "is decided and not recorded" in difference.what


def test_a_decision_that_was_added_is_found() -> None:
    records = history()
    first = bound(records, 2)
    extra = InstanceStarted(job=first.job, instance=0, attempt=1)
    difference = judge(altered(records, 2, decisions=(first, extra))).difference
    assert difference is not None
    assert (difference.number, difference.index) == (3, 1)
    assert "is recorded and not decided" in difference.what


def test_an_input_that_was_dropped_is_found_by_what_followed_from_it() -> None:
    records = history()
    difference = judge(altered(records, 3, inputs=())).difference
    assert difference is not None
    assert difference.number == 4


def test_a_state_that_differs_at_the_start_of_a_term_is_found() -> None:
    driver = Driver()
    driver.put(JOBS, submission(job_id(1)))
    driver.turn()
    data = driver.core.start_term(driver.at_us, "1" * 32, "host", "build", 0)
    driver.core.read_back(data)
    records = [*driver.records, data]
    assert judge(records).difference is None
    started = decode_cycle(data).started
    assert started is not None
    difference = judge(altered(records, 2, started=msgspec.structs.replace(started, state="0" * 64))).difference
    assert difference is not None
    assert difference.number == 3
    assert "digest" in difference.what


def test_a_state_of_another_schema_is_not_compared_and_that_is_said_while_every_decision_is() -> None:
    records = history()
    started = decode_cycle(records[0]).started
    assert started is not None
    older = msgspec.structs.replace(started, state="0" * 64, schema=snapshot.SCHEMA - 1)
    found = judge(altered(records, 0, started=older))
    assert found.difference is None
    assert (found.decisions, found.terms, found.foreign) == (3, 1, 1)
    assert "at 1 of 1 starts of a term the state is in another schema and was not compared" in str(found)
    assert judge(altered(altered(records, 0, started=older), 2, decisions=())).difference is not None


def test_a_record_that_says_no_schema_is_of_the_first_that_was_recorded() -> None:
    text = msgspec.json.encode(TermStarted(nonce="0" * 32, host="h", build="b", state="0" * 64))
    del (fields := msgspec.json.decode(text))["schema"]
    assert msgspec.json.decode(msgspec.json.encode(fields), type=TermStarted).schema == 2


def test_an_engine_that_decides_otherwise_is_found() -> None:
    class Lazy(Engine):
        def step(self, *arguments: Any) -> list[Event]:
            return super().step(*arguments)[:-1]

    difference = judge(history(), engine=Lazy).difference
    assert difference is not None
    assert difference.number == 3


def test_a_cycle_that_cannot_be_decided_is_a_difference() -> None:
    records = history()
    difference = judge(altered(records, 3, at_us=0)).difference
    assert difference is not None
    assert "cannot decide" in difference.what


async def test_a_log_in_a_folder_is_audited(tmp_path: Path) -> None:
    records = history()
    log = SqliteLog.open(tmp_path, "main", writer=True)
    for data in records:
        await log.append(data)
    await log.close()
    found = audit(tmp_path)
    assert (found.cycles, found.difference) == (5, None)


def test_the_state_before_the_first_cycle_is_empty() -> None:
    difference = judge(altered(history(), 0, started=msgspec.structs.replace(_start(), state="1" * 64))).difference
    assert difference is not None
    assert difference.number == 1
    assert snapshot.digest(difference.before) == snapshot.digest(State("main"))


def _start() -> Any:
    started = decode_cycle(history()[0]).started
    assert started is not None
    return started


@pytest.mark.parametrize("drop", [True, False])
def test_caches_change_no_decision(drop: bool) -> None:
    class Dropping(Engine):
        def step(self, *arguments: Any) -> list[Event]:
            if drop:
                self.drop_caches()
            return super().step(*arguments)

    assert judge(history(), engine=Dropping).difference is None
