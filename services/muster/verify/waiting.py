"""Whether an instance may be placed at all, by what its job waits for and by how many of its elements may be in play."""

from muster.verify.world import Instance, Job, World


def waiting_fault(world: World, instance: Instance) -> str:
    """What it has to wait for still; empty where that is nothing."""
    job = instance.job
    for condition in job.request.after or ():
        if not _came(world, condition.job, condition.when):
            return f"it waits until {condition.job} has {condition.when}, which it has not"
    bound = sum(other.attempt is not None for other in job.instances)
    if job.request.at_once and bound >= job.request.at_once:
        return f"{bound} of its elements run already, and {job.request.at_once} may at once"
    return ""


def _came(world: World, name: str, when: str) -> bool:
    """What became of a job, of one that was forgotten too."""
    job = world.jobs.get(name)
    if job is not None and job.over_us < 0:
        return when == "started" and all(one.ran or one.outcome for one in job.instances)
    outcome = world.past.get(name, "") if job is None else outcome_of(job)
    return outcome != "" and (when in ("started", "ended") or when == outcome)


def outcome_of(job: Job) -> str:
    """Of a job that is over."""
    return "finished" if all(one.outcome == "finished" for one in job.instances) else "failed"
