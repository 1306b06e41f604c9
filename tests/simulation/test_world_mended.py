"""Faults of the scheduler that the simulated world found, each as its smallest case."""

from typing import Any

import msgspec

from muster.cluster import snapshot
from muster.events.base import Event
from muster.events.codec import decode_cycle, encode, encode_entry
from muster.events.levels import DeviceReport, TaskReport
from muster.events.nodes import DeviceHealthChanged, NodeRegistered, NodeRemoved, TaskExited, TaskReady
from muster.scheduler.core import Core, Message
from tests.simulation.small_world import job_id, report, spec, submission
from tests.support.build import S, exited, job, node, ready, started
from tests.support.driver import Driver


class Leader:
    """A core that leads and is told what arrives on `muster.nodes`."""

    def __init__(self, core: Core, offset: int = 0) -> None:
        self.core = core
        self.offset = offset
        self.records: list[bytes] = []
        self.lead()

    def lead(self) -> None:
        """A term of its own begins."""
        self._keep(self.core.start_term(self.core.state.at_us, "0" * 32, "h", "b", 0))

    def offer(self, **said: Any) -> None:
        """A report arrives."""
        self._offer("muster.nodes/0", encode(report("n1", **said)), "n1")

    def turn(self) -> list[Any]:
        """A cycle; its inputs."""
        record = self.core.cycle(self.core.state.at_us + S)
        if record is None:
            return []
        self._keep(bytes(record))
        return list(decode_cycle(record).inputs)

    def hear(self, **said: Any) -> list[Any]:
        """A report arrives; the inputs that are made of it."""
        self.offer(**said)
        return self.turn()

    def submit(self, name: str, data: bytes) -> None:
        """A user's job."""
        self._offer("muster.jobs/0", data, name)
        self.turn()

    def say(self, event: Event) -> None:
        """An operator's word."""
        self._offer("muster.operations/0", encode_entry(event), "")
        self.turn()

    def _offer(self, source: str, data: bytes, key: str) -> None:
        self.core.offer(Message(source, self.offset, data, 0, key))
        self.offset += 1

    def _keep(self, record: bytes) -> None:
        self.records.append(record)
        self.core.read_back(record)

    def successor(self) -> "Leader":
        """A scheduler that knows the state from a snapshot, and nothing else."""
        state = snapshot.decode(snapshot.encode(self.core.state))
        return Leader(Core("main", state, self.core.head), self.offset)


def broken(*healths: str) -> list[DeviceReport]:
    """What an agent says of its first device, report after report."""
    return [DeviceReport(uuid="n1-gpu0", health=health) for health in healths]  # type: ignore[arg-type]


def test_a_late_report_of_an_earlier_boot_says_nothing_to_a_scheduler_that_did_not_see_the_reboot() -> None:
    leader = Leader(Core("main"))
    leader.hear(boot="boot-1", spec=spec("n1"))
    assert [type(event) for event in leader.hear(boot="boot-2", spec=spec("n1"))] == [NodeRegistered]
    later = leader.successor()
    assert later.hear(boot="boot-1", sequence=9, spec=spec("n1")) == []
    found = later.core.state.node("n1")
    assert found is not None
    assert found.boot == "boot-2"


def test_a_late_report_of_a_boot_that_nobody_ever_heard_of_is_told_by_its_count() -> None:
    leader = Leader(Core("main"))
    leader.hear(boot="boot-1", boots=1, spec=spec("n1"))
    leader.hear(boot="boot-3", boots=3, spec=spec("n1"))
    later = leader.successor()
    assert later.hear(boot="boot-2", boots=2, sequence=9, spec=spec("n1")) == []
    assert [type(event) for event in later.hear(boot="boot-4", boots=4, spec=spec("n1"))] == [NodeRegistered]


def test_a_late_report_of_a_machine_that_was_replaced_says_nothing() -> None:
    leader = Leader(Core("main"))
    leader.hear(uid="old", spec=spec("n1"))
    assert [type(event) for event in leader.hear(uid="new", spec=spec("n1"))] == [NodeRegistered]
    assert leader.successor().hear(uid="old", sequence=9, spec=spec("n1")) == []
    assert leader.hear(uid="old", boot="never-heard-of", spec=spec("n1")) == []


def test_a_machine_that_a_late_report_drove_out_comes_back_when_the_late_one_is_lost() -> None:
    leader = Leader(Core("main"))
    leader.hear(uid="present", spec=spec("n1"))
    assert [type(event) for event in leader.hear(uid="never-heard-of", spec=spec("n1"))] == [NodeRegistered]
    assert leader.hear(uid="present", sequence=2, spec=spec("n1")) == []
    node = leader.core.state.node("n1")
    assert node is not None
    node.liveness = "lost"
    assert [type(event) for event in leader.hear(uid="present", sequence=3, spec=spec("n1"))] == [NodeRegistered]


def test_a_late_report_of_a_machine_that_was_removed_does_not_drive_out_its_successor() -> None:
    leader = Leader(Core("main"))
    leader.hear(uid="old", spec=spec("n1"))
    leader.say(NodeRemoved(node="n1", uid="old"))
    assert leader.core.state.node("n1") is None
    leader.hear(uid="new", spec=spec("n1"))
    assert leader.successor().hear(uid="old", sequence=9, spec=spec("n1")) == []


def test_the_exit_of_a_member_that_was_replaced_on_the_same_node_is_not_taken_for_its_successors() -> None:
    """Its exit stays in the report until the agent has seen that nobody asks for it, and the rank is the same."""
    leader = Leader(Core("main"))
    leader.hear(spec=spec("n1"))
    name = job_id(1)
    leader.submit(name, submission(name, count=2, degraded_grace_us=60 * S))
    tasks = [TaskReport(job=name, instance=0, attempt=1, rank=rank, phase="running") for rank in (0, 1)]
    leader.hear(sequence=2, tasks=[msgspec.structs.replace(task, phase="ready") for task in tasks])
    leader.hear(sequence=3, tasks=tasks)
    failed = broken("failed")
    leader.hear(sequence=4, tasks=tasks, devices=failed)
    gone = msgspec.structs.replace(tasks[0], phase="exited", code=-15)
    applied = leader.core.state.number
    assert [type(event) for event in leader.hear(sequence=5, tasks=[gone, tasks[1]], devices=failed)] == [TaskExited]
    attempt = leader.core.state.attempt(name, 0, 1)
    assert attempt is not None
    assert attempt.tasks[0].holding, "the rank was not placed anew"
    since = attempt.tasks[0].since
    assert since > applied
    later = leader.successor()
    assert later.hear(sequence=6, applied=applied, tasks=[gone, tasks[1]], devices=failed) == []
    first = msgspec.structs.replace(gone, since=attempt.bound_cycle)
    assert later.hear(sequence=7, applied=applied, tasks=[first, tasks[1]], devices=failed) == []
    second = msgspec.structs.replace(tasks[0], since=since, phase="ready")
    inputs = later.hear(sequence=8, applied=since, tasks=[second, tasks[1]], devices=failed)
    assert [type(event) for event in inputs] == [TaskReady]


def test_a_device_that_is_well_again_in_the_same_cycle_does_not_stay_ill() -> None:
    """Both reports are compared with the state before the cycle, so the second seemed to say nothing new, then and ever after."""
    leader = Leader(Core("main"))
    leader.hear(spec=spec("n1"))
    for sequence, device in enumerate(broken("degraded", "healthy"), 2):
        leader.offer(sequence=sequence, devices=[device])
    leader.turn()
    leader.hear(sequence=4, devices=broken("healthy"))
    node = leader.core.state.node("n1")
    assert node is not None
    assert node.devices[0].health == "healthy"


def test_what_an_agent_said_in_an_earlier_term_is_not_what_it_said_last() -> None:
    """Another led in between and recorded that the device is ill: that it is well is news again."""
    leader = Leader(Core("main"))
    leader.hear(spec=spec("n1"), devices=broken("healthy"))
    other = leader.successor()
    assert [type(event) for event in other.hear(sequence=2, devices=broken("degraded"))] == [DeviceHealthChanged]
    for record in other.records:
        leader.core.follow(record)
    leader.offset = other.offset
    leader.lead()
    leader.hear(sequence=5, devices=broken("healthy"))
    node = leader.core.state.node("n1")
    assert node is not None
    assert node.devices[0].health == "healthy"


def test_nobody_forgets_a_job_because_a_wall_clock_was_set_forward() -> None:
    """The clock of whoever starts cold may be hours ahead of the broker's, by which a repeated submission is judged."""
    driver = Driver()
    driver.step(node("n1"), job("j1"))
    driver.step(ready("j1"))
    driver.step(started("j1"), exited("j1"))
    assert driver.state.jobs["j1"].over_us
    driver.lead(gap_us=2 * driver.state.policy.forget_after_us)
    driver.step()
    assert "j1" in driver.state.jobs
    driver.step(after_s=driver.state.policy.forget_after_us // S)
    assert "j1" not in driver.state.jobs
