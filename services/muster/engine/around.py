"""What is held around a place: who else is there, whom they keep away, which consumables are left.

Asked by the filters that look at a whole job (`muster.engine.filters.JobFilter`). What is kept for nominated instances
counts as held by them, unless the caller's plan lifted it.
"""

from collections.abc import Iterator

from muster.cluster.jobs import Job
from muster.cluster.rules import domain_of
from muster.cluster.state import Nomination, State
from muster.cluster.tags import Counted
from muster.engine.topology import Topology
from muster.events.jobs import JobTerm


class Around:
    """Questions about what is held, answered as bits of rows."""

    __slots__ = ("_position", "busy", "state", "topology")

    def __init__(self, state: State) -> None:
        self.state = state
        self.topology = Topology(state.ledger)
        self.busy = 0
        """Rows on which something is held."""
        self._position = -1

    @property
    def crowded(self) -> bool:
        """Whether something is held, or kept, that may keep a job away which asks for nothing of the kind."""
        tags = self.state.ledger.tags
        if tags.carried or tags.owners:
            return True
        nominations = self.state.nominations
        return bool(nominations) and any(one.instance.job.gang.rules is not None for one in nominations.values())

    def kept(self) -> Iterator[Nomination]:
        """The nominations of tagged jobs that are not lifted."""
        for nomination in self.state.nominations.values():
            instance = nomination.instance
            if instance.job.tagged and any(instance.key in node.claims for node in nomination.nodes):
                yield nomination

    def busy_rows(self) -> int:
        """Rows on which something is held. Cost: the rows that were touched since."""
        ledger = self.state.ledger
        upto = ledger.touched_upto()
        rows = ledger.touched_since(self._position) if self._position >= 0 else None
        for row in range(len(ledger.nodes)) if rows is None else dict.fromkeys(rows):
            node = ledger.nodes[row]
            if node is not None and node.tasks:
                self.busy |= 1 << row
            else:
                self.busy &= ~(1 << row)
        self._position = upto
        return self.busy

    def holding(self, term: JobTerm, own: Job | None = None, kept: bool = True) -> int:
        """The rows of the domains in which a task of a job is held, or has a place kept, that the term is about."""
        counted = self.state.ledger.tags.watch(term, self.state.ledger.nodes)
        bits = self._rows(counted)
        for nomination in self.kept() if kept else ():
            if counted.about(nomination.instance.job) and nomination.instance.job is not own:
                bits |= self._of(nomination, term.by)
        return bits

    def unwelcome(self, job: Job) -> int:
        """The rows of the domains in which a job is held that wants the likes of this one away."""
        bits = 0
        for counted in self.state.ledger.tags.carried.values():
            if counted.about(job):
                bits |= self._rows(counted)
        for nomination in self.kept():
            rules = nomination.instance.job.gang.rules
            for term in rules.anti_affinity if rules is not None else ():
                if term.required and Counted(term).about(job):
                    bits |= self._of(nomination, term.by)
        return bits

    def closed(self, job: Job) -> int:
        """The rows that exclusive jobs other than this one have for themselves."""
        bits = 0
        for row, owners in self.state.ledger.tags.owners.items():
            if job.id not in owners:
                bits |= 1 << row
        for nomination in self.kept():
            other = nomination.instance.job
            if other.id != job.id and other.gang.rules is not None and other.gang.rules.exclusive:
                bits |= self._of(nomination, "node")
        return bits

    def occupied(self, job: Job) -> int:
        """The rows on which another job holds something, or has something kept."""
        bits = self.busy_rows()
        for row, owners in self.state.ledger.tags.owners.items():
            if job.id in owners:
                bits &= ~(1 << row)  # an exclusive job is alone there
        for nomination in self.state.nominations.values():
            if nomination.instance.job.id != job.id:
                for node in nomination.nodes:
                    if nomination.instance.key in node.claims:
                        bits |= 1 << node.row
        return bits

    def licences_left(self, name: str) -> int:
        """How many of a consumable are neither in use nor kept. What victims still have is kept once."""
        tags = self.state.ledger.tags
        left = self.state.licences.get(name, 0) - tags.used.get(name, 0)
        promised = 0
        returned: dict[tuple[str, int], int] = {}
        for nomination in self.kept():
            rules = nomination.instance.job.gang.rules
            if rules is not None and name in rules.licences:
                promised += rules.licences[name]
                for attempt in nomination.victims:
                    theirs = attempt.instance.job.gang.rules
                    if theirs is not None and attempt in tags.nodes:
                        returned[attempt.instance.key] = theirs.licences.get(name, 0)
        return left - max(0, promised - sum(returned.values()))

    def licences_waited_for(self, name: str, job: Job) -> bool:
        """Whether somebody who goes before this job waits for more of a consumable than is left, and could have them one day."""
        left = self.licences_left(name)
        for waiting in self.state.pending.classes.values():
            rules = waiting.gang.rules
            if rules is None or not waiting.count or waiting.queue != job.queue or waiting.key[-1] is not None:
                continue
            if left < rules.licences.get(name, 0) <= self.state.licences.get(name, 0):
                head = waiting.head()
                if head is not None and (-waiting.priority, head.place[:2]) < (-job.priority, job.place):
                    return True
        return False

    def _rows(self, counted: Counted) -> int:
        self.topology.refresh()
        bits = 0
        for value in counted.by_domain:
            bits |= self.topology.rows(counted.level, value)
        return bits

    def _of(self, nomination: Nomination, level: str) -> int:
        """The rows of the domains in which the places of a nomination stand."""
        self.topology.refresh()
        bits = 0
        for node in nomination.nodes:
            if nomination.instance.key in node.claims:
                bits |= self.topology.rows(level, domain_of(node.name, node.spec, level))
        return bits
