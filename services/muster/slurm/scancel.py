"""`scancel [-u USER] [-n NAME] [-t STATE] [-p PARTITION] [ID[_ELEMENT] ...]`: ends jobs."""

from muster.cli.output import Failure
from muster.cli.who import user_here
from muster.doors.names import element_indices
from muster.doors.origin import slug
from muster.slurm.cell import open_gateway, split_element
from muster.slurm.options import FLAG, Option, parse
from muster.slurm.say import Refused, note, say
from muster.slurm.squeue import OVER, STATES

OPTIONS = (
    Option("help", "", FLAG),
    Option("user", "u"),
    Option("me", "", FLAG),
    Option("name", "n"),
    Option("jobname"),
    Option("partition", "p"),
    Option("state", "t"),
    Option("quiet", "Q", FLAG),
    Option("verbose", "v", FLAG, "-"),
    Option("full", "f", FLAG, "-"),
    Option("batch", "b", FLAG, "-"),
    Option("interactive", "i", FLAG, "nothing is asked"),
    Option("signal", "s", ignored="a job that is cancelled gets SIGTERM, its grace, and SIGKILL"),
)
USAGE = """scancel [-u USER] [--me] [-n NAME] [-p PARTITION] [-t STATE] [ID[_ELEMENT] ...]
Ends jobs: SIGTERM, their grace, SIGKILL.
Example: scancel -u "$USER" -t PENDING"""


def main(arguments: list[str]) -> int:
    """Cancel; 1 if one is not there."""
    parsed = parse(OPTIONS, arguments, interleaved=True)
    values = parsed.values
    if "help" in values:
        print(USAGE)
        return 0
    for sentence in parsed.ignored:
        note("scancel", sentence)
    name = slug(values.get("name", values.get("jobname", "")))
    user = slug(user_here() if "me" in values else values.get("user", ""))
    queue, state = slug(values.get("partition", "")), values.get("state", "")
    if not parsed.rest and not (name or user or queue or state):
        raise Refused("no job was named: give an id, or -u, -n, -p or -t")
    phases = [phase for phase, names in STATES.items() if not state or state.upper() in (*names, phase.upper())]
    if not phases:
        raise Refused(f"there is no state {state!r}; there are PENDING, RUNNING and others that squeue shows")
    status = 0
    with open_gateway() as gateway:
        if not parsed.rest:
            for row in gateway.jobs(name=name, user=user, queue=queue).jobs:
                if row.state in phases and row.state not in OVER:
                    gateway.cancel(row.job)
            return 0
        for text in parsed.rest:
            try:
                job, element = split_element(text)
                shown = gateway.job(gateway.find(job))
                row = shown.job
                fits = (not name or row.name == name) and (not user or row.user == user) and (not queue or row.queue == queue)
                if fits and row.state in phases:
                    gateway.cancel(row.job, _instance(shown.run.environment, element, len(shown.elements)))
            except Failure as failure:
                status = 1
                if "quiet" not in values:
                    say("scancel", f"{text}: {failure}")
    return status


def _instance(environment: dict[str, str], element: int | None, count: int) -> int | None:
    """The number of the instance that has this index in the array."""
    if element is None:
        return None
    indices = element_indices(environment) or range(count)
    if element not in indices:
        raise Failure(f"the job has no element {element}")
    return indices.index(element)
