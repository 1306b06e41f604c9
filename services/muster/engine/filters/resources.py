"""Only nodes that would be large enough if nothing were held on them.

What is free now is found by `muster.engine.room` when a place is looked for; this filter keeps the nodes away on which a
task of this shape can never fit.
"""

from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex


class ResourcesFilter:
    """Passes a node that has, in all, what one task needs."""

    code = "too-small"

    def passes(self, index: NodeIndex, shape: Shape, among: int) -> int:
        """The rows of `among` that are large enough."""
        cpu, memory, disk = shape.cpu_milli, shape.memory_mib, shape.disk_mib
        enough = 0
        for (has_cpu, has_memory, has_disk), bits in index.sizes.items():
            if has_cpu >= cpu and has_memory >= memory and has_disk >= disk:
                enough |= bits
        return among & enough

    def sentence(self, shape: Shape) -> str:
        """What a person is told."""
        return f"are too small (a task needs {shape.cpu_milli} milli-CPU, {shape.memory_mib} MiB, {shape.disk_mib} MiB disk)"
