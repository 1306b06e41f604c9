"""A state comes back from its snapshot as it was, and goes on as it would have."""

from random import Random

import pytest

from muster.cluster import snapshot
from muster.cluster.assignment import assignment
from muster.cluster.invariants import check_rebuild
from muster.engine.step import Engine
from muster.events.codec import decode_cycle
from muster.events.operations import NodeCordoned, NodeDrained
from tests.support.build import S, group, job, node, ready
from tests.support.driver import Driver, folded
from tests.support.plays import story


def crowded() -> Driver:
    """A cell with something of everything: running, starting, stopping, nominated, backing off, ended."""
    driver = Driver(min_runtime_us=0)
    driver.step(node("a", 2), node("b", 2))
    driver.step(job("run", group(count=2), grace_us=100 * S), job("end"), job("start"))
    driver.run("run", "end")
    driver.exit("end")
    driver.step(job("gang", group(count=3), priority=5))
    driver.step(NodeCordoned(node="b"), job("array", array=2))
    return driver


def test_every_part_of_a_crowded_state_comes_back() -> None:
    driver = crowded()
    phases = [instance.phase for one in driver.state.jobs.values() for instance in one.instances]
    assert {"starting", "stopping", "pending", "finished"} <= set(phases)
    assert driver.state.nominations
    check_rebuild(driver.state)
    data = snapshot.encode(driver.state)
    again = snapshot.decode(data)
    assert snapshot.digest(again) == snapshot.digest(driver.state)
    assert [assignment(again, row) for row in (0, 1)] == [assignment(driver.state, row) for row in (0, 1)]


def test_a_rebuilt_state_decides_what_the_other_does() -> None:
    driver = crowded()
    other = Engine(snapshot.decode(snapshot.encode(driver.state)))
    number, term, at_us = driver.state.number + 1, driver.state.term, driver.state.at_us + 400 * S
    inputs = (NodeDrained(node="a"), ready("start"))
    assert other.step(number, term, at_us, inputs) == driver.step(*inputs, at_us=at_us)
    assert snapshot.digest(other.state) == snapshot.digest(driver.state)


def test_the_digest_is_that_of_the_folded_records() -> None:
    driver = crowded()
    assert snapshot.digest(folded(driver.records)) == snapshot.digest(driver.state)


def test_equal_states_have_equal_bytes_however_they_came_about() -> None:
    one, other = Driver(), Driver()
    one.step(node("a", 2), node("b", 2), job("j", group(count=2)))
    other.step(node("a", 2), node("b", 2), job("j", group(count=2)))
    other.engine.drop_caches()
    assert snapshot.encode(one.state) == snapshot.encode(other.state)


def test_the_digest_changes_with_anything_that_is_true() -> None:
    driver = crowded()
    before = snapshot.digest(driver.state)
    driver.step()
    after = snapshot.digest(driver.state)
    assert before != after
    driver.node("a").heard_us += 1
    assert snapshot.digest(driver.state) != after


def test_decide_leaves_the_state_that_evolving_its_decisions_leaves() -> None:
    """Decisions try things in plans: what they leave behind is what the record says and nothing else."""
    plays, _ = story(Random(21), cycles=25)
    state = folded(plays.records)
    assert snapshot.digest(state) == snapshot.digest(plays.state)
    assert sum(len(decode_cycle(data).decisions) for data in plays.records) > 20


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"[2]", b"\xff\xfe", b'["muster", 1]'])
def test_bytes_that_are_no_snapshot_are_refused(data: bytes) -> None:
    with pytest.raises(snapshot.SnapshotError):
        snapshot.decode(data)


def test_a_snapshot_of_another_schema_is_refused_by_its_number() -> None:
    data = snapshot.encode(Driver().state)
    assert data.startswith(b"[%d," % snapshot.SCHEMA)
    with pytest.raises(snapshot.SnapshotError, match="schema 9999"):
        snapshot.decode(data.replace(b"[%d," % snapshot.SCHEMA, b"[9999,", 1))
