"""Only nodes on which the ports that a task wants are taken by nobody.

Which ports are taken depends on what is held, so that `muster.engine.room` asks, for one task at a time; here stands what
a policy names and a person is told.
"""

from muster.cluster.jobs import Job
from muster.engine.around import Around
from muster.engine.nodeindex import rows_of
from muster.engine.special import ports_free
from muster.events.jobs import JobRequest


class PortsFilter:
    """Passes a node that has the ports of one group free at least."""

    code = "ports"

    def asked(self, request: JobRequest) -> str:
        """The field that asks for it, or an empty string."""
        return "ports" if any(group.ports for group in request.groups) else ""

    def passes(self, around: Around, job: Job, among: int) -> int:
        """The rows of `among` on which one task of some group could have its ports."""
        shapes = job.gang.shapes
        if not all(shape.ports for shape in shapes):
            return among
        for row in rows_of(among):
            node = around.state.ledger.node(row)
            if not any(ports_free(node, shape) for shape in shapes):
                among ^= 1 << row
        return among

    def sentence(self, around: Around, job: Job) -> str:
        """What a person is told about the nodes that do not pass."""
        ports = dict.fromkeys([port for shape in job.gang.shapes for port in shape.ports])
        return f"have the port {' or '.join(map(str, ports))} taken"
