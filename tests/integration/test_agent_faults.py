"""Agents, supervisors and gateways that die, stop and come back, with real processes. /proc is the judge of what is left."""

import os
import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from muster.agent.slots import now_us, read_slot
from muster.cli.main import run
from tests.support.agents import Gateway, Node, lives, node, sleepers, task, until

COUNT = 'echo run >> "$0"; '
"""How often a task has run."""


def test_what_ends_while_the_agent_is_dead_is_reported_by_the_next_one(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        count = tmp_path / "count"
        gateway.assign(task("sh", "-c", COUNT + "sleep 0.5; exit 7", str(count)))
        gateway.reaches("running")
        agent.kill()
        sequence = gateway.reports[-1].sequence
        until(lambda: not agent.supervisors())
        agent.start()
        assert gateway.reaches("exited").code == 7
        assert gateway.reports[-1].sequence > sequence
        assert count.read_text() == "run\n"


def test_what_runs_goes_on_under_the_next_agent_and_can_be_stopped_by_it(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        count = tmp_path / "count"
        gateway.assign(task("sh", "-c", COUNT + "sleep 1101", str(count)))
        gateway.reaches("running")
        until(lambda: sleepers("1101"))
        [before] = sleepers("1101")
        for _ in range(2):
            agent.kill()
            heard = len(gateway.reports)
            agent.start()
            until(partial(gateway.applied_after, heard))
            assert gateway.reaches("running").attempt == 1
            assert sleepers("1101") == [before]
        gateway.assign(task("sleep", "1101", phase="stop"))
        assert gateway.reaches("exited").code in (-9, -15)
        assert sleepers("1101") == []
        assert count.read_text() == "run\n"


def test_an_agent_that_is_told_to_leave_leaves_what_runs(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        gateway.assign(task("sleep", "1102"))
        gateway.reaches("running")
        assert agent.stop() == 0
        until(lambda: sleepers("1102"))
        agent.start()
        gateway.assign()
        until(lambda: not sleepers("1102"))


def lease_until_us(agent: Node) -> int:
    """Until when the node's tasks may run, as its supervisors read it."""
    lease = read_slot(str(agent.data / "lease"))
    assert lease is not None
    return int(lease["until_us"])


def test_the_lease_ends_what_runs_although_agent_and_gateway_are_dead(tmp_path: Path) -> None:
    """How long that takes is read from the lease itself: this machine may be slow, or stand still, as long as it likes."""
    with node(tmp_path, lease_us=6_000_000) as (gateway, agent):
        gateway.assign(task("sh", "-c", "trap '' TERM; (setsid sleep 1103 &); sleep 1103 & wait"))
        until(lambda: len(sleepers("1103")) == 2)
        gateway.stay()
        gateway.away = True
        agent.kill()
        until_us = lease_until_us(agent)
        seen = 0
        while (found := sleepers("1103")) or now_us() < until_us:
            if now_us() < until_us:  # asked after they were looked for
                assert len(found) == 2, "they were killed before their lease had ended"
                seen += 1
            assert now_us() < until_us + 60_000_000, "they outlive their lease"
            time.sleep(0.02)
        assert seen, "the lease had ended before anybody looked"
        assert lease_until_us(agent) == until_us
        gateway.away = False
        agent.start()
        ended = gateway.reported("exited")
        assert ended.code == -9
        assert "the lease ended" in ended.reason


def test_a_stopped_agent_moves_no_lease(tmp_path: Path) -> None:
    with node(tmp_path, lease_us=4_000_000) as (gateway, agent):
        gateway.assign(task("sleep", "1104"))
        until(lambda: sleepers("1104"))
        gateway.stay()
        agent.signal(signal.SIGSTOP)
        until(lambda: not sleepers("1104"))
        assert now_us() >= lease_until_us(agent)
        agent.signal(signal.SIGCONT)
        assert "the lease ended" in gateway.reported("exited").reason


def test_an_agent_whose_lease_ended_obeys_nothing_that_was_meant_for_it_before(tmp_path: Path) -> None:
    with node(tmp_path, lease_us=1_500_000) as (gateway, agent):
        count = tmp_path / "count"
        boots = gateway.reports[-1].boots
        boot = gateway.stay()
        gateway.away = True
        time.sleep(2.0)
        gateway.assign(task("sh", "-c", COUNT, str(count)))  # bound before the lease ended, and served by one that is behind
        gateway.away = False
        until(lambda: gateway.reports[-1].boot != boot and gateway.reports[-1].sequence)
        assert gateway.reports[-1].boots == boots + 1
        heard = len(gateway.reports)
        until(lambda: len(gateway.reports) > heard + 3)
        assert not count.exists()
        agent.kill()
        agent.start()
        heard = len(gateway.reports)
        until(lambda: len(gateway.reports) > heard + 1)
        assert gateway.stay() != boot, "an agent that starts anew is still the later boot"
        assert not count.exists()
        gateway.assign(task("sh", "-c", COUNT, str(count)))
        gateway.reaches("exited")
        assert count.read_text() == "run\n"


def test_an_agent_whose_lease_ended_reports_how_everything_ended_before_it_begins_anew(tmp_path: Path) -> None:
    with node(tmp_path, lease_us=2_500_000) as (gateway, agent):
        gateway.assign(task("sh", "-c", "sleep 0.5; exit 7", job="short"), task("sleep", "1120", job="long"))
        gateway.reaches("running", job="long")
        boot = gateway.stay()
        gateway.away = True
        until(lambda: not agent.supervisors())
        gateway.away = False
        until(lambda: gateway.reports[-1].boot != boot)
        ended = {each.job: each.code for each in [report for report in gateway.reports if report.boot == boot][-1].tasks}
        assert ended == {"short": 7, "long": -9}
        assert gateway.reports[-1].tasks == ()


def test_an_agent_changes_over_when_its_gateway_fails_and_loses_nothing(tmp_path: Path) -> None:
    first, second = Gateway(), Gateway()
    agent = Node(f"{first.url},{second.url}", tmp_path / "agent")
    agent.start()
    try:
        used = until(lambda: next((each for each in (first, second) if each.reports), None))
        other = second if used is first else first
        for each in (used, other):
            each.assign(task("sleep", "1121"), number=5)
        used.reaches("running")
        used.close()
        other.known = False
        assert other.reaches("running").attempt == 1
        other.assign(task("sleep", "1121"), task("true", job="j2"), number=6)
        assert other.reaches("exited", job="j2").code == 0
        assert len(sleepers("1121")) == 1
    finally:
        agent.end()
        first.close()
        second.close()


def test_tasks_outlive_an_outage_of_the_gateway_that_is_shorter_than_the_lease(tmp_path: Path) -> None:
    with node(tmp_path, lease_us=60_000_000) as (gateway, agent):
        gateway.assign(task("sleep", "1105", job="long"), task("sleep", "0.5", job="short"))
        gateway.reaches("running", job="long")
        gateway.away = True
        until(lambda: len(agent.supervisors()) == 1)
        heard = len(gateway.reports)
        time.sleep(0.5)
        assert len(gateway.reports) == heard
        gateway.away = False
        assert gateway.reaches("exited", job="short").code == 0
        assert gateway.reaches("running", job="long")
        assert sleepers("1105")


@pytest.mark.parametrize("more", [(), ("--no-cgroup",)])
def test_a_task_whose_supervisor_is_killed_is_killed_and_blamed_on_the_node(tmp_path: Path, more: tuple[str, ...]) -> None:
    escape = "(env -i /bin/sh -c 'setsid /bin/sleep 1106 & wait' &); sleep 1106 & sleep 1106"
    with node(tmp_path, *more) as (gateway, agent):
        gateway.assign(task("sh", "-c", escape))
        gateway.reaches("running")
        until(lambda: len(sleepers("1106")) >= 2)
        [supervisor] = agent.supervisors()
        os.kill(supervisor, signal.SIGKILL)
        ended = gateway.reaches("exited")
        assert (ended.code, ended.blame, ended.reason) == (-9, "node", "the supervisor died")
        until(lambda: sleepers("1106") == [])
        assert agent.left() == []


@pytest.mark.parametrize("more", [(), ("--no-cgroup",)])
def test_supervisor_and_agent_killed_together_leave_nothing_that_the_next_agent_does_not_end(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    with node(tmp_path, *more) as (gateway, agent):
        gateway.assign(task("sh", "-c", "setsid sleep 1107 & (setsid sleep 1107 &); sleep 1107"))
        gateway.reaches("running")
        until(lambda: len(sleepers("1107")) == 3)
        [supervisor] = agent.supervisors()
        agent.kill()
        os.kill(supervisor, signal.SIGKILL)
        agent.start()
        assert gateway.reaches("exited").reason == "the supervisor died"
        assert sleepers("1107") == []


def test_a_stopped_supervisor_is_woken(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        gateway.assign(task("sleep", "0.7"))
        gateway.reaches("running")
        [supervisor] = agent.supervisors()
        os.kill(supervisor, signal.SIGSTOP)
        assert gateway.reaches("exited").code == 0


def test_a_supervisor_that_is_killed_while_it_waits_starts_nothing(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        mark = tmp_path / "ran"
        gateway.assign(task("touch", str(mark), phase="prepare"))
        gateway.reaches("ready")
        os.kill(agent.supervisors()[0], signal.SIGKILL)
        assert gateway.reaches("exited").blame == "node"
        gateway.assign(task("touch", str(mark)))
        time.sleep(0.3)
        assert not mark.exists()


def test_an_older_assignment_is_ignored_also_after_a_crash(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        gateway.assign(task("sleep", "1108"), number=50)
        gateway.reaches("running")
        until(lambda: gateway.reports[-1].applied == 50)
        agent.kill()
        mark = tmp_path / "ran"
        gateway.assign(task("touch", str(mark), job="old"), number=49)
        agent.start()
        until(lambda: "the gateway is behind" in agent.said.read_text())
        time.sleep(0.2)
        assert gateway.level() is not None
        assert gateway.level(job="old") is None
        assert len(sleepers("1108")) == 1
        assert gateway.reports[-1].applied == 50
        gateway.assign(task("sleep", "1108"), task("touch", str(mark), job="new"), number=51)
        gateway.reaches("exited", job="new")


def test_what_is_assigned_to_another_boot_is_not_begun(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        gateway.boot = "an-earlier-boot"
        mark = tmp_path / "ran"
        gateway.assign(task("touch", str(mark)))
        until(lambda: "or this boot of it" in agent.said.read_text())
        time.sleep(0.3)
        assert gateway.reports[-1].applied == 0
        assert not mark.exists()
        gateway.boot = ""
        gateway.reaches("exited")
        assert mark.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--node", "Not_A_Name"), "Not_A_Name is no name of a node"),
        (("--gateway", "10.0.0.1:8470"), "10.0.0.1:8470 is no gateway's address: http://HOST:PORT would be"),
        (("--devices", "many"), "many is no description of devices"),
        (("--runtime", "vm"), "there is no runtime vm; there are container, process"),
        (("--label", "rack"), "the label rack is not KEY=VALUE"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert run(["agent", "--data", str(tmp_path), *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_two_agents_on_one_folder_are_one_too_many(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        second = Node(gateway, tmp_path / "agent")
        second.said = tmp_path / "second.err"
        second.start()
        assert second.process is not None
        assert second.process.wait(10) == 3
        assert second.said.read_text().strip() == f"muster: another agent runs in {tmp_path / 'agent'}"
        assert agent.process is not None
        assert agent.process.poll() is None


def test_an_agent_whose_name_another_has_runs_nothing_and_asks_again(tmp_path: Path) -> None:
    gateway = Gateway()
    gateway.refuse = (409, "another agent is heard under the name n1")
    agent = Node(gateway, tmp_path / "agent")
    mark = tmp_path / "ran"
    gateway.assign(task("touch", str(mark)))
    agent.start()
    try:
        until(lambda: agent.said.exists() and "another agent is heard under the name n1" in agent.said.read_text())
        assert not mark.exists()
        gateway.refuse = None
        gateway.reaches("exited")
        assert mark.exists()
    finally:
        agent.end()
        gateway.close()


def test_a_gateway_that_forgot_the_node_is_told_again_what_it_has(tmp_path: Path) -> None:
    with node(tmp_path, lease_us=3_000_000) as (gateway, _):
        gateway.spec = None
        gateway.known = False
        until(lambda: gateway.spec)
        gateway.known = True


def test_however_many_die_nothing_runs_twice(tmp_path: Path) -> None:
    """Agents and supervisors are killed and stopped at random moments of a load; each task runs once at most."""
    dice = random.Random(20)
    begun = time.monotonic()
    with node(tmp_path) as (gateway, agent):
        jobs = [f"job-{index}" for index in range(16)]
        (tmp_path / "runs").mkdir()

        def phases() -> set[str]:
            levels = [gateway.level(job) for job in jobs]
            return {level.phase if level is not None else "none" for level in levels}

        assigned = [task("sh", "-c", COUNT + "sleep 0.2", str(tmp_path / "runs" / job), job=job) for job in jobs]
        gateway.assign(*assigned)
        while time.monotonic() - begun < 6:
            time.sleep(dice.uniform(0.0, 0.25))
            victims = agent.supervisors()
            if dice.random() < 0.5 or not victims:
                agent.kill()
                agent.start()
            else:
                number = dice.choice([signal.SIGKILL, signal.SIGSTOP])
                try:
                    os.kill(dice.choice(victims), number)
                except ProcessLookupError:
                    continue
            time.sleep(dice.uniform(0.0, 0.6))
        until(lambda: phases() == {"exited"}, 20)
        counts = {job: (tmp_path / "runs" / job).read_text() if (tmp_path / "runs" / job).exists() else "" for job in jobs}
        assert set(counts.values()) <= {"run\n", ""}
        for job in jobs:
            level = gateway.level(job)
            assert level is not None
            assert level.code == 0 or level.blame == "node"
            assert counts[job] or level.code != 0
        assert agent.left() == agent.supervisors() == []


def test_the_agent_needs_no_process_of_its_tasks_to_be_its_child(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        gateway.assign(task("sleep", "1109"))
        gateway.reaches("running")
        until(lambda: sleepers("1109"))
        [pid] = sleepers("1109")
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        assert [parent] == agent.supervisors()
        said = subprocess.run(["ps", "-o", "sid=,pgid=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
        assert said.split() == [str(pid), str(pid)]  # a session and a group of its own
        os.kill(pid, signal.SIGKILL)
        assert gateway.reaches("exited").code == -9
        assert not lives(parent) or until(lambda: not lives(parent))
