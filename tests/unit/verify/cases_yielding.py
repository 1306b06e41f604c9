"""Cases of the rules about jobs that make way for others by what they are."""

from typing import Any

from muster.events.operations import Policy, PolicySet
from muster.events.queues import Amounts, QueueSet
from tests.unit.verify.story import S, Story, at, case, nominated, preempted

SPARE: dict[str, Any] = {"kind": "best-effort"}


def _full(**first: Any) -> Story:
    """Two nodes of one device: `low` (priority 1) runs on the first, a best-effort job on the second."""
    story = Story().node("a", devices=1).node("b", devices=1).submit("low", priority=1).run("low", at(0, 0, 0))
    return story.submit("spare", priority=9, **first).run("spare", at(0, 1, 0)).submit("high", priority=5)


def _told(story: Story, victim: str, row: int, by: str = "high") -> Story:
    named = nominated(by, (at(0, row, 0),), (victim,), story.now(60))
    return story.add(then=(named, preempted(victim, by, story.now(0))))


@case("preemption")
def a_best_effort_job_of_a_higher_priority_makes_way(bad: bool) -> Story:
    return _told(_full(**{} if bad else SPARE), "spare", 1)


@case("yielding")
def best_effort_goes_before_anybody_is_preempted(bad: bool) -> Story:
    return _told(_full(**SPARE), "low" if bad else "spare", 0 if bad else 1)


@case("yielding")
def nobody_is_told_to_stop_for_a_best_effort_job(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("low", priority=1).run("low", at(0, 0, 0))
    return _told(story.submit("high", priority=5, **SPARE if bad else {}), "low", 0)


@case("preemption")
def best_effort_has_its_grace(bad: bool) -> Story:
    story = _full(**SPARE, grace_us=9 * S)
    named = nominated("high", (at(0, 1, 0),), ("spare",), story.now(60))
    return story.add(then=(named, preempted("spare", "high", story.now(0 if bad else 9))))


@case("preemption")
def best_effort_makes_way_whatever_the_policy_says_of_preemption(bad: bool) -> Story:
    story = Story().add(PolicySet(policy=Policy(preemption=False, min_runtime_us=60 * S))).node("a", devices=1)
    story.submit("low", priority=-1, **{} if bad else SPARE).run("low", at(0, 0, 0)).submit("high")
    return _told(story, "low", 0)


@case("quota")
def best_effort_is_charged_to_no_limit(bad: bool) -> Story:
    story = Story().add(QueueSet(queue="red", limit=Amounts(gpu_milli=1000))).node("a", devices=2)
    story.submit("i", queue="red").run("i", at(0, 0, 0))
    return story.submit("j", queue="red", **{} if bad else SPARE).bind("j", at(0, 0, 1))
