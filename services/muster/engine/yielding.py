"""Who makes way before anybody is preempted: jobs that are owed nothing (semantics 29).

A best-effort job is charged to no guarantee and no limit, so nothing that it holds is its own: it is told to stop for any job
that is not best-effort, of whatever queue and priority, whatever the policy says of preemption and however short it ran. It
has its grace. Only where that is not enough are others looked at, and then those who are best-effort still go first.
Nobody is told to stop for a best-effort job.

A headroom job holds places and runs nothing in them. It is charged to its queue as any other, and waits after those who stand
as it does. It makes way for jobs of its own queue that are not below it in priority, at once: nothing has to end first. For a
headroom job only best-effort ones are told to stop; others than its queue's own have its places on the grounds on which they have
those of any job, and at once too.
"""

from muster.cluster.jobs import Attempt, Job
from muster.cluster.state import State


def yields(other: Job, job: Job) -> bool:
    """Whether the other job makes way for this one by what it is."""
    if other.headroom:
        return not job.soft and other.queue == job.queue and other.priority <= job.priority
    return other.spare and not job.spare


def outranked(other: Job, job: Job) -> bool:
    """Whether the job may take what is kept for the other, where their priorities are compared."""
    return not job.soft and (other.rank < job.priority or yields(other, job))


def those_for(state: State, job: Job) -> dict[Attempt, None]:
    """The attempts that make way for the job, in no order."""
    if job.spare:
        return {}
    return {attempt: None for attempt in state.yielding if yields(attempt.instance.job, job)}
