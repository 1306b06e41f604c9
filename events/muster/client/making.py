"""A job from what a program usually says about one; whoever needs more builds a `JobSubmitted` of its parts."""

import getpass
import re
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from muster.client.errors import Refused
from muster.client.ids import new_id
from muster.events.codec import Malformed, decode_input, encode_entry
from muster.events.jobs import Dependency, GroupRequest, JobRequest, JobRun, JobSubmitted


def new_job(
    name: str,
    *,
    command: Sequence[str] = (),
    image: str = "",
    environment: Mapping[str, str] | None = None,
    directory: str = "",
    user: str = "",
    queue: str = "default",
    count: int = 1,
    gpus: int = 0,
    gpu_milli: int = 0,
    gpu_memory_mib: int = 0,
    gpu_models: Sequence[str] = (),
    cpu_milli: int = 0,
    memory_mib: int = 0,
    disk_mib: int = 0,
    priority: int = 0,
    kind: Literal["batch", "best-effort", "headroom"] = "batch",
    budget: int | None = None,
    elastic: bool = False,
    least: int | None = None,
    deadline_us: int | None = None,
    array: int | None = None,
    at_once: int | None = None,
    after: Sequence[str | Dependency] = (),
    max_retries: int = 0,
    time_limit_s: int | None = None,
    grace_s: int = 0,
    labels: Mapping[str, str] | None = None,
) -> JobSubmitted:
    """A job of one group: `count` tasks that start together, each with these amounts. Its id is made here, once.

    Args:
        name: what people call it: lower-case letters, digits, `-` and `.`.
        command: program and arguments of each task; or `image`, or both.
        user: whose job it is; empty means whoever runs this program.
        gpus: whole GPUs of each task; or `gpu_milli` thousandths of one.
        kind: `best-effort` takes what is idle, and stops for any other job; `headroom` runs nothing, and keeps room.
        budget: so many of its tasks may be disrupted at once.
        elastic: once it runs it grows up to `count` into what is idle, and gives up what is above `least`.
        least: with how many tasks it may start; all of them if nothing is said.
        deadline_us: by when it should have finished, in microseconds since 1970.
        array: so many instances, each with `count` tasks.
        at_once: with `array`, so many of its instances at once.
        after: ids of jobs that must have finished first; a `Dependency` says what else must have come of one.
        time_limit_s: from the start of an attempt.
        grace_s: between the notice and the kill.

    Raises:
        Refused: a cell would refuse it; names the field.
    """
    group = {
        "count": count,
        "min": count if least is None else least,
        "gpus": gpus,
        "gpu_milli": gpu_milli,
        "gpu_memory_mib": gpu_memory_mib,
        "gpu_models": tuple(gpu_models),
        "cpu_milli": cpu_milli,
        "memory_mib": memory_mib,
        "disk_mib": disk_mib,
    }
    request = JobRequest(
        groups=(GroupRequest(**group),),  # type: ignore[arg-type]  # a mapping forgets which field has which type
        priority=priority,
        kind=msgspec.UNSET if kind == "batch" else kind,
        budget=msgspec.UNSET if budget is None else budget,
        elastic=elastic or msgspec.UNSET,
        deadline_us=msgspec.UNSET if deadline_us is None else deadline_us,
        array=array,
        at_once=msgspec.UNSET if at_once is None else at_once,
        after=tuple([each if isinstance(each, Dependency) else Dependency(job=each) for each in after]) or msgspec.UNSET,
        max_retries=max_retries,
        time_limit_us=None if time_limit_s is None else time_limit_s * 1_000_000,
        grace_us=grace_s * 1_000_000,
        labels=dict(labels or {}),
    )
    run = JobRun(command=tuple(command), image=image, environment=dict(environment or {}), directory=directory)
    return checked(
        JobSubmitted(
            job=new_id(),
            name=name,
            user=user or _user(),
            queue=queue,
            submitted_us=time.time_ns() // 1000,
            request=request,
            run=run,
        )
    )


def checked(job: JobSubmitted) -> JobSubmitted:
    """The job, as a cell would take it.

    Raises:
        Refused: it would not; names the field.
    """
    try:
        event, _ = decode_input(encode_entry(job))
    except Malformed as error:
        raise Refused(str(error)) from None
    except (TypeError, msgspec.MsgspecError) as error:
        raise Refused(f"the job cannot be written as JSON: {error}") from None
    if not isinstance(event, JobSubmitted):
        raise Refused(f"{type(job).__name__} is no job")
    return event


def _user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "nobody"
    return re.sub(r"[^a-z0-9.-]+", "-", user.lower()).strip("-.")[:63].strip("-.") or "nobody"
