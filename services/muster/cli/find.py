"""Finding a job by what a person types: its id, the beginning of its id, or its name."""

from muster.cli.output import Failure
from muster.cluster.jobs import Job
from muster.cluster.state import State


def find_job(state: State, text: str) -> Job:
    """The job meant by `text`. Of several jobs with one name it is the one submitted last.

    Raises:
        Failure: there is none, or the beginning fits several.
    """
    if text in state.jobs:
        return state.jobs[text]
    named = [job for job in state.jobs.values() if job.name == text]
    if named:
        return max(named, key=lambda job: job.place)
    fitting = sorted(job.id for job in state.jobs.values() if job.id.startswith(text))
    if len(fitting) == 1:
        return state.jobs[fitting[0]]
    if fitting:
        at = state.number
    raise Failure(
        f"no job at cycle {at} has {text!r} as its id, the beginning of it or its name: `muster at LOG {at} jobs` lists them"
    )
