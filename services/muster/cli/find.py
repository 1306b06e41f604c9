"""Finding what a person means: a cycle of a log, a job by its id, the beginning of its id, or its name."""

from muster.cli.output import Failure
from muster.cli.records import admitted
from muster.cluster.jobs import Job
from muster.cluster.state import State
from muster.replay.travel import NoSuchCycle, fold_to


def find_state(log: str, cycle: int, cell: str | None) -> State:
    """The state after this cycle of the log; after the newest for 0.

    Raises:
        Failure: there is no such cycle.
    """
    try:
        return fold_to(admitted(log, cell), cycle or None)
    except NoSuchCycle as error:
        raise Failure(str(error)) from None


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
        raise Failure(
            f"{len(fitting)} jobs have ids that begin with {text!r}, such as {fitting[0]} and {fitting[1]}: give more of it"
        )
    at = state.number
    raise Failure(
        f"no job at cycle {at} has {text!r} as its id, the beginning of it or its name: `muster at LOG {at} jobs` lists them"
    )
