"""What stands on the nodes is kept up with by looking at those that changed, and is what a look at all of them would find."""

import random

import pytest

from muster.events.operations import TargetClass
from muster.measures.nodes import STEP, WHOLE_GPU, NodeBook
from muster.metrics.catalogue import OTHER, VALUES_MAX
from tests.support.build import group, job, node
from tests.support.driver import Driver
from tests.unit.metrics.worlds import Life
from tests.unit.openb.test_fgd_score import fragmentation, workload


def caught_up(book: NodeBook, driver: Driver) -> dict[tuple[str, tuple[str, ...]], float]:
    """All samples but those that are nothing, once the book has seen everything."""
    book.notice(driver.state)
    while book.advance(driver.state):
        pass
    found = {(name, labels): value for name, labels, value in book.samples({"default": (0.0, 1), "gpu": (0.0, 1)})}
    return {key: value for key, value in found.items() if value and isinstance(value, (int, float))}


@pytest.mark.parametrize("seed", range(6))
def test_looking_at_what_changed_comes_to_the_same_as_looking_at_everything(seed: int) -> None:
    life = Life(seed)
    targets = workload(random.Random(seed))
    kept = NodeBook()
    kept.aim(targets)
    for turn in range(80):
        life.turn()
        if turn % 40 == 39:
            targets = workload(random.Random(seed + turn))
            kept.aim(targets)
        if turn % 3 == 0:
            anew = NodeBook()
            anew.aim(targets)
            assert caught_up(kept, life.driver) == caught_up(anew, life.driver)


@pytest.mark.parametrize("seed", range(6))
def test_the_sums_are_those_of_the_state_and_fragmentation_is_the_published_measure(seed: int) -> None:
    life = Life(seed)
    targets = workload(random.Random(seed))
    book = NodeBook()
    book.aim(targets)
    for _ in range(60):
        life.turn()
    found = caught_up(book, life.driver)
    held = idle = healthy = 0
    fragments = 0.0
    for each in life.driver.state.nodes:
        if each is None:
            continue
        there = each.liveness != "lost"
        healthy += sum(1000 for device in each.devices if there and device.usable)
        for task in each.tasks:
            held += 1000 * len(task.devices) if task.shape.gpus else task.shape.gpu_milli
        milli = [0 if not each.open else free * 1000 // each.device_units[index] for index, free in enumerate(each.device_free)]
        idle += sum(milli)
        fragments += fragmentation(targets, each.cpu_free, milli, each.devices[0].model)
    allocated = sum(value for (name, _), value in found.items() if name == "muster_devices_allocated")
    assert allocated == pytest.approx(held / 1000)
    assert found.get(("muster_fragmented_devices", ()), 0.0) == pytest.approx(fragments / 1000)
    assert found.get(("muster_fragmentation_ratio", ("all",)), 0.0) == pytest.approx(fragments / healthy if healthy else 0.0)
    assert found.get(("muster_fragmentation_ratio", ("idle",)), 0.0) == pytest.approx(fragments / idle if idle else 0.0)
    nodes = sum(value for (name, _), value in found.items() if name == "muster_nodes")
    assert nodes == sum(each is not None for each in life.driver.state.nodes)
    share = sum(value for (name, labels), value in found.items() if name == "muster_queue_share_ratio" and labels[1] == "gpu")
    assert share == pytest.approx(held / healthy if healthy else 0.0)


def test_a_look_costs_the_nodes_that_changed_and_a_piece_of_it_no_more_than_was_said() -> None:
    driver = Driver(checked=False)
    driver.step(*[node(f"n{number:04d}", 1) for number in range(3 * STEP)])
    book = NodeBook()
    book.notice(driver.state)
    pieces = 0
    while book.advance(driver.state):
        pieces += 1
    assert pieces == 2
    book.notice(driver.state)
    assert not book._stale
    driver.step(job("a"), job("b"))
    book.notice(driver.state)
    assert 1 <= len(book._stale) <= 2
    book.advance(driver.state)
    driver.step(job("waits", group(gpus=9)))
    book.notice(driver.state)
    assert not book._stale, "a job that waits changes no node"


def test_another_target_workload_is_measured_on_every_node_and_the_same_one_on_none() -> None:
    driver = Driver(checked=False)
    driver.step(node("n0", 4), node("n1", 4))
    book = NodeBook()
    caught_up(book, driver)
    book.aim(())
    book.aim(WHOLE_GPU)
    assert not book._stale
    book.aim((TargetClass(gpus=8),))
    assert len(book._stale) == 2
    assert caught_up(book, driver)["muster_fragmentation_ratio", ("all",)] == 1.0


def test_models_and_queues_beyond_the_bound_are_one_and_nothing_is_lost() -> None:
    driver = Driver(checked=False)
    many = VALUES_MAX + 20
    driver.step(*[node(f"n{number}", 1, model=f"m{number}") for number in range(many)])
    book = NodeBook()
    book.notice(driver.state)
    while book.advance(driver.state):
        pass
    devices = {labels[0]: value for name, labels, value in book.samples({"default": (0.0, 1)}) if name == "muster_devices"}
    assert len(devices) == VALUES_MAX + 1
    assert devices[OTHER] == 20
    assert sum(value for value in devices.values() if isinstance(value, int)) == many


def test_a_lost_node_gives_nothing_and_its_devices_are_said_to_be_lost() -> None:
    driver = Driver(checked=False)
    driver.step(node("n0", 2), node("n1", 2))
    book = NodeBook()
    caught_up(book, driver)
    driver.node("n1").liveness = "lost"
    driver.state.ledger.alter(driver.node("n1").row)
    found = caught_up(book, driver)
    assert found["muster_devices", ("H100", "lost")] == 2
    assert found["muster_cpu_capacity_cores", ()] == 64.0
    assert found["muster_nodes", ("lost",)] == 1
