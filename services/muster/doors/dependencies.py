"""For which other jobs a job waits, as job files and flags (`finished:JOB`) and as Slurm (`afterok:JOB:JOB`) say it."""

import re
from typing import Any, Final

from muster.doors.origin import Notices
from muster.doors.slurm_options import Said
from muster.events.base import JOB_PATTERN
from muster.events.jobs import Dependency
from muster.reading.values import Value

WHENS: Final = ("started", "ended", "finished", "failed")
JOB: Final = re.compile(JOB_PATTERN.removeprefix("^").removesuffix("$"))
SLURM: Final = {"after": "started", "afterany": "ended", "afterok": "finished", "afternotok": "failed"}


def read_after(value: Value) -> tuple[Dependency, ...]:
    """`JOB` or `WHEN:JOB`, or a list of these; a job alone has to finish."""
    found = []
    for item in value.several():
        when, colon, job = item.scalar_text().rpartition(":")
        if (colon and when not in WHENS) or not JOB.fullmatch(job):
            raise item.error(f"must be the id of a job, or WHEN:JOB with one of {', '.join(WHENS)}, not {item.said()}")
        found.append(_dependency(job, when or "finished"))
    return tuple(found)


def write_after(after: tuple[Dependency, ...]) -> list[str]:
    """The same, as it is read."""
    return [f"{condition.when}:{condition.job}" for condition in after]


def slurm_after(one: Said, notices: Notices) -> tuple[Dependency, ...]:
    """Slurm's `--dependency`. What is not honoured of it is named.

    Raises:
        DoorError: it makes no sense.
    """
    if "?" in one.value:
        notices.add(one.line, one.spelled, "any of several conditions is not honoured: a job waits for all that it names")
        return ()
    found = []
    for part in one.value.split(","):
        kind, *jobs = part.strip().split(":")
        if kind not in SLURM:
            notices.add(one.line, one.spelled, f"{kind!r} is not honoured; there are {', '.join(SLURM)}")
            continue
        if not jobs:
            raise one.error(f"must name a job behind {kind}:, as in {kind}:JOB")
        for job in jobs:
            if "_" in job or "+" in job or not JOB.fullmatch(job):
                raise one.error(f"must name whole jobs by their ids behind {kind}:, not {job!r}")
            found.append(_dependency(job, SLURM[kind]))
    return tuple(found)


def _dependency(job: str, when: str) -> Dependency:
    said: Any = when
    return Dependency(job=job, when=said)
