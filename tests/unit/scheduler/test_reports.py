"""From a node's level to inputs: what is new, once, and nothing that is late."""

from typing import Any, Literal

from muster.events.base import Event
from muster.events.levels import DeviceReport, NodeReport, TaskReport
from muster.events.nodes import (
    DeviceHealthChanged,
    ForeignUseChanged,
    NodeRegistered,
    NodeRemoved,
    TaskExited,
    TaskMissing,
    TaskReady,
    TaskStarted,
)
from muster.events.operations import InputRefused, Policy, PolicySet
from muster.log.admit import Admitted
from muster.scheduler.core import Core
from tests.simulation.small_world import job_id, report, spec, submission
from tests.unit.scheduler.driving import GPU_HEALTH, JOBS, NODES, OPERATIONS, Driver

JOB = job_id(1)


def kinds(events: tuple[Event, ...]) -> list[str]:
    """Their names."""
    return [type(event).__name__ for event in events]


def with_nodes(*names: str, gpus: int = 4) -> Driver:
    """A cell with these nodes."""
    driver = Driver()
    for name in names:
        driver.put(NODES, report(name, spec=spec(name, gpus)))
    assert kinds(driver.inputs()) == ["NodeRegistered"] * len(names)
    return driver


def said(phase: Literal["preparing", "ready", "running", "exited"], rank: int = 0, attempt: int = 1, **fields: Any) -> TaskReport:
    """A task of the job."""
    return TaskReport(job=JOB, instance=0, attempt=attempt, rank=rank, phase=phase, **fields)


def bound(count: int = 1, **request: Any) -> Driver:
    """A cell of one node on which the job was bound."""
    driver = with_nodes("n1")
    driver.put(JOBS, submission(JOB, count=count, **request))
    driver.turn()
    attempt = driver.core.state.attempt(JOB, 0, 1)
    assert attempt is not None
    assert attempt.held == count
    return driver


def tell(driver: Driver, sequence: int, *tasks: TaskReport, **fields: Any) -> tuple[Event, ...]:
    """The inputs that a report of n1 makes."""
    driver.put(NODES, report("n1", sequence=sequence, tasks=tasks, **fields))
    return driver.inputs()


def test_an_unknown_node_is_registered_once() -> None:
    driver = Driver()
    driver.put(NODES, report("n1", spec=spec("n1")))
    (event,) = driver.inputs()
    assert event == NodeRegistered(node="n1", uid="n1-uid", boot="boot-1", spec=spec("n1"))
    assert tell(driver, 2, spec=spec("n1")) == ()
    assert tell(driver, 3) == ()


def test_an_unknown_node_is_ignored_until_it_says_what_it_has() -> None:
    driver = Driver()
    assert tell(driver, 1) == ()
    assert kinds(tell(driver, 2, spec=spec("n1"))) == ["NodeRegistered"]


def test_a_node_that_has_something_else_now_is_registered_anew() -> None:
    driver = with_nodes("n1")
    (event,) = tell(driver, 2, spec=spec("n1", gpus=8))
    assert isinstance(event, NodeRegistered)
    assert len(event.spec.devices) == 8


def test_a_new_boot_is_registered_even_without_a_spec() -> None:
    driver = with_nodes("n1")
    (event,) = tell(driver, 1, boot="boot-2")
    assert isinstance(event, NodeRegistered)
    assert (event.boot, event.spec) == ("boot-2", spec("n1"))


def test_a_report_of_an_earlier_boot_is_late() -> None:
    driver = with_nodes("n1")
    tell(driver, 1, boot="boot-2")
    assert tell(driver, 9, boot="boot-1", spec=spec("n1", gpus=1)) == ()


def test_a_report_of_an_earlier_boot_is_late_for_a_scheduler_that_read_the_log() -> None:
    driver = with_nodes("n1")
    tell(driver, 1, boot="boot-2")
    core = Core("main")
    for data in driver.records:
        assert isinstance(core.follow(data), Admitted)
    again = Driver(core)
    again.offsets = dict(driver.offsets)
    assert tell(again, 9, boot="boot-1", spec=spec("n1", gpus=1)) == ()


def test_a_report_of_the_machine_that_was_replaced_is_late() -> None:
    driver = with_nodes("n1")
    assert kinds(tell(driver, 1, uid="other", spec=spec("other"))) == ["NodeRegistered"]
    assert tell(driver, 9, spec=spec("n1")) == ()


def test_a_lower_sequence_of_the_same_boot_is_ignored() -> None:
    driver = with_nodes("n1")
    assert tell(driver, 5, foreign_cpu_milli=7) != ()
    assert tell(driver, 4, foreign_cpu_milli=9) == ()
    assert tell(driver, 1, boot="boot-2") != (), "a new boot counts anew"


def test_a_task_is_ready_then_started_then_exited_each_once() -> None:
    driver = bound()
    key: dict[str, Any] = {"job": JOB, "instance": 0, "attempt": 1, "rank": 0}
    assert tell(driver, 2, said("preparing")) == ()
    assert tell(driver, 3, said("ready", port=4000)) == (TaskReady(**key, port=4000),)
    assert tell(driver, 4, said("ready", port=4000)) == ()
    assert driver.core.state.jobs[JOB].instances[0].phase == "running"
    assert tell(driver, 5, said("running")) == (TaskStarted(**key),)
    assert tell(driver, 6, said("running")) == ()
    assert tell(driver, 7, said("exited", code=3, reason="no")) == (TaskExited(**key, code=3, reason="no"),)
    assert tell(driver, 8, said("exited", code=3, reason="no")) == ()


def test_an_exit_of_a_task_that_was_never_ready_is_just_an_exit() -> None:
    driver = bound()
    assert kinds(tell(driver, 2, said("exited", code=1, blame="node"))) == ["TaskExited"]


def test_reports_in_one_cycle_make_each_input_once() -> None:
    driver = bound(count=2)
    for sequence, phases in (
        (2, ("ready", "preparing")),
        (3, ("ready", "ready")),
        (4, ("exited", "ready")),
        (5, ("exited", "ready")),
    ):
        tasks = tuple([said(phase, rank) for rank, phase in enumerate(phases)])  # type: ignore[arg-type]
        driver.put(NODES, report("n1", sequence=sequence, tasks=tasks))
    assert kinds(driver.inputs()) == ["TaskReady", "TaskReady", "TaskExited"]


def test_a_task_that_the_node_does_not_name_is_missing_once_the_node_applied_its_binding() -> None:
    driver = bound(count=2)
    attempt = driver.core.state.attempt(JOB, 0, 1)
    assert attempt is not None
    cycle = attempt.bound_cycle
    assert tell(driver, 2, said("preparing", 0), applied=cycle - 1) == ()
    assert tell(driver, 3, said("preparing", 0), applied=cycle) == (TaskMissing(job=JOB, instance=0, attempt=1, rank=1),)
    assert tell(driver, 4, said("preparing", 0), applied=cycle) == ()


def test_a_report_of_a_task_that_stands_elsewhere_says_nothing() -> None:
    driver = bound()
    driver.put(NODES, report("n2", spec=spec("n2")))
    driver.turn()
    driver.put(NODES, report("n2", sequence=2, tasks=(said("exited"),)))
    assert driver.inputs() == ()


def test_a_report_of_an_attempt_or_job_that_nobody_knows_says_nothing() -> None:
    driver = bound()
    assert tell(driver, 2, said("exited", attempt=2)) == ()
    assert tell(driver, 3, said("exited", rank=7)) == ()
    assert tell(driver, 4, TaskReport(job="other", instance=0, attempt=1, rank=0, phase="exited")) == ()


def test_a_late_exit_of_an_attempt_that_is_told_to_stop_releases_it() -> None:
    driver = bound(count=2)
    tell(driver, 2, said("ready", 0), said("ready", 1))
    tell(driver, 3, said("exited", 0, code=1), said("running", 1))
    attempt = driver.core.state.attempt(JOB, 0, 1)
    assert attempt is not None
    assert attempt.held == 1
    assert kinds(tell(driver, 4, said("exited", 0, code=1), said("exited", 1, code=-15))) == ["TaskExited"]
    assert driver.core.state.attempt(JOB, 0, 1) is None


def test_after_a_reboot_the_tasks_of_the_report_say_nothing() -> None:
    driver = bound()
    assert kinds(tell(driver, 1, said("exited", code=9), boot="boot-2", applied=99)) == ["NodeRegistered"]


def test_a_devices_health_is_recorded_when_the_agents_word_changes() -> None:
    driver = with_nodes("n1")
    failed = (DeviceReport(uuid="n1-gpu1", health="failed", reason="Xid 79"),)
    healthy = (DeviceReport(uuid="n1-gpu1", health="healthy"),)
    (event,) = tell(driver, 2, devices=failed)
    assert event == DeviceHealthChanged(node="n1", uid="n1-uid", device="n1-gpu1", health="failed", reason="Xid 79")
    assert tell(driver, 3, devices=failed) == ()
    assert kinds(tell(driver, 4, devices=healthy)) == ["DeviceHealthChanged"]
    assert tell(driver, 5, devices=(DeviceReport(uuid="unknown", health="failed"),)) == ()


def test_the_agents_repeated_word_does_not_undo_telemetrys() -> None:
    driver = with_nodes("n1")
    healthy = (DeviceReport(uuid="n1-gpu1", health="healthy"),)
    assert tell(driver, 2, devices=healthy) == ()
    proposal = DeviceHealthChanged(node="n1", uid="n1-uid", device="n1-gpu1", health="degraded")
    driver.put(GPU_HEALTH, proposal)
    driver.put(GPU_HEALTH, DeviceHealthChanged(node="n1", uid="n1-uid", device="n1-gpu2", health="healthy"))
    assert driver.inputs() == (proposal,), "what is so already makes no input"
    assert tell(driver, 3, devices=healthy) == ()


def test_foreign_use_is_recorded_when_it_changes() -> None:
    driver = with_nodes("n1")
    (event,) = tell(driver, 2, foreign_cpu_milli=10, foreign_devices=("n1-gpu2", "unknown", "n1-gpu0"))
    assert isinstance(event, ForeignUseChanged)
    assert (event.cpu_milli, event.devices) == (10, ("n1-gpu0", "n1-gpu2"))
    assert tell(driver, 3, foreign_cpu_milli=10, foreign_devices=("n1-gpu0", "n1-gpu2")) == ()
    assert kinds(tell(driver, 4)) == ["ForeignUseChanged"]
    assert tell(driver, 5) == ()


def test_a_report_with_more_news_than_a_cycle_holds_is_taken_in_parts() -> None:
    driver = with_nodes("n1", gpus=8)
    driver.put(JOBS, submission(JOB, count=8))
    driver.turn()
    driver.put(OPERATIONS, PolicySet(policy=Policy(inputs_max=3)))
    driver.turn()
    driver.put(NODES, report("n1", sequence=2, tasks=tuple([said("ready", rank) for rank in range(8)])))
    parts = []
    while events := driver.inputs():
        parts.append((kinds(events), driver.core.positions[NODES]))
    assert parts == [(["TaskReady"] * 3, 1), (["TaskReady"] * 3, 1), (["TaskReady"] * 2, 2)]
    assert driver.core.state.jobs[JOB].instances[0].phase == "running"


def test_a_report_that_is_none_is_refused() -> None:
    driver = with_nodes("n1")
    driver.put(NODES, b'{"node":"n1"}')
    driver.put(NODES, report("n1"), key="n2")
    refused = driver.inputs()
    assert [type(event) for event in refused] == [InputRefused, InputRefused]


def test_a_node_that_was_removed_comes_back_only_with_a_spec() -> None:
    driver = with_nodes("n1")
    driver.put(OPERATIONS, NodeRemoved(node="n1", uid="n1-uid"))
    driver.turn()
    assert tell(driver, 2) == ()
    assert kinds(tell(driver, 3, spec=spec("n1"))) == ["NodeRegistered"]


def test_a_level_can_be_read_again_from_the_start_without_any_effect() -> None:
    """Everything that n1 said, said again to a scheduler that has read the log: nothing new."""
    driver = bound()
    told: list[NodeReport] = [report("n1", spec=spec("n1"))]
    for sequence, task in enumerate((said("preparing"), said("ready"), said("running"), said("exited", code=2)), 2):
        told.append(report("n1", sequence=sequence, tasks=(task,)))
        driver.put(NODES, told[-1])
        driver.turn()
    core = Core("main")
    for data in driver.records:
        core.follow(data)
    again = Driver(core)
    again.offsets = dict(driver.offsets)
    for one in told:
        again.put(NODES, one)
    assert again.inputs() == ()
