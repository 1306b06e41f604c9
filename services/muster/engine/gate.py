"""Whether a submitted job may wait at all.

It is asked once a job, in the cycle of its submission. That no node is large enough today is no reason: nodes come.
"""

from muster.cluster.jobs import Job
from muster.cluster.state import State
from muster.engine.filters import JOB_FILTERS
from muster.engine.policies import job_filters


def gate(state: State, job: Job) -> str:
    """Why the job is rejected, or an empty string."""
    queues = state.policy.queues
    if job.queue not in queues:
        return f"queue {job.queue!r} does not exist; there are: {', '.join(queues)}"
    if job.gang.tasks > state.policy.placements_max:
        return f"{job.gang.tasks} tasks in one instance; a cycle places at most {state.policy.placements_max}"
    if state.pending_total > state.policy.pending_max:
        return f"{state.pending_total - len(job.instances)} instances wait already; at most {state.policy.pending_max} may"
    for name, each in JOB_FILTERS.items() if job.gang.special else ():
        field = each.asked(job.request)
        if field and name not in job_filters(state.policy):
            return f"it asks for {field}, and policy {state.policy.name} has no {name!r} in policy.job_filters"
    return ""
