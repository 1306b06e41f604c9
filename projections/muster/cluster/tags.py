"""What others must know of the tasks that hold something: whose they are, whom they keep away, which consumables they use.

Kept by `Ledger.hold` and `Ledger.release` for the tasks of *tagged* jobs, those with labels or rules of their own; a plan
that holds and releases is seen here too. Everything follows from what is held, and is made anew by holding it again.
"""

from typing import TYPE_CHECKING, Final

from muster.cluster.rules import domain_of, meets
from muster.events.jobs import JobTerm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from muster.cluster.jobs import Attempt, Job, Task
    from muster.cluster.nodes import Node

WATCHED_MAX: Final = 256
"""So many terms are counted at once; beyond, they are counted anew when somebody asks."""


class Counted:
    """How many tasks that a term is about are held, by domain of its level."""

    __slots__ = ("by_domain", "level", "memo", "term")

    def __init__(self, term: JobTerm) -> None:
        self.term = term
        self.level = term.by
        self.by_domain: dict[str, int] = {}
        self.memo: dict[str, bool] = {}
        """Whether the term is about the jobs with these labels, by their key."""

    def about(self, job: "Job") -> bool:
        """Whether the job's labels meet every requirement of the term."""
        known = self.memo.get(job.tag)
        if known is None:
            if len(self.memo) >= 65_536:
                self.memo.clear()
            labels = job.request.labels
            known = self.memo[job.tag] = all(meets(labels, requirement) for requirement in self.term.labels)
        return known

    def count(self, node: "Node", more: int) -> None:
        """So many more tasks are held on this node; a negative number takes off."""
        domain = domain_of(node.name, node.spec, self.level)
        if domain:
            left = self.by_domain.get(domain, 0) + more
            if left:
                self.by_domain[domain] = left
            else:
                del self.by_domain[domain]


class Tags:
    """Counts over the held tasks of tagged jobs."""

    __slots__ = ("away", "carried", "held", "nodes", "owners", "used", "version", "watched")

    def __init__(self) -> None:
        self.version = 0
        """Goes up when something of a tagged job is bound, freed or waits no more: who waits for that is asked again."""
        self.away = 0
        """The same of jobs that keep others away."""
        self.held = 0
        """Tasks of tagged jobs that hold something."""
        self.watched: dict[JobTerm, Counted] = {}
        """Terms that somebody asked about."""
        self.carried: dict[JobTerm, Counted] = {}
        """Terms of anti-affinity, and where tasks of the jobs are held that ask for them."""
        self.owners: dict[int, dict[str, int]] = {}
        """Rows on which tasks of exclusive jobs are held: how many, by job."""
        self.used: dict[str, int] = {}
        """Licences in use."""
        self.nodes: dict[Attempt, int] = {}
        """How many tasks each attempt holds that uses licences."""

    def stir(self, job: "Job") -> None:
        """Something of a tagged job was bound, freed, told to stop, or waits no more."""
        self.version += 1
        if job.gang.rules is not None and job.gang.rules.anti_affinity:
            self.away += 1

    def hold(self, task: "Task") -> None:
        """The task of a tagged job holds its place from now on."""
        self.held += 1
        self._count(task, 1)
        attempt = task.attempt
        rules = attempt.instance.job.gang.rules
        if rules is None:
            return
        if rules.licences:
            tasks = self.nodes.get(attempt, 0)
            self.nodes[attempt] = tasks + 1
            if not tasks:
                for name, count in rules.licences.items():
                    self.used[name] = self.used.get(name, 0) + count

    def release(self, task: "Task") -> None:
        """The task of a tagged job holds nothing any more."""
        self.held -= 1
        self._count(task, -1)
        attempt = task.attempt
        rules = attempt.instance.job.gang.rules
        if rules is None:
            return
        if rules.licences:
            tasks = self.nodes[attempt] - 1
            if tasks:
                self.nodes[attempt] = tasks
            else:
                del self.nodes[attempt]
                for name, count in rules.licences.items():
                    self.used[name] -= count

    def _count(self, task: "Task", more: int) -> None:
        job, node = task.attempt.instance.job, task.node
        for counted in self.watched.values():
            if counted.about(job):
                counted.count(node, more)
        rules = job.gang.rules
        if rules is None:
            return
        for term in rules.anti_affinity:
            if term.required:
                found = self.carried.get(term)
                if found is None:
                    found = self.carried[term] = Counted(term)
                found.count(node, more)
                if not found.by_domain:
                    del self.carried[term]
        if rules.exclusive:
            owners = self.owners.setdefault(node.row, {})
            owners[job.id] = owners.get(job.id, 0) + more
            if not owners[job.id]:
                del owners[job.id]
            if not owners:
                del self.owners[node.row]

    def watch(self, term: JobTerm, nodes: "Iterable[Node | None]") -> Counted:
        """The counts of this term. The first time, every held task is looked at."""
        found = self.watched.get(term)
        if found is None:
            if len(self.watched) >= WATCHED_MAX:
                self.watched.clear()
            found = self.watched[term] = Counted(term)
            for node in nodes if self.held else ():
                for task in node.tasks if node is not None else ():
                    job = task.attempt.instance.job
                    if job.tagged and found.about(job):
                        found.count(task.node, 1)
        return found

    def moved(self, nodes: "Iterable[Node | None]") -> None:
        """A node with tasks on it stands in other domains now: count anew what is counted by domain."""
        self.watched.clear()
        self.carried.clear()
        self.owners.clear()
        for node in nodes:
            for task in node.tasks if node is not None else ():
                if task.attempt.instance.job.tagged:
                    self._count(task, 1)
