"""Nowhere while the cell has too few of a consumable that the job needs, or somebody who goes before it waits for them."""

from muster.cluster.jobs import Job
from muster.engine.around import Around
from muster.events.jobs import JobRequest


class LicencesFilter:
    """Passes every node or none."""

    code = "licences"

    def asked(self, request: JobRequest) -> str:
        """The field that asks for it, or an empty string."""
        return "licences" if request.constraints and request.constraints.licences else ""

    def passes(self, around: Around, job: Job, among: int) -> int:
        """All of `among`, or nothing."""
        rules = job.gang.rules
        for name, count in rules.licences.items() if rules is not None else ():
            if around.licences_left(name) < count or around.licences_waited_for(name, job):
                return 0
        return among

    def sentence(self, around: Around, job: Job) -> str:
        """What a person is told about the nodes that do not pass."""
        rules = job.gang.rules
        short = []
        for name, count in rules.licences.items() if rules is not None else ():
            left, has = around.licences_left(name), around.state.licences.get(name, 0)
            if left < count:
                short.append(f"too few licences {name} (needs {count}, left {max(0, left)} of {has})")
            elif around.licences_waited_for(name, job):
                short.append(f"licences {name} are kept for somebody who goes before it (needs {count}, left {left} of {has})")
        return "cannot take it: " + " and ".join(short)
