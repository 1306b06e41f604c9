"""The beat: who was not heard, said once an interval, and never of those who could not be read."""

from muster.events.nodes import NodesHeard
from muster.events.record import Cycle
from muster.scheduler.core import Core
from tests.simulation.small_world import report, spec
from tests.unit.scheduler.driving import NODES, Driver

OTHER = "muster.nodes/1"


def cell() -> Driver:
    """Three nodes, the last on another partition."""
    driver = Driver()
    for name, source in (("n1", NODES), ("n2", NODES), ("n3", OTHER)):
        driver.put(source, report(name, spec=spec(name)))
    driver.turn()
    return driver


def beat(cycle: Cycle | None) -> NodesHeard | None:
    """The beat of a cycle."""
    found = [event for event in cycle.inputs if isinstance(event, NodesHeard)] if cycle is not None else []
    return found[0] if found else None


def test_no_beat_without_nodes() -> None:
    driver = Driver()
    assert driver.core.next_wake_us() is None
    assert driver.turn(after_s=60) is None


def test_the_first_beat_comes_an_interval_after_the_term_began_and_names_who_was_not_heard() -> None:
    driver = cell()
    assert driver.core.next_wake_us() == driver.at_us + 5_000_000
    assert beat(driver.turn(after_s=4)) is None
    assert beat(driver.turn(after_s=1)) == NodesHeard(), "registering is being heard"
    driver.put(NODES, report("n2", sequence=2))
    assert beat(driver.turn(after_s=5)) == NodesHeard(missing=(0, 2))
    assert beat(driver.turn(after_s=5)) == NodesHeard(missing=(0, 1, 2))


def test_a_new_leader_gives_every_node_a_whole_interval() -> None:
    driver = cell()
    driver.turn(after_s=5)
    core = Core("main")
    for data in driver.records:
        core.follow(data)
    assert core.next_wake_us() is None or not core.beat_due(driver.at_us + 60_000_000)
    again = Driver(core)
    again.offsets = dict(driver.offsets)
    assert beat(again.turn(after_s=4)) is None
    again.put(NODES, report("n1", sequence=3))
    assert beat(again.turn(after_s=1)) == NodesHeard(missing=(1, 2))


def test_nodes_of_a_partition_that_was_not_read_are_unread_and_not_missing() -> None:
    driver = cell()
    driver.turn(after_s=5)
    driver.put(NODES, report("n1", sequence=2))
    assert beat(driver.turn(after_s=5, unread=(OTHER,))) == NodesHeard(missing=(1,), unread=(2,))


def test_where_something_was_not_read_a_node_of_unknown_source_is_unread() -> None:
    driver = cell()
    core = Core("main")
    for data in driver.records:
        core.follow(data)
    again = Driver(core)
    assert beat(again.turn(after_s=5, unread=(OTHER,))) == NodesHeard(unread=(0, 1, 2))


def test_a_beat_waits_for_the_reports_that_were_read() -> None:
    driver = cell()
    driver.turn(after_s=5)
    for name, source in (("n1", NODES), ("n2", NODES), ("n3", OTHER)):
        driver.put(source, report(name, sequence=2))
    assert beat(driver.turn(after_s=5, take=1)) is None
    assert beat(driver.turn(take=1)) is None
    assert driver.core.next_wake_us() == driver.core.state.at_us
    assert beat(driver.turn(take=1)) == NodesHeard()


def test_a_beat_is_not_made_while_reports_lie_unread_elsewhere() -> None:
    driver = cell()
    assert beat(driver.turn(after_s=5, beat=False)) is None
    assert beat(driver.turn()) is not None


def test_a_late_report_is_not_being_heard() -> None:
    driver = cell()
    driver.put(NODES, report("n1", sequence=7))
    driver.turn(after_s=5)
    driver.put(NODES, report("n1", sequence=6))
    assert beat(driver.turn(after_s=5)) == NodesHeard(missing=(0, 1, 2))


def test_a_beat_of_ten_thousand_healthy_nodes_is_forty_bytes() -> None:
    driver = cell()
    cycle = driver.turn(after_s=5)
    assert cycle is not None
    assert b'["NodesHeard",1,{"missing":[],"unread":[]}]' in driver.records[-1]


def test_rows_of_a_beat_are_those_before_the_cycle() -> None:
    """n2 is replaced in the cycle of the beat that finds the old n2 missing: the new one was heard."""
    driver = cell()
    driver.turn(after_s=5)
    driver.put(NODES, report("n2", uid="other", spec=spec("other")))
    cycle = driver.turn(after_s=5)
    assert cycle is not None
    assert isinstance(cycle.inputs[0], NodesHeard)
    node = driver.core.state.node("n2")
    assert node is not None
    assert node.uid == "other"
    assert node.row not in driver.core.state.missing
