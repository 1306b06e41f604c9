"""Whether a submitted job may wait at all.

It is asked once a job, in the cycle of its submission. That no node is large enough today is no reason: nodes come.
"""

from typing import Final

from muster.cluster.catalogue import NONE_SUFFICES
from muster.cluster.dependencies import cycle
from muster.cluster.jobs import Job
from muster.cluster.queuetree import DEFAULT, QueueTree
from muster.cluster.shapes import asked
from muster.cluster.state import State
from muster.engine.filters import JOB_FILTERS
from muster.engine.policies import job_filters
from muster.events.jobs import GroupRequest

NAMED_MAX: Final = 20


def gate(state: State, job: Job) -> str:
    """Why the job is rejected, or an empty string."""
    return may_run(state, job, new=True)


def may_run(state: State, job: Job, new: bool = False) -> str:
    """Why it may not run, or an empty string. One that is not `new` waits already: a service that is revised."""
    queues = state.policy.queues
    reason = ""
    if state.tree is not None:
        reason = _of_tree(state, state.tree, job)
    elif job.queue not in queues:
        reason = f"queue {job.queue!r} does not exist; there are: {', '.join(queues)}"
    if reason:
        return reason
    way = cycle(state, job) if new else []
    if way:
        return f"it waits for itself: {' after '.join(way)}"[:1024]
    for group in job.request.groups:
        if group.gpu_models == NONE_SUFFICES:
            return _no_model(state, group)
    if job.gang.tasks > state.policy.placements_max:
        return f"{job.gang.tasks} tasks in one instance; a cycle places at most {state.policy.placements_max}"
    if new and state.pending_total > state.policy.pending_max:
        return f"{state.pending_total - len(job.instances)} instances wait already; at most {state.policy.pending_max} may"
    for name, each in JOB_FILTERS.items() if job.gang.special else ():
        field = each.asked(job.request)
        if field and name not in job_filters(state.policy):
            return f"it asks for {field}, and policy {state.policy.name} has no {name!r} in policy.job_filters"
    return ""


def _no_model(state: State, group: GroupRequest) -> str:
    """Why no model suffices for a group."""
    if not state.catalogue:
        return f"it asks for {asked(group)}, and the cell has no catalogue of devices: muster catalogue set FILE.toml"
    best = max([each.capability for each in state.catalogue])
    fastest = max([each.bandwidth_gbs for each in state.catalogue])
    return (
        f"it asks for {asked(group)}, and no model that it may have is known to have that; the catalogue goes up to compute "
        f"capability {best // 10}.{best % 10} and to {fastest} GB/s"
    )


def _of_tree(state: State, tree: QueueTree, job: Job) -> str:
    """What its queue says against the job."""
    name = job.queue
    if name not in tree.said and name not in state.policy.queues and name != DEFAULT:
        queue = tree.queues.get(name)
        if queue is not None and queue.closed:
            return f"queue {name!r} was removed"
        names = sorted(dict.fromkeys([DEFAULT, *tree.said, *state.policy.queues]))
        more = f" and {len(names) - NAMED_MAX} others" if len(names) > NAMED_MAX else ""
        return f"queue {name!r} does not exist; there are: {', '.join(names[:NAMED_MAX])}{more}"
    for each in tree.of(name).path:
        spec = each.spec
        if spec is not None and spec.users and job.user not in spec.users:
            return f"user {job.user!r} may not submit to queue {each.name!r}"
        most_us = spec.max_time_us if spec is not None else None
        if most_us is not None and job.limit_us is not None and job.limit_us > most_us:
            return f"a time limit of {job.limit_us // 1_000_000} s; queue {each.name!r} takes {most_us // 1_000_000} s at most"
    return ""
