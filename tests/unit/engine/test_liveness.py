"""Silent, lost, returned, flapping: what follows from who was heard."""

from typing import Any

from muster.events.decisions import (
    AttemptEnded,
    NodeLost,
    NodeQuarantined,
    NodeReleased,
    NodeReturned,
    NodeSilent,
)
from muster.events.nodes import NodesHeard
from muster.events.operations import LeaseExtended, NodeUncordoned
from tests.support.build import S, exited, job, node
from tests.support.driver import Driver


def cell(**policy: Any) -> Driver:
    """Two nodes, both heard just now; on the first a job runs."""
    driver = Driver(**policy)
    driver.step(node("a", 1), node("b", 0))
    driver.step(job("j"))
    driver.run("j")
    driver.step(NodesHeard())
    return driver


def test_silence_stops_new_work_and_nothing_else() -> None:
    driver = cell()
    driver.step(NodesHeard(missing=(0,)), after_s=29)
    assert driver.decided == []
    driver.step(after_s=1)
    assert driver.found(NodeSilent)[0].node == "a"
    assert driver.phase("j") == "running"
    driver.step(job("k"))
    assert driver.phase("k") == "pending"


def test_a_node_is_lost_when_its_lease_and_the_margin_are_over() -> None:
    driver = cell()
    heard_us = driver.state.at_us
    driver.step(NodesHeard(missing=(0,)), after_s=5)
    driver.step(at_us=heard_us + 330 * S - 1)
    assert driver.node("a").liveness == "silent"
    driver.step(at_us=heard_us + 330 * S)
    assert driver.found(NodeLost)
    assert (driver.found(AttemptEnded)[0].then, driver.found(AttemptEnded)[0].reason) == ("pending", "node-lost")


def test_a_node_that_was_not_heard_for_long_enough_is_silent_and_lost_in_one_cycle() -> None:
    driver = cell()
    driver.step(NodesHeard(missing=(0,)), after_s=5)
    driver.step(after_s=1000)
    assert [type(event) for event in driver.decided][:2] == [NodeSilent, NodeLost]


def test_a_node_that_is_heard_again_takes_work_at_once() -> None:
    driver = cell()
    driver.step(NodesHeard(missing=(0,)), after_s=5)
    driver.step(job("k"), after_s=30)
    driver.step(NodesHeard(), exited("j"))
    assert driver.found(NodeReturned)
    assert driver.phase("k") == "starting"


def test_a_lost_node_that_is_heard_again_has_nothing_of_what_it_ran() -> None:
    driver = cell()
    driver.step(NodesHeard(missing=(0,)), after_s=5)
    driver.step(after_s=1000)
    assert driver.node("a").device_free == [1_000_000]
    driver.step(NodesHeard())
    assert isinstance(driver.decided[0], NodeReturned)
    assert driver.attempt("j").number == 2


def test_heard_and_missing_in_one_cycle_is_missing_from_then_on() -> None:
    driver = cell()
    driver.step(NodesHeard(missing=(0,)), after_s=5)
    driver.step(after_s=30)
    driver.step(NodesHeard(), NodesHeard(missing=(0,)))
    assert driver.node("a").liveness == "heard"
    driver.step(after_s=30)
    assert driver.node("a").liveness == "silent"


def test_an_announced_outage_loses_no_node() -> None:
    driver = cell()
    driver.step(LeaseExtended(until_us=driver.state.at_us + 7200 * S))
    driver.step(NodesHeard(missing=(0, 1)), after_s=5)
    driver.step(after_s=3600)
    assert driver.node("a").liveness == "silent"
    assert driver.phase("j") == "running"
    driver.step(NodesHeard())
    assert driver.node("a").liveness == "heard"
    assert not driver.found(AttemptEnded)


def test_the_gap_in_which_nobody_led_loses_no_node() -> None:
    driver = cell()
    driver.step(NodesHeard(missing=(0,)), after_s=5)
    driver.lead(gap_us=1000 * S)
    driver.step()
    assert driver.decided == []
    driver.step(after_s=30)
    assert driver.found(NodeSilent)


def flap(driver: Driver) -> None:
    driver.step(NodesHeard(missing=(0,)), after_s=5)
    driver.step(after_s=30)
    driver.step(NodesHeard())


def test_a_node_that_flaps_is_put_into_quarantine_and_released() -> None:
    driver = cell(flap_limit=2, flap_window_us=600 * S, quarantine_us=100 * S)
    flap(driver)
    assert not driver.found(NodeQuarantined)
    flap(driver)
    (event,) = driver.found(NodeQuarantined)
    assert event.until_us == driver.state.at_us + 100 * S
    driver.step(exited("j"), job("k"))
    assert driver.phase("k") == "pending"
    driver.step(at_us=event.until_us)
    assert driver.found(NodeReleased)
    assert driver.phase("k") == "starting"


def test_silences_that_are_long_ago_do_not_count() -> None:
    driver = cell(flap_limit=2, flap_window_us=100 * S)
    flap(driver)
    driver.step(NodesHeard(), after_s=200)
    flap(driver)
    assert not driver.found(NodeQuarantined)


def test_a_person_ends_a_quarantine() -> None:
    driver = cell(flap_limit=1)
    flap(driver)
    assert driver.node("a").quarantined_until_us
    driver.step(NodeUncordoned(node="a"), exited("j"), job("k"))
    assert driver.phase("k") == "starting"
    assert driver.node("a").silences == []


def test_a_limit_of_nought_never_puts_anybody_into_quarantine() -> None:
    driver = cell(flap_limit=0)
    for _ in range(5):
        flap(driver)
    assert not driver.node("a").quarantined_until_us
