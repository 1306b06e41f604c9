"""What does not fit into a cycle is decided in the next one, in the same order, and nothing is bound by halves."""

import pytest

from muster.events.decisions import InstancePreempted, MembersReplaced, Nominated, PassStopped, ShapeDeferred
from muster.events.operations import NodeFenced, Policy, PolicySet
from tests.support.build import S, group, job, node
from tests.support.driver import Driver


def bounds_kept(driver: Driver) -> bool:
    return not [violation for violation in driver.violations() if violation.rule == "bounds"]


def test_a_full_cycle_says_so_and_the_next_goes_on_at_the_same_instant() -> None:
    driver = Driver(decisions_max=5)
    driver.step(node("a", 20))
    driver.step(*[job(f"j{index:02d}") for index in range(10)])
    assert driver.bound() == ["j00", "j01", "j02", "j03"]
    assert isinstance(driver.decided[-1], PassStopped)
    assert driver.engine.next_wake_us() == driver.state.at_us
    rest = []
    for _ in range(3):
        rest += driver.bound(driver.step(after_s=0))
    assert rest == [f"j{index:02d}" for index in range(4, 10)]
    assert not driver.state.more
    assert bounds_kept(driver)


def test_placements_are_bounded_too() -> None:
    driver = Driver(placements_max=5)
    driver.step(node("a", 20))
    driver.step(job("one", group(count=3)), job("two", group(count=3)), job("three", group(count=2)))
    assert driver.bound() == ["one"]
    assert isinstance(driver.decided[-1], PassStopped)
    assert driver.bound(driver.step(after_s=0)) == ["two", "three"]
    assert bounds_kept(driver)


def test_a_cycle_with_everything_in_it_comes_to_an_end() -> None:
    driver = Driver(decisions_max=4, deferrals_max=1)
    driver.step(*[node(f"n{index}", 1) for index in range(4)])
    driver.settle(*[job(f"low{index}") for index in range(4)])
    driver.run(*[f"low{index}" for index in range(4)])
    for _ in range(10):
        driver.step(after_s=0)
    driver.settle(job("gang", group(count=2), priority=5), *[job(f"w{index}", group(gpus=2)) for index in range(3)])
    assert bounds_kept(driver)
    assert not driver.state.more


def test_deferrals_are_bounded_and_catch_up() -> None:
    driver = Driver(deferrals_max=2)
    driver.step(node("a", 1))
    driver.step(*[job(f"j{index}", group(gpus=2 + index)) for index in range(5)])
    counts = [len(driver.found(ShapeDeferred))]
    for _ in range(3):
        driver.step()
        counts.append(len(driver.found(ShapeDeferred)))
    assert counts == [2, 2, 1, 0]


def test_a_preemption_that_never_fits_into_a_cycle_is_not_tried_for_ever() -> None:
    driver = Driver(decisions_max=4)
    driver.step(node("a", 6))
    driver.settle(*[job(f"low{index}") for index in range(6)])
    driver.settle(job("gang", group(count=6), priority=5))
    assert not driver.state.more
    assert not driver.found(Nominated)
    assert driver.phase("gang") == "pending"
    assert bounds_kept(driver)


def test_a_nomination_and_all_its_victims_stand_in_one_cycle() -> None:
    driver = Driver(decisions_max=6)
    driver.step(node("a", 6))
    driver.settle(*[job(f"low{index}") for index in range(6)])
    decided = driver.settle(job("x", group(count=3), priority=5), job("y", group(count=3), priority=5))
    nominated = [event for event in decided if isinstance(event, Nominated)]
    assert [event.job for event in nominated] == ["x", "y"]
    for cycle in driver.cycles:
        for event in cycle.decisions:
            if isinstance(event, Nominated):
                victims = [one.job for one in cycle.decisions if isinstance(one, InstancePreempted) and one.by_job == event.job]
                assert len(victims) == 3
    assert bounds_kept(driver)


def test_a_policy_that_lowers_the_bound_under_a_waiting_gang_leaves_it_waiting() -> None:
    driver = Driver()
    driver.step(job("gang", group(count=5)))
    driver.step(PolicySet(policy=Policy(placements_max=3)), node("a", 8))
    driver.step(after_s=0)
    assert not driver.state.more
    assert driver.phase("gang") == "pending"
    driver.step(PolicySet(policy=Policy(placements_max=5)))
    assert driver.phase("gang") == "starting"


def test_members_that_are_replaced_count_as_placements() -> None:
    driver = Driver(placements_max=3)
    driver.step(*[node(f"n{index}", 1) for index in range(3)])
    driver.step(job("gang", group(count=3), degraded_grace_us=500 * S))
    driver.run("gang")
    driver.step(NodeFenced(node="n0"), NodeFenced(node="n1"))
    decided = driver.settle(*[node(f"m{index}", 1) for index in range(5)], *[job(f"j{index}") for index in range(3)])
    assert len([event for event in decided if isinstance(event, MembersReplaced)]) == 1
    assert driver.bound(decided) == ["j0", "j1", "j2"]
    assert bounds_kept(driver)


@pytest.mark.parametrize("decisions_max", [3, 4, 7, 20_000])
def test_the_bound_does_not_change_what_is_decided_in_the_end(decisions_max: int) -> None:
    driver = Driver(decisions_max=decisions_max)
    driver.step(node("a", 3), node("b", 3))
    decided = driver.settle(*[job(f"j{index}", group(gpus=1 + index % 2)) for index in range(7)])
    assert driver.bound(decided) == ["j0", "j1", "j2", "j3"]
