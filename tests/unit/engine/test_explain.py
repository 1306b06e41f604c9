"""Why is my job where it is: the sentences and the numbers."""

import pytest

from muster.cluster import snapshot
from muster.engine.explain import explain
from muster.events.jobs import JobReprioritised, Requirement
from muster.events.nodes import Taint
from muster.events.operations import NodeCordoned
from tests.support.build import S, exited, group, job, node
from tests.support.driver import Driver


def texts(driver: Driver, id: str, index: int = 0) -> str:
    return "\n".join(explain(driver.state, id, index).lines)


def test_each_node_is_counted_once_under_the_first_thing_that_keeps_a_task_off() -> None:
    driver = Driver()
    driver.step(
        node("free", 1),
        node("full", 2),
        node("closed", 2),
        node("dirty", 2, taints=(Taint(key="k"),)),
        node("elsewhere", 2, labels={"zone": "y"}),
        node("few", 1, labels={"zone": "x"}),
        node("busy", 2, labels={"zone": "x"}),
    )
    driver.step(NodeCordoned(node="closed"))
    driver.step(job("holder", group(gpus=2, selector=(Requirement(key="zone", values=("x",)),))))
    driver.step(job("j", group(gpus=2, selector=(Requirement(key="zone", values=("x",)),))))
    found = explain(driver.state, "j")
    assert {reason.code: reason.nodes for reason in found.reasons} == {
        "not-ready": 1,
        "taint": 1,
        "selector": 3,
        "model": 1,
        "gpu": 1,
    }
    assert found.nodes == 7
    assert sum(reason.nodes for reason in found.reasons) == 7
    assert "most free 0" in texts(driver, "j")


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"gpus": 2}, "too few GPUs free (needs 2, most free 1)"),
        ({"gpu_milli": 999, "gpu_memory_mib": 900}, "could take one task now"),
        ({"cpu_milli": 60_001}, "too little CPU free (needs 60001 milli-CPU, most free 60000)"),
        ({"cpu_milli": 1, "memory_mib": 64_000}, "too little memory free (needs 64000 MiB, most free 63000)"),
        ({"cpu_milli": 1, "disk_mib": 64_000}, "too little disk free (needs 64000 MiB, most free 63999)"),
    ],
)
def test_what_is_short_is_said_with_what_is_needed_and_what_is_free(asked: dict[str, int], text: str) -> None:
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(job("holder", group(gpus=1, cpu_milli=4000, memory_mib=1000, disk_mib=1)))
    driver.step(job("filler", group(count=2, gpus=2)))  # waits, so that the next one does too
    driver.step(NodeCordoned(node="a"))
    driver.step(job("j", group("one", **asked), group("never", gpus=2)))
    driver.state.ledger.node(0).cordoned = False
    driver.state.ledger.alter(0)
    assert text in texts(driver, "j")


def test_a_share_is_short_by_thousandths_or_by_memory() -> None:
    driver = Driver()
    driver.step(node("a", 1))
    driver.step(job("holder", group(gpu_milli=700)))
    driver.step(job("milli", group(gpu_milli=301)), job("memory", group(gpu_memory_mib=301)))
    assert "too little of a GPU free (needs 301/1000, most free 300/1000)" in texts(driver, "milli")
    assert "too little GPU memory free (needs 301 MiB, most free 300 MiB)" in texts(driver, "memory")


def test_task_slots_can_be_what_is_short() -> None:
    driver = Driver()
    driver.step(node("a", 2, tasks_max=1))
    driver.step(job("holder"))
    driver.step(job("j"))
    assert "no task slot free" in texts(driver, "j")


def test_the_place_in_the_queue_counts_who_goes_before() -> None:
    driver = Driver()
    driver.step(job("a"), job("b", group(gpus=2)), job("c"), job("high", priority=3), job("array", array=3))
    assert {id: explain(driver.state, id).position for id in ("a", "b", "c", "high", "array")} == {
        "high": 0,
        "a": 1,
        "b": 2,
        "c": 3,
        "array": 4,
    }
    assert explain(driver.state, "array", 2).position == 6


def test_the_place_in_the_queue_counts_nobody_twice() -> None:
    driver = Driver()
    driver.step(job("a"), job("b"), job("c"))
    for _ in range(3):
        driver.step(JobReprioritised(job="b", priority=5))
        driver.step(JobReprioritised(job="b", priority=0))
    assert explain(driver.state, "c").position == 2


def test_what_can_never_fit_is_said_to_be_so() -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 2))
    driver.step(job("never", group(gpus=3)), job("later", group(gpus=2, count=3)))
    found = explain(driver.state, "never")
    assert found.never
    assert "no node here can ever hold it" in found.summary
    assert not explain(driver.state, "later").never


def test_a_cell_without_nodes_is_said_to_be_so() -> None:
    driver = Driver()
    driver.step(job("j"))
    assert explain(driver.state, "j").summary == "pending: no node is registered"


def test_a_gang_is_said_to_need_all_at_once() -> None:
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(job("j", group(count=3)))
    assert "all 3 tasks that it needs at least must fit at once; they do not" in texts(driver, "j")


def test_a_back_off_says_for_how_long() -> None:
    driver = Driver()
    driver.step(node("a"), job("j"))
    driver.step(exited("j", code=1, blame="node"))
    assert "it backs off for 60 s more after start failure 1 (start-failed)" in texts(driver, "j")
    assert "1 failed to start this job before" in texts(driver, "j")


def test_a_nomination_says_where_and_for_whom_it_waits() -> None:
    driver = Driver()
    driver.step(node("a"), job("low", group(gpus=2), grace_us=60 * S))
    driver.run("low")
    driver.step(job("high", group(gpus=2), priority=2))
    assert "it is nominated on a and waits for 1 victims to stop" in texts(driver, "high")
    assert explain(driver.state, "low").summary == "stopping (preempted for high/0): 1 tasks still hold their places"


def test_preemption_says_how_many_could_go_and_how_many_may_not() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("one"), job("two", preemptible=False))
    driver.run("one", "two")
    driver.step(job("high", group(gpus=2), priority=2))
    text = texts(driver, "high")
    assert "1 attempts of lower priority could be, and even without them it does not fit" in text
    assert "1 of lower priority may not be" in text
    driver = Driver(preemption=False)
    driver.step(job("j"))
    assert "preemption: off in the policy" in texts(driver, "j")


@pytest.mark.parametrize(
    ("until", "summary"),
    [
        ("bound", "starting on a, b: 0 of 3 tasks are ready"),
        ("running", "running on a, b"),
        ("finished", "finished (finished)"),
        ("failed", "failed (member-failed), exit 3"),
    ],
)
def test_who_does_not_wait_is_said_to_be_where_it_is(until: str, summary: str) -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 2), job("j", group(count=3)))
    if until != "bound":
        driver.run("j")
    if until in ("finished", "failed"):
        driver.exit("j", code=3 if until == "failed" else 0)
    found = explain(driver.state, "j")
    assert found.summary == summary
    assert found.lines == (summary,)
    assert found.position == -1


def test_an_unknown_job_or_instance_is_a_key_error() -> None:
    driver = Driver()
    driver.step(job("j"))
    with pytest.raises(KeyError):
        explain(driver.state, "nobody")
    with pytest.raises(KeyError, match="1 instances"):
        explain(driver.state, "j", 1)


def test_asking_changes_nothing() -> None:
    driver = Driver()
    driver.step(node("a"), job("j", group(count=3)), job("k", group("x"), group("y", gpus=2)))
    before = snapshot.encode(driver.state)
    for id in ("j", "k"):
        explain(driver.state, id)
    assert snapshot.encode(driver.state) == before
