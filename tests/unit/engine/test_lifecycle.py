"""What becomes of an instance: each reason to stop, each outcome, retries, back-off, blame and degradation."""

from typing import Any

import pytest

from muster.events.decisions import (
    AttemptEnded,
    InstanceEnded,
    InstanceStarted,
    JobRejected,
    MemberLost,
    MembersReplaced,
    StopOrdered,
)
from muster.events.jobs import JobCancelRequested
from muster.events.nodes import DeviceHealthChanged, NodeRemoved
from muster.events.operations import NodeDrained, NodeFenced, Policy, PolicySet
from tests.support.build import S, exited, group, job, missing, node, ready
from tests.support.driver import Driver


def gang(count: int = 2, nodes: int = 2, run: bool = True, **request: object) -> Driver:
    """A gang with one member a node; it runs."""
    driver = Driver()
    driver.step(*[node(name, 1) for name in "abcdef"[:nodes]])
    driver.step(job("j", group(count=count), **request))  # type: ignore[arg-type]
    if run:
        driver.run("j")
    return driver


def stops(driver: Driver) -> list[tuple[str, str]]:
    return [(event.reason, event.node) for event in driver.found(StopOrdered)]


def end(driver: Driver) -> AttemptEnded:
    (event,) = driver.found(AttemptEnded)
    return event


# Starting


def test_a_gang_starts_when_every_member_is_ready() -> None:
    driver = gang(run=False)
    driver.step(ready("j", 0))
    assert driver.decided == []
    driver.step(ready("j", 1))
    assert [type(event) for event in driver.decided] == [InstanceStarted]
    assert driver.attempt("j").started_us == driver.state.at_us


def test_a_member_that_is_not_ready_in_time_releases_the_gang_and_is_blamed() -> None:
    driver = gang(run=False, grace_us=5 * S)
    driver.step(ready("j", 0))
    driver.step(after_s=600)
    late = driver.attempt("j").tasks[1].node
    assert stops(driver) == [("ready-timeout", late.name)]
    assert driver.found(StopOrdered)[0].kill_at_us == driver.state.at_us + 5 * S
    driver.exit("j", code=-9)
    ended = end(driver)
    assert (ended.then, ended.avoid, ended.charged) == ("pending", late.uid, False)
    assert ended.not_before_us == driver.state.at_us + 60 * S


def test_a_member_that_exits_before_the_start_is_a_start_failure() -> None:
    driver = gang(run=False)
    driver.step(ready("j", 0), exited("j", 1, code=7))
    assert stops(driver) == [("start-failed", driver.attempt("j").tasks[1].node.name)]
    driver.exit("j", code=-9)
    assert (end(driver).reason, end(driver).code, end(driver).then) == ("start-failed", 7, "pending")


def test_even_an_exit_with_nought_before_the_start_is_a_start_failure() -> None:
    driver = gang(run=False)
    driver.step(exited("j", 0, code=0))
    assert stops(driver)[0][0] == "start-failed"


def test_a_start_failure_blamed_on_the_job_is_charged_and_avoids_nothing() -> None:
    driver = gang(count=1, nodes=1, run=False, max_retries=1)
    driver.step(exited("j", code=1, blame="job"))
    assert (end(driver).then, end(driver).charged, end(driver).avoid, end(driver).not_before_us) == ("pending", True, "", 0)
    driver.step(exited("j", attempt=2, code=1, blame="job"))
    assert (end(driver).then, driver.phase("j")) == ("failed", "failed")


def test_the_back_off_doubles_up_to_its_most_and_starts_anew_after_a_start() -> None:
    driver = Driver(backoff_us=60 * S, backoff_max_us=200 * S)
    driver.step(*[node(name, 1) for name in "abcde"])
    driver.step(job("j"))
    waits = []
    for attempt in (1, 2, 3):
        driver.step(exited("j", attempt=attempt, code=1))
        waits.append(end(driver).not_before_us - driver.state.at_us)
        assert driver.phase("j") == "pending"
        driver.step(at_us=end_of_back_off(driver) - 1)
        assert driver.phase("j") == "pending"
        driver.step(at_us=end_of_back_off(driver))
        assert driver.phase("j") == "starting"
    assert waits == [60 * S, 120 * S, 200 * S]
    driver.run("j")
    driver.step(exited("j", attempt=4, code=1, blame="node"))
    assert end(driver).not_before_us - driver.state.at_us == 60 * S
    assert len(driver.job("j").avoid) == 4


def end_of_back_off(driver: Driver) -> int:
    due = driver.state.timers.backoff.get(driver.instance("j"))
    assert due is not None
    return due


# Ending


def test_when_all_have_exited_with_nought_it_is_finished() -> None:
    driver = gang()
    driver.step(exited("j", 0))
    assert driver.phase("j") == "running"
    driver.step(exited("j", 1))
    assert (end(driver).then, end(driver).reason) == ("finished", "finished")


def test_the_group_that_decides_ends_the_others() -> None:
    driver = Driver()
    driver.step(node("a", 3))
    driver.step(job("j", group("head"), group("work", count=2), success="head", grace_us=9 * S))
    driver.run("j")
    driver.step(exited("j", 0))
    assert stops(driver) == [("finished", "")]
    driver.exit("j", code=-15)
    assert end(driver).then == "finished"


def test_the_first_that_fails_stops_the_rest_and_is_retried_as_often_as_was_asked() -> None:
    driver = gang(max_retries=1, grace_us=9 * S)
    driver.step(exited("j", 1, code=3))
    assert stops(driver) == [("member-failed", "")]
    assert driver.found(StopOrdered)[0].code == 3
    driver.step(exited("j", 0, code=-15))
    assert (end(driver).then, end(driver).code, end(driver).charged) == ("pending", 3, True)
    driver.run("j")
    driver.step(exited("j", 1, attempt=2, code=4))
    driver.step(exited("j", 0, attempt=2, code=-15))
    assert (end(driver).then, driver.phase("j"), driver.instance("j").code) == ("failed", "failed", 4)


def test_a_member_that_failed_by_its_node_is_not_charged_and_goes_elsewhere() -> None:
    driver = gang(count=1, nodes=2)
    blamed = driver.attempt("j").tasks[0].node
    driver.step(exited("j", code=1, blame="node"))
    assert (end(driver).then, end(driver).charged, end(driver).avoid) == ("pending", False, blamed.uid)
    driver.step(at_us=end_of_back_off(driver))
    assert driver.attempt("j").tasks[0].node is not blamed


def test_the_time_limit_ends_it_for_good_and_counts_anew_for_each_attempt() -> None:
    driver = gang(time_limit_us=100 * S, grace_us=9 * S)
    driver.step(NodeFenced(node="b"))
    driver.exit("j", code=-9)
    driver.step(node("b", 1, boot="b2"), after_s=95)
    driver.run("j")
    started_us = driver.attempt("j").started_us
    driver.step(at_us=started_us + 100 * S - 1)
    assert driver.phase("j") == "running"
    driver.step(at_us=started_us + 100 * S)
    assert stops(driver) == [("time-limit", "")]
    driver.exit("j", code=-15)
    assert (end(driver).then, end(driver).reason) == ("failed", "time-limit")


@pytest.mark.parametrize("phase", ["pending", "starting", "running", "stopping"])
def test_a_cancellation_ends_it_whatever_it_does(phase: str) -> None:
    driver = gang(nodes=0 if phase == "pending" else 2, run=phase in ("running", "stopping"), grace_us=9 * S)
    if phase == "stopping":
        driver.step(NodeDrained(node="a"))
    assert driver.phase("j") == phase
    driver.step(JobCancelRequested(job="j"))
    if phase == "pending":
        assert driver.found(InstanceEnded)[0].outcome == "cancelled"
        assert driver.phase("j") == "cancelled"
        return
    assert stops(driver) == ([] if phase == "stopping" else [("cancelled", "")])
    driver.exit("j")
    assert (end(driver).then, driver.phase("j")) == ("cancelled", "cancelled")
    driver.step(JobCancelRequested(job="j"))
    assert driver.decided == []


def test_a_cancellation_while_it_backs_off_ends_it() -> None:
    driver = gang(count=1, nodes=1, run=False)
    driver.exit("j", code=1)
    driver.step(JobCancelRequested(job="j"))
    assert driver.phase("j") == "cancelled"
    assert driver.state.timers.backoff.get(driver.instance("j")) is None


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (NodeFenced(node="a"), "node-lost"),
        (NodeRemoved(node="a", uid="uid-a"), "node-removed"),
        (node("a", 1, boot="b2"), "node-rebooted"),
        (NodeDrained(node="a"), "drained"),
        (DeviceHealthChanged(node="a", uid="uid-a", device="a-0", health="failed"), "device-failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_loss_that_is_not_its_fault_requeues_the_whole_gang_uncharged_at_its_place(event: object, reason: str) -> None:
    driver = gang(nodes=2)
    place = driver.instance("j").place
    driver.step(event)  # type: ignore[arg-type]
    assert stops(driver) == [(reason, "a")]
    driver.exit("j", code=-9)
    assert (end(driver).then, end(driver).charged, end(driver).reason, end(driver).avoid) == ("pending", False, reason, "")
    assert driver.instance("j").place == place
    assert driver.instance("j").retries == 0


def test_a_task_that_the_node_does_not_know_ends_the_attempt_uncharged() -> None:
    driver = gang(count=1, nodes=1)
    driver.step(missing("j"))
    assert (end(driver).then, end(driver).reason, end(driver).charged) == ("pending", "task-missing", False)
    assert driver.attempt("j").number == 2


def test_a_task_that_is_missing_before_the_start_is_blamed_on_its_node() -> None:
    driver = gang(count=1, nodes=2, run=False)
    where = driver.attempt("j").tasks[0].node
    driver.step(missing("j"))
    assert end(driver).avoid == where.uid


def test_what_was_done_when_its_node_went_is_finished() -> None:
    driver = gang(count=1, nodes=1)
    driver.step(NodeDrained(node="a"), exited("j"))
    assert end(driver).then == "finished"


def test_only_the_first_reason_counts() -> None:
    driver = gang(count=3, nodes=3)
    driver.step(exited("j", 0, code=5), NodeDrained(node="b"), exited("j", 1, code=6))
    assert stops(driver) == [("member-failed", "")]
    assert driver.found(StopOrdered)[0].code == 5


def test_nothing_is_bound_again_while_a_member_of_the_attempt_before_holds() -> None:
    driver = gang(nodes=4)
    driver.step(NodeFenced(node=driver.places("j")[0][1]))
    for _ in range(3):
        driver.step(after_s=100)
        assert driver.attempt("j").number == 1
    driver.exit("j", code=-9)
    assert driver.attempt("j").number == 2


def test_late_reports_of_an_ended_attempt_change_nothing() -> None:
    driver = gang(count=1, nodes=1)
    driver.step(NodeFenced(node="a"), node("a", 1, boot="b2"))
    assert driver.attempt("j").number == 2
    driver.step(exited("j", code=1, attempt=1))
    assert driver.decided == []
    assert driver.phase("j") == "starting"


# Degraded


def degraded(**request: Any) -> Driver:
    """A gang of three on three nodes, which may run short for a hundred seconds; it lost one."""
    driver = gang(count=3, nodes=3, degraded_grace_us=100 * S, **request)
    driver.step(NodeFenced(node="b"))
    return driver


def test_a_gang_that_may_runs_short_for_its_grace_and_then_ends_whole() -> None:
    driver = degraded()
    (lost,) = driver.found(MemberLost)
    assert lost.until_us == driver.state.at_us + 100 * S
    assert driver.phase("j") == "running"
    driver.step(at_us=lost.until_us - 1)
    assert driver.phase("j") == "running"
    driver.step(at_us=lost.until_us)
    assert stops(driver)[0][0] == "node-lost"


def test_a_second_loss_does_not_lengthen_the_grace() -> None:
    driver = degraded()
    (lost,) = driver.found(MemberLost)
    driver.step(NodeFenced(node="a"), after_s=50)
    assert driver.found(MemberLost)[0].until_us == lost.until_us
    driver.step(NodeFenced(node="c"), after_s=1)
    assert end(driver).then == "pending"


def test_without_a_grace_the_loss_of_a_member_ends_the_gang() -> None:
    driver = gang(count=3, nodes=3)
    driver.step(NodeFenced(node="b"))
    assert stops(driver) == [("node-lost", "b")]


def test_a_failure_of_its_own_ends_a_degraded_gang_at_once() -> None:
    driver = degraded()
    driver.step(exited("j", driver.places("j")[0][0], code=2))
    assert stops(driver)[0][0] == "member-failed"


def test_a_gang_that_is_whole_again_runs_on_past_the_grace() -> None:
    driver = degraded()
    driver.step(node("d", 1))
    assert driver.found(MembersReplaced)
    driver.ready("j")
    driver.step(after_s=200)
    assert driver.phase("j") == "running"
    assert driver.attempt("j").number == 1


def test_a_gang_that_has_not_started_is_never_degraded() -> None:
    driver = gang(count=3, nodes=3, run=False, degraded_grace_us=100 * S)
    driver.step(NodeFenced(node="b"))
    assert stops(driver) == [("node-lost", "b")]


# The gate, and the end of a job


@pytest.mark.parametrize(
    ("submitted", "text"),
    [
        (job("j", queue="other"), "queue 'other' does not exist; there are: default"),
        (job("j", group(count=11)), "11 tasks in one instance; a cycle places at most 10"),
        (job("j", array=6), "0 instances wait already; at most 5 may"),
    ],
)
def test_a_job_that_can_never_be_taken_is_rejected_with_a_sentence(submitted: object, text: str) -> None:
    driver = Driver(placements_max=10, pending_max=5)
    driver.step(node("a"))
    driver.step(submitted)  # type: ignore[arg-type]
    (rejected,) = driver.found(JobRejected)
    assert rejected.reason == text
    assert driver.job("j").rejected == text
    assert driver.phase("j") == "rejected"
    assert driver.state.pending_total == 0


def test_an_ended_job_is_forgotten_when_its_time_is_over() -> None:
    driver = gang(count=1, nodes=1)
    driver.exit("j")
    over_us = driver.job("j").over_us
    driver.step(at_us=over_us + 3600 * S - 1)
    assert "j" in driver.state.jobs
    driver.step(at_us=over_us + 3600 * S)
    assert "j" not in driver.state.jobs
    assert driver.engine.next_wake_us() is None


def test_the_engine_wakes_for_what_is_due_next() -> None:
    driver = Driver()
    assert driver.engine.next_wake_us() is None
    driver.step(node("a", 1), job("j", time_limit_us=50 * S))
    assert driver.engine.next_wake_us() == driver.attempt("j").ready_until_us
    driver.run("j")
    assert driver.engine.next_wake_us() == driver.attempt("j").started_us + 50 * S


def test_a_policy_with_spans_of_nought_stops_nobody_from_deciding() -> None:
    driver = Driver()
    driver.step(PolicySet(policy=Policy(ready_timeout_us=0, forget_after_us=0)))
    driver.step(node("a", 1), job("j"))
    assert driver.phase("j") == "starting"
    driver.step(after_s=0)
    assert stops(driver)[0][0] == "ready-timeout"


def test_a_loss_that_is_read_when_the_grace_is_over_ends_the_gang() -> None:
    driver = degraded()
    (lost,) = driver.found(MemberLost)
    driver.step(NodeFenced(node="a"), at_us=lost.until_us + S)
    assert not driver.found(MemberLost)
    assert stops(driver) == [("node-lost", "a")]
    assert not driver.violations()


def test_a_member_that_was_done_when_its_device_failed_is_not_missed() -> None:
    driver = gang(count=3, nodes=3, degraded_grace_us=100 * S)
    rank, name, _ = driver.places("j")[0]
    driver.step(DeviceHealthChanged(node=name, uid=f"uid-{name}", device=f"{name}-0", health="failed"), exited("j", rank))
    assert driver.attempt("j").degraded_until_us == 0
    driver.step(after_s=200)
    assert driver.phase("j") == "running"
    driver.exit("j")
    assert driver.phase("j") == "finished"
    assert not driver.violations()


def test_a_policy_names_the_queues_there_are_and_nobody_preempts_in_another() -> None:
    driver = Driver(queues=("default", "gpu"))
    driver.step(node("a", 1))
    driver.step(job("low", group(gpus=1), queue="gpu"), job("other", group(gpus=1), priority=9, queue="nowhere"))
    assert driver.phase("other") == "rejected"
    driver.run("low")
    driver.step(job("high", group(gpus=1), priority=5))
    assert driver.phase("low") == "running", "priority counts inside a queue"
    driver.step(job("higher", group(gpus=1), priority=5, queue="gpu"))
    assert driver.phase("low") == "stopping"
