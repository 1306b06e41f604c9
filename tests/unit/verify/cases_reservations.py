"""Cases of the rule about what is reserved: who may not be there, who is told to leave, and which devices an amount is."""

from typing import Any

from muster.events.decisions import InstanceStarted, MembersReplaced, Piece, ReservationPlaced
from muster.events.jobs import GroupRequest
from muster.events.nodes import DeviceHealthChanged, TaskReady
from muster.events.operations import Backfill, NodeFenced, Policy, PolicySet
from muster.events.queues import QueueSet
from muster.events.reservations import ReservationRemoved, ReservationSet, Window
from tests.unit.verify.cases_plans import planned
from tests.unit.verify.story import S, Story, at, bound, case, stop


def window(story: Story, begin_s: int, end_s: int) -> Window:
    """From so many seconds after the next cycle."""
    return Window(from_us=story.now(begin_s), until_us=story.now(end_s))


def reserved(story: Story, begin_s: int = 100, end_s: int = 200, **said: Any) -> Story:
    said = {"nodes": ("a",)} | said if "gpus" not in said else said
    return story.add(ReservationSet(reservation="r", windows=(window(story, begin_s, end_s),), **said))


def placed(*pieces: tuple[str, tuple[int, ...]]) -> ReservationPlaced:
    return ReservationPlaced(reservation="r", pieces=tuple([Piece(node, devices) for node, devices in pieces]))


@case("reserved")
def nobody_is_bound_who_would_still_be_there(bad: bool) -> Story:
    story = reserved(Story().node("a")).submit("j", time_limit_us=(100 if bad else 50) * S)
    return story.bind("j", at(0, 0, 0))


@case("reserved")
def only_those_for_whom_it_is_are_bound_there(bad: bool) -> Story:
    story = reserved(Story().node("a"), user="v" if bad else "u").submit("j", time_limit_us=100 * S)
    return story.bind("j", at(0, 0, 0))


@case("reserved")
def it_is_for_the_queues_below_too(bad: bool) -> Story:
    story = Story().add(QueueSet(queue="red"), QueueSet(queue="deep", parent="red"), QueueSet(queue="blue")).node("a")
    return reserved(story, queue="red").submit("j", queue="blue" if bad else "deep").bind("j", at(0, 0, 0))


@case("reserved")
def one_that_is_removed_keeps_nobody_off(bad: bool) -> Story:
    story = reserved(Story().node("a"), user="v").submit("j")
    if not bad:
        story.add(ReservationRemoved(reservation="r"))
    return story.bind("j", at(0, 0, 0))


@case("reserved")
def without_a_limit_nobody_is_bound_before_maintenance_who_would_stay(bad: bool) -> Story:
    return reserved(Story().node("a")).submit("j", preemptible=not bad).bind("j", at(0, 0, 0))


@case("reserved")
def nothing_is_planned_into_it(bad: bool) -> Story:
    story = Story().add(PolicySet(policy=Policy(backfill=Backfill()))).node("a")
    story.submit("held", GroupRequest(gpus=2), time_limit_us=50 * S).bind("held", at(0, 0, 0, 1))
    reserved(story).submit("j", GroupRequest(gpus=2), time_limit_us=(60 if bad else 10) * S)
    start_us = story.cycles[-3].at_us + 60 * S
    return story.add(then=(planned("j", start_us, at(0, 0, 0, 1)),))


@case("reserved")
def members_are_not_replaced_into_it(bad: bool) -> Story:
    story = Story().node("a").node("b").node("c")
    story.submit("j", GroupRequest(gpus=1, count=2, min=2), degraded_grace_us=60 * S, time_limit_us=150 * S)
    story.run("j", at(0, 1, 0), at(1, 2, 0)).add(NodeFenced(node="c"))
    reserved(story)
    places = (at(1, 0 if bad else 1, 1),)
    return story.add(then=(MembersReplaced(job="j", instance=0, attempt=1, placements=places),))


@case("stop")
def they_leave_when_it_begins_and_no_earlier(bad: bool) -> Story:
    story = reserved(Story().node("a").submit("j").run("j", at(0, 0, 0)))
    return story.wait(98 if bad else 99).add(then=(stop("j", "reserved", story.now()),))


@case("stop")
def nobody_leaves_for_one_that_was_said_when_it_began(bad: bool) -> Story:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0))
    return reserved(story, 0 if bad else 1).add(then=(stop("j", "reserved", story.now()),))


@case("stop")
def nobody_leaves_who_may_not_be_preempted(bad: bool) -> Story:
    story = reserved(Story().node("a").submit("j", preemptible=not bad).run("j", at(0, 0, 0)))
    return story.wait(100).add(then=(stop("j", "reserved", story.now()),))


@case("stop")
def nobody_leaves_devices_that_are_not_reserved(bad: bool) -> Story:
    story = reserved(Story().node("a").submit("j").run("j", at(0, 0, 0)), count=1, gpus=1, user="v")
    story.add(then=(placed(("a", (1 if bad else 0,))),))
    return story.wait(100).add(then=(stop("j", "reserved", story.now()),))


@case("reserved")
def an_amount_is_as_much_as_was_reserved(bad: bool) -> Story:
    story = reserved(Story().node("a").node("b"), count=2, gpus=1, user="v")
    return story.add(then=(placed(("a", (0,)), *[] if bad else [("b", (0,))]),))


@case("reserved")
def an_amount_is_of_devices_that_are_well(bad: bool) -> Story:
    story = reserved(Story().node("a"), count=1, gpus=1, user="v")
    story.add(DeviceHealthChanged(node="a", uid="uid-a", device="a-0", health="failed"))
    return story.add(then=(placed(("a", (0 if bad else 1,))),))


@case("reserved")
def an_amount_is_of_no_other_reservation_at_that_time(bad: bool) -> Story:
    story = Story().node("a").node("b")
    story.add(ReservationSet(reservation="other", nodes=("a",), windows=(window(story, 150 if bad else 201, 300),)))
    return reserved(story, count=1, gpus=1, user="v").add(then=(placed(("a", (0,))),))


@case("reserved")
def what_an_amount_is_keeps_others_off(bad: bool) -> Story:
    story = reserved(Story().node("a"), count=1, gpus=1, user="v").add(then=(placed(("a", (0,))),))
    story.submit("j").add(then=(bound("j", at(0, 0, 0 if bad else 1)),))
    return story.add(TaskReady(job="j", instance=0, attempt=1, rank=0), then=(InstanceStarted(job="j", instance=0, attempt=1),))
