"""The assignment of a node: what it is to hold, and in which phase."""

from muster.cluster.assignment import assignment
from muster.events.levels import TaskAssignment
from muster.events.operations import NodeDrained
from tests.support.build import S, exited, group, job, node, ready
from tests.support.driver import Driver


def of(driver: Driver, name: str = "a") -> dict[tuple[str, int], TaskAssignment]:
    """By job and rank."""
    found = assignment(driver.state, driver.node(name).row)
    assert (found.node, found.number, found.at_us) == (name, driver.state.number, driver.state.at_us)
    return {(task.job, task.rank): task for task in found.tasks}


def test_a_node_without_work_is_to_hold_nothing() -> None:
    driver = Driver()
    driver.step(node("a"))
    assert of(driver) == {}


def test_a_gang_is_prepared_and_then_run_together() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("j", group(count=2)))
    assert {task.phase for task in of(driver).values()} == {"prepare"}
    driver.step(ready("j", 0))
    assert {task.phase for task in of(driver).values()} == {"prepare"}
    driver.step(ready("j", 1))
    assert {task.phase for task in of(driver).values()} == {"run"}
    assert [of(driver)["j", rank].devices for rank in (0, 1)] == [(0,), (1,)]


def test_what_is_to_stop_is_named_with_its_deadline_until_it_is_gone() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("j", group(count=2), grace_us=30 * S))
    driver.run("j")
    driver.step(NodeDrained(node="a"))
    kill_at_us = driver.state.at_us + 30 * S
    assert [(task.phase, task.kill_at_us) for task in of(driver).values()] == [("stop", kill_at_us)] * 2
    driver.step(exited("j", 0, code=-15))
    assert list(of(driver)) == [("j", 1)]


def test_tasks_are_named_in_the_order_of_submission_and_rank() -> None:
    driver = Driver()
    driver.step(node("a", 4))
    driver.step(job("z", group(count=2)), job("a"))
    assert [(task.job, task.rank) for task in assignment(driver.state, 0).tasks] == [("z", 0), ("z", 1), ("a", 0)]


def test_each_node_is_told_of_its_own_tasks_only() -> None:
    driver = Driver()
    driver.step(node("a", 1), node("b", 1), job("j", group(count=2)))
    assert [list(of(driver, name)) for name in "ab"] == [[("j", 0)], [("j", 1)]]
