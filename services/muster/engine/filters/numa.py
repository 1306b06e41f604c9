"""Only nodes with a NUMA node that is large enough for one task, where a task wants all it has from one.

Whether that much is free there is asked by `muster.engine.room`, for one task at a time.
"""

from muster.cluster.jobs import Job
from muster.engine.around import Around
from muster.engine.nodeindex import rows_of
from muster.engine.special import numa_large_enough
from muster.events.jobs import JobRequest


class NumaFilter:
    """Passes a node of which, with nothing on it, one NUMA node could hold a task of some group."""

    code = "numa"

    def asked(self, request: JobRequest) -> str:
        """The field that asks for it, or an empty string."""
        return "numa" if any(group.numa for group in request.groups) else ""

    def passes(self, around: Around, job: Job, among: int) -> int:
        """The rows of `among` that have such a NUMA node."""
        shapes = job.gang.shapes
        if not all(shape.numa == "required" for shape in shapes):
            return among
        for row in rows_of(among):
            node = around.state.ledger.node(row)
            if not any(numa_large_enough(node, shape) for shape in shapes):
                among ^= 1 << row
        return among

    def sentence(self, around: Around, job: Job) -> str:
        """What a person is told about the nodes that do not pass."""
        shape = max(job.gang.shapes, key=lambda shape: (shape.gpus, shape.cpu_milli, shape.memory_mib))
        wants = f"{shape.gpus} GPUs, {shape.cpu_milli} milli-CPU and {shape.memory_mib} MiB"
        return f"have no NUMA node that is large enough (a task wants {wants} of one)"
