"""Simulated agents: they obey levels, and say all that is true of their node."""

import msgspec

from muster.events.levels import Assignment, NodeReport, TaskAssignment
from muster.events.nodes import NodeSpec
from muster.simulator.agents import KILLED, NEVER_US, TOLD_TO_STOP, Agent, Behaviour, Fleet

S = 1_000_000


def fleet(**behaviour: object) -> tuple[Fleet, Agent]:
    made = Fleet(lambda job: Behaviour(**behaviour))  # type: ignore[arg-type]
    agent = Agent("n1", "n1-1")
    agent.describe(NodeSpec(), 4, "H100", 80 * 1024)
    made.agents["n1"] = agent
    return made, agent


def level(number: int, *phases: str, kill_at_us: int = 0) -> Assignment:
    tasks = [
        TaskAssignment(job="j", instance=0, attempt=1, rank=rank, phase=phase, kill_at_us=kill_at_us, devices=(rank,))  # type: ignore[arg-type]
        for rank, phase in enumerate(phases)
    ]
    return Assignment(node="n1", uid="n1-1", number=number, at_us=0, tasks=tuple(tasks))


def said(agent: Agent) -> NodeReport:
    return msgspec.json.decode(agent.report(0), type=NodeReport)


def phases(agent: Agent) -> list[str]:
    return [task.phase for task in agent.tasks.values()]


def test_a_task_is_ready_at_once_and_runs_when_told() -> None:
    made, agent = fleet()
    made.obey(agent, level(1, "prepare", "prepare"), 0)
    assert phases(agent) == ["ready", "ready"]
    made.obey(agent, level(2, "run", "run"), 0)
    assert phases(agent) == ["running", "running"]
    assert said(agent).applied == 2
    assert made.next_us() is None


def test_it_takes_as_long_to_be_ready_and_to_run_as_the_job_says() -> None:
    made, agent = fleet(ready_takes_us=5 * S, runtime_us=10 * S)
    made.obey(agent, level(1, "prepare"), 0)
    assert phases(agent) == ["preparing"]
    made.fire(5 * S)
    made.obey(agent, level(2, "run"), 6 * S)
    made.fire(16 * S - 1)
    assert phases(agent) == ["running"]
    made.fire(16 * S)
    assert (phases(agent), agent.tasks["j", 0, 1, 0].code) == (["exited"], 0)


def test_a_task_told_to_stop_exits_when_it_wants_and_is_killed_at_the_kill() -> None:
    for stop_takes_us, at_us, code in (
        (0, 0, TOLD_TO_STOP),
        (3 * S, 3 * S, TOLD_TO_STOP),
        (9 * S, 5 * S, KILLED),
        (NEVER_US, 5 * S, KILLED),
    ):
        made, agent = fleet(stop_takes_us=stop_takes_us)
        made.epoch_us = 100 * S
        made.obey(agent, level(1, "run"), 0)
        made.obey(agent, level(2, "stop", kill_at_us=105 * S), 0)
        if at_us:
            made.fire(at_us - 1)
            assert phases(agent) == ["running"]
            made.fire(at_us)
        assert agent.tasks["j", 0, 1, 0].code == code


def test_an_ended_task_is_reported_until_no_assignment_names_it() -> None:
    made, agent = fleet()
    made.obey(agent, level(1, "run"), 0)
    made.obey(agent, level(2, "stop"), 0)
    assert [task.phase for task in said(agent).tasks] == ["exited"]
    assert [task.phase for task in said(agent).tasks] == ["exited"]
    made.obey(agent, level(3), 0)
    assert said(agent).tasks == ()


def test_an_older_assignment_is_not_obeyed() -> None:
    made, agent = fleet()
    made.obey(agent, level(5, "run"), 0)
    made.obey(agent, level(4, "stop"), 0)
    assert phases(agent) == ["running"]


def test_a_start_fails_so_many_times_and_the_node_is_to_blame() -> None:
    made, agent = fleet(fails_to_start_on=("n1",), start_failures=1)
    made.obey(agent, level(1, "prepare"), 0)
    assert [(task.phase, task.code, task.blame) for task in said(agent).tasks] == [("exited", 1, "node")]
    again = msgspec.structs.replace(level(2, "prepare").tasks[0], attempt=2)
    made.obey(agent, msgspec.structs.replace(level(2), tasks=(again,)), 0)
    assert phases(agent) == ["ready"]


def test_what_runs_on_a_node_that_nobody_hears_is_killed_when_its_lease_ends() -> None:
    made, agent = fleet()
    made.obey(agent, level(1, "run"), 0)
    agent.report(10 * S)
    made.silence(agent, 300 * S)
    made.fire(310 * S - 1)
    assert phases(agent) == ["running"]
    made.come_back(agent)
    agent.report(310 * S - 1)
    made.silence(agent, 300 * S)
    made.fire(310 * S)
    assert phases(agent) == ["running"]  # the lease was extended when it was heard
    made.fire(610 * S)
    assert phases(agent) == ["exited"]


def test_a_fenced_node_comes_back_with_another_boot_and_nothing_on_it() -> None:
    made, agent = fleet()
    made.obey(agent, level(1, "run"), 0)
    boot = agent.boot
    made.fence(agent)
    made.come_back(agent)
    report = said(agent)
    assert (report.boot == boot, report.tasks, report.spec is not None) == (False, (), True)


def test_devices_keep_their_uuids_however_they_are_listed() -> None:
    _, agent = fleet()
    uuids = [device.uuid for device in agent.devices]
    agent.order = [3, 2, 1, 0]
    agent.announce = True
    spec = said(agent).spec
    assert spec is not None
    assert [device.uuid for device in spec.devices] == uuids[::-1]
    agent.describe(NodeSpec(), 2, "H100", 80 * 1024)
    agent.describe(NodeSpec(), 3, "H100", 80 * 1024)
    assert [agent.devices[index].uuid for index in agent.present] == [*uuids[:2], "GPU-n1-1-4"]


def test_foreign_use_takes_free_devices_first() -> None:
    made, agent = fleet()
    made.obey(agent, level(1, "run", "run"), 0)
    agent.use_foreign(0, 0, 1)
    assert list(agent.foreign_devices) == ["GPU-n1-1-2"]
    agent.use_foreign(0, 0, 3)
    assert list(agent.foreign_devices) == ["GPU-n1-1-0", "GPU-n1-1-2", "GPU-n1-1-3"]
