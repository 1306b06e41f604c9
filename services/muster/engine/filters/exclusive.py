"""Only nodes without tasks of others for a job that wants its nodes for itself, and none of its nodes for the others."""

from muster.cluster.jobs import Job
from muster.engine.around import Around
from muster.events.jobs import JobRequest


class ExclusiveFilter:
    """Passes a node that nobody else has, or that nobody has for himself. The tasks of one job may share a node."""

    code = "exclusive"

    def asked(self, request: JobRequest) -> str:
        """The field that asks for it, or an empty string."""
        return "exclusive" if request.constraints and request.constraints.exclusive else ""

    def passes(self, around: Around, job: Job, among: int) -> int:
        """The rows of `among` where the job may be."""
        rules = job.gang.rules
        among &= ~around.closed(job)
        return among & ~around.occupied(job) if rules is not None and rules.exclusive else among

    def sentence(self, around: Around, job: Job) -> str:
        """What a person is told about the nodes that do not pass."""
        rules = job.gang.rules
        if rules is not None and rules.exclusive:
            return "hold something of another job, and this one wants its nodes for itself"
        return "belong to a job that has its nodes for itself"
