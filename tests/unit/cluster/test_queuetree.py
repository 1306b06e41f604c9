"""The tree of queues: what may be said of it, what is charged, what is promised."""

from typing import Any

import pytest

from muster.cluster import snapshot
from muster.cluster.queuetree import fault
from muster.cluster.snapshot import SnapshotError
from muster.events.decisions import JobRejected
from muster.events.jobs import JobCancelRequested
from muster.events.nodes import DeviceHealthChanged, NodeRemoved
from muster.events.queues import DEPTH_MAX, QUEUES_MAX, Amounts, QueueRemoved, QueueSet
from tests.support.build import S, group, job, node
from tests.support.driver import Driver


def gpus(count: int) -> Amounts:
    return Amounts(gpu_milli=1000 * count)


def said(**parents: str) -> dict[str, QueueSet]:
    return {name: QueueSet(queue=name, parent=parent) for name, parent in parents.items()}


@pytest.mark.parametrize(
    ("specs", "event", "sentence"),
    [
        ({}, QueueSet(queue="a", parent="b"), "parent: there is no queue 'b'; set it first"),
        (said(a="", b="a"), QueueSet(queue="a", parent="b"), "parent: a below b below a is a circle"),
        (said(a="", b="a", c="a"), QueueRemoved(queue="a"), "queue: a has b, c below it: remove these first"),
        ({}, QueueRemoved(queue="a"), "queue: there is no queue 'a' to remove"),
        (said(default=""), QueueRemoved(queue="default"), "queue: default is always there and cannot be removed"),
        (said(a="", b="a"), QueueSet(queue="b", parent=""), ""),
        (said(a=""), QueueSet(queue="a", weight=0), ""),
    ],
)
def test_what_may_be_said_of_a_tree(specs: dict[str, QueueSet], event: Any, sentence: str) -> None:
    assert fault(specs, event) == sentence


def test_a_tree_is_no_deeper_and_no_larger_than_it_may_be() -> None:
    chain = said(**{f"q{depth}": f"q{depth - 1}" if depth else "" for depth in range(DEPTH_MAX)})
    assert "at most 16 are taken" in fault(chain, QueueSet(queue="more", parent=f"q{DEPTH_MAX - 1}"))
    assert fault(chain, QueueSet(queue="more", parent=f"q{DEPTH_MAX - 2}")) == ""
    assert "at most 16 are taken" in fault({**chain, **said(top="")}, QueueSet(queue="q0", parent="top"))
    many = {f"q{number}": QueueSet(queue=f"q{number}") for number in range(QUEUES_MAX)}
    assert fault(many, QueueSet(queue="more")) == "queue: there are 10000 queues; at most 10000 can be"
    assert fault(many, QueueSet(queue="q1", weight=2)) == ""


def test_what_cannot_be_said_changes_nothing() -> None:
    driver = Driver()
    driver.step(QueueSet(queue="a"))
    before = snapshot.digest(driver.state)
    twin = snapshot.decode(snapshot.encode(driver.state))
    driver.step(QueueSet(queue="b", parent="nowhere"), QueueRemoved(queue="default"))
    assert driver.state.tree is not None
    assert sorted(driver.state.tree.said) == ["a"]
    assert snapshot.digest(twin) == before


def test_without_a_word_about_queues_there_is_no_tree_and_nothing_is_counted() -> None:
    driver = Driver(queues=("default", "red"))
    driver.step(node("a", 2), job("j", queue="red"), job("k", queue="blue"))
    assert driver.state.tree is None
    assert driver.bound() == ["j"]
    assert driver.attempt("j").charge is None
    assert [event.reason for event in driver.found(JobRejected)] == ["queue 'blue' does not exist; there are: default, red"]


def charged(driver: Driver, name: str) -> dict[str, int]:
    tree = driver.state.tree
    assert tree is not None
    return {what: amount for what, amount in tree.of(name).charged.items() if amount}


def test_what_runs_when_the_tree_begins_is_charged() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("j", group(cpu_milli=500, gpus=1), user="ada"))
    driver.step(QueueSet(queue="red"))
    assert charged(driver, "default") == {"jobs": 1, "cpu": 500, "gpus": 1_000_000, "gpus/H100": 1_000_000}


def test_a_share_is_charged_in_millionths_and_a_share_by_memory_is_rounded_down() -> None:
    driver = Driver()
    driver.step(QueueSet(queue="red", limit=gpus(1)), node("a", 1, memory=3))
    driver.step(*[job(f"j{index}", group(gpu_memory_mib=1), queue="red") for index in range(3)])
    assert len(driver.bound()) == 3
    assert charged(driver, "red")["gpus"] == 999_999


def test_a_queue_that_moves_takes_its_charges_along() -> None:
    driver = Driver()
    driver.step(node("a", 4), QueueSet(queue="x"), QueueSet(queue="y"), QueueSet(queue="q", parent="x"))
    driver.step(job("j", group(count=3), queue="q"))
    assert charged(driver, "x")["gpus"] == 3_000_000
    driver.step(QueueSet(queue="q", parent="y"))
    assert charged(driver, "x") == {}
    assert charged(driver, "y")["gpus"] == 3_000_000


def test_a_device_that_is_of_another_model_now_is_charged_as_that() -> None:
    driver = Driver()
    driver.step(node("a", 1), QueueSet(queue="q"), job("j", queue="q"))
    driver.step(node("a", 1, model="A100"))
    assert charged(driver, "q")["gpus/A100"] == 1_000_000
    assert "gpus/H100" not in charged(driver, "q")


def test_an_array_is_charged_by_instances_and_a_task_that_exits_is_charged_no_more() -> None:
    driver = Driver()
    driver.step(node("a", 4), QueueSet(queue="q"), job("j", group(count=2), queue="q", array=2))
    assert charged(driver, "q")["jobs"] == 2
    driver.run("j")
    driver.exit("j")
    assert charged(driver, "q") == {}


def test_capacity_counts_what_is_registered_and_guarantees_what_is_well() -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 2), QueueSet(queue="q", guarantee=gpus(4)))
    tree = driver.state.tree
    assert tree is not None
    driver.step(DeviceHealthChanged(node="a", uid="uid-a", device="a-0", health="failed"))
    assert (tree.capacity["gpus"], tree.healthy["gpus"]) == (4_000_000, 3_000_000)
    tree.settle()
    assert tree.of("q").guarantee["gpus"] == 3_000_000
    driver.step(NodeRemoved(node="b", uid="uid-b"))
    assert (tree.capacity["gpus"], tree.healthy["gpus"]) == (2_000_000, 1_000_000)


def test_a_queue_is_promised_what_those_below_it_are_where_it_names_nothing() -> None:
    driver = Driver()
    driver.step(node("a", 8), QueueSet(queue="x"), QueueSet(queue="y", parent="x", guarantee=gpus(2)))
    driver.step(QueueSet(queue="z", parent="x", guarantee=Amounts(gpu_milli_by_model={"H100": 3000})))
    tree = driver.state.tree
    assert tree is not None
    tree.settle()
    assert tree.of("x").guarantee == {"gpus": 5_000_000, "gpus/H100": 3_000_000}
    assert tree.of("z").guarantee == {"gpus": 3_000_000, "gpus/H100": 3_000_000}


def test_a_removed_queue_is_gone_when_it_is_empty_and_its_parent_with_it() -> None:
    driver = Driver()
    driver.step(node("a", 1), QueueSet(queue="x"), QueueSet(queue="y", parent="x"), job("j", queue="y"))
    driver.step(QueueRemoved(queue="y"))
    driver.step(QueueRemoved(queue="x"))
    tree = driver.state.tree
    assert tree is not None
    assert sorted(tree.queues) == ["x", "y"]
    driver.step(JobCancelRequested(job="j"))
    driver.exit("j")
    assert sorted(tree.queues) == []


def test_a_queue_says_priority_and_time_of_jobs_that_say_nothing() -> None:
    driver = Driver()
    driver.step(QueueSet(queue="x", max_time_us=60 * S), QueueSet(queue="y", parent="x", default_priority=4, max_time_us=90 * S))
    driver.step(
        job("j", queue="y"), job("k", queue="y", priority=1, time_limit_us=30 * S), job("l", queue="y", time_limit_us=61 * S)
    )
    assert (driver.job("j").priority, driver.job("j").limit_us) == (4, 60 * S)
    assert (driver.job("k").priority, driver.job("k").limit_us) == (1, 30 * S)
    assert [event.reason for event in driver.found(JobRejected)] == ["a time limit of 61 s; queue 'x' takes 60 s at most"]
    driver.step(QueueSet(queue="x"))
    assert driver.job("j").limit_us == 60 * S


def test_a_snapshot_that_says_other_charges_than_its_jobs_hold_is_not_read() -> None:
    driver = Driver()
    driver.step(node("a", 1), QueueSet(queue="q"), job("j", queue="q"))
    data = snapshot.encode(driver.state)
    assert b'["gpus",1000000]' in data
    with pytest.raises(SnapshotError, match="queue q is said to be charged with other than what its jobs hold"):
        snapshot.decode(data.replace(b'["gpus",1000000]', b'["gpus",2000000]'))


def test_a_model_that_left_with_its_last_node_is_as_one_that_never_was() -> None:
    """Live as rebuilt: what is left of it must not count in shares, nor among the models that a limit leaves to a job."""
    driver = Driver()
    driver.step(QueueSet(queue="a"), node("n1", 2, model="A"), node("n2", 2, model="B"))
    driver.step(NodeRemoved(node="n1", uid="uid-n1"))
    tree, rebuilt = driver.state.tree, snapshot.decode(snapshot.encode(driver.state)).tree
    assert tree is not None
    assert rebuilt is not None
    for each in (tree, rebuilt):
        each.settle()
    assert tree.models == rebuilt.models == ("B",)
    assert tree.dimensions == rebuilt.dimensions
    assert [what for what, _ in tree.dimensions] == ["cpu", "gpus/B", "memory"]
