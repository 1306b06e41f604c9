"""When queues are charged for an attempt, and with how much: the part of the fold that knows a tree of queues.

Called only where there is one (`State.tree`).
"""

from collections.abc import Iterable

from muster.cluster.jobs import Attempt, Job, Task
from muster.cluster.queuetree import QueueTree, task_amounts, tasks_amounts
from muster.cluster.state import State


def enter_queue(tree: QueueTree, job: Job) -> str:
    """What the queue says of a job that comes; its user, if the queue tells users apart."""
    queue = tree.of(job.queue)
    queue.open += 1
    if not job.priority and queue.spec is not None:
        job.priority = queue.spec.default_priority
    if job.limit_us is None and not job.headroom:
        job.limit_us = tree.max_time_us(queue)
    return "" if job.spare else job.user if tree.tells_users(queue) else ""


def leave_queue(tree: QueueTree, job: Job) -> None:
    """The job is over."""
    queue = tree.of(job.queue)
    queue.open -= 1
    tree.drop_if_empty(queue)


def charge_attempt(tree: QueueTree, attempt: Attempt) -> None:
    """Its queue is charged with what its tasks hold, from now on; for one that is best-effort nobody is."""
    job = attempt.instance.job
    if job.spare:
        return
    queue = tree.of(job.queue)
    charge = attempt.charge = tasks_amounts([task for task in attempt.tasks.values() if task.holding and not task.going])
    queue.attempts[attempt] = None
    tree.charge(queue, job.user, charge)


def charge_less(state: State, attempt: Attempt, task: Task) -> None:
    """The queue is not charged for this task any more; with the last one it is not for the instance."""
    tree, charge = state.tree, attempt.charge
    assert tree is not None
    assert charge is not None
    job = attempt.instance.job
    queue = tree.of(job.queue)
    if attempt.held:
        less = task_amounts(task.shape, task.node, task.devices)
        attempt.charge = {what: amount - less.get(what, 0) for what, amount in charge.items()}
    else:
        less = charge
        attempt.charge = None
        queue.attempts.pop(attempt, None)
    tree.release(queue, job.user, less)


def charge_more(tree: QueueTree, attempt: Attempt, tasks: Iterable[Task]) -> None:
    """Its queue is charged with these tasks too, from now on."""
    job = attempt.instance.job
    more = tasks_amounts(tasks)
    del more["jobs"]
    charge = dict(attempt.charge or {})
    for what, amount in more.items():
        charge[what] = charge.get(what, 0) + amount
    attempt.charge = charge
    tree.charge(tree.of(job.queue), job.user, more)


def charge_without(tree: QueueTree, attempt: Attempt, tasks: Iterable[Task]) -> None:
    """Its queue is not charged for these tasks any more, which are told to go; it goes on without them."""
    job, charge = attempt.instance.job, attempt.charge
    if charge is None:
        return
    less = tasks_amounts(tasks)
    del less["jobs"]
    attempt.charge = {what: amount - less.get(what, 0) for what, amount in charge.items()}
    tree.release(tree.of(job.queue), job.user, less)


def uncharge_attempt(state: State, attempt: Attempt) -> None:
    """Its queue is not charged for it any more."""
    tree, charge = state.tree, attempt.charge
    assert tree is not None
    assert charge is not None
    job = attempt.instance.job
    queue = tree.of(job.queue)
    attempt.charge = None
    queue.attempts.pop(attempt, None)
    tree.release(queue, job.user, charge)
