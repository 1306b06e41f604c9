"""Entries of the field book that scenes cannot say: what is no record of ours, mixed devices, and reports of strangers."""

import msgspec

from muster.cluster import snapshot
from muster.cluster.invariants import check_invariants
from muster.cluster.jobs import Instance
from muster.engine.explain import explain
from muster.engine.step import Engine
from muster.events.base import Event
from muster.events.codec import digest, encode, encode_entry
from muster.events.decisions import InstanceBound, InstancePreempted
from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.events.levels import NodeReport, TaskReport
from muster.events.nodes import Device, NodeRegistered, NodeSpec, Taint, TaskExited, TaskReady
from muster.events.operations import EntryQuarantined
from muster.events.record import GENESIS, Envelope, TermStarted
from muster.log.admit import Admitted
from muster.scheduler.core import Core, Message

CELL = "main"
AT_US = 1_767_225_600_000_000


def job_id(number: int) -> str:
    return f"019b76da-a800-7000-8000-{number:012x}"


def submitted(number: int, *groups: GroupRequest, name: str = "", priority: int = 0, grace_us: int = 0) -> JobSubmitted:
    return JobSubmitted(
        job=job_id(number),
        name=name or f"job{number}",
        user="u",
        submitted_us=AT_US,
        request=JobRequest(groups=groups or (GroupRequest(gpus=1),), priority=priority, grace_us=grace_us),
    )


def node(name: str, models: str = "H100 H100", taints: tuple[Taint, ...] = ()) -> NodeRegistered:
    devices = tuple(
        Device(uuid=f"{name}-gpu{index}", model=model, memory_mib=81920) for index, model in enumerate(models.split())
    )
    spec = NodeSpec(cpu_milli=64_000, memory_mib=65_536, disk_mib=65_536, devices=devices, taints=taints)
    return NodeRegistered(node=name, uid=f"{name}-1", boot=f"{name}-1-1", spec=spec)


class Cell:
    """An engine that is given inputs, one cycle each time."""

    def __init__(self) -> None:
        self.engine = Engine(snapshot.decode(snapshot.encode(Core(CELL).state)))

    def step(self, *inputs: Event) -> list[Event]:
        state = self.engine.state
        decisions = self.engine.step(state.number + 1, 1, max(state.at_us, AT_US), inputs)
        check_invariants(state)
        return decisions

    def instance(self, number: int) -> Instance:
        return self.engine.state.jobs[job_id(number)].instances[0]

    def ready(self, number: int) -> list[Event]:
        attempt = self.instance(number).attempt
        assert attempt is not None
        return self.step(
            *[TaskReady(job=job_id(number), instance=0, attempt=attempt.number, rank=rank) for rank in sorted(attempt.tasks)]
        )


def record(number: int, previous: bytes | None, inputs: tuple[bytes, ...], started: TermStarted | None = None) -> bytes:
    return encode(
        Envelope(
            cell=CELL,
            number=number,
            term=1,
            at_us=AT_US,
            started=started,
            inputs=tuple([msgspec.Raw(entry) for entry in inputs]),
            previous=digest(previous) if previous is not None else GENESIS,
        )
    )


def test_r8_a_log_with_one_entry_that_does_not_decode_starts_without_that_job_and_with_the_others() -> None:
    started = TermStarted(nonce="0" * 32, host="h", build="b", state=snapshot.digest(Core(CELL).state), schema=snapshot.SCHEMA)
    broken = encode_entry(submitted(7)).replace(b'"user":"u"', b'"user":7')
    log = [record(1, None, (), started)]
    log.append(record(2, log[0], (encode_entry(node("n1")), broken, encode_entry(submitted(8)))))
    bound = InstanceBound(job=job_id(8), instance=0, attempt=1, placements=((0, 0, (0,)),))  # type: ignore[arg-type]  # as JSON has it
    third = msgspec.json.decode(record(3, log[1], ()), type=Envelope)
    log.append(encode(msgspec.structs.replace(third, decisions=(msgspec.Raw(encode_entry(bound)),))))

    core = Core(CELL)
    for data in log:
        assert isinstance(core.follow(data), Admitted)
    state = core.state
    assert list(state.jobs) == [job_id(8)]
    assert state.jobs[job_id(8)].instances[0].phase == "starting"
    there = state.node("n1")
    assert there is not None
    assert [free > 0 for free in there.device_free] == [False, True]
    check_invariants(state)


def test_r8_a_quarantined_entry_changes_nothing_but_the_number_of_the_next() -> None:
    left, right = Cell(), Cell()
    left.step(node("n1"), submitted(1), EntryQuarantined(kind="JobSubmitted", reason="broken"))
    right.step(node("n1"), submitted(1))
    assert snapshot.digest(left.engine.state) == snapshot.digest(right.engine.state)


def test_x1_one_state_decides_the_same_bytes_and_gives_the_same_reasons_a_hundred_times() -> None:
    cell = Cell()
    cell.step(node("n1", taints=(Taint(key="team", value="blue"),)), node("n2", "A100"), node("n3", "H100 H100"))
    cell.step(submitted(1), submitted(2, GroupRequest(gpus=2)))
    data = snapshot.encode(cell.engine.state)
    inputs = (
        submitted(3, GroupRequest(gpus=2, gpu_models=("B200",)), priority=9),
        submitted(4, GroupRequest(gpus=2), priority=5),
        submitted(5, GroupRequest(count=3, min=3, gpus=1), priority=7),
        submitted(6, GroupRequest(gpu_milli=500), priority=3),
    )
    seen = {}
    for _ in range(100):
        engine = Engine(snapshot.decode(data))
        decisions = engine.step(engine.state.number + 1, 1, AT_US, inputs)
        reasons = [explain(engine.state, job_id(number)).lines for number in range(1, 7)]
        key = b"".join([encode_entry(event) for event in decisions]) + repr(reasons).encode()
        seen[key] = (decisions, reasons)
    assert len(seen) == 1
    decisions, reasons = next(iter(seen.values()))
    assert any(type(event) is InstanceBound or type(event) is InstancePreempted for event in decisions)
    assert "taint" in "; ".join(reasons[2])


def test_p19_of_two_models_each_request_sees_what_the_other_took_and_what_the_victim_gives_back() -> None:
    cell = Cell()
    cell.step(node("n1", "H100 A100 H100 A100"))
    cell.step(submitted(1, GroupRequest(gpus=2), priority=1))  # two of the four, whichever
    cell.ready(1)
    wants = (
        GroupRequest(name="x", gpus=2, gpu_models=("H100",)),
        GroupRequest(name="y", gpus=1, gpu_models=("A100",)),
    )
    decisions = cell.step(submitted(2, *wants, priority=9))
    assert [event.job for event in decisions if type(event) is InstancePreempted] == [job_id(1)]
    victim = cell.instance(1).attempt
    assert victim is not None
    cell.step(TaskExited(job=job_id(1), instance=0, attempt=1, rank=0, code=-15))
    attempt = cell.instance(2).attempt
    assert attempt is not None
    assert attempt.tasks[0].devices == (0, 2)
    assert attempt.tasks[1].devices in ((1,), (3,))
    assert cell.instance(1).phase == "pending"


def test_d5_an_exit_of_the_earlier_job_of_a_name_gives_nothing_back_for_the_later_one() -> None:
    cell = Cell()
    cell.step(node("n1"))
    cell.step(submitted(1, name="train"))
    cell.ready(1)
    cell.step(TaskExited(job=job_id(1), instance=0, attempt=1, rank=0, code=0))
    assert cell.instance(1).phase == "finished"
    cell.step(submitted(2, GroupRequest(gpus=2), name="train"))
    cell.ready(2)
    assert cell.step(TaskExited(job=job_id(1), instance=0, attempt=1, rank=0, code=1)) == []
    assert cell.instance(2).phase == "running"
    assert cell.engine.state.ledger.node(0).device_free == [0, 0]


def test_q14d_tasks_of_an_unknown_job_in_a_report_are_no_inputs_and_hold_nothing() -> None:
    core = Core(CELL)
    data = core.start_term(AT_US, "1" * 32, "h", "b", 0)
    core.read_back(data)
    spec = node("n9").spec
    stranger = TaskReport(job=job_id(99), instance=0, attempt=1, rank=0, phase="exited")
    for sequence, tasks in enumerate(((stranger,), (stranger, msgspec.structs.replace(stranger, rank=1, phase="running")))):
        report = NodeReport(node="n9", uid="n9-1", boot="b1", sequence=sequence, spec=spec if not sequence else None, tasks=tasks)
        message = Message(source="muster.nodes/0", offset=sequence, data=encode(report), appended_us=AT_US, key="n9")
        core.offer(message)
        made = core.cycle(AT_US)
        while made is not None:
            core.read_back(made)
            made = core.cycle(AT_US)
    state = core.state
    assert state.jobs == {}
    assert not state.ledger.node(0).tasks
    assert state.ledger.node(0).whole_free == 2
