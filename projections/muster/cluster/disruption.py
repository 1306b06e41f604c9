"""How many tasks of a job are disrupted: they ran, are to run, and do not (`JobRequest.budget`).

Counted are tasks of instances that ran once and are not over: all of one that was told to stop, waits to be placed again or
has not started again; of one that runs those that are lost, leave, or were placed anew and are not ready. What was cancelled,
or has finished, is not disrupted.
"""

from muster.cluster.jobs import TERMINAL, Attempt, Instance, Job
from muster.cluster.state import State


def disrupted(job: Job) -> int:
    """How many tasks of the job are. Cost: its instances."""
    return sum([_of(instance) for instance in job.instances if instance.ran and instance.phase not in TERMINAL])


def left(job: Job) -> int:
    """How many more may be, by its budget."""
    budget = job.request.budget
    return max(0, budget - disrupted(job)) if isinstance(budget, int) else 2**62


def waits_to_drain(attempt: Attempt) -> bool:
    """Whether it runs on a node that is drained, and leaves as its budget allows."""
    return (
        attempt.phase == "run"
        and attempt.instance.job.budgeted
        and attempt.fault is None
        and any(task.holding and task.node.drained for task in attempt.tasks.values())
    )


def note_drain(state: State, attempt: Attempt) -> None:
    """A node that it stands on is drained, or is no more."""
    if waits_to_drain(attempt):
        state.draining[attempt] = None
    else:
        state.draining.pop(attempt, None)


def _of(instance: Instance) -> int:
    attempt = instance.attempt
    if instance.cancelling:
        return 0
    if attempt is None:
        return sum(instance.job.gang.minima)
    if attempt.phase == "run":
        return sum([task.phase in ("lost", "leaving", "preparing") for task in attempt.tasks.values()])
    return 0 if attempt.stop_reason == "finished" else len(attempt.tasks)
