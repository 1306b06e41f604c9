"""KAI-Scheduler's board of reclaim: one large gang takes back what its queue is promised, and how many it tells to stop.

Source: NVIDIA/KAI-Scheduler, the benchmark "reclaim large job". N nodes of 8 GPUs are full of jobs of one GPU, job i on node
i mod N, of a queue that is promised nothing; then a queue that is promised everything asks for a gang of N/10 tasks of 8 GPUs.
"""

import time
from collections.abc import Callable

import msgspec

from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.events.nodes import Device, NodeRegistered, NodeSpec
from muster.events.operations import Policy, Weight
from muster.events.queues import Amounts, QueueSet
from muster.log.sqlite import SqliteFile
from muster.simulator.boards.play import SECOND_US, Player, Submission
from muster.simulator.openb.loader import job_id

GPUS = 8
SIZES = (10, 50, 100, 200, 500, 1000)


class Outcome(msgspec.Struct, kw_only=True):
    """What came of it: who was told to stop against the fewest that do, and the seconds that the decision took."""

    evicted: int
    least: int
    started: bool
    real_s: float


def play(size: int, policy: Policy, file: SqliteFile, clock: Callable[[], float] = time.perf_counter) -> Outcome:
    """The board with so many nodes."""
    spread = msgspec.structs.replace(policy, scores=(Weight(name="least-allocated"),))
    nodes = []
    for row in range(size):
        devices = tuple([Device(uuid=f"n{row}-gpu-{index}", model="gpu") for index in range(GPUS)])
        spec = NodeSpec(cpu_milli=64_000, memory_mib=2**19, devices=devices)
        nodes.append(NodeRegistered(node=f"n{row:04}", uid=f"n{row}-uid", boot="boot-1", spec=spec))
    queues = [
        QueueSet(queue="queue-0", guarantee=Amounts(gpu_milli=0)),
        QueueSet(queue="queue-1", guarantee=Amounts(gpu_milli=size * GPUS * 1000)),
    ]
    player = Player(file, spread, queues, nodes)
    player.submit([_job(number, 0, 1, 1, "queue-0") for number in range(size * GPUS)])
    player.run(SECOND_US)
    large = _job(size * GPUS, 2 * SECOND_US, size // 10, GPUS, "queue-1")
    player.submit([large])
    began_s = clock()
    played = player.run(3 * SECOND_US)
    least = size // 10 * GPUS
    started = large.job.job in played.bound_us
    return Outcome(evicted=played.preempted, least=least, started=started, real_s=clock() - began_s)


def _job(number: int, at_us: int, tasks: int, gpus: int, queue: str) -> Submission:
    group = GroupRequest(count=tasks, min=tasks, gpus=gpus, cpu_milli=100, memory_mib=100)
    name = job_id(at_us, number)
    request = JobRequest(groups=(group,))
    return Submission(at_us, JobSubmitted(job=name, name="job", user="kai", queue=queue, submitted_us=at_us, request=request), 0)
