"""Cases of the rules about elastic gangs: how they grow and shrink, and who may make them shrink."""

from typing import Any

from muster.events.decisions import InstanceGrown, InstanceShrunk, MembersRef, Nominated, Placement
from muster.events.jobs import GroupRequest, JobResizeRequested
from muster.events.nodes import DeviceHealthChanged
from muster.events.operations import Policy, PolicySet
from muster.events.queues import Amounts, QueueSet
from tests.unit.verify.story import S, Story, at, case, exited, nominated, preempted

GANG = GroupRequest(gpus=1, count=4, min=2)


def _grown(*places: Placement) -> InstanceGrown:
    return InstanceGrown(job="e", instance=0, attempt=1, placements=places)


def _shrunk(*ranks: int, reason: Any = "resized", kill_at_us: int = 0, by: str = "") -> InstanceShrunk:
    return InstanceShrunk(job="e", instance=0, attempt=1, ranks=ranks, reason=reason, kill_at_us=kill_at_us, by_job=by)


def _gang(members: int, group: GroupRequest = GANG, devices: int = 4, **request: Any) -> Story:
    """An elastic gang of 2 to 4 runs with so many members on the first devices of node a."""
    story = Story().node("a", devices=devices)
    story.submit("e", group, **{"elastic": True, "priority": 1} | request)
    return story.run("e", *[at(rank, 0, rank) for rank in range(members)])


@case("grown")
def an_elastic_gang_grows_and_another_does_not(bad: bool) -> Story:
    return _gang(2, elastic=not bad).add(then=(_grown(at(2, 0, 2)),))


@case("grown")
def it_grows_up_to_its_count(bad: bool) -> Story:
    story = _gang(3, GroupRequest(gpus=1, count=3 if bad else 4, min=2))
    return story.add(then=(_grown(at(3, 0, 3)),))


@case("grown")
def it_grows_by_members_that_it_has_not(bad: bool) -> Story:
    return _gang(2).add(then=(_grown(at(1 if bad else 2, 0, 2)),))


@case("capacity")
def it_grows_into_what_is_free(bad: bool) -> Story:
    return _gang(2).add(then=(_grown(at(2, 0, 1 if bad else 2)),))


@case("shrunk")
def it_shrinks_to_what_it_was_resized_to(bad: bool) -> Story:
    story = _gang(4).add(JobResizeRequested(job="e", count=3))
    ranks = (2, 3) if bad else (3,)
    return story.add(then=(_shrunk(*ranks, kill_at_us=story.now()),))


@case("shrunk")
def it_keeps_its_minimum(bad: bool) -> Story:
    story = _gang(3, GroupRequest(gpus=1, count=4, min=3 if bad else 2))
    health = DeviceHealthChanged(node="a", uid="uid-a", device="a-2", health="failed")
    return story.add(health, then=(_shrunk(2, reason="device-failed", kill_at_us=story.now()),))


@case("shrunk")
def it_goes_on_without_members_that_are_lost(bad: bool) -> Story:
    story = _gang(3)
    health = DeviceHealthChanged(node="a", uid="uid-a", device="a-2", health="degraded" if bad else "failed")
    return story.add(health, then=(_shrunk(2, reason="device-failed", kill_at_us=story.now()),))


def _asked(story: Story, *ranks: int, device: int, grace_s: int = 0, told: bool = True) -> Story:
    """`high` is nominated for a device of the gang; these members are to go."""
    named = Nominated(
        job="high",
        instance=0,
        placements=(at(0, 0, device),),
        victims=(),
        until_us=story.now(60),
        members=(MembersRef("e", 0, 1, ranks),),
    )
    shrunk = _shrunk(*ranks, reason="preempted", kill_at_us=story.now(grace_s), by="high")
    return story.add(then=(named, shrunk) if told else (shrunk,))


@case("shrunk")
def it_gives_up_members_for_somebody_who_is_nominated_with_them(bad: bool) -> Story:
    return _asked(_gang(4).submit("high", priority=5), 3, device=3, told=not bad)


@case("shrunk")
def members_have_their_grace(bad: bool) -> Story:
    story = _gang(4, grace_us=9 * S).submit("high", priority=5)
    return _asked(story, 3, device=3, grace_s=3 if bad else 9)


@case("preemption")
def it_gives_up_members_only_for_those_who_outrank_it(bad: bool) -> Story:
    return _asked(_gang(4).submit("high", priority=1 if bad else 5), 3, device=3)


@case("preemption")
def nobody_gives_up_members_where_the_policy_forbids_it(bad: bool) -> Story:
    story = _gang(4).submit("high", priority=5)
    if bad:
        story.add(PolicySet(policy=Policy(preemption=False)))
    return _asked(story, 3, device=3)


@case("minimal")
def no_member_goes_without_which_it_would_do(bad: bool) -> Story:
    story = _gang(4).submit("high", priority=5)
    return _asked(story, *((2, 3) if bad else (3,)), device=3)


@case("minimal")
def it_does_not_go_whole_where_it_would_do_if_it_shrank(bad: bool) -> Story:
    story = _gang(4, elastic=bad).submit("high", GroupRequest(gpus=2), priority=5)
    named = nominated("high", (at(0, 0, 2, 3),), ("e",), story.now(60))
    return story.add(then=(named, preempted("e", "high", story.now())))


@case("capacity")
def what_a_member_holds_is_free_when_it_exited(bad: bool) -> Story:
    story = _gang(4, grace_us=9 * S).add(JobResizeRequested(job="e", count=3))
    story.add(then=(_shrunk(3, kill_at_us=story.now(9)),))
    story.add(*() if bad else (exited("e", 3),))
    return story.submit("next").bind("next", at(0, 0, 3))


@case("quota")
def what_it_grows_by_is_within_the_limit(bad: bool) -> Story:
    story = Story().add(QueueSet(queue="red", limit=Amounts(gpu_milli=2000 if bad else 3000))).node("a", devices=4)
    story.submit("e", GANG, queue="red", elastic=True).run("e", at(0, 0, 0), at(1, 0, 1))
    return story.add(then=(_grown(at(2, 0, 2)),))


def _two_queues(guarantee: int) -> Story:
    """An elastic gang of a queue that is promised two devices holds four; another, that is promised two, runs with one."""
    story = Story()
    for queue, gpus in (("red", 2), ("blue", guarantee)):
        story.add(QueueSet(queue=queue, guarantee=Amounts(gpu_milli=1000 * gpus)))
    story.node("a", devices=5)
    story.submit("e", GANG, queue="red", elastic=True).run("e", *[at(rank, 0, rank) for rank in range(4)])
    story.submit("f", GroupRequest(gpus=1, count=4, min=1), queue="blue", elastic=True)
    return story.run("f", at(0, 0, 4))


@case("shrunk")
def it_gives_back_what_it_borrowed_to_one_that_is_promised_more(bad: bool) -> Story:
    story = _two_queues(1 if bad else 2)
    return story.add(then=(_shrunk(3, reason="preempted", kill_at_us=story.now(), by="f"),))
