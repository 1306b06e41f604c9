"""Best-effort jobs in a pass: who is told to stop for others first, and the turns of those who wait, after everybody else's.

Where queues stand in a tree, best-effort jobs have no turn in it: nothing is charged to their queues. When nobody else is left
to ask they are asked by priority and place, of whatever queue. Without a tree they stand in the order of all others, below
them.
"""

import heapq
from collections.abc import Iterable

from muster.cluster import plans
from muster.cluster.jobs import Attempt, Instance, Job
from muster.cluster.plans import standing
from muster.cluster.queues import PendingClass
from muster.cluster.queuetree import Charge, QueueTree, task_amounts
from muster.cluster.state import State
from muster.engine.reclaim import Grounds
from muster.engine.yielding import those_for

Turn = tuple[int, int, plans.Where, int, PendingClass, Instance]


class MakingWay(Grounds):
    """Grounds on which only those are victims who make way for the job by what they are."""

    __slots__ = ()

    def __init__(self, state: State, job: Job, victims: dict[Attempt, None]) -> None:
        self._state = state
        self._job = job
        self._base = {}
        self._crossing = {}
        self._stopping = state.tree.stopping if state.tree is not None else _stopping(state)
        self.victims = victims


def making_way(state: State, job: Job) -> MakingWay | None:
    """Those who make way for the job, or None where there is nobody."""
    victims = those_for(state, job) if state.yielding else {}
    return MakingWay(state, job, victims) if victims else None


def _stopping(state: State) -> dict[Attempt, None]:
    """Who was told to stop and holds something still."""
    if not state.stopping:
        return {}
    tasks = [task for node in state.ledger.nodes if node is not None for task in node.tasks]
    return {task.attempt: None for task in tasks if task.attempt.phase == "stop"}


def turns(state: State, classes: Iterable[PendingClass]) -> list[Turn]:
    """The first of each class, as a heap in the order in which they are asked."""
    found: list[Turn] = []
    for number, waiting in enumerate(classes):
        head = waiting.head()
        if head is not None:
            found.append(turn(state, number, waiting, head))
    heapq.heapify(found)
    return found


def turn(state: State, number: int, waiting: PendingClass, head: Instance) -> Turn:
    """When the first of a class is asked."""
    return -standing(state.policy, head.job, state.at_us), waiting.turn, plans.where_of(state.policy, head), number, waiting, head


def held(state: State, tree: QueueTree) -> dict[str, Charge]:
    """What best-effort jobs hold, stopping or not, by queue, each with all below it: their own measure."""
    found: dict[str, Charge] = {}
    for attempt in (*state.yielding, *tree.stopping):
        job = attempt.instance.job
        if not job.spare:
            continue
        for task in attempt.tasks.values():
            if task.holding:
                for queue in tree.of(job.queue).path:
                    total = found.setdefault(queue.name, {})
                    for what, amount in task_amounts(task.shape, task.node, task.devices).items():
                        total[what] = total.get(what, 0) + amount
    return found
