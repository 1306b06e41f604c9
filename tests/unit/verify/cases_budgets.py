"""Cases of the rule about budgets of disruption."""

from muster.events.decisions import InstanceStarted, StopOrdered
from muster.events.nodes import TaskReady
from muster.events.operations import NodeDrained
from tests.unit.verify.story import Story, at, case, nominated, preempted, stop


def _told(story: Story, victim: str, row: int) -> Story:
    named = nominated("high", (at(0, row, 0),), (victim,), story.now(60))
    return story.add(then=(named, preempted(victim, "high", story.now(0))))


@case("budget")
def a_budget_is_not_broken_where_another_would_do(bad: bool) -> Story:
    story = Story().node("a", devices=1).node("b", devices=1).submit("low", priority=1, budget=0).run("low", at(0, 0, 0))
    story.submit("mid", priority=4).run("mid", at(0, 1, 0)).submit("high", priority=5)
    return _told(story, "low" if bad else "mid", 0 if bad else 1)


@case("budget")
def what_is_disrupted_already_counts(bad: bool) -> Story:
    """One element stops for a drain; where the budget is one, the other may not go too."""
    story = Story().node("a", devices=1).node("b", devices=1).node("c", devices=1)
    story.submit("low", priority=1, array=2, budget=1 if bad else 2).run("low", at(0, 0, 0))
    story.bind("low", at(0, 1, 0), instance=1)
    story.add(TaskReady(job="low", instance=1, attempt=1, rank=0), then=(_started("low", 1),))
    story.submit("mid", priority=4).run("mid", at(0, 2, 0)).submit("high", priority=5)
    story.add(NodeDrained(node="b"), then=(_stop_second(story),))
    return _told(story, "low", 0)


@case("budget")
def a_drain_waits_for_the_budget(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("j", budget=0 if bad else 1).run("j", at(0, 0, 0))
    return story.add(NodeDrained(node="a"), then=(stop("j", "drained", story.now()),))


def _started(job: str, instance: int) -> InstanceStarted:
    return InstanceStarted(job=job, instance=instance, attempt=1)


def _stop_second(story: Story) -> StopOrdered:
    return StopOrdered(job="low", instance=1, attempt=1, reason="drained", kill_at_us=story.now())
