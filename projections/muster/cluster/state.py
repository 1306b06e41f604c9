"""The state of a cell: what the log says, up to one cycle.

Everything here follows from the admitted cycles, by `muster.cluster.evolve`. Indexes (`ledger`'s bits, `pending`,
`timers`, `todo`) can be made anew from the rest.
"""

from muster.cluster.jobs import Attempt, Instance, Job, Task
from muster.cluster.ledger import Ledger
from muster.cluster.nodes import Node
from muster.cluster.plans import Plans
from muster.cluster.queues import PendingQueue
from muster.cluster.queuetree import QueueTree
from muster.cluster.reservations import Reservations
from muster.cluster.timers import Timers
from muster.events.catalogue import DeviceModel
from muster.events.decisions import Placement
from muster.events.operations import Policy

InstanceKey = tuple[str, int]


class Nomination:
    """Places that are kept for an instance until its victims are gone."""

    __slots__ = ("at_us", "charge", "instance", "members", "nodes", "placements", "until_us", "victims")

    def __init__(
        self,
        instance: Instance,
        placements: tuple[Placement, ...],
        victims: list[Attempt],
        at_us: int,
        until_us: int,
        members: list[Task] | None = None,
    ) -> None:
        self.instance = instance
        self.placements = placements
        self.victims = victims
        self.at_us = at_us
        self.until_us = until_us
        self.members: list[Task] = members or []
        """Members of elastic attempts that are to be gone, while these go on."""
        self.nodes: list[Node] = []
        """The nodes on which it has a claim."""
        self.charge: dict[str, int] | None = None
        """What its queue is charged with for it; None where there is no tree."""


class State:
    """One cell, as of cycle `number`."""

    __slots__ = (
        "arrived",
        "at_us",
        "back",
        "beat_us",
        "catalogue",
        "cell",
        "dated",
        "deferred",
        "degraded",
        "dependents",
        "draining",
        "hopeless",
        "index",
        "jobs",
        "lease_until_us",
        "ledger",
        "licences",
        "missing",
        "more",
        "nominations",
        "number",
        "pending",
        "pending_total",
        "plans",
        "policy",
        "positions",
        "reservations",
        "retired",
        "running_elastic",
        "shrinking",
        "stirred",
        "stopping",
        "term",
        "timers",
        "todo",
        "tree",
        "wakes",
        "yielding",
    )

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.number = 0
        self.term = 0
        self.at_us = 0
        self.index = 0
        """How many inputs of the cycle have been folded: with `number`, the place of the next one."""
        self.policy = Policy()
        self.positions: dict[str, int] = {}
        self.lease_until_us = 0
        self.beat_us = 0
        """When the last beat was."""
        self.jobs: dict[str, Job] = {}
        self.ledger = Ledger()
        self.catalogue: tuple[DeviceModel, ...] = ()
        """What models of GPU can do, for jobs that ask for that."""
        self.licences: dict[str, int] = {}
        """How many of each consumable the cell has."""
        self.retired: dict[str, tuple[tuple[str, str], ...]] = {}
        """Earlier lives, uid and boot, of the nodes of a name: what still comes from one is late, however late. Oldest first."""
        self.missing: dict[int, None] = {}
        """Rows that were not heard at the last beat."""
        self.nominations: dict[InstanceKey, Nomination] = {}
        self.plans = Plans()
        """What is planned for those who do not fit."""
        self.reservations = Reservations()
        """What is reserved and not over."""
        self.deferred: dict[tuple[str, str], str] = {}
        """The reason last recorded for a shape (a gang's key, digested) of a queue that waits."""
        self.more = False
        """The last pass stopped because the cycle was full."""
        self.tree: QueueTree | None = None
        """The tree of queues, once there is one."""
        self.arrived: list[Job] = []
        """Jobs submitted in this cycle: the gate looks at each once."""
        # Indexes, made anew by `muster.cluster.snapshot.reindex`:
        self.pending = PendingQueue()
        self.pending_total = 0
        """Pending instances, those backing off too."""
        self.timers = Timers()
        self.todo: dict[Instance, None] = {}
        """Instances about which something is to be decided now."""
        self.back: dict[int, None] = {}
        """Rows heard again and not yet said to have returned."""
        self.degraded: dict[InstanceKey, None] = {}
        """Running instances that lost a member and wait for another."""
        self.dependents: dict[str, dict[str, None]] = {}
        """By job, which other jobs wait for something to come of it."""
        self.hopeless: dict[Job, None] = {}
        """Jobs that wait for what can never be."""
        self.stirred: dict[Job, None] = {}
        """Services about which something may have to be decided."""
        self.stopping = 0
        """How many attempts were told to stop and have not ended, or have members that were told to go and did not yet."""
        self.shrinking: dict[Attempt, None] = {}
        """Attempts that have such members."""
        self.running_elastic: dict[InstanceKey, None] = {}
        """Elastic instances that run and were not told to stop."""
        self.dated: dict[Job, None] = {}
        """The jobs with a deadline, those that are over too."""
        self.draining: dict[Attempt, None] = {}
        """Running attempts with a budget on nodes that are drained: they leave when it allows."""
        self.yielding: dict[Attempt, None] = {}
        """Attempts that are owed nothing, not told to stop: those of best-effort jobs."""
        self.wakes = 0
        """Counts what may let a waiting job start although nothing was freed: caches that stood before it are stale."""

    @property
    def nodes(self) -> list[Node | None]:
        """The nodes by row."""
        return self.ledger.nodes

    @property
    def node_rows(self) -> dict[str, int]:
        """Rows by name."""
        return self.ledger.rows

    def node(self, name: str) -> Node | None:
        """The node of this name, if it is there."""
        row = self.ledger.rows.get(name)
        return None if row is None else self.ledger.nodes[row]

    def instance(self, job: str, index: int) -> Instance | None:
        """The instance, if the state knows it."""
        found = self.jobs.get(job)
        if found is None or index >= len(found.instances):
            return None
        return found.instances[index]

    def attempt(self, job: str, index: int, number: int) -> Attempt | None:
        """The attempt, if it is the current one of its instance."""
        instance = self.instance(job, index)
        if instance is None or instance.attempt is None or instance.attempt.number != number:
            return None
        return instance.attempt
