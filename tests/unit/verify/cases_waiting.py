"""Cases of the rule about what is waited for."""

from typing import Any

from muster.events.decisions import JobsForgotten
from muster.events.jobs import Dependency, GroupRequest, JobCancelRequested
from muster.events.nodes import TaskReady
from muster.events.operations import Policy, PolicySet
from tests.unit.verify.story import S, Story, at, bound, case, ended, exited


def _story(when: str) -> Story:
    """The job a runs; b waits for something to come of it."""
    story = Story().node("n1").submit("a").run("a", at(0, 0, 0))
    return story.submit("b", after=(Dependency(job="a", when=when),))  # type: ignore[arg-type]


@case("waits")
def a_job_comes_after_the_success_that_it_waits_for(bad: bool) -> Story:
    code = 1 if bad else 0
    story = _story("finished").add(exited("a", code=code), then=(ended("a", "failed" if bad else "finished"),))
    return story.bind("b", at(0, 0, 0))


@case("waits")
def a_job_comes_after_the_failure_that_it_waits_for(bad: bool) -> Story:
    code = 0 if bad else 1
    story = _story("failed").add(exited("a", code=code), then=(ended("a", "finished" if bad else "failed"),))
    return story.bind("b", at(0, 0, 0))


@case("waits")
def a_job_comes_after_the_end_that_it_waits_for(bad: bool) -> Story:
    story = _story("ended")
    return story.bind("b", at(0, 0, 1)) if bad else story.add(exited("a"), then=(ended("a", "finished"),)).bind("b", at(0, 0, 1))


@case("waits")
def a_job_comes_after_the_start_that_it_waits_for(bad: bool) -> Story:
    story = Story().node("n1").submit("a").bind("a", at(0, 0, 0))
    story.submit("b", after=(Dependency(job="a", when="started"),))
    if bad:
        return story.bind("b", at(0, 0, 1))
    return _story("started").bind("b", at(0, 0, 1))


@case("waits")
def what_became_of_a_job_counts_after_it_was_forgotten(bad: bool) -> Story:
    story = Story().add(PolicySet(policy=Policy(forget_after_us=S))).node("n1").submit("a").run("a", at(0, 0, 0))
    story.submit("b", after=(Dependency(job="a", when="failed" if bad else "finished"),))
    story.add(exited("a"), then=(ended("a", "finished"),)).wait(5).add(then=(JobsForgotten(jobs=("a",)),))
    return story.bind("b", at(0, 0, 0))


@case("waits")
def no_more_elements_run_than_may_at_once(bad: bool) -> Story:
    story = Story().node("n1").submit("a", array=3, at_once=1).bind("a", at(0, 0, 0))
    if not bad:
        story.add(JobCancelRequested(job="a", instance=0), exited("a"), then=(ended("a", "cancelled"),))
    return story.add(TaskReady(job="a", instance=0, attempt=1, rank=0), then=(bound("a", at(0, 0, 1), instance=1),))


def _strict(**fields: Any) -> Story:
    return Story().add(PolicySet(policy=Policy(strict=True, **fields))).node("n1")


@case("strict")
def nobody_starts_past_one_who_came_before_where_the_policy_is_strict(bad: bool) -> Story:
    story = _strict().submit("a").submit("b")
    return story.bind("b", at(0, 0, 0)) if bad else story.bind("a", at(0, 0, 0)).bind("b", at(0, 0, 1))


@case("strict")
def nor_past_a_smaller_one_where_the_smallest_comes_first(bad: bool) -> Story:
    story = _strict(order="smallest")
    story.submit("a", time_limit_us=90 * S).submit("b", GroupRequest(gpus=2), time_limit_us=(50 if bad else 40) * S)
    return story.bind("b", at(0, 0, 0, 1))


@case("strict")
def nor_past_a_shorter_one_where_the_shortest_comes_first(bad: bool) -> Story:
    story = _strict(order="shortest").submit("a", time_limit_us=90 * S).submit("b", time_limit_us=(91 if bad else 89) * S)
    return story.bind("b", at(0, 0, 0))
