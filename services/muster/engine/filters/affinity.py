"""Only nodes in whose domain those are held whom a job wants near, and nobody of whom it, or who of it, wants to be away."""

from muster.cluster.jobs import Job
from muster.cluster.tags import Counted
from muster.engine.around import Around
from muster.events.jobs import Constraints, JobRequest, JobTerm


class AffinityFilter:
    """Passes a node by who is held in its domains. As in Kubernetes, a term about the job itself asks for nobody else."""

    code = "affinity"

    def asked(self, request: JobRequest) -> str:
        """The field that asks for it, or an empty string."""
        asked: Constraints | None = request.constraints or None
        return "" if asked is None else "affinity" if asked.affinity else "anti_affinity" if asked.anti_affinity else ""

    def passes(self, around: Around, job: Job, among: int) -> int:
        """The rows of `among` where the job may be."""
        rules = job.gang.rules
        if rules is not None:
            for term in rules.anti_affinity:
                if term.required:
                    among &= ~around.holding(term, own=job)
            for term in rules.affinity:
                if term.required:
                    among &= self._near(around, job, term)
        return among & ~around.unwelcome(job)

    def _near(self, around: Around, job: Job, term: JobTerm) -> int:
        found = around.holding(term, kept=False)
        if not found and Counted(term).about(job):  # the first of its kind has nobody to be with
            around.topology.refresh()
            return around.topology.named[term.by]
        return found

    def sentence(self, around: Around, job: Job) -> str:
        """What a person is told about the nodes that do not pass."""
        rules = job.gang.rules
        if rules is None or not (rules.affinity or rules.anti_affinity):
            return "are in a domain of a job that wants to be away from this one"
        near = [_term(term) for term in rules.affinity if term.required]
        away = [_term(term) for term in rules.anti_affinity if term.required]
        return " or ".join(
            [f"hold nobody with {text}" for text in near]
            + [f"hold somebody with {text}" for text in away]
            + (["are in a domain of a job that wants to be away from this one"] if around.unwelcome(job) else [])
        )


def _term(term: JobTerm) -> str:
    wanted = ", ".join([f"{one.key} {one.op} {' '.join(one.values)}".strip() for one in term.labels])
    return f"{wanted} in their {term.by}"
