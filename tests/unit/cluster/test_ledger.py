"""What is free, and the indexes over it, are what counting anew from the tasks gives."""

from random import Random
from typing import Any

import pytest

from muster.cluster.check import BrokenInvariant
from muster.cluster.invariants import check_invariants
from muster.cluster.jobs import Task
from muster.cluster.nodes import Node
from muster.events.decisions import InstanceBound, Placement
from muster.events.nodes import DeviceHealthChanged, ForeignUseChanged, NodeRemoved
from tests.support.build import device, devices, exited, group, job, node
from tests.support.driver import Driver


def free(found: Node) -> tuple[int, int, list[int]]:
    return found.cpu_free, found.memory_free, list(found.device_free)


def test_whole_devices_a_share_and_an_amount_of_memory_are_held_and_given_back() -> None:
    driver = Driver()
    driver.step(node("a", 3, memory=2000))
    driver.step(
        job("whole", group(gpus=1, cpu_milli=1000)), job("share", group(gpu_milli=250)), job("memory", group(gpu_memory_mib=500))
    )
    found = driver.node("a")
    held = sorted(found.device_free)
    assert held == [0, 2_000_000 - 250 * 2000 - 500_000, 2_000_000]
    assert found.cpu_free == 63_000
    driver.exit("whole", "share", "memory")
    assert free(found) == (64_000, 64_000, [2_000_000] * 3)


def test_a_device_without_memory_can_be_shared_by_thousandths() -> None:
    driver = Driver()
    driver.step(node("a", devices=(device("a-0", memory_mib=0),)))
    driver.step(job("one", group(gpu_milli=600)), job("two", group(gpu_milli=400)), job("three", group(gpu_milli=1)))
    assert [driver.phase(id) for id in ("one", "two", "three")] == ["starting", "starting", "pending"]
    assert driver.node("a").device_free == [0]


@pytest.mark.parametrize("health", ["degraded", "failed"])
def test_a_device_that_is_not_healthy_is_not_free(health: str) -> None:
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(DeviceHealthChanged(node="a", uid="uid-a", device="a-1", health=health))  # type: ignore[arg-type]
    assert driver.node("a").device_free == [1_000_000, 0]
    driver.step(DeviceHealthChanged(node="a", uid="uid-a", device="a-1", health="healthy"))
    assert driver.node("a").device_free == [1_000_000, 1_000_000]


def test_foreign_use_is_taken_off_and_comes_back() -> None:
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(ForeignUseChanged(node="a", uid="uid-a", cpu_milli=10_000, memory_mib=4000, devices=("a-0",)))
    assert free(driver.node("a")) == (54_000, 60_000, [0, 1_000_000])
    driver.step(ForeignUseChanged(node="a", uid="uid-a"))
    assert free(driver.node("a")) == (64_000, 64_000, [1_000_000, 1_000_000])


def test_foreign_use_of_another_node_of_that_name_changes_nothing() -> None:
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(ForeignUseChanged(node="a", uid="other", cpu_milli=10_000))
    assert driver.node("a").cpu_free == 64_000


def test_what_a_task_holds_is_given_back_once_only() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("j", group(count=2)))
    driver.run("j")
    driver.step(exited("j", 0), exited("j", 0), exited("j", 0, code=1))
    assert sorted(driver.node("a").device_free) == [0, 1_000_000]
    assert driver.phase("j") == "running"


def test_a_row_is_given_again_the_lowest_first() -> None:
    driver = Driver()
    driver.step(*[node(name, 1) for name in ("a", "b", "c")])
    driver.step(NodeRemoved(node="b", uid="uid-b"), NodeRemoved(node="a", uid="uid-a"))
    driver.step(node("d", 1), node("e", 1), node("f", 1))
    assert [driver.node(name).row for name in ("c", "d", "e", "f")] == [2, 0, 1, 3]


def test_the_indexes_follow_holding_and_releasing_at_random() -> None:
    driver = Driver()
    random = Random(11)
    driver.step(*[node(f"n{index}", 4, devices=devices(f"n{index}", 4, islands=[0, 0, 1, 1])) for index in range(3)])
    for number in range(60):
        asked: dict[str, Any] = random.choice(
            ({"gpus": 1}, {"gpus": 2}, {"gpu_milli": 300}, {"gpu_memory_mib": 350}, {"cpu_milli": 900})
        )
        driver.step(job(f"j{number}", group(**asked)))
        live = [one.id for one in driver.state.jobs.values() if one.instances[0].attempt is not None]
        if live and random.random() < 0.6:
            driver.run(random.choice(live))
        if live and random.random() < 0.6:
            driver.exit(random.choice(live))
    assert len(driver.cycles) > 100


def test_a_count_that_is_off_is_found() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("j"))
    driver.node("a").cpu_free -= 1
    with pytest.raises(BrokenInvariant, match="counted anew"):
        check_invariants(driver.state)


def test_a_task_that_the_node_does_not_know_of_is_found() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("j"))
    (task,) = driver.attempt("j").tasks.values()
    assert isinstance(task, Task)
    del driver.node("a").tasks[task]
    with pytest.raises(BrokenInvariant):
        check_invariants(driver.state)


def test_a_device_held_twice_is_found() -> None:
    driver = Driver(checked=False)
    driver.step(node("a", 1), job("j"))
    driver.step(job("k"))
    driver.fold(InstanceBound(job="k", instance=0, attempt=1, placements=(Placement(0, 0, (0,)),)))
    with pytest.raises(BrokenInvariant, match="units held"):
        check_invariants(driver.state)
