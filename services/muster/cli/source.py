"""Where reading commands read: from the gateway, or with `--log` straight from a log, which shows the same."""

from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.find import find_job, find_state
from muster.cli.gateway_client import Gateway
from muster.cli.output import Failure
from muster.gateway import reserved, shown

if TYPE_CHECKING:
    from muster.engine.eta import Eta
    from muster.engine.explain import Explanation
    from muster.engine.whynot import WhyNot

At = Annotated[int, typer.Option("--at", metavar="N", help="As it was after this cycle; 0 is the newest.", min=0)]
Log = Annotated[
    str | None,
    typer.Option("--log", metavar="LOG", help="Read this log (or kafka://HOST:PORT), and not the gateway.", show_default=False),
]
LIMIT = 2**53


class LogSource:
    """A log as of one cycle; answers as a gateway does."""

    def __init__(self, log: str, cycle: int, cell: str | None) -> None:
        self.state = find_state(log, cycle, cell)

    def __enter__(self) -> "LogSource":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cell(self) -> shown.CellShown:
        """Where the cell stood."""
        return shown.cell_shown(self.state, "")

    def jobs(self, at: int = 0, **filters: str) -> shown.JobList:
        """Every job that fits `state`, `user`, `queue` and `name`, where these are not empty."""
        wanted = {name: value for name, value in filters.items() if value}
        everything = shown.job_list(self.state, lambda _: True, LIMIT)
        rows = [row for row in everything.jobs if all(getattr(row, name) == value for name, value in wanted.items())]
        return shown.JobList(cycle=everything.cycle, at_us=everything.at_us, jobs=tuple(rows), more=False)

    def find(self, text: str, at: int = 0) -> str:
        """The id of the job meant."""
        return find_job(self.state, text).id

    def job(self, job: str, at: int = 0) -> shown.JobShown:
        """One job, by its id."""
        return shown.job_shown(self.state, find_job(self.state, job))

    def nodes(self, at: int = 0) -> shown.NodeList:
        """All nodes."""
        return shown.node_list(self.state)

    def queues(self, at: int = 0) -> shown.QueueList:
        """All queues."""
        return shown.queue_list(self.state)

    def reservations(self, at: int = 0) -> reserved.ReservationList:
        """All reservations that are not over."""
        return reserved.reservation_list(self.state)

    def node(self, name: str, at: int = 0) -> shown.NodeShown:
        """One node."""
        found = self.state.node(name)
        if found is None:
            raise Failure(f"there is no node {name!r} at cycle {self.state.number}")
        return shown.node_shown(self.state, found, lambda _: True)

    def explain(self, job: str, instance: int = 0, at: int = 0) -> "Explanation":
        """Why it waits, or where it is."""
        from muster.engine.explain import explain as explain_job  # it loads NumPy, which no other command needs

        found = find_job(self.state, job)
        if not 0 <= instance < len(found.instances):
            raise Failure(f"{found.name} has the instances 0 to {len(found.instances) - 1}, not {instance}")
        return explain_job(self.state, found.id, instance, advise=True)

    def why_not(self, job: str, node: str, instance: int = 0, at: int = 0) -> "WhyNot":
        """What keeps it off this node."""
        from muster.engine.whynot import why_not  # it loads NumPy, which no other command needs

        found = find_job(self.state, job)
        if not 0 <= instance < len(found.instances):
            raise Failure(f"{found.name} has the instances 0 to {len(found.instances) - 1}, not {instance}")
        if self.state.node(node) is None:
            raise Failure(f"there is no node {node!r} at cycle {self.state.number}")
        return why_not(self.state, found.id, node, instance)

    def eta(self, job: str, instance: int = 0, at: int = 0) -> "Eta":
        """When it is to start."""
        from muster.engine.eta import eta  # it loads NumPy, which no other command needs

        found = find_job(self.state, job)
        if not 0 <= instance < len(found.instances):
            raise Failure(f"{found.name} has the instances 0 to {len(found.instances) - 1}, not {instance}")
        return eta(self.state, found.id, instance)


def open_source(gateway: str, log: str | None, at: int, cell: str | None = None) -> Gateway | LogSource:
    """The log where one is named, else the gateway."""
    return Gateway(gateway) if log is None else LogSource(log, at, cell)
