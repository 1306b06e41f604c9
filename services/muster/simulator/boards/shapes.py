"""The shapes of Kubernetes' scheduler_perf: how many pods a second are placed on thousands of nodes, their log written.

Source: kubernetes/kubernetes, test/integration/scheduler_perf. A node has 4 CPU and 32 GiB and takes 110 pods; a pod asks for
0.1 CPU and 500 MiB, one of a gang for 100 MiB. What comes there every so many milliseconds of real time beside the pods that are
counted comes here in virtual time, the pods at the rate that is the floor there. Agents answer within what is counted.
"""

import time
from collections.abc import Callable

import msgspec
from msgspec import UNSET

from muster.events.jobs import Constraints, GroupRequest, JobRequest, JobSubmitted, Requirement, Within
from muster.events.nodes import Device, NodeRegistered, NodeSpec
from muster.events.operations import Policy
from muster.log.sqlite import SqliteFile
from muster.simulator.boards.play import SECOND_US, Player, Submission
from muster.simulator.openb.loader import job_id

ZONE = 100
"""So many nodes stand in one zone."""
GPUS = 8


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that are there before, and those that are counted, in gangs of so many. `floor` is that of its CI, 0 for none."""

    name: str
    nodes: int = 5000
    before: int = 0
    measured: int
    gang: int = 1
    floor: int = 0
    low: bool = False
    """Those before are of low priority, and leave no room for one of high priority."""
    named: bool = False
    """All are for one node, which takes them."""
    gpus: int = 0
    zoned: bool = False
    """A gang stands in one zone."""
    every_ms: int = 0
    """How often something else comes: a pod of so many cores with a high priority, or, for 0 cores, a node in another's place."""
    cores: int = 0


SHAPES = (
    Shape(name="SchedulingBasic 10,000", before=1000, measured=10_000, floor=680),
    Shape(name="SchedulingBasic 50,000", before=5000, measured=50_000, floor=810),
    Shape(name="Daemonset, 15,000 nodes", nodes=15_000, measured=30_000, floor=1100, named=True),
    Shape(name="PreemptionAsync", before=20_000, measured=5000, floor=570, low=True, every_ms=200, cores=3),
    Shape(name="Unschedulable", before=100, measured=10_000, floor=590, every_ms=200, cores=9),
    Shape(name="MixedChurn", measured=10_000, floor=710, every_ms=1000),
    Shape(name="Extended resource", measured=5000, floor=180, gpus=1),
    Shape(name="GangScheduling 3000 x 3", measured=9000, gang=3),
    Shape(name="GangScheduling 9 x 1000", measured=9000, gang=1000),
    Shape(name="TopologyAware 2250 x 4", measured=9000, gang=4, zoned=True),
    Shape(name="TopologyAware 9 x 1000", measured=9000, gang=1000, zoned=True),
)


def cut(shape: Shape, part: int) -> Shape:
    """The shape on one `part`-th of its nodes, with as many of its pods; gangs of at most 20."""
    gang = min(shape.gang, 20)
    gangs = max(1, shape.measured // part // gang)
    return msgspec.structs.replace(
        shape, nodes=shape.nodes // part, before=shape.before // part, measured=gangs * gang, gang=gang
    )


class Outcome(msgspec.Struct, kw_only=True):
    """What came of a shape: pods that were placed, gangs that were in part, instances told to stop, and seconds."""

    bound: int
    partial: int
    preempted: int
    real_s: float


def play(shape: Shape, policy: Policy, file: SqliteFile, clock: Callable[[], float] = time.perf_counter) -> Outcome:
    """The shape, once."""
    nodes = [_node(row, shape) for row in range(shape.nodes)]
    player = Player(file, policy, (), nodes)
    low = _group(shape, 1, 900 if shape.low else 100)
    player.submit([_pod(number, 0, low) for number in range(shape.before)])
    player.run(SECOND_US)
    began_s = clock()
    jobs = _measured(shape, player)
    player.submit(jobs)
    until_us = max(each.at_us for each in jobs) + SECOND_US
    played = player.run(until_us)
    real_s = clock() - began_s
    bound = [each for each in jobs if each.job.job in played.bound_us]
    state = player.recording.core.state
    held = [state.jobs[each.job.job].instances[0].attempt for each in bound]
    partial = sum(attempt is None or len(attempt.tasks) != shape.gang for attempt in held)
    return Outcome(bound=len(bound) * shape.gang, partial=partial, preempted=played.preempted, real_s=real_s)


def _measured(shape: Shape, player: Player) -> list[Submission]:
    """Those that are counted; what comes beside them is submitted."""
    group = _group(shape, shape.gang, 100)
    count = shape.measured // shape.gang
    start_us, number = 2 * SECOND_US, shape.before
    if not shape.every_ms:
        return [_pod(number + each, start_us, group, zoned=shape.zoned) for each in range(count)]
    found: list[Submission] = []
    at_once = max(1, shape.floor * shape.every_ms // 1000)
    for step in range(-(-count // at_once)):
        at_us = start_us + step * shape.every_ms * 1000
        if shape.cores:
            other = GroupRequest(cpu_milli=shape.cores * 1000, memory_mib=500)
            player.submit([_pod(10**6 + step, at_us, other, priority=10)])
        else:
            player.register(at_us, _node(step % shape.nodes, shape, f"again{step}"))
        for _ in range(min(at_once, count - len(found))):
            found.append(_pod(number, at_us, group, priority=5 if shape.low else 0))
            number += 1
    return found


def _node(row: int, shape: Shape, uid: str = "uid") -> NodeRegistered:
    devices = tuple([Device(uuid=f"n{row}-gpu-{index}", model="gpu") for index in range(GPUS if shape.gpus else 0)])
    spec = NodeSpec(
        cpu_milli=4000, memory_mib=32 * 1024, tasks_max=110, devices=devices, zone=f"z{row // ZONE}" if shape.zoned else ""
    )
    if shape.named and row == 0:
        spec = NodeSpec(cpu_milli=100 * shape.measured, memory_mib=2**25, tasks_max=2 * shape.measured, labels={"host": "n0"})
    return NodeRegistered(node=f"n{row}", uid=f"n{row}-{uid}", boot="boot-1", spec=spec)


def _group(shape: Shape, count: int, cpu_milli: int) -> GroupRequest:
    return GroupRequest(
        count=count,
        min=count,
        cpu_milli=cpu_milli,
        memory_mib=500 if shape.gang == 1 else 100,
        gpus=shape.gpus,
        selector=(Requirement(key="host", values=("n0",)),) if shape.named else (),
    )


def _pod(number: int, at_us: int, group: GroupRequest, *, zoned: bool = False, priority: int = 0) -> Submission:
    where = Constraints(within=(Within(level="zone"),)) if zoned else UNSET
    request = JobRequest(groups=(group,), priority=priority, constraints=where)
    job = JobSubmitted(job=job_id(at_us, number), name="pod", user="perf", submitted_us=at_us, request=request)
    return Submission(at_us, job, 0)
