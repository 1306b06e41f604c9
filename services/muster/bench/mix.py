"""The cluster and the jobs that the figures are taken on.

The jobs are drawn from the mix of Alibaba's openb trace (2023, Apache-2.0, list `gpuspec33`): 343 requests with how often
each occurs, in `openb_mix.csv`. The trace's GPU models are folded into three, and a request that takes any of the three
names none. The nodes have 8 GPUs and the CPU and memory for each GPU that the trace's nodes have, rounded up.
"""

import csv
import random
from collections.abc import Iterator
from importlib.resources import files
from itertools import accumulate

from muster.events.jobs import GroupRequest, JobRequest, JobRun, JobSubmitted
from muster.events.nodes import Device, NodeRegistered, NodeSpec
from muster.simulator.openb.loader import job_id

MODELS = (("h100", 81_920), ("a100", 40_960), ("l40s", 46_080))
"""Models with their memory in MiB; the nodes take turns."""
GPUS_A_NODE = 8
CORDONED_EVERY = 20
_CPU_MILLI = 128_000
_MEMORY_MIB = 786_432
_RUN = JobRun(command=("python", "train.py", "--config", "config.yaml"), image="registry.example/train:1")


class Mix:
    """Requests drawn at random, by how often they occur."""

    def __init__(self, seed: int) -> None:
        self.groups: list[GroupRequest] = []
        counts: list[int] = []
        with files("muster.bench").joinpath("openb_mix.csv").open() as text:
            for row in csv.DictReader(text):
                self.groups.append(
                    GroupRequest(
                        cpu_milli=int(row["cpu_milli"]),
                        memory_mib=int(row["memory_mib"]),
                        gpus=int(row["gpus"]),
                        gpu_milli=int(row["gpu_milli"]),
                        gpu_models=tuple(row["gpu_models"].split("|")) if row["gpu_models"] else (),
                    )
                )
                counts.append(int(row["count"]))
        self._up_to = list(accumulate(counts))
        self._chance = random.Random(seed)

    def draw(self) -> GroupRequest:
        """One request."""
        return self._chance.choices(self.groups, cum_weights=self._up_to)[0]


def asked_milli(group: GroupRequest) -> int:
    """Thousandths of a GPU that a task of this group asks for."""
    return group.gpus * 1000 + group.gpu_milli


def nodes(count: int) -> Iterator[NodeRegistered]:
    """So many nodes, in the order of their rows."""
    for row in range(count):
        model, memory_mib = MODELS[row % len(MODELS)]
        name = f"node-{row:05d}"
        devices = tuple(
            [
                Device(uuid=f"gpu-{row:05d}-{index}", model=model, memory_mib=memory_mib, numa=index // 4, island=0)
                for index in range(GPUS_A_NODE)
            ]
        )
        spec = NodeSpec(cpu_milli=_CPU_MILLI, memory_mib=_MEMORY_MIB, labels={"zone": f"z{row % 4}"}, devices=devices)
        yield NodeRegistered(node=name, uid=f"uid-{row:05d}", boot="boot-1", spec=spec)


def submission(at_us: int, number: int, group: GroupRequest) -> JobSubmitted:
    """A job of one group; `number` makes its id."""
    return job_at(at_us, number, JobRequest(groups=(group,), time_limit_us=86_400_000_000))


def job_at(at_us: int, number: int, request: JobRequest, queue: str = "default") -> JobSubmitted:
    """A job in a queue; `number` makes its id."""
    return JobSubmitted(
        job=job_id(at_us, number),
        name=f"job-{number}",
        user=f"user-{number % 97}",
        queue=queue,
        submitted_us=at_us,
        request=request,
        run=_RUN,
    )
