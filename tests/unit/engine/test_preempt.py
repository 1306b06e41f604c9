"""Who has to go for whom, and what is kept for the beneficiary until then."""

import pytest

from muster.events.decisions import (
    InstanceBound,
    InstancePreempted,
    Nominated,
    NominationEnded,
    ShapeDeferred,
)
from muster.events.jobs import JobCancelRequested, JobReprioritised
from muster.events.nodes import NodeRemoved
from muster.events.operations import NodeCordoned, Policy, PolicySet
from tests.support.build import S, group, job, node
from tests.support.driver import Driver


def told(driver: Driver) -> list[str]:
    """The victims of the last cycle."""
    return [event.job for event in driver.found(InstancePreempted)]


def full(*ids: str, gpus: int = 2, **requests: object) -> Driver:
    """One node, on which each of these jobs runs on one device."""
    driver = Driver()
    driver.step(node("a", gpus))
    for id in ids:
        driver.step(job(id, **requests))  # type: ignore[arg-type]
        driver.run(id)
    return driver


# A single task


def test_nobody_goes_for_an_equal_and_nobody_when_the_policy_forbids_it() -> None:
    driver = full("one", "two")
    driver.step(job("equal"))
    assert told(driver) == []
    driver.step(PolicySet(policy=Policy(preemption=False)), job("higher", priority=1))
    assert told(driver) == []
    driver.step(PolicySet(policy=Policy()))
    assert len(told(driver)) == 1


def test_nobody_goes_where_it_would_not_be_enough() -> None:
    driver = full("one", "two")
    driver.step(job("too-large", group(gpus=3), priority=9))
    assert told(driver) == []
    assert driver.found(ShapeDeferred)


def test_nobody_goes_where_it_fits_as_it_is() -> None:
    driver = full("one")
    driver.step(job("high", priority=9))
    assert told(driver) == []
    assert driver.bound() == ["high"]


def test_the_lowest_rank_goes_first_and_among_equals_the_latest_start() -> None:
    driver = full("early", "late", "low", gpus=3)
    driver.step(JobReprioritised(job="early", priority=2), JobReprioritised(job="late", priority=2))
    driver.step(job("first", priority=5))
    assert told(driver) == ["low"]
    driver.step(job("second", priority=5))
    assert told(driver) == ["late"]


def test_who_was_bound_and_has_not_started_goes_before_who_runs() -> None:
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(job("starts"))
    driver.step(job("runs"))
    driver.run("runs")
    driver.step(job("high", priority=1))
    assert told(driver) == ["starts"]


def test_many_of_a_low_rank_go_before_one_of_a_higher() -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 2))
    driver.step(job("middle", group(gpus=2), priority=3), job("x"), job("y"))
    driver.run("middle", "x", "y")
    driver.step(job("high", group(gpus=2), priority=5))
    assert sorted(told(driver)) == ["x", "y"]


def test_one_goes_where_one_of_its_rank_is_enough() -> None:
    driver = Driver()
    driver.step(node("a", 3))
    driver.step(job("pair", group(gpus=2)))
    driver.step(job("single"))
    driver.run("pair", "single")
    driver.step(job("high", group(gpus=2), priority=5))
    assert told(driver) == ["pair"]


def test_who_may_not_be_preempted_stays() -> None:
    driver = full("one", "two", preemptible=False)
    driver.step(job("high", priority=9))
    assert told(driver) == []


def test_who_started_just_now_is_immune_for_its_minimum() -> None:
    driver = Driver(min_runtime_us=60 * S)
    driver.step(node("a", 1), job("low"))
    driver.run("low")
    driver.step(job("high", priority=9))
    assert told(driver) == []
    driver.step(after_s=60)
    assert told(driver) == ["low"]


def test_no_job_takes_the_place_of_its_own_instances() -> None:
    driver = Driver()
    driver.step(node("a", 1), job("array", array=2, priority=4))
    assert driver.phase("array", 0) == "starting"
    assert driver.phase("array", 1) == "pending"
    assert told(driver) == []


def test_a_victim_gets_its_grace_and_the_beneficiary_waits_that_long() -> None:
    driver = full("low", gpus=1, grace_us=30 * S)
    driver.step(job("high", priority=9))
    (event,) = driver.found(InstancePreempted)
    assert (event.by_job, event.by_instance, event.kill_at_us) == ("high", 0, driver.state.at_us + 30 * S)
    (nominated,) = driver.found(Nominated)
    policy = driver.state.policy
    assert nominated.until_us == event.kill_at_us + policy.kill_margin_us + policy.nomination_ttl_us
    assert driver.phase("low") == "stopping"
    driver.step(after_s=10)
    assert driver.phase("high") == "pending"
    driver.exit("low", code=-15)
    assert driver.bound() == ["high"]
    assert (driver.instance("low").retries, driver.phase("low"), driver.instance("low").reason) == (0, "pending", "preempted")


def test_who_stops_anyway_is_waited_for_and_nobody_else_goes() -> None:
    driver = full("low", "other", grace_us=30 * S)
    driver.step(JobCancelRequested(job="low"))
    driver.step(job("high", priority=9))
    (nominated,) = driver.found(Nominated)
    assert [ref.job for ref in nominated.victims] == ["low"]
    assert told(driver) == []
    driver.exit("low")
    assert driver.bound() == ["high"]


# A gang


def test_a_gang_takes_the_fewest_that_will_do() -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 2))
    driver.step(job("w"), job("x"), job("y"), job("z", preemptible=False))
    driver.run("w", "x", "y", "z")
    driver.step(job("gang", group(count=2), priority=5))
    assert len(told(driver)) == 2
    assert "z" not in told(driver)
    driver.exit(*told(driver), code=-9)
    assert driver.phase("gang") == "starting"
    assert not driver.violations()


def test_a_victim_of_a_gang_goes_whole() -> None:
    driver = Driver()
    driver.step(node("a", 1), node("b", 1), node("c", 1))
    driver.step(job("low", group(count=2)))
    driver.run("low")
    driver.step(job("other", priority=3))
    driver.run("other")
    driver.step(job("high", priority=5))
    assert told(driver) == ["low"]
    (nominated,) = driver.found(Nominated)
    assert len(nominated.placements) == 1
    driver.exit("low", code=-9)
    assert driver.phase("high") == "starting"


def test_a_gang_that_would_not_fit_without_everybody_preempts_nobody() -> None:
    driver = full("one", "two")
    driver.step(job("gang", group(count=3), priority=9))
    assert told(driver) == []


# Nominations


def waiting() -> Driver:
    """`high` waits for `low` to leave the only node."""
    driver = full("low", gpus=1, grace_us=100 * S)
    driver.step(job("high", priority=5, grace_us=10 * S))
    assert driver.state.nominations.keys() == {("high", 0)}
    return driver


def ended(driver: Driver) -> list[tuple[str, str, str]]:
    return [(event.job, event.reason, event.by) for event in driver.found(NominationEnded)]


def test_what_is_kept_is_given_to_no_lower_or_equal_job() -> None:
    driver = waiting()
    driver.exit("low", code=0)
    assert ended(driver) == [("high", "bound", "")]
    driver = Driver()
    driver.step(node("a", 2), job("x", grace_us=100 * S), job("y", grace_us=100 * S))
    driver.run("x", "y")
    driver.step(job("gang", group(count=2), priority=5))
    driver.exit("x", code=-9)
    driver.step(job("equal", priority=5), job("lower", priority=1))
    assert driver.bound() == []
    driver.exit("y", code=-9)
    assert driver.bound()[0] == "gang"


def test_it_is_bound_elsewhere_as_soon_as_it_fits_there() -> None:
    driver = waiting()
    driver.step(node("b", 1))
    assert ended(driver) == [("high", "bound", "")]
    assert driver.places("high") == [(0, "b", (0,))]
    driver.exit("low", code=-9)
    assert driver.bound() == ["low"]


def test_cancelling_the_beneficiary_ends_its_nomination_first() -> None:
    driver = waiting()
    driver.step(JobCancelRequested(job="high"))
    assert ended(driver) == [("high", "cancelled", "")]
    assert driver.phase("high") == "cancelled"


def test_losing_the_node_ends_it() -> None:
    driver = waiting()
    driver.step(NodeRemoved(node="a", uid="uid-a"))
    assert ended(driver) == [("high", "node-lost", "")]
    assert driver.phase("high") == "pending"


def test_closing_the_node_ends_it() -> None:
    driver = waiting()
    driver.step(NodeCordoned(node="a"))
    assert ended(driver) == [("high", "infeasible", "")]


def test_a_job_that_outranks_the_beneficiary_takes_its_places() -> None:
    driver = waiting()
    driver.step(job("highest", priority=8))
    assert ended(driver) == [("high", "taken", "highest")]
    assert driver.state.nominations.keys() == {("highest", 0)}
    assert told(driver) == []
    driver.exit("low", code=-9)
    assert driver.bound() == ["highest"]


def test_a_job_that_outranks_and_its_inferior_can_wait_for_one_victim() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("x", group(gpus=2), grace_us=100 * S))
    driver.run("x")
    driver.step(job("high", priority=5))
    driver.step(job("highest", priority=8))
    assert driver.state.nominations.keys() == {("high", 0), ("highest", 0)}
    driver.exit("x", code=-9)
    assert sorted(driver.bound()) == ["high", "highest"]


def test_it_ends_at_its_deadline_and_is_decided_anew() -> None:
    driver = waiting()
    until_us = driver.state.nominations["high", 0].until_us
    driver.step(at_us=until_us)
    assert ended(driver) == [("high", "deadline", "")]
    assert driver.state.nominations["high", 0].until_us > until_us


def test_a_nomination_whose_victims_are_gone_in_vain_ends_as_infeasible() -> None:
    driver = Driver()
    driver.step(node("a", 1), node("b", 1), job("low", group(count=2), grace_us=100 * S))
    driver.run("low")
    driver.step(job("gang", group(count=2), priority=5))
    driver.step(NodeCordoned(node="b"))
    assert ended(driver) == [("gang", "infeasible", "")]
    assert driver.phase("gang") == "pending"


@pytest.mark.parametrize("gone", ["one", "two"])
def test_a_snapshot_taken_while_one_of_two_victims_is_gone_is_the_same_state(gone: str) -> None:
    driver = full("one", "two", grace_us=100 * S)
    driver.step(job("high", group(gpus=2), priority=5))
    assert sorted(told(driver)) == ["one", "two"]
    driver.exit(gone, code=-9)
    assert driver.state.nominations.keys() == {("high", 0)}


def test_two_nominations_can_wait_for_one_victim() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("x", group(gpus=2), grace_us=100 * S))
    driver.run("x")
    driver.step(job("one", priority=5), job("two", priority=5))
    nominated = [event.job for event in driver.found(Nominated)]
    driver.exit("x", code=-9)
    assert sorted(driver.bound())[:1] == sorted(nominated)[:1]
    assert all(driver.phase(id) == "starting" for id in ("one", "two"))
    assert driver.found(InstanceBound)


def test_every_story_here_is_legal() -> None:
    for driver in (waiting(), full("one", "two")):
        driver.step(job("more", group(gpus=1), priority=7))
        assert not driver.violations()
