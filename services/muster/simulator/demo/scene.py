"""What the demo plays: a cluster, its policy, and what happens when. Instants are seconds of log time.

It says what happens, not how that is carried out (`play`) nor what must come of it (`checks`).
"""

from typing import Literal

import msgspec

from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.events.nodes import NodeSpec
from muster.events.operations import Policy

SECOND_US = 1_000_000
END_S = 700
"""By then everything has ended, or the demo has failed."""

MODELS = {"h100": ("H100", 81_920), "l40s": ("L40S", 46_080)}
NODES = {"a1": "h100", "a2": "h100", "a3": "h100", "a4": "h100", "a5": "h100", "b1": "l40s", "b2": "l40s"}
GPUS = {"h100": 8, "l40s": 4}
SPEC = NodeSpec(cpu_milli=96_000, memory_mib=1_048_576, disk_mib=4_194_304)
"""What each node has beside its GPUs."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the demo and how its tasks behave."""

    name: str
    at_s: int
    request: JobRequest
    runtime_s: int
    ends: Literal["finished", "cancelled"] = "finished"
    """What must become of every instance."""


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong, or right again, at an instant."""

    at_s: int
    what: Literal["kill", "restart", "silence", "return", "fail-gpu", "cancel"]
    job: str = ""
    """silence: the node of this job's first task. fail-gpu: the first device of this job's first task. cancel: the job."""
    text: str


def policy(preemption: bool) -> Policy:
    """The default policy with the patience of a demo: a node is lost after a minute, not after five and a half."""
    return Policy(
        preemption=preemption,
        silent_after_us=15 * SECOND_US,
        lease_us=50 * SECOND_US,
        margin_us=10 * SECOND_US,
        ready_timeout_us=60 * SECOND_US,
    )


def _gang(name: str, at_s: int, runtime_s: int, count: int, gpus: int, priority: int, model: str = "", grace_s: int = 10) -> Work:
    group = GroupRequest(
        name="worker",
        count=count,
        min=count,
        gpus=gpus,
        cpu_milli=4000 * gpus,
        memory_mib=65_536 * gpus,
        gpu_models=(model,) if model else (),
    )
    request = JobRequest(groups=(group,), priority=priority, grace_us=grace_s * SECOND_US)
    return Work(name=name, at_s=at_s, runtime_s=runtime_s, request=request)


def _array(name: str, at_s: int, runtime_s: int, elements: int, group: GroupRequest, priority: int) -> Work:
    return Work(
        name=name,
        at_s=at_s,
        runtime_s=runtime_s,
        request=JobRequest(groups=(group,), priority=priority, array=elements, grace_us=5 * SECOND_US),
    )


ONE_GPU = GroupRequest(gpus=1, cpu_milli=4000, memory_mib=32_768)
QUARTER = GroupRequest(gpu_milli=250, gpu_models=("L40S",), cpu_milli=1000, memory_mib=8192)
TEN_GIB = GroupRequest(gpu_memory_mib=10_240, gpu_models=("L40S",), cpu_milli=1000, memory_mib=8192)

WORK = (
    _gang("pretrain", 2, 180, count=3, gpus=8, priority=50, model="H100"),
    Work(
        name="actor-critic",
        at_s=2,
        runtime_s=120,
        request=JobRequest(
            groups=(
                GroupRequest(name="head", gpus=1, cpu_milli=8000, memory_mib=65_536),
                GroupRequest(name="rollout", count=4, min=4, cpu_milli=4000, memory_mib=16_384),
            ),
            priority=20,
            success="head",
        ),
    ),
    _array("sweep", 6, 60, elements=16, group=ONE_GPU, priority=5),
    _array("notebook", 8, 160, elements=6, group=QUARTER, priority=10),
    _array("serve", 8, 220, elements=4, group=TEN_GIB, priority=30),
    _gang("finetune", 12, 90, count=2, gpus=4, priority=10),
    msgspec.structs.replace(_gang("mistake", 20, 500, count=6, gpus=8, priority=1), ends="cancelled"),
    _gang("urgent", 40, 60, count=2, gpus=8, priority=100, model="H100"),
    _gang("evaluate", 75, 50, count=4, gpus=1, priority=15),
)

HAPPENINGS = (
    Happening(at_s=75, what="kill", text="the scheduler is killed with SIGKILL in the middle of its work"),
    Happening(at_s=100, what="restart", text="it is started again and reads its log"),
    Happening(at_s=130, what="cancel", job="mistake", text="somebody cancels mistake, which asks for more than there is"),
    Happening(at_s=110, what="silence", job="pretrain", text="a node of pretrain goes silent for ever"),
    Happening(at_s=220, what="fail-gpu", job="pretrain", text="a GPU of pretrain fails"),
)


def job_id(at_us: int, number: int) -> str:
    """A UUIDv7 as a producer makes it, with its random part taken from `number`: the demo is the same each time."""
    text = f"{at_us // 1000:012x}7{number:03x}8{number:015x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def submission(work: Work, number: int) -> JobSubmitted:
    """The event with which a producer submits it."""
    at_us = work.at_s * SECOND_US
    return JobSubmitted(job=job_id(at_us, number), name=work.name, user="demo", submitted_us=at_us, request=work.request)
