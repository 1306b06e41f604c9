"""Jobs that wait for other jobs: which conditions do not hold yet, and which never will.

A condition that held once holds for good, so what is kept of a job is those that have not held yet (`Job.held`). They are
looked at again when the other job starts or is over, and at no other time. A job that is not known may still come, since
producers are not ordered among each other; one that has not come `too_old_us` after its id was made never will
(`muster.scheduler.recorder` refuses it), nor will one whose id says nothing, that long after somebody began to wait for it.

Semantics 34. A rejected or cancelled job has failed.
"""

from muster.cluster.jobs import Instance, Job
from muster.cluster.state import State
from muster.events.ids import made_us
from muster.events.jobs import Dependency

HOPES: dict[str, str] = {
    "started": "starts",
    "ended": "ends",
    "finished": "finishes",
    "failed": "fails",
}
"""What is waited for, as a person says it: the job runs when JOB ..."""


def holds(state: State, condition: Dependency, since_us: int) -> bool | None:
    """Whether it holds; None: not yet. `since_us` is when it was first waited for."""
    other = state.jobs.get(condition.job)
    if other is None:
        return False if last_us(state, condition, since_us) <= state.at_us else None
    over = not other.open
    if condition.when == "started":
        return True if over or all(instance.ran or instance.ended_us for instance in other.instances) else None
    if not over:
        return None
    if condition.when == "ended":
        return True
    finished = all(instance.phase == "finished" for instance in other.instances)
    return finished == (condition.when == "finished")


def last_us(state: State, condition: Dependency, since_us: int) -> int:
    """Until when a job that is not known may still come."""
    made = made_us(condition.job)
    return min(since_us, since_us if made is None else made) + state.policy.too_old_us


def hold(state: State, job: Job) -> None:
    """A job has come. If others wait for it they know it now; if it waits for others, it is held."""
    if state.dependents:
        for other in state.dependents.get(job.id, ()):
            set_timer(state, state.jobs[other])
    asked = job.request.after
    if asked:
        _keep(state, job, asked)


def rehold(state: State, job: Job, held: tuple[Dependency, ...]) -> None:
    """The same for one whose conditions that do not hold yet are known: it comes from a snapshot."""
    _keep(state, job, held)


def look(state: State, job: Job) -> list[Job]:
    """This job started or is over: which of those that wait for it are free to go."""
    free = []
    for name in list(state.dependents.get(job.id, ())):
        waiting = state.jobs[name]
        _keep(state, waiting, waiting.held)
        if not waiting.held:
            free.append(waiting)
    return free


def let_go(state: State, job: Job) -> None:
    """It waits for nothing any more: it is over."""
    _keep(state, job, ())


def _keep(state: State, job: Job, conditions: tuple[Dependency, ...]) -> None:
    """From now on it is held by those of these that do not hold."""
    for condition in job.held:
        waiting = state.dependents.get(condition.job)
        if waiting is not None:
            waiting.pop(job.id, None)
            if not waiting:
                del state.dependents[condition.job]
    verdicts = [(condition, holds(state, condition, job.submitted_us)) for condition in conditions]
    job.held = tuple([condition for condition, verdict in verdicts if not verdict])
    for condition in job.held:
        state.dependents.setdefault(condition.job, {})[job.id] = None
    if any(verdict is False for _, verdict in verdicts):
        state.hopeless[job] = None
    else:
        state.hopeless.pop(job, None)
    set_timer(state, job)


def set_timer(state: State, job: Job) -> None:
    """When somebody for whom it waits can come no more."""
    unknown = [last_us(state, condition, job.submitted_us) for condition in job.held if condition.job not in state.jobs]
    if unknown:
        state.timers.dependency.set(job, min(unknown))
    else:
        state.timers.dependency.cancel(job)


def hopeless(state: State, job: Job) -> str:
    """Why it can never run, in one sentence; empty where it can."""
    for condition in job.held:
        if holds(state, condition, job.submitted_us) is False:
            other = state.jobs.get(condition.job)
            if other is None:
                came = "is not known: it never came, or is long over"
            else:
                came = "finished" if condition.when == "failed" else _came(other)
            return f"it was to run when job {condition.job} {HOPES[condition.when]}, and that {came}"
    return ""


def _came(job: Job) -> str:
    """What became of a job that did not finish."""
    worst: Instance = next(instance for instance in job.instances if instance.phase != "finished")
    return {"failed": "failed", "cancelled": "was cancelled", "rejected": "was rejected"}[worst.phase]


def cycle(state: State, job: Job) -> list[str]:
    """The jobs from this one through those it waits for back to it; empty where there is no such way.

    Asked when a job comes. Only one for whom somebody waits already can close a circle, so nobody else pays for the search,
    which takes each waiting job once.
    """
    if job.id not in state.dependents:
        return []
    came: dict[str, str] = {}
    stack = [job.id]
    while stack:
        name = stack.pop()
        known = state.jobs.get(name)
        for condition in known.held if known is not None else ():
            if condition.job == job.id:
                way = [job.id]
                while name != job.id:
                    way.append(name)
                    name = came[name]
                return [job.id, *reversed(way[1:]), job.id]
            if condition.job not in came:
                came[condition.job] = name
                stack.append(condition.job)
    return []
