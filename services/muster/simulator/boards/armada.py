"""Armada's four sequences: what is started, told to stop and put back, at which instant, against what its simulator expects.

Source: armadaproject/armada, internal/scheduler/simulator/simulator_test.go. Its queues of equal weight are queues here that are
promised equal parts. Its pass comes every ten seconds and ours when something happens, so ours stands at the instant. What its
priority classes call away is here a best-effort job that tolerates the taint: it goes as soon as somebody at home asks.
"""

from collections.abc import Iterator

import msgspec

from muster.events.base import Event
from muster.events.decisions import AttemptEnded, InstanceBound, InstancePreempted
from muster.events.jobs import Dependency, GroupRequest, JobRequest, JobSubmitted, Toleration
from muster.events.nodes import Device, NodeRegistered, NodeSpec, Taint
from muster.events.operations import Policy
from muster.events.queues import Amounts, QueueSet
from muster.log.sqlite import SqliteFile
from muster.simulator.boards.play import SECOND_US, Player, Submission
from muster.simulator.openb.loader import job_id

MINUTE_S = 60
HOUR_S = 3600
GIB = 1024
TAINT = Taint(key="gpu-whale", value="true")
AWAY = Toleration(key="gpu-whale", value="true", effect="NoSchedule")

Story = dict[int, dict[str, int]]
"""For each second in which something happened, how often what happened to jobs of which queue."""


class Work(msgspec.Struct, frozen=True):
    """So many equal jobs: their queue, when they come, how long each runs, and what it needs."""

    queue: str
    count: int
    at_s: int
    run_s: int
    cores: int
    memory_gib: int
    gpus: int = 0
    at_home: bool = True
    after: int | None = None
    """Each waits until this job of the story, by its number, has finished."""


class Sequence(msgspec.Struct, frozen=True):
    """One sequence: nodes, work, and what must come of it."""

    name: str
    nodes: tuple[NodeSpec, ...]
    work: tuple[Work, ...]
    expected: Story


class Outcome(msgspec.Struct, kw_only=True):
    """What came of it, and how many of its events differ from what is expected."""

    story: Story
    differ: int


CPU_NODE = NodeSpec(cpu_milli=32_000, memory_mib=256 * GIB)


def _gpu_node(row: int, taints: tuple[Taint, ...] = ()) -> NodeSpec:
    devices = tuple([Device(uuid=f"n{row}-gpu-{index}", model="gpu") for index in range(8)])
    return NodeSpec(cpu_milli=128_000, memory_mib=4096 * GIB, devices=devices, taints=taints)


SEQUENCES = (
    Sequence(
        "preemption",
        (CPU_NODE,) * 2,
        (Work("a", 2, 0, MINUTE_S, 32, 256), Work("b", 1, 30, MINUTE_S, 32, 256)),
        {
            0: {"start a": 2},
            30: {"stop a": 1, "back a": 1, "start b": 1},
            60: {"end a": 1, "start a": 1},
            90: {"end b": 1},
            120: {"end a": 1},
        },
    ),
    Sequence(
        "no preemption cascade",
        (CPU_NODE,) * 3,
        (Work("b", 1, 0, MINUTE_S, 32, 256), Work("c", 2, 0, MINUTE_S, 32, 256), Work("a", 1, 30, MINUTE_S, 32, 256)),
        {
            0: {"start b": 1, "start c": 2},
            30: {"stop c": 1, "back c": 1, "start a": 1},
            60: {"end b": 1, "end c": 1, "start c": 1},
            90: {"end a": 1},
            120: {"end c": 1},
        },
    ),
    Sequence(
        "consistent order",
        (CPU_NODE,) * 2,
        (Work("a", 64, 0, HOUR_S, 1, 4), Work("b", 2, HOUR_S // 2, HOUR_S, 32, 256)),
        {
            0: {"start a": 64},
            HOUR_S // 2: {"stop a": 32, "back a": 32, "start b": 1},
            HOUR_S: {"end a": 32, "start a": 32},
            HOUR_S // 2 * 3: {"end b": 1, "start b": 1},
            2 * HOUR_S: {"end a": 32},
            HOUR_S // 2 * 5: {"end b": 1},
        },
    ),
    Sequence(
        "home and away",
        (_gpu_node(0), _gpu_node(1), _gpu_node(2, (TAINT,)), _gpu_node(3, (TAINT,))),
        (
            Work("queue-0", 1, 0, 5 * MINUTE_S, 128, 4096, gpus=8),
            Work("queue-1", 32, 0, HOUR_S, 16, 512, gpus=1, at_home=False),
            Work("queue-0", 4, 0, HOUR_S, 128, 4096, gpus=8, after=0),
        ),
        {
            0: {"start queue-0": 1, "start queue-1": 24},
            300: {"end queue-0": 1, "start queue-0": 4, "stop queue-1": 24, "back queue-1": 24},
            HOUR_S + 300: {"end queue-0": 4, "start queue-1": 32},
            2 * HOUR_S + 300: {"end queue-1": 32},
        },
    ),
)


def play(sequence: Sequence, policy: Policy, file: SqliteFile) -> Outcome:
    """One sequence, and its events beside what is expected."""
    story: Story = {}
    queue_of: dict[str, str] = {}

    def watch(at_us: int, event: Event) -> None:
        if isinstance(event, InstanceBound):
            what = "start"
        elif isinstance(event, InstancePreempted):
            what = "stop"
        elif isinstance(event, AttemptEnded):
            what = "back" if event.then == "pending" else "end"
        else:
            return
        here = story.setdefault(at_us // SECOND_US, {})
        said = f"{what} {queue_of[event.job]}"
        here[said] = here.get(said, 0) + 1

    nodes = [NodeRegistered(node=f"n{row}", uid=f"n{row}-uid", boot="boot-1", spec=s) for row, s in enumerate(sequence.nodes)]
    player = Player(file, policy, _queues(sequence), nodes, watch)
    submissions = list(_submissions(sequence))
    queue_of.update({each.job.job: each.job.queue for each in submissions})
    player.submit(submissions)
    player.run()
    return Outcome(story=story, differ=_difference(story, sequence.expected))


def _queues(sequence: Sequence) -> Iterator[Event]:
    """Each is promised the same part of what the nodes have."""
    names = list(dict.fromkeys([work.queue for work in sequence.work]))
    cpu, memory = (sum(each) for each in zip(*[(n.cpu_milli, n.memory_mib) for n in sequence.nodes], strict=True))
    gpus = sum(len(node.devices) for node in sequence.nodes)
    for name in names:
        part = Amounts(
            cpu_milli=cpu // len(names), memory_mib=memory // len(names), gpu_milli=gpus * 1000 // len(names) if gpus else None
        )
        yield QueueSet(queue=name, guarantee=part)


def _submissions(sequence: Sequence) -> Iterator[Submission]:
    number = 0
    for work in sequence.work:
        group = GroupRequest(
            cpu_milli=work.cores * 1000,
            memory_mib=work.memory_gib * GIB,
            gpus=work.gpus,
            tolerations=(AWAY,) if work.gpus else (),
        )
        for _ in range(work.count):
            at_us = work.at_s * SECOND_US
            request = JobRequest(groups=(group,), time_limit_us=work.run_s * SECOND_US)
            if not work.at_home:
                request = msgspec.structs.replace(request, kind="best-effort")
            if work.after is not None:
                request = msgspec.structs.replace(request, after=(Dependency(job=job_id(0, work.after)),))
            job = JobSubmitted(
                job=job_id(at_us, number), name="job", user="armada", queue=work.queue, submitted_us=at_us, request=request
            )
            yield Submission(at_us, job, work.run_s * SECOND_US)
            number += 1


def _difference(ours: Story, theirs: Story) -> int:
    """How many events stand in one and not in the other."""
    found = 0
    for at_s in ours.keys() | theirs.keys():
        mine, others = ours.get(at_s, {}), theirs.get(at_s, {})
        found += sum(abs(mine.get(what, 0) - others.get(what, 0)) for what in mine.keys() | others.keys())
    return found
