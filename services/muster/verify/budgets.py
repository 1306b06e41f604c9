"""Budgets of disruption as the second judge sees them: how many tasks are disrupted, and whether a broken budget was avoidable.

What the engine counts as disrupted and what can be seen from the log differ in one thing: whether a member on a failed device is
on its way out. Each question takes the count that accuses nobody wrongly.
"""

from collections.abc import Iterable

from muster.verify.places import Gone, outranks
from muster.verify.world import Attempt, Instance, Job, World
from muster.verify.yielding import makes_way


def disrupted(job: Job, sick: bool) -> int:
    """How many tasks of the job ran, are to run, and do not; with `sick` also those on failed devices."""
    return sum(_of(instance, sick) for instance in job.instances if instance.ran and not instance.outcome)


def _of(instance: Instance, sick: bool) -> int:
    attempt = instance.attempt
    if instance.cancelled:
        return 0
    if attempt is None:
        return sum(group.min for group in instance.job.request.groups)
    if attempt.phase != "running":
        return 0 if attempt.stop_reason == "finished" else len(attempt.tasks)
    ill = [t for t in attempt.tasks.values() if t.holds and any(t.node.devices[i].health == "failed" for i in t.devices)]
    gone = sum(not task.holds and task.phase != "exited" for task in attempt.tasks.values())
    return gone + sum(task.phase == "preparing" for task in attempt.tasks.values()) + (len(ill) if sick else 0)


def breaches(victims: Iterable[Attempt], sick: bool = False) -> int:
    """How many tasks of these are beyond the budgets of their jobs."""
    going: dict[Job, int] = {}
    for attempt in victims:
        if attempt.phase == "running" and isinstance(attempt.instance.job.request.budget, int):
            going[attempt.instance.job] = going.get(attempt.instance.job, 0) + attempt.holding()
    return sum(max(0, tasks - room(job, sick)) for job, tasks in going.items())


def room(job: Job, sick: bool) -> int:
    """How many more of its tasks may be disrupted."""
    budget = job.request.budget
    return max(0, budget - disrupted(job, sick)) if isinstance(budget, int) else 2**62


def drain_fault(attempt: Attempt) -> str:
    """Why it may not leave a drained node yet."""
    job, going = attempt.instance.job, attempt.holding()
    if attempt.phase != "running" or going <= room(job, sick=False):
        return ""
    already = disrupted(job, sick=False)
    return f"{going} of its tasks leave a drained node, {already} are disrupted, and its budget is {job.request.budget}"


def harmless(world: World, asker: Instance) -> Gone:
    """Attempts that may go for the asker and that together break no budget: those of its own queue, and who makes way anyway."""
    found: list[Attempt] = []
    policy, books = world.policy, world.books
    for job in world.jobs.values():
        for instance in job.instances:
            victim = instance.attempt
            if victim is None or victim.phase == "stopping" or job.instances is asker.job.instances:
                continue
            ran_us = world.at_us - victim.started_us if victim.started_us >= 0 else policy.min_runtime_us
            lower = outranks(world, asker, instance) and job.queue == asker.job.queue and not policy.aging_after_us
            free = policy.preemption and job.request.preemptible and not (books is not None and books.protected(victim))
            if makes_way(job, asker.job) or (lower and free and ran_us >= policy.min_runtime_us):
                if not breaches([*found, victim], sick=True):
                    found.append(victim)
    return {victim.key: None for victim in found}
