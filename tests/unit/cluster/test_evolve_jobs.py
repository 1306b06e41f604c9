"""How each entry about jobs, instances and attempts changes the state, and what changes nothing."""

import pytest

from muster.cluster import snapshot
from muster.cluster.check import BrokenInvariant
from muster.events.base import Event
from muster.events.decisions import (
    AttemptEnded,
    AttemptRef,
    InstanceBound,
    InstanceEnded,
    InstancePreempted,
    InstanceStarted,
    JobRejected,
    JobsForgotten,
    MembersReplaced,
    Nominated,
    NominationEnded,
    PassStopped,
    Placement,
    ShapeDeferred,
    StopOrdered,
)
from muster.events.jobs import JobCancelRequested, JobReprioritised
from muster.events.nodes import TaskReady
from muster.events.operations import EntryQuarantined, InputRefused
from tests.support.build import S, exited, group, job, missing, node, ready, started
from tests.support.driver import Driver


def running(*groups: object, **request: object) -> Driver:
    """One job that runs on two nodes."""
    driver = Driver()
    driver.step(node("a", 2), node("b", 2))
    driver.step(job("j", *groups, **request))  # type: ignore[arg-type]
    driver.run("j")
    return driver


def bound(id: str = "j", attempt: int = 1, *places: Placement) -> InstanceBound:
    return InstanceBound(job=id, instance=0, attempt=attempt, placements=places or (Placement(0, 0, (0,)),))


# Inputs


def test_a_submission_waits_with_its_place_and_a_repeat_changes_nothing() -> None:
    driver = Driver()
    driver.step(job("j", priority=3))
    assert driver.job("j").place == (driver.state.number, 0)
    assert driver.job("j").submitted_us == driver.state.at_us
    place = driver.job("j").place
    driver.step(job("j", group(gpus=2), priority=9))
    assert driver.job("j").place == place
    assert driver.job("j").priority == 3
    assert driver.state.pending.count == 1


def test_a_repeat_of_a_job_that_is_over_does_not_bring_it_back() -> None:
    driver = running()
    driver.exit("j")
    driver.step(job("j"))
    assert driver.phase("j") == "finished"
    assert driver.job("j").open == 0


def test_every_element_of_an_array_waits() -> None:
    driver = Driver()
    driver.step(job("j", array=3))
    assert [driver.phase("j", index) for index in range(3)] == ["pending"] * 3
    assert driver.state.pending_total == 3


def test_a_cancellation_of_one_element_leaves_the_others() -> None:
    driver = Driver()
    driver.step(job("j", array=3))
    driver.step(JobCancelRequested(job="j", instance=1))
    assert [driver.phase("j", index) for index in range(3)] == ["pending", "cancelled", "pending"]
    driver.step(JobCancelRequested(job="j", instance=7))
    assert [driver.phase("j", index) for index in range(3)] == ["pending", "cancelled", "pending"]


@pytest.mark.parametrize(
    "event",
    [
        JobCancelRequested(job="nobody"),
        JobReprioritised(job="nobody", priority=1),
        ready("nobody"),
        started("nobody"),
        exited("nobody"),
        missing("nobody"),
        InputRefused(source="muster.jobs/0", reason="no"),
        EntryQuarantined(kind="JobSubmitted"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_concerns_nobody_changes_nothing(event: Event) -> None:
    driver, other = running(), running()
    driver.step(event)
    other.step()
    assert snapshot.digest(driver.state) == snapshot.digest(other.state)
    assert driver.decided == []


def test_a_new_priority_moves_those_who_wait_and_counts_those_who_run() -> None:
    driver = running()
    driver.step(job("w", group(gpus=2, count=2)), job("v", group(gpus=2, count=2)))
    driver.step(JobReprioritised(job="v", priority=0), JobReprioritised(job="j", priority=7))
    assert driver.job("j").priority == 7
    driver.step(JobReprioritised(job="v", priority=8))
    assert driver.state.nominations.keys() == {("v", 0)}


def test_a_report_of_another_attempt_rank_or_instance_changes_nothing() -> None:
    driver = running()
    before = driver.attempt("j").tasks[0].phase
    for event in (
        exited("j", 0, attempt=2),
        exited("j", 5),
        exited("j", 0, instance=3),
        missing("j", 0, attempt=9),
        ready("j", 0, attempt=2),
        started("j", 0, attempt=2),
    ):
        driver.step(event)
    assert driver.attempt("j").tasks[0].phase == before == "running"
    assert driver.attempt("j").held == 1


def test_tasks_become_ready_once_and_keep_their_port() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("j", group(count=2)))
    driver.step(ready("j", 0, port=4000), ready("j", 0, port=5000))
    assert driver.attempt("j").ready == 1
    assert driver.attempt("j").tasks[0].port == 4000
    driver.step(ready("j", 1))
    assert driver.phase("j") == "running"


def test_the_code_of_an_exit_is_kept_and_its_place_given_back() -> None:
    driver = running(group(count=2), success="")
    driver.step(exited("j", 1, code=0))
    task = driver.attempt("j").tasks[1]
    assert (task.phase, task.code, task.holding) == ("exited", 0, False)
    assert driver.attempt("j").held == 1


def test_a_task_that_the_node_does_not_know_is_lost() -> None:
    driver = running()
    driver.step(missing("j"))
    assert driver.instance("j").attempts == 2
    assert driver.found(AttemptEnded)[0].reason == "task-missing"


# Decisions


def test_a_binding_holds_its_places_and_counts_the_attempts() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("j"))
    attempt = driver.attempt("j")
    assert (attempt.number, attempt.phase, attempt.held, attempt.bound_us) == (1, "prepare", 1, driver.state.at_us)
    assert driver.state.timers.ready.get(driver.instance("j")) == driver.state.at_us + driver.state.policy.ready_timeout_us
    assert driver.state.pending_total == 0


def test_the_time_limit_counts_from_the_start() -> None:
    driver = running(time_limit_us=100 * S)
    assert driver.state.timers.limit.get(driver.instance("j")) == driver.attempt("j").started_us + 100 * S


def test_an_end_gives_everything_up_and_the_last_one_ends_the_job() -> None:
    driver = running(array=2)
    driver.step(exited("j", instance=0))
    assert (driver.phase("j", 0), driver.phase("j", 1), driver.job("j").open) == ("finished", "running", 1)
    driver.step(exited("j", instance=1))
    assert driver.job("j").open == 0
    assert driver.job("j").over_us == driver.state.at_us


def test_a_deferral_is_kept_until_the_shape_is_bound() -> None:
    driver = Driver()
    driver.step(job("j"))
    (event,) = driver.found(ShapeDeferred)
    assert driver.state.deferred == {("default", event.shape): "no-nodes"}
    driver.step(node("a"))
    assert driver.state.deferred == {}


def test_forgotten_jobs_are_gone() -> None:
    driver = running()
    driver.exit("j")
    driver.step(after_s=3600)
    assert driver.found(JobsForgotten)[0].jobs == ("j",)
    assert driver.state.jobs == {}
    assert driver.state.timers.items() == []


@pytest.mark.parametrize(
    ("decision", "what"),
    [
        (bound(attempt=1), "it is running"),
        (bound("nobody"), "not there"),
        (InstanceStarted(job="j", instance=0, attempt=1), "in run"),
        (InstanceStarted(job="j", instance=0, attempt=2), "not current"),
        (InstanceStarted(job="j", instance=4, attempt=1), "j/4"),
        (AttemptEnded(job="j", instance=0, attempt=1, then="finished"), "still hold"),
        (InstanceEnded(job="j", instance=0, outcome="failed"), "it is running"),
        (JobRejected(job="j", reason="no"), "running"),
        (JobRejected(job="nobody", reason="no"), "not there"),
        (JobsForgotten(jobs=("j",)), "not over"),
        (JobsForgotten(jobs=("nobody",)), "not over"),
        (Nominated(job="j", instance=0, placements=(), victims=(), until_us=0), "it is running"),
        (NominationEnded(job="j", instance=0, reason="bound"), "there is none"),
        (MembersReplaced(job="j", instance=0, attempt=1, placements=(Placement(0, 1, (0,)),)), "is not lost"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Event) else "",
)
def test_a_decision_that_cannot_be_true_is_a_broken_invariant(decision: Event, what: str) -> None:
    driver = running()
    with pytest.raises(BrokenInvariant, match=what):
        driver.fold(decision)


def test_nobody_is_told_to_stop_twice() -> None:
    driver = running(grace_us=10 * S)
    driver.step(JobCancelRequested(job="j"))
    with pytest.raises(BrokenInvariant, match="twice"):
        driver.fold(StopOrdered(job="j", instance=0, attempt=1, reason="cancelled", kill_at_us=0))
    with pytest.raises(BrokenInvariant, match="twice"):
        driver.fold(InstancePreempted(job="j", instance=0, attempt=1, by_job="k", by_instance=0, kill_at_us=0))


def test_a_placement_on_a_row_without_a_node_is_a_broken_invariant() -> None:
    driver = Driver()
    driver.step(job("j"))
    with pytest.raises(BrokenInvariant, match="row 3"):
        driver.fold(bound("j", 1, Placement(0, 3, ())))


def test_a_victim_that_is_not_there_is_a_broken_invariant() -> None:
    driver = running()
    driver.step(job("k", group(gpus=2, count=2)))
    nominated = Nominated(job="k", instance=0, placements=(), victims=(AttemptRef("j", 0, 2),), until_us=1)
    with pytest.raises(BrokenInvariant, match="victim"):
        driver.fold(nominated)


def test_nobody_is_bound_beside_its_nomination() -> None:
    driver = running(group(gpus=2, count=2))
    driver.step(job("k", priority=4))
    assert ("k", 0) in driver.state.nominations
    with pytest.raises(BrokenInvariant, match="has not ended"):
        driver.fold(bound("k"))


def test_a_nomination_keeps_its_places_until_it_ends() -> None:
    driver = running(group(gpus=2, count=2), grace_us=50 * S)
    driver.step(job("k", group(gpus=2), priority=4))
    nomination = driver.state.nominations["k", 0]
    (kept,) = nomination.nodes
    assert kept.claims.keys() == {("k", 0)}
    assert driver.state.timers.nomination.get(("k", 0)) == nomination.until_us
    driver.step(exited("j", 0, code=-9))
    if kept.tasks:
        driver.step(exited("j", 1, code=-9))
    driver.step(exited("j", 1, code=-9))
    assert driver.phase("k") == "starting"
    assert kept.claims == {}
    assert driver.state.timers.nomination.get(("k", 0)) is None


def test_a_stopped_pass_says_that_there_is_more_until_the_next_cycle() -> None:
    driver = Driver()
    driver.fold(PassStopped())
    assert driver.state.more
    assert driver.engine.next_wake_us() == driver.state.at_us
    driver.step()
    assert not driver.state.more


def test_time_does_not_go_back_and_numbers_are_dense() -> None:
    driver = Driver()
    driver.step()
    with pytest.raises(BrokenInvariant, match="before cycle"):
        driver.engine.step(driver.state.number + 1, 1, driver.state.at_us - 1, ())
    with pytest.raises(BrokenInvariant, match="does not follow"):
        driver.engine.step(driver.state.number + 2, 1, driver.state.at_us, ())


def test_positions_are_folded_and_kept() -> None:
    driver = Driver()
    number, at_us = driver.state.number + 1, driver.state.at_us
    driver.engine.step(number, 1, at_us, (), {"muster.jobs/0": 7})
    driver.engine.step(number + 1, 1, at_us, (), {"muster.nodes/0": 2})
    assert driver.state.positions == {"muster.jobs/0": 7, "muster.nodes/0": 2}


def test_a_doubled_ready_of_one_task_does_not_start_a_gang() -> None:
    driver = Driver()
    driver.step(node("a", 2), job("j", group(count=2)))
    driver.step(*[TaskReady(job="j", instance=0, attempt=1, rank=0)] * 2)
    assert driver.phase("j") == "starting"
