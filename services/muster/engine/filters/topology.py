"""Only nodes that say in which domain they are, of each level within which a job has to stay, or over which it spreads.

Which of the domains is taken is no matter of single nodes: `muster.engine.bound` chooses it.
"""

from muster.cluster.jobs import Job
from muster.engine.around import Around
from muster.events.jobs import Constraints, JobRequest


class TopologyFilter:
    """Passes a node that names a domain of every level that the job requires."""

    code = "topology"

    def asked(self, request: JobRequest) -> str:
        """The field that asks for it, or an empty string."""
        asked: Constraints | None = request.constraints or None
        return "" if asked is None else "within" if asked.within else "spread" if asked.spread else ""

    def passes(self, around: Around, job: Job, among: int) -> int:
        """The rows of `among` that are in a domain of each level."""
        rules = job.gang.rules
        if rules is not None:
            around.topology.refresh()
            for level in (*rules.required, *[spread.level for spread in rules.spread]):
                among &= around.topology.named[level]
        return among

    def sentence(self, around: Around, job: Job) -> str:
        """What a person is told about the nodes that do not pass."""
        rules = job.gang.rules
        levels = [] if rules is None else [*rules.required, *[spread.level for spread in rules.spread]]
        return f"name no {' or no '.join(dict.fromkeys(levels))}"
