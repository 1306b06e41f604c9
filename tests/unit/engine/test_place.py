"""Where jobs are placed: best fit, devices and islands, gangs whole or not at all, several groups."""

import pytest

from muster.engine.pack import TASKS_MAX
from muster.events.decisions import InstanceBound, MembersReplaced
from muster.events.jobs import GroupRequest
from muster.events.nodes import NodeRemoved, NodesHeard
from muster.events.operations import NodeFenced
from tests.support.build import S, device, devices, group, job, node
from tests.support.driver import Driver


def placed(driver: Driver, id: str) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Node and devices by rank."""
    return {rank: (name, held) for rank, name, held in driver.places(id)}


# One task


def test_a_task_goes_where_the_fewest_whole_devices_are_left_and_then_to_the_lowest_row() -> None:
    driver = Driver()
    driver.step(node("a", 4), node("b", 2), node("c", 2))
    driver.step(job("j"))
    assert placed(driver, "j") == {0: ("b", (0,))}
    driver.step(job("k", group(gpus=2)))
    assert placed(driver, "k") == {0: ("c", (0, 1))}


def test_a_share_goes_to_the_fullest_device_in_use_that_takes_it() -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 2))
    driver.step(job("first", group(gpu_milli=300)))
    driver.step(job("second", group(gpu_milli=800)))
    driver.step(job("third", group(gpu_milli=200)))
    driver.step(job("fourth", group(gpu_milli=200)))
    assert placed(driver, "first") == {0: ("a", (0,))}
    assert placed(driver, "second") == {0: ("a", (1,))}
    assert placed(driver, "third") == {0: ("a", (1,))}
    assert placed(driver, "fourth") == {0: ("a", (0,))}


def test_a_task_without_a_device_keeps_off_nodes_with_devices() -> None:
    driver = Driver()
    driver.step(node("gpus", 2), node("bare", 0))
    driver.step(job("j", group(cpu_milli=1000)))
    assert placed(driver, "j") == {0: ("bare", ())}


def test_the_first_model_named_is_preferred_even_where_another_fits_better() -> None:
    driver = Driver()
    driver.step(node("a", 1, model="A"), node("b", 4, model="B"))
    driver.step(job("j", group(gpu_models=("B", "A"))), job("k", group(gpu_models=("A", "B"))))
    assert placed(driver, "j") == {0: ("b", (0,))}
    assert placed(driver, "k") == {0: ("a", (0,))}


def test_whole_devices_come_from_one_island_if_one_is_enough() -> None:
    driver = Driver()
    driver.step(node("a", devices=devices("a", 6, islands=[0, 0, 0, 1, 1, 1])))
    driver.step(job("one"))
    driver.step(job("two", group(gpus=2)))
    driver.step(job("three", group(gpus=3)))
    assert placed(driver, "two")[0][1] == (1, 2)
    assert placed(driver, "three")[0][1] == (3, 4, 5)


def test_a_node_that_failed_to_start_the_job_is_left_out() -> None:
    driver = Driver()
    driver.step(node("a", 1), node("b", 2))
    driver.step(job("j"))
    driver.exit("j", code=1)
    driver.step(after_s=120)
    assert placed(driver, "j") == {0: ("b", (0,))}


# Gangs


def test_a_gang_is_bound_whole_or_not_at_all() -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 1))
    driver.step(job("four", group(count=4)), job("three", group(count=3)))
    assert driver.phase("four") == "pending"
    assert sorted(placed(driver, "three").values()) == [("a", (0,)), ("a", (1,)), ("b", (0,))]
    assert driver.node("a").device_free == [0, 0]


def test_between_its_minimum_and_its_count_a_gang_gets_as_many_as_fit() -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 1))
    driver.step(job("j", group(count=5, least=2)))
    assert sorted(placed(driver, "j")) == [0, 1, 2]
    assert driver.job("j").gang.tasks == 5


def test_the_minima_of_all_groups_come_before_more_of_any() -> None:
    driver = Driver()
    driver.step(node("a", 4))
    driver.step(job("j", group("x", count=4, least=1), group("y", count=3, least=2)))
    held = placed(driver, "j")
    assert len(held) == 4
    assert {rank for rank in held if rank >= 4} == {4, 5}
    assert {rank for rank in held if rank < 4} == {0, 1}


def test_a_group_of_which_none_is_needed_holds_nobody_up() -> None:
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(job("j", group("work", count=2), group("extra", count=1, least=0, gpus=8)))
    assert sorted(placed(driver, "j")) == [0, 1]


def test_ranks_run_through_the_groups_in_their_order() -> None:
    driver = Driver()
    driver.step(node("gpus", 4), node("bare", 0))
    driver.step(job("j", group("head", cpu_milli=1000), group("work", count=3)))
    assert placed(driver, "j")[0] == ("bare", ())
    assert {placed(driver, "j")[rank][0] for rank in (1, 2, 3)} == {"gpus"}


@pytest.mark.parametrize("reverse", [False, True])
def test_the_order_in_which_groups_are_written_does_not_decide_whether_they_fit(reverse: bool) -> None:
    driver = Driver()
    driver.step(node("a", 2, cpu_milli=4000), node("b", 3, cpu_milli=4000))
    groups = [group("big", gpus=3), group("small", count=2, gpus=1)]
    driver.step(job("j", *(reversed(groups) if reverse else groups)))
    assert driver.phase("j") == "starting"


def test_a_small_group_leaves_a_device_to_the_group_that_needs_its_model() -> None:
    """What no greedy order finds: one pair must take both B, whichever group comes first."""
    driver = Driver()
    mixed = (device("c0", "A"), device("c1", "B"), device("c2", "B"))
    driver.step(node("a", 1, model="A"), node("b", 2, model="A"), node("c", devices=mixed))
    driver.step(job("j", group("pair", count=2, gpus=2), group("one", count=2, gpus=1, gpu_models=("A",))))
    assert driver.phase("j") == "starting"
    assert not driver.violations()


def test_what_is_packed_by_trial_grows_up_to_its_count_too() -> None:
    driver = Driver()
    driver.step(node("a", devices=(device("b0", "B"), device("b1", "B"), device("a0", "A"))), node("c", 1, model="A"))
    driver.step(job("j", group("pair", gpus=2), group("one", count=2, least=1, gpus=1, gpu_models=("B",))))
    assert len(driver.places("j")) == 2
    driver.step(job("k", group("x"), group("y", count=3, least=0)))
    assert len(driver.places("k")) == 1


def test_a_gang_of_many_groups_is_not_packed_by_trial() -> None:
    driver = Driver()
    driver.step(node("a", TASKS_MAX + 2))
    groups = [group(f"g{index}") for index in range(TASKS_MAX + 1)]
    driver.step(job("fits", *groups))
    assert driver.phase("fits") == "starting"
    driver.step(job("never", *groups))
    assert driver.phase("never") == "pending"


def test_members_of_a_gang_share_nodes_by_all_amounts() -> None:
    driver = Driver()
    driver.step(node("a", 8, cpu_milli=3000), node("b", 8, memory_mib=250), node("c", 8, tasks_max=1))
    driver.step(job("j", GroupRequest(count=6, min=6, gpus=1, cpu_milli=1000, memory_mib=100)))
    assert sorted([name for _, (name, _) in placed(driver, "j").items()]) == ["a", "a", "a", "b", "b", "c"]


# Refilling


def degraded(count: int = 3, **asked: object) -> Driver:
    """A gang with a node for each member; the node of rank 1 is fenced."""
    driver = Driver()
    driver.step(*[node(name, 1) for name in "abcd"[:count]])
    driver.step(job("j", group(count=count, least=count), degraded_grace_us=100 * S, **asked))  # type: ignore[arg-type]
    driver.run("j")
    driver.step(NodeFenced(node=placed(driver, "j")[1][0]))
    return driver


def test_a_lost_member_is_placed_anew_as_the_rank_that_it_was() -> None:
    driver = degraded()
    assert driver.attempt("j").degraded_until_us == driver.state.at_us + 100 * S
    driver.step(node("e", 1))
    (replaced,) = driver.found(MembersReplaced)
    assert [place.rank for place in replaced.placements] == [1]
    assert placed(driver, "j")[1][0] == "e"
    assert driver.attempt("j").degraded_until_us
    driver.ready("j")
    assert driver.attempt("j").degraded_until_us == 0
    assert driver.attempt("j").number == 1


def test_lost_members_come_back_all_or_none() -> None:
    driver = degraded()
    other = placed(driver, "j")[2][0]
    driver.step(NodeFenced(node=other))
    driver.step(node("e", 1))
    assert not driver.found(MembersReplaced)
    driver.step(node("f", 1))
    (replaced,) = driver.found(MembersReplaced)
    assert [place.rank for place in replaced.placements] == [1, 2]


def test_a_running_gang_is_refilled_before_equals_and_after_who_outranks_it() -> None:
    driver = degraded()
    driver.step(job("equal"))
    driver.step(node("e", 1))
    assert driver.found(MembersReplaced)
    assert not driver.found(InstanceBound)
    driver = degraded(preemptible=False)
    driver.step(job("higher", group(gpus=1), priority=5))
    driver.step(node("e", 1))
    assert driver.bound() == ["higher"]
    assert not driver.found(MembersReplaced)


def test_a_row_is_free_for_others_once_its_node_is_gone() -> None:
    driver = Driver()
    driver.step(node("a", 1), job("j"))
    driver.step(NodeRemoved(node="a", uid="uid-a"), node("b", 1), NodesHeard())
    assert placed(driver, "j") == {0: ("b", (0,))}
