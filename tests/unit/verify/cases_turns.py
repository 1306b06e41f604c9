"""Cases of whose turn it is by what was used of late."""

from muster.events.operations import Policy, PolicySet
from muster.events.queues import Amounts, QueueSet
from tests.unit.verify.story import S, Story, at, case, ended, exited

HOUR = Policy(history_half_life_us=3600 * S)


def used(policy: Policy = HOUR, seconds: int = 100, weight: int = 1) -> Story:
    """Queue red had the only device for so long, blue had nothing."""
    story = (
        Story().add(PolicySet(policy=policy), QueueSet(queue="red", weight=weight), QueueSet(queue="blue")).node("a", devices=1)
    )
    story.submit("first", queue="red").run("first", at(0, 0, 0)).wait(seconds)
    return story.add(exited("first"), then=(ended("first", "finished"),))


@case("turn")
def who_used_less_is_bound_before_who_used_more(bad: bool) -> Story:
    story = used().submit("r", queue="red").submit("b", queue="blue")
    return story.bind("r" if bad else "b", at(0, 0, 0))


@case("turn")
def what_is_long_ago_is_forgotten(bad: bool) -> Story:
    policy = Policy(history_half_life_us=60 * S)
    story = used(policy).wait(0 if bad else 7200).submit("r", queue="red").submit("b", queue="blue")
    return story.bind("r", at(0, 0, 0))


@case("turn")
def what_was_used_counts_by_weight(bad: bool) -> Story:
    story = used(weight=1 if bad else 4)
    story.submit("second", queue="blue").run("second", at(0, 0, 0)).wait(50).add(
        exited("second"), then=(ended("second", "finished"),)
    )
    story.submit("r", queue="red").submit("b", queue="blue")
    return story.bind("r", at(0, 0, 0))


@case("turn")
def who_asks_for_something_else_is_no_sign(bad: bool) -> Story:
    story = used().submit("r", queue="red").submit("b", queue="blue", grace_us=0 if bad else S)
    return story.bind("r", at(0, 0, 0))


@case("turn")
def a_user_who_used_less_is_bound_first_in_a_fair_queue(bad: bool) -> Story:
    story = Story().add(PolicySet(policy=HOUR), QueueSet(queue="red", order="fair" if bad else "fifo")).node("a", devices=1)
    story.submit("first", queue="red").run("first", at(0, 0, 0)).wait(100)
    story.add(exited("first"), then=(ended("first", "finished"),)).submit("r", queue="red")
    story.submit_as("bob", "b", queue="red")
    return story.bind("r", at(0, 0, 0))


@case("turn")
def who_is_at_a_limit_has_no_turn(bad: bool) -> Story:
    story = used().submit("r", queue="red").submit("b", queue="blue")
    if not bad:
        story.add(QueueSet(queue="blue", limit=Amounts(gpu_milli=0)))
    return story.bind("r", at(0, 0, 0))
