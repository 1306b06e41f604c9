"""Cases of the rules about queues: limits, what is lent to nobody, and on what grounds others are told to stop."""

from typing import Any

from muster.events.operations import Policy, PolicySet
from muster.events.queues import Amounts, QueueRemoved, QueueSet
from tests.unit.verify.story import S, Story, at, bound, case, cpu, exited, kept, nominated, preempted


def gpus(count: int) -> Amounts:
    return Amounts(gpu_milli=1000 * count)


def queues(*said: QueueSet, devices: int = 4) -> Story:
    return Story().add(*said).node("a", devices=devices)


def queue(name: str, **said: Any) -> QueueSet:
    return QueueSet(queue=name, **said)


@case("quota")
def a_queue_is_charged_with_no_more_than_its_limit(bad: bool) -> Story:
    story = queues(queue("red", limit=gpus(1))).submit("i", queue="red").submit("j", queue="red" if bad else "default")
    return story.bind("i", at(0, 0, 0)).bind("j", at(0, 0, 1))


@case("quota")
def a_limit_holds_for_all_that_stand_below(bad: bool) -> Story:
    said = [queue("team", limit=gpus(1)), queue("red", parent="team"), queue("blue", parent="team" if bad else "")]
    story = queues(*said).submit("i", queue="red").submit("j", queue="blue")
    return story.bind("i", at(0, 0, 0)).bind("j", at(0, 0, 1))


@case("quota")
def a_limit_of_a_model_counts_what_was_given(bad: bool) -> Story:
    story = queues(queue("red", limit=Amounts(gpu_milli_by_model={"H100" if bad else "A100": 0})))
    return story.submit("i", queue="red").bind("i", at(0, 0, 0))


@case("quota")
def a_limit_counts_instances(bad: bool) -> Story:
    story = queues(queue("red", limit=Amounts(jobs=1))).submit("i", cpu(1), queue="red").submit("j", cpu(1), queue="red")
    story.bind("i", at(0, 0))
    if not bad:
        story.add(exited("i", code=1))
    return story.bind("j", at(0, 0))


@case("quota")
def a_user_is_charged_with_no_more_than_their_limit(bad: bool) -> Story:
    story = queues(queue("red", user_limit=gpus(1) if bad else gpus(2))).submit("i", queue="red").submit("j", queue="red")
    return story.bind("i", at(0, 0, 0)).bind("j", at(0, 0, 1))


@case("quota")
def a_queue_borrows_no_more_than_it_may(bad: bool) -> Story:
    said = queue("red", guarantee=gpus(1), borrow=gpus(0 if bad else 1))
    story = queues(said).submit("i", queue="red").submit("j", queue="red")
    return story.bind("i", at(0, 0, 0)).bind("j", at(0, 0, 1))


@case("quota")
def what_is_not_lent_is_left_to_its_queue(bad: bool) -> Story:
    said = queue("red", guarantee=gpus(2), lend=gpus(0 if bad else 1))
    story = queues(said, devices=2).submit("i", queue="default")
    return story.bind("i", at(0, 0, 0))


@case("quota")
def a_limit_that_shrank_stops_nobody_and_takes_nobody(bad: bool) -> Story:
    story = queues(queue("red", limit=gpus(4))).submit("i", queue="red").run("i", at(0, 0, 0)).submit("j", queue="red")
    story.add(queue("red", limit=gpus(0 if bad else 2)))
    return story.bind("j", at(0, 0, 1))


@case("quota")
def nothing_new_is_bound_from_a_queue_that_was_removed(bad: bool) -> Story:
    story = queues(queue("red")).submit("i", queue="red")
    if bad:
        story.add(QueueRemoved(queue="red"))
    return story.bind("i", at(0, 0, 0))


@case("quota")
def what_is_nominated_is_charged(bad: bool) -> Story:
    story = queues(queue("red", limit=gpus(2 if bad else 3)), devices=3)
    story.submit("low", queue="red", priority=1).run("low", at(0, 0, 0)).submit(
        "high", cpu(1, gpus=2, count=1), queue="red", priority=5
    )
    story.submit("other").bind("other", at(0, 0, 1))
    named = nominated("high", (at(0, 0, 0, 2),), ("low",), story.now(60))
    story.add(then=(named, preempted("low", "high", story.now()))).submit("more", queue="red")
    story.node("b", devices=1)
    return story.bind("more", at(0, 1, 0))


def reclaim_story(asks: int = 1, victims: int = 1, **said: Any) -> Story:
    """Eight GPUs, 2 promised to red and 2 to blue; blue has the four of node a, and red asks for some of them."""
    blue = said.pop("blue", {"guarantee": gpus(2)})
    red = said.pop("red", {"guarantee": gpus(2)})
    story = queues(queue("red", **red), queue("blue", **blue))
    if said.get("policy") is not None:
        story.add(PolicySet(policy=said["policy"]))
    story.node("z", devices=4)
    for index in range(4):
        story.submit(f"b{index}", queue="blue").run(f"b{index}", at(0, 0, index))
    story.submit("r", cpu(1, gpus=asks), queue="red")
    names = tuple(f"b{index}" for index in range(victims))
    named = nominated("r", (at(0, 0, *range(asks)),), names, story.now(60))
    return story.add(then=(named, *[preempted(name, "r", story.now()) for name in names]))


@case("preemption")
def what_is_promised_to_its_queue_is_not_taken_back(bad: bool) -> Story:
    return reclaim_story(blue={"guarantee": gpus(4 if bad else 2)})


@case("preemption")
def only_an_ask_within_the_guarantee_takes_back(bad: bool) -> Story:
    return reclaim_story(red={"guarantee": Amounts(gpu_milli=500 if bad else 1000)})


@case("preemption")
def what_is_borrowed_goes_and_no_more(bad: bool) -> Story:
    return reclaim_story(asks=2, victims=2, blue={"guarantee": gpus(3 if bad else 2)})


@case("preemption")
def a_policy_may_say_that_nothing_is_taken_back(bad: bool) -> Story:
    return reclaim_story(policy=Policy(reclaim=not bad))


@case("preemption")
def a_queue_may_say_that_nobody_in_it_is_told_to_stop(bad: bool) -> Story:
    return reclaim_story(blue={"guarantee": gpus(2), "preemption": "off" if bad else "queue"})


@case("preemption")
def jobs_of_a_protected_priority_are_not_told_to_stop(bad: bool) -> Story:
    return reclaim_story(blue={"guarantee": gpus(2), "protected_from": 0 if bad else 1})


@case("preemption")
def what_started_just_now_is_not_taken_back(bad: bool) -> Story:
    return reclaim_story(policy=Policy(min_runtime_us=3600 * S, reclaim_min_runtime_us=3600 * S if bad else 0))


@case("preemption")
def the_higher_tier_has_what_the_lower_borrowed(bad: bool) -> Story:
    return reclaim_story(red={"tier": 0 if bad else 1}, blue={"tier": 0})


@case("preemption")
def a_priority_counts_across_queues_below_one_that_says_so(bad: bool) -> Story:
    said = [queue("team", preemption="queue" if bad else "subtree"), queue("red", parent="team"), queue("blue", parent="team")]
    story = queues(*said, devices=1).submit("low", queue="blue", priority=1).run("low", at(0, 0, 0))
    story.submit("high", queue="red", priority=5)
    named = nominated("high", (at(0, 0, 0),), ("low",), story.now(60))
    return story.add(then=(named, preempted("low", "high", story.now())))


@case("minimal")
def one_may_go_for_a_limit_alone(bad: bool) -> Story:
    story = queues(queue("red", limit=gpus(3 if bad else 1)), devices=2)
    story.submit("low", queue="red", priority=1).run("low", at(0, 0, 0)).submit("high", queue="red", priority=5)
    named = nominated("high", (at(0, 0, 1),), ("low",), story.now(60))
    return story.add(then=(named, preempted("low", "high", story.now())))


@case("nomination")
def a_nomination_is_taken_only_by_who_outranks_it(bad: bool) -> Story:
    said = [queue("team", preemption="queue" if bad else "subtree"), queue("red", parent="team"), queue("blue", parent="team")]
    story = queues(*said, devices=1).submit("low", queue="blue", priority=1).run("low", at(0, 0, 0))
    story.submit("mid", queue="blue", priority=3).submit("high", queue="red", priority=5)
    named = nominated("mid", (at(0, 0, 0),), ("low",), story.now(60))
    story.add(then=(named, preempted("low", "mid", story.now())))
    story.add(exited("low", code=-9), then=(kept("mid", "taken", by="high"),))
    return story.add(then=(bound("high", at(0, 0, 0)),))
