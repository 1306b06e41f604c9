"""How each entry about nodes and devices changes the state."""

import pytest

from muster.cluster.check import BrokenInvariant
from muster.cluster.evolve_nodes import lost_at_us
from muster.events.base import Event
from muster.events.decisions import (
    AttemptEnded,
    NodeLost,
    NodeQuarantined,
    NodeReleased,
    NodeReturned,
    NodeSilent,
    NominationEnded,
    StopOrdered,
)
from muster.events.nodes import DeviceHealthChanged, ForeignUseChanged, NodeRemoved, NodesHeard, Taint
from muster.events.operations import LeaseExtended, NodeCordoned, NodeDrained, NodeFenced, NodeUncordoned, Policy, PolicySet
from tests.support.build import S, device, devices, exited, group, job, node
from tests.support.driver import Driver


def running(*ids: str, **request: object) -> Driver:
    """One node with two devices, on which these jobs run."""
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(*[job(id, **request) for id in ids])  # type: ignore[arg-type]
    driver.run(*ids)
    return driver


def test_a_node_takes_the_lowest_row_and_its_devices_their_indexes() -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 1))
    assert [driver.node(name).row for name in "ab"] == [0, 1]
    assert [one.uuid for one in driver.node("a").devices] == ["a-0", "a-1"]
    assert driver.state.node_rows == {"a": 0, "b": 1}


def test_a_device_keeps_its_index_by_uuid_and_a_new_one_gets_the_next() -> None:
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(node("a", devices=(device("new"), device("a-1"))))
    found = driver.node("a")
    assert [(one.uuid, one.present) for one in found.devices] == [("a-0", False), ("a-1", True), ("new", True)]
    assert found.device_free == [0, 1_000_000, 1_000_000]


def test_a_device_that_is_no_longer_named_has_failed_whoever_holds_it() -> None:
    driver = running("j", "k")
    (held,) = driver.attempt("j").tasks[0].devices
    driver.step(node("a", devices=(device(f"a-{1 - held}"),)))
    assert [(e.job, e.reason) for e in driver.found(StopOrdered)] == [("j", "device-failed")]
    assert driver.phase("k") == "running"


def test_another_uid_under_the_name_is_another_node() -> None:
    driver = running("j")
    driver.step(node("a", 2, uid="second"))
    assert driver.found(AttemptEnded)[0].reason == "node-removed"
    assert driver.node("a").uid == "second"
    assert driver.node("a").row == 0
    assert driver.attempt("j").number == 2


def test_another_boot_ends_what_ran_and_lifts_the_fence() -> None:
    driver = running("j")
    driver.step(NodeFenced(node="a"))
    assert driver.phase("j") == "pending"
    driver.step(node("a", 2, boot="b2"))
    assert not driver.node("a").fenced
    assert driver.attempt("j").number == 2
    driver.step(node("a", 2, boot="b3"))
    assert driver.found(AttemptEnded)[0].reason == "node-rebooted"


def test_the_same_registration_again_changes_nothing_that_runs() -> None:
    driver = running("j")
    driver.step(node("a", 2))
    assert driver.decided == []
    assert driver.phase("j") == "running"


def test_a_removed_node_is_gone_and_only_if_its_uid_is_meant() -> None:
    driver = running("j")
    driver.step(NodeRemoved(node="a", uid="another"))
    assert driver.phase("j") == "running"
    driver.step(NodeRemoved(node="a", uid="uid-a"))
    assert driver.state.node("a") is None
    assert driver.phase("j") == "pending"
    assert driver.state.nodes == [None]


@pytest.mark.parametrize("said", [NodeCordoned, NodeDrained, NodeFenced])
def test_no_new_work_comes_until_the_node_is_uncordoned(said: type[NodeCordoned]) -> None:
    driver = Driver()
    driver.step(node("a"))
    driver.step(said(node="a"), job("j"))
    assert driver.phase("j") == "pending"
    driver.step(NodeUncordoned(node="a"))
    assert driver.phase("j") == "starting"


@pytest.mark.parametrize("said", [NodeCordoned, NodeUncordoned, NodeDrained, NodeFenced])
def test_what_is_said_of_a_node_that_is_not_there_changes_nothing(said: type[NodeCordoned]) -> None:
    driver = Driver()
    driver.step(said(node="nobody"))
    assert driver.decided == []


def test_a_cordon_leaves_what_runs_and_a_drain_does_not() -> None:
    driver = running("j", grace_us=20 * S)
    driver.step(NodeCordoned(node="a"))
    assert driver.phase("j") == "running"
    driver.step(NodeDrained(node="a"))
    (stop,) = driver.found(StopOrdered)
    assert (stop.reason, stop.node, stop.kill_at_us) == ("drained", "a", driver.state.at_us + 20 * S)
    driver.exit("j", code=-15)
    assert driver.found(AttemptEnded)[0].then == "pending"
    assert not driver.found(AttemptEnded)[0].charged


def test_a_fence_gives_back_at_once_what_is_held() -> None:
    driver = running("j")
    driver.step(NodeFenced(node="a"))
    (end,) = driver.found(AttemptEnded)
    assert (end.reason, end.then) == ("node-lost", "pending")
    assert driver.node("a").device_free == [1_000_000, 1_000_000]


def test_only_who_holds_a_failed_device_stops() -> None:
    driver = running("j", "k")
    (held,) = driver.attempt("k").tasks[0].devices
    driver.step(DeviceHealthChanged(node="a", uid="uid-a", device=f"a-{held}", health="failed"))
    assert [(e.job, e.reason) for e in driver.found(StopOrdered)] == [("k", "device-failed")]


def test_a_degraded_device_stops_nobody_and_takes_nobody() -> None:
    driver = running("j")
    (held,) = driver.attempt("j").tasks[0].devices
    driver.step(DeviceHealthChanged(node="a", uid="uid-a", device=f"a-{held}", health="degraded"))
    assert driver.decided == []
    driver.exit("j")
    driver.step(job("k", group(gpus=2)))
    assert driver.phase("k") == "pending"


@pytest.mark.parametrize(
    "event",
    [
        DeviceHealthChanged(node="a", uid="another", device="a-0", health="failed"),
        DeviceHealthChanged(node="nobody", uid="uid-a", device="a-0", health="failed"),
        DeviceHealthChanged(node="a", uid="uid-a", device="unknown", health="failed"),
        ForeignUseChanged(node="nobody", uid="uid-a", cpu_milli=1),
    ],
)
def test_what_is_said_of_another_node_or_device_changes_nothing(event: Event) -> None:
    driver = running("j", "k")
    driver.step(event)
    assert driver.decided == []
    assert all(one.health == "healthy" for one in driver.node("a").devices)


def test_foreign_use_keeps_new_work_off_and_stops_nobody() -> None:
    driver = running("j")
    driver.step(ForeignUseChanged(node="a", uid="uid-a", devices=("a-0", "a-1")), job("k"))
    assert driver.phase("j") == "running"
    assert driver.phase("k") == "pending"
    driver.step(ForeignUseChanged(node="a", uid="uid-a"))
    assert driver.phase("k") == "starting"


def test_a_taint_that_executes_stops_who_does_not_tolerate_it() -> None:
    driver = running("j")
    driver.step(node("a", 2, taints=(Taint(key="dirt", effect="NoSchedule"),)))
    assert driver.phase("j") == "running"
    driver.step(node("a", 2, taints=(Taint(key="dirt", effect="NoExecute"),)))
    assert driver.found(StopOrdered)[0].reason == "taint"


# Being heard


def test_a_missing_node_is_heard_last_at_the_beat_before() -> None:
    driver = Driver()
    driver.step(node("a"), node("b"))
    driver.step(NodesHeard())
    beat_us = driver.state.at_us
    driver.step(NodesHeard(missing=(0,)), after_s=5)
    assert driver.node("a").heard_us == beat_us
    assert list(driver.state.missing) == [0]
    assert driver.state.timers.node.get(driver.node("a")) == beat_us + driver.state.policy.silent_after_us
    driver.step(NodesHeard(missing=(0,)), after_s=5)
    assert driver.node("a").heard_us == beat_us
    driver.step(NodesHeard(), after_s=5)
    assert driver.state.timers.node.get(driver.node("a")) is None


def test_from_rows_that_could_not_be_read_nothing_follows() -> None:
    driver = Driver()
    driver.step(node("a"))
    driver.step(NodesHeard(missing=(0,)))
    driver.step(NodesHeard(unread=(0,)), after_s=25)
    assert driver.node("a").heard_us == driver.state.at_us
    driver.step(NodesHeard(missing=(0,)), after_s=29)
    assert driver.node("a").liveness == "heard"


def test_rows_without_a_node_in_a_beat_mean_nobody() -> None:
    driver = Driver()
    driver.step(node("a"))
    driver.step(NodesHeard(missing=(7, 1), unread=(9,)))
    assert driver.state.missing == {}


def test_a_node_that_registers_again_while_it_is_missing_was_heard() -> None:
    driver = Driver()
    driver.step(node("a"))
    driver.step(NodesHeard(missing=(0,)))
    driver.step(node("a"), after_s=20)
    driver.step(after_s=15)
    assert driver.node("a").liveness == "heard"
    driver.step(after_s=20)
    assert driver.node("a").liveness == "silent"


def test_an_extended_lease_puts_off_the_loss_and_not_the_silence() -> None:
    driver = Driver()
    driver.step(node("a"))
    driver.step(NodesHeard(missing=(0,)))
    driver.step(LeaseExtended(until_us=driver.state.at_us + 1000 * S))
    driver.step(after_s=400)
    assert driver.node("a").liveness == "silent"
    driver.step(after_s=599)
    assert driver.node("a").liveness == "lost"


def test_a_shorter_lease_does_not_undo_a_longer_one() -> None:
    driver = Driver()
    driver.step(LeaseExtended(until_us=900 * S))
    driver.step(LeaseExtended(until_us=100 * S))
    assert driver.state.lease_until_us == 900 * S


def test_a_policy_moves_the_deadlines_that_follow_from_it() -> None:
    driver = running("j")
    driver.step(NodesHeard(missing=(0,)))
    heard_us = driver.node("a").heard_us
    driver.step(PolicySet(policy=Policy(silent_after_us=70 * S, min_runtime_us=90 * S)))
    assert driver.state.timers.node.get(driver.node("a")) == heard_us + 70 * S
    assert driver.state.timers.immune.get(driver.instance("j")) == driver.attempt("j").started_us + 90 * S
    driver.step(PolicySet(policy=Policy()))
    assert driver.state.timers.immune.get(driver.instance("j")) is None
    driver.exit("j")
    driver.step(PolicySet(policy=Policy(forget_after_us=10 * S)))
    driver.step(after_s=10)
    assert "j" not in driver.state.jobs


def test_a_gap_without_a_leader_moves_what_judges_others_and_no_time_limit() -> None:
    driver = Driver()
    driver.step(node("a"), node("b"))
    driver.step(job("limited", time_limit_us=500 * S))
    driver.run("limited")
    driver.step(job("starting"), NodesHeard(missing=(1,)))
    ready_us, heard_us = driver.attempt("starting").ready_until_us, driver.node("b").heard_us
    limit_us = driver.state.timers.limit.get(driver.instance("limited"))
    driver.lead(gap_us=100 * S)
    assert driver.attempt("starting").ready_until_us == ready_us + 100 * S
    assert driver.node("b").heard_us == heard_us + 100 * S
    assert driver.state.timers.limit.get(driver.instance("limited")) == limit_us
    driver.step()
    assert driver.node("b").liveness == "heard"


@pytest.mark.parametrize(
    ("decision", "what"),
    [
        (NodeSilent(node="a", row=1), "not there"),
        (NodeSilent(node="b", row=0), "not there"),
        (NodeReturned(node="a", row=0), "heard all the time"),
        (NodeLost(node="a", row=0), "it is heard"),
        (NodeQuarantined(node="a", row=5, until_us=1), "not there"),
        (NodeReleased(node="c", row=0), "not there"),
    ],
)
def test_a_decision_about_a_node_that_cannot_be_true_is_a_broken_invariant(decision: Event, what: str) -> None:
    driver = Driver()
    driver.step(node("a"))
    with pytest.raises(BrokenInvariant, match=what):
        driver.fold(decision)


def test_a_nomination_on_a_node_that_goes_ends_for_that_reason() -> None:
    for said, reason in (
        (NodeRemoved(node="a", uid="uid-a"), "node-lost"),
        (NodeFenced(node="a"), "node-lost"),
        (NodeCordoned(node="a"), "infeasible"),
        (DeviceHealthChanged(node="a", uid="uid-a", device="a-0", health="degraded"), "infeasible"),
    ):
        driver = running("j", "k", grace_us=100 * S)
        driver.step(job("high", group(gpus=2), priority=5))
        assert ("high", 0) in driver.state.nominations
        driver.step(said)
        assert [e.reason for e in driver.found(NominationEnded)] == [reason], said
        assert driver.state.nominations == {}


def test_a_device_of_another_model_is_not_taken_for_one_that_failed() -> None:
    mixed = (device("x", "A", health="failed"), device("y", "A", health="failed"), *devices("a", 2, model="B"))
    driver = Driver()
    driver.step(node("a", devices=mixed))
    driver.step(job("j", group(gpus=2, gpu_models=("A",))))
    assert driver.phase("j") == "pending"
    assert not driver.violations()


def test_exits_read_after_the_loss_of_a_node_give_nothing_back_twice() -> None:
    driver = running("j")
    driver.step(NodeFenced(node="a"), exited("j"), exited("j"))
    assert driver.node("a").device_free == [1_000_000, 1_000_000]
    assert driver.phase("j") == "pending"


def test_a_lease_made_shorter_binds_only_what_is_promised_from_then_on() -> None:
    driver = Driver()
    driver.step(node("a"))
    driver.step(NodesHeard(missing=(0,)), after_s=1)
    before = driver.state.policy
    driver.step(PolicySet(policy=Policy(lease_us=6 * S, margin_us=2 * S)), after_s=1)
    promised_us = driver.state.at_us + before.lease_us + before.margin_us
    assert driver.state.lease_until_us == promised_us
    assert lost_at_us(driver.state, driver.node("a")) == promised_us
    driver.step(PolicySet(policy=before), after_s=1)
    assert driver.state.lease_until_us == promised_us, "a longer one takes nothing back"


def test_a_policy_from_before_the_first_node_promises_nothing() -> None:
    driver = Driver()
    driver.step(PolicySet(policy=Policy(lease_us=6 * S, margin_us=2 * S)))
    assert driver.state.lease_until_us == 0
