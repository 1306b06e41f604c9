"""How queues are shown: each below its parent, with what it is promised, charged with and holds."""

from muster.cli.queues import COLUMNS, queue_cells, scaled
from muster.events.nodes import DeviceHealthChanged
from muster.events.queues import Amounts, QueueRemoved, QueueSet
from muster.gateway.shown import queue_list
from tests.support.build import S, group, job, node
from tests.support.driver import Driver


def driven() -> Driver:
    """Two GPUs: red is promised one; default has both, one of which is being taken back for red."""
    driver = Driver()
    driver.step(QueueSet(queue="team", weight=2), QueueSet(queue="red", parent="team", guarantee=Amounts(gpu_milli=1000)))
    driver.step(node("a", 2, cpu_milli=8000), *[job(f"d{index}", group(gpus=1), grace_us=60 * S) for index in range(2)])
    driver.run("d0", "d1")
    driver.step(job("r", group(cpu_milli=2000, gpus=1), queue="red"))
    return driver


def test_they_are_shown_with_what_they_are_charged_with_and_hold() -> None:
    found = {row.queue: row for row in queue_list(driven().state).queues}
    assert list(found) == ["default", "team", "red"]
    red, team, default = found["red"].tree, found["team"].tree, found["default"].tree
    assert red is not None
    assert team is not None
    assert default is not None
    assert (red.parent, red.depth, red.weight, team.weight) == ("team", 1, 1, 2)
    assert red.guarantee == {"gpu_milli": 1000}
    assert red.charged == {"cpu_milli": 2000, "gpu_milli": 1000, "gpu_milli/H100": 1000, "jobs": 1, "memory_mib": 0}
    assert red.held["gpu_milli"] == team.held["gpu_milli"] == 0
    assert (default.charged["gpu_milli"], default.held["gpu_milli"]) == (1000, 2000)
    assert red.share_ppm == 500_000
    assert found["default"].instances == {"running": 1, "stopping": 1}


def test_the_command_shows_a_line_each_and_says_what_is_scaled() -> None:
    driver = driven()
    driver.step(DeviceHealthChanged(node="a", uid="uid-a", device="a-0", health="failed"))
    driver.step(QueueSet(queue="blue", guarantee=Amounts(gpu_milli=3000)), QueueSet(queue="gone"))
    driver.step(job("g", group(cpu_milli=64_000_000), queue="gone"))
    driver.step(QueueRemoved(queue="gone"))
    found = queue_list(driver.state)
    cells = {row.queue: queue_cells(row) for row in found.queues}
    assert all(len(line) == len(COLUMNS) for line in cells.values())
    assert (cells["red"][0], cells["gone"][0]) == ("  red", "gone (removed)")
    assert cells["blue"][3] == "0.75 GPUs"
    assert "blue is promised 3 GPUs; more is promised than is well, so it counts for 0.75 GPUs" in scaled(found)


def test_without_a_tree_they_are_shown_as_ever() -> None:
    driver = Driver(queues=("default", "red"))
    driver.step(job("j", queue="red"))
    found = queue_list(driver.state).queues
    assert [(row.queue, row.jobs, row.tree) for row in found] == [("default", 0, None), ("red", 1, None)]
    assert queue_cells(found[1]) == ("red", "", "", "", "", "", "", "", "", "", 1, 0)
