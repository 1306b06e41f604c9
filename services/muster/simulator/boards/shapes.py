"""The shapes of Kubernetes' scheduler_perf that this build plays: how many pods a second are placed on 5,000 nodes.

Source: kubernetes/kubernetes, test/integration/scheduler_perf. A node has 4 CPU, 32 GiB
and takes 110 pods; a pod asks for 0.1 CPU and 500 MiB, one of a gang for 100 MiB.
Counted are the seconds of the scheduler with its log written; agents answer within them.
"""

import time

import msgspec

from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.events.nodes import NodeRegistered, NodeSpec
from muster.events.operations import Policy
from muster.log.sqlite import SqliteFile
from muster.simulator.boards.play import SECOND_US, Player, Submission
from muster.simulator.openb.loader import job_id


class Shape(msgspec.Struct, frozen=True):
    """Pods that are there before, and those that are counted, in gangs of so many."""

    nodes: int
    before: int
    measured: int
    gang: int = 1


BASIC = Shape(nodes=5000, before=1000, measured=10_000)
GANGS = Shape(nodes=5000, before=0, measured=9000, gang=3)


class Outcome(msgspec.Struct, kw_only=True):
    """What came of a shape."""

    bound: int
    partial: int
    real_s: float


def play(shape: Shape, policy: Policy, file: SqliteFile) -> Outcome:
    """The shape, once."""
    spec = NodeSpec(cpu_milli=4000, memory_mib=32 * 1024, tasks_max=110)
    nodes = [NodeRegistered(node=f"n{row}", uid=f"n{row}-uid", boot="boot-1", spec=spec) for row in range(shape.nodes)]
    player = Player(file, policy, (), nodes)
    player.submit([_pods(number, 0, 1) for number in range(shape.before)])
    player.run(SECOND_US)
    began_s = time.perf_counter()
    jobs = [_pods(shape.before + number, 2 * SECOND_US, shape.gang) for number in range(shape.measured // shape.gang)]
    player.submit(jobs)
    played = player.run(3 * SECOND_US)
    real_s = time.perf_counter() - began_s
    bound = [each for each in jobs if each.job.job in played.bound_us]
    state = player.recording.core.state
    held = [state.jobs[each.job.job].instances[0].attempt for each in bound]
    partial = sum(attempt is None or len(attempt.tasks) != shape.gang for attempt in held)
    return Outcome(bound=len(bound) * shape.gang, partial=partial, real_s=real_s)


def _pods(number: int, at_us: int, count: int) -> Submission:
    group = GroupRequest(count=count, min=count, cpu_milli=100, memory_mib=500 if count == 1 else 100)
    name = job_id(at_us, number)
    job = JobSubmitted(job=name, name="pod", user="perf", submitted_us=at_us, request=JobRequest(groups=(group,)))
    return Submission(at_us, job, 0)
