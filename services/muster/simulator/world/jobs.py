"""What users of the world submit: small jobs of every kind, feasible all but one, and how their tasks behave."""

from random import Random
from typing import Any

import msgspec

from muster.events.codec import encode_entry
from muster.events.jobs import Dependency, GroupRequest, JobCancelRequested, JobReprioritised, JobRequest, JobSubmitted
from muster.scheduler.messages import JOBS
from muster.simulator.world.client import Errand
from muster.simulator.world.node import Behaviour
from muster.simulator.world.process import MILLION, WALL_US

CANCELLED_PERCENT = 8
REPRIORITISED_PERCENT = 10


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One job, and what may become of it."""

    job: str
    request: JobRequest
    behaviour: Behaviour
    feasible: bool = True
    may_fail: bool = False
    may_be_cancelled: bool = False


def job_id(number: int, made_us: int) -> str:
    """A UUIDv7 that was made then."""
    digits = f"{made_us // 1000:012x}7000{0x8000:04x}{number:012x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def draw(
    random: Random, count: int, nodes: int, gpus: int, until_us: int, long_percent: int, fail_percent: int
) -> tuple[list[Plan], list[Errand]]:
    """So many jobs for so many nodes of so many GPUs, submitted by then, and what else is said of them.

    `long_percent` of them outlast a lease, and are small, so that there is room for them elsewhere when their node is lost.
    Of `fail_percent` the first attempt fails, or each.
    """
    plans: list[Plan] = []
    errands: list[Errand] = []
    for number in range(1, count + 1):
        due_us = random.randint(2 * MILLION, until_us)
        job = job_id(number, WALL_US + due_us)
        cancelled = random.randrange(100) < CANCELLED_PERCENT
        plan = _plan(
            random, job, nodes, gpus, cancelled, random.randrange(100) < long_percent, random.randrange(100) < fail_percent
        )
        if number == count:
            plan = Plan(
                job=job,
                request=JobRequest(groups=(GroupRequest(gpus=1, gpu_models=("none",)),)),
                behaviour=Behaviour(),
                feasible=False,
            )
        else:
            plan = _waiting(Random(job), plan, plans)
        plans.append(plan)
        event = JobSubmitted(job=job, name="job", user="u", request=plan.request)
        errands.append(Errand(due_us=due_us, topic=JOBS, data=encode_entry(event), key=job, submits=job))
        later_us = due_us + random.randint(1, 60 * MILLION)
        if plan.may_be_cancelled:
            errands.append(Errand(due_us=later_us, topic=JOBS, data=encode_entry(JobCancelRequested(job=job)), key=job))
        if random.randrange(100) < REPRIORITISED_PERCENT:
            said = JobReprioritised(job=job, priority=random.choice((0, 3, 9)))
            errands.append(Errand(due_us=later_us, topic=JOBS, data=encode_entry(said), key=job))
    return plans, errands


def _waiting(random: Random, plan: Plan, earlier: list[Plan]) -> Plan:
    """The same job, which may have to wait for others that all end some time."""
    request = plan.request
    if request.array is not None and random.randrange(2):
        request = msgspec.structs.replace(request, at_once=1)
    others = [other.job for other in earlier if other.feasible]
    if others and not random.randrange(6):
        after = [Dependency(job=random.choice(others), when=random.choice(("started", "ended"))) for _ in range(2)]
        request = msgspec.structs.replace(request, after=tuple(after))
    return msgspec.structs.replace(plan, request=request)


def _plan(random: Random, job: str, nodes: int, gpus: int, cancelled: bool, long: bool, fails: bool) -> Plan:
    """One job of any kind that fits a cluster with nothing on it."""
    group: dict[str, Any] = {"cpu_milli": random.choice((0, 500))}
    asked: dict[str, Any] = {"priority": random.choice((0, 0, 0, 1, 5)), "grace_us": random.choice((0, 2, 6)) * MILLION}
    behaviour: dict[str, Any] = {
        "ready_us": random.randint(100_000, 4 * MILLION),
        "runtime_us": random.randint(*((90, 130) if long else (2, 30))) * MILLION,
        "stop_us": random.choice((100_000, 1_500_000, None)),
    }
    may_fail = False
    kind = random.randrange(10)
    if long:
        group["gpus"] = 1
    elif kind <= 2:
        group["gpus"] = random.randint(1, gpus)
    elif kind == 3:
        group["gpu_milli"] = random.choice((300, 500, 700))
    else:
        group["gpus"] = random.randint(1, min(2, gpus))
        if kind <= 6:
            group["count"] = random.randint(2, nodes * (gpus // group["gpus"]))
            group["min"] = group["count"] if random.randrange(3) else random.randint(1, group["count"])
            asked["degraded_grace_us"] = random.choice((0, 0, 30)) * MILLION
        elif kind == 7:
            asked["array"] = random.randint(2, 3)
    if fails:
        behaviour["fails"] = random.choice((1, 1, 9))
        asked["max_retries"] = random.choice((0, 2))
        may_fail = True
    if random.randrange(8) == 0:
        asked["time_limit_us"] = random.choice((5, 60)) * MILLION
        may_fail = True
    return Plan(
        job=job,
        request=JobRequest(groups=(GroupRequest(**{"count": 1, "min": 1, **group}),), **asked),
        behaviour=Behaviour(**behaviour),
        may_fail=may_fail,
        may_be_cancelled=cancelled,
    )
