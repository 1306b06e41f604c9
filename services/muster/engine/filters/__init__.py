"""Which nodes a task may go to: one filter a file, in the order of the policy.

There are two sorts. A *filter* says which of some rows pass for a shape, as bits. It reads what is fixed about a node and
never what is held; what is held is the business of `muster.engine.room`. The engine keeps the result per shape and asks
again only about rows that were altered. A filter *of jobs* is about a field that few jobs have: it may read what is held
(`muster.engine.around`), and is asked each time.

A new filter is a file here with one class, and its line in `FILTERS` or `JOB_FILTERS`. A job that asks for what no filter of
the policy looks at is rejected.
"""

from typing import Protocol

from muster.cluster.jobs import Job
from muster.cluster.shapes import Shape
from muster.engine.around import Around
from muster.engine.filters.affinity import AffinityFilter
from muster.engine.filters.exclusive import ExclusiveFilter
from muster.engine.filters.licences import LicencesFilter
from muster.engine.filters.model import ModelFilter
from muster.engine.filters.numa import NumaFilter
from muster.engine.filters.ports import PortsFilter
from muster.engine.filters.ready import ReadyFilter
from muster.engine.filters.resources import ResourcesFilter
from muster.engine.filters.selector import SelectorFilter
from muster.engine.filters.taints import TaintsFilter
from muster.engine.filters.topology import TopologyFilter
from muster.engine.nodeindex import NodeIndex
from muster.events.jobs import JobRequest


class Filter(Protocol):
    """A reason not to put a task on a node."""

    code: str
    """The reason, in one word of the log."""

    def passes(self, index: NodeIndex, shape: Shape, among: int) -> int:
        """The rows of `among` that pass, as bits."""
        ...

    def sentence(self, shape: Shape) -> str:
        """What a person is told about the nodes that do not pass."""
        ...


class JobFilter(Protocol):
    """A reason not to put a job on a node, of which most jobs know nothing."""

    code: str

    def asked(self, request: JobRequest) -> str:
        """The field of the request that asks for this filter, or an empty string."""
        ...

    def passes(self, around: Around, job: Job, among: int) -> int:
        """The rows of `among` that pass, as bits."""
        ...

    def sentence(self, around: Around, job: Job) -> str:
        """What a person is told about the nodes that do not pass."""
        ...


FILTERS: dict[str, Filter] = {
    "ready": ReadyFilter(),
    "taints": TaintsFilter(),
    "selector": SelectorFilter(),
    "model": ModelFilter(),
    "resources": ResourcesFilter(),
}
"""By the name that a policy gives them."""

JOB_FILTERS: dict[str, JobFilter] = {
    "topology": TopologyFilter(),
    "affinity": AffinityFilter(),
    "exclusive": ExclusiveFilter(),
    "licences": LicencesFilter(),
    "ports": PortsFilter(),
    "numa": NumaFilter(),
}
"""By name, the order in which they are asked."""
