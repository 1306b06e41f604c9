"""Cases of the rules about planned starts: what may be planned, when it may move or end, and that nobody below delays it."""

from typing import Any

from muster.events.decisions import InstanceStarted, PlanDropped, StartPlanned
from muster.events.jobs import Constraints, GroupRequest, Within
from muster.events.nodes import TaskExited, TaskReady
from muster.events.operations import Backfill, Policy, PolicySet
from tests.unit.verify.story import S, Story, at, bound, case, ended, exited

ONE = GroupRequest(gpus=1)
TWO = GroupRequest(gpus=2)


def planned(job: str, start_us: int, *places: Any, until_us: int = 10**12) -> StartPlanned:
    return StartPlanned(job=job, instance=0, placements=places, start_us=start_us, until_us=until_us)


def started(job: str) -> InstanceStarted:
    return InstanceStarted(job=job, instance=0, attempt=1)


def dropped(job: str, reason: Any) -> PlanDropped:
    return PlanDropped(job=job, instance=0, reason=reason)


def planning_story(**changes: Any) -> Story:
    """Two devices on node a; `held` has one until 100 s and 10 s (the kill margin) after its binding; `big` wants both."""
    backfill = Backfill(**changes)
    story = Story().add(PolicySet(policy=Policy(backfill=backfill))).node("a")
    return story.submit("held", ONE, time_limit_us=100 * S).bind("held", at(0, 0, 0)).submit("big", TWO, time_limit_us=50 * S)


def end_us(story: Story) -> int:
    """When `held` promised to be gone."""
    return story.cycles[4].at_us + 110 * S


def plan_story(**changes: Any) -> Story:
    story = planning_story(**changes)
    return story.add(then=(planned("big", end_us(story), at(0, 0, 0, 1)),))


@case("plan")
def what_is_planned_waits_for_all_promised_ends(bad: bool) -> Story:
    story = planning_story()
    return story.add(then=(planned("big", end_us(story) - bad, at(0, 0, 0, 1)),))


@case("plan")
def nothing_is_planned_behind_somebody_without_a_limit(bad: bool) -> Story:
    story = planning_story().submit("endless", ONE, time_limit_us=None if bad else 10 * S)
    story.bind("endless", at(0, 0, 1))
    return story.add(then=(planned("big", end_us(story), at(0, 0, 0, 1)),))


@case("plan")
def nothing_is_planned_behind_somebody_who_is_overdue(bad: bool) -> Story:
    story = planning_story().wait(200 if bad else 20)
    return story.add(then=(planned("big", max(end_us(story), story.now()), at(0, 0, 0, 1)),))


@case("plan")
def nothing_is_planned_beyond_the_horizon(bad: bool) -> Story:
    story = planning_story(horizon_us=(20 if bad else 200) * S)
    return story.add(then=(planned("big", end_us(story), at(0, 0, 0, 1)),))


@case("plan")
def nothing_is_planned_where_a_plan_above_is(bad: bool) -> Story:
    story = plan_story(reservations=2).submit("next", ONE, time_limit_us=10 * S)
    return story.add(then=(planned("next", end_us(story) + (30 if bad else 60) * S, at(0, 0, 1)),))


@case("plan")
def no_more_is_planned_than_the_policy_says(bad: bool) -> Story:
    story = plan_story(reservations=1 if bad else 2).submit("next", ONE, time_limit_us=10 * S)
    return story.add(then=(planned("next", end_us(story) + 60 * S, at(0, 0, 1)),))


@case("plan")
def nothing_is_planned_where_the_policy_plans_nothing(bad: bool) -> Story:
    story = planning_story()
    if bad:
        story.add(PolicySet(policy=Policy()))
    return story.add(then=(planned("big", end_us(story), at(0, 0, 0, 1)),))


@case("plan")
def what_is_planned_moves_later_only_if_it_has_to(bad: bool) -> Story:
    story = plan_story()
    if not bad:  # it starts only now
        story.add(TaskReady(job="held", instance=0, attempt=1, rank=0), then=(started("held"),))
    start_us = (story.at_us if not bad else story.cycles[4].at_us + 5 * S) + 110 * S
    return story.add(then=(planned("big", start_us, at(0, 0, 0, 1)),))


@case("plan")
def a_plan_is_outranked_by_as_many_above_it_as_there_may_be(bad: bool) -> Story:
    story = plan_story().submit("top", TWO, time_limit_us=50 * S, priority=-1 if bad else 1)
    top = () if bad else (planned("top", end_us(story), at(0, 0, 0, 1)),)
    return story.add(then=(*top, dropped("big", "outranked")))


@case("plan")
def a_plan_expires_at_its_time(bad: bool) -> Story:
    story = planning_story()
    story.add(then=(planned("big", end_us(story), at(0, 0, 0, 1), until_us=story.now(5)),)).wait(0 if bad else 10)
    return story.add(then=(dropped("big", "expired"),))


@case("delay")
def nobody_below_takes_what_is_planned(bad: bool) -> Story:
    story = plan_story().submit("filler", ONE, time_limit_us=(200 if bad else 50) * S)
    return story.bind("filler", at(0, 0, 1))


@case("delay")
def nobody_below_without_a_limit_takes_what_is_planned(bad: bool) -> Story:
    story = plan_story().submit("filler", ONE, time_limit_us=None, priority=0 if bad else 1)
    return story.bind("filler", at(0, 0, 1))


@case("delay")
def nobody_below_takes_the_cores_of_what_is_planned(bad: bool) -> Story:
    story = planning_story().submit("wide", GroupRequest(cpu_milli=6000, gpus=2), time_limit_us=50 * S, priority=1)
    story.add(then=(planned("wide", end_us(story), at(0, 0, 0, 1)),)).submit(
        "cores", GroupRequest(cpu_milli=3000 if bad else 2000)
    )
    return story.bind("cores", at(0, 0))


@case("delay")
def a_plan_counts_until_it_ends(bad: bool) -> Story:
    story = plan_story().submit("filler", ONE, time_limit_us=200 * S)
    if not bad:
        story.add(exited("held"), then=(ended("held", "finished", reason="finished"), bound("big", at(0, 0, 0, 1))))
        story.add(*[TaskReady(job="big", instance=0, attempt=1, rank=0)], then=(started("big"),))
        story.add(
            TaskExited(job="big", instance=0, attempt=1, rank=0, code=0), then=(ended("big", "finished", reason="finished"),)
        )
    return story.bind("filler", at(0, 0, 1))


@case("plan")
def nothing_is_planned_beside_an_exclusive_job(bad: bool) -> Story:
    story = Story().add(PolicySet(policy=Policy(backfill=Backfill()))).node("a")
    story.submit("alone", ONE, time_limit_us=100 * S, constraints=Constraints(exclusive=bad)).bind("alone", at(0, 0, 0))
    story.submit("other", ONE, time_limit_us=10 * S)
    return story.add(then=(planned("other", story.now(), at(0, 0, 1)),))


@case("plan")
def what_stays_in_one_rack_is_planned_in_one(bad: bool) -> Story:
    story = Story().add(PolicySet(policy=Policy(backfill=Backfill()))).node("a", rack="r1").node("b", rack="r2" if bad else "r1")
    within = Constraints(within=(Within(level="rack"),))
    story.submit("gang", GroupRequest(gpus=1, count=2, min=2), time_limit_us=10 * S, constraints=within)
    return story.add(then=(planned("gang", story.now(), at(0, 0, 0), at(1, 1, 0)),))
