"""Cases of the rules about jobs that make way for others by what they are."""

from typing import Any

from muster.events.decisions import InstanceStarted
from muster.events.operations import Policy, PolicySet
from muster.events.queues import Amounts, QueueSet
from tests.unit.verify.story import S, Story, at, bound, case, ended, kept, nominated, preempted

SPARE: dict[str, Any] = {"kind": "best-effort"}
ROOM: dict[str, Any] = {"kind": "headroom"}


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


@case("preemption")
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


def _room(**asker: Any) -> Story:
    """A placeholder of priority 3 holds the only device."""
    story = Story().node("a", devices=1).submit("room", priority=3, **ROOM).bind("room", at(0, 0, 0))
    story.add(then=(InstanceStarted(job="room", instance=0, attempt=1),))
    return story.submit("high", **asker)


@case("preemption")
def headroom_makes_way_for_equals_and_for_nobody_below(bad: bool) -> Story:
    return _told(_room(priority=2 if bad else 3), "room", 0)


@case("preemption")
def headroom_makes_way_for_jobs_of_its_own_queue(bad: bool) -> Story:
    return _told(_room(priority=9, queue="other" if bad else "default"), "room", 0)


@case("preemption")
def nobody_is_preempted_for_headroom(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("low", priority=1, **{} if bad else SPARE).run("low", at(0, 0, 0))
    return _told(story.submit("high", priority=5, **ROOM), "low", 0)


@case("yielding")
def headroom_goes_before_anybody_is_preempted(bad: bool) -> Story:
    story = _room(priority=9).node("b", devices=1).submit("low", priority=1).run("low", at(0, 1, 0))
    return _told(story, "low" if bad else "room", 1 if bad else 0)


@case("capacity")
def what_headroom_held_is_free_at_once_and_not_before(bad: bool) -> Story:
    story = _room(priority=3)
    if not bad:
        named = nominated("high", (at(0, 0, 0),), ("room",), story.now(60))
        told = preempted("room", "high", story.now())
        gone = ended("room", "pending", reason="preempted")
        return story.add(then=(named, told, gone, kept("high", "bound"), bound("high", at(0, 0, 0))))
    return story.bind("high", at(0, 0, 0))
