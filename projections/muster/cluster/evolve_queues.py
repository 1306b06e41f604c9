"""How queues come, change and go, and how what they are charged with is counted anew. Each function folds one kind of entry.

What cannot be said of the tree (`muster.cluster.queuetree.fault`) changes nothing: the recorder refuses it before.
"""

from collections.abc import Callable, Sequence
from typing import Any

from muster.cluster.charging import charge_attempt
from muster.cluster.evolve_jobs import enqueue
from muster.cluster.evolve_reservations import regroup
from muster.cluster.queuetree import Queue, QueueTree, fault, nominated_amounts
from muster.cluster.state import State
from muster.cluster.usage import Usage
from muster.events.base import Event
from muster.events.queues import QueueRemoved, QueueSet


def _queue_set(state: State, event: QueueSet) -> None:
    tree = state.tree
    if fault(tree.said if tree is not None else {}, event):
        return
    if tree is None:
        tree = plant(state)
        keep_history(state)
    known = tree.queues.get(event.queue)
    before = _told_apart(tree, known)
    queue = tree.put(event)
    if tree.usage is not None:
        tree.usage.begin(queue.path)
    after = _told_apart(tree, queue)
    for name, told in after.items():
        if told != before.get(name, False):
            _regroup(state, name)
    if state.reservations.by_queue:
        regroup(state)
    state.wakes += 1


def _queue_removed(state: State, event: QueueRemoved) -> None:
    tree = state.tree
    if tree is None or fault(tree.said, event):
        return
    tree.close(tree.queues[event.queue])
    state.wakes += 1


def keep_history(state: State) -> None:
    """As the policy says, what queues use is kept from now on, or no more."""
    tree, half_life_us = state.tree, state.policy.history_half_life_us
    if tree is None:
        return
    if not isinstance(half_life_us, int):
        tree.usage = None
    elif tree.usage is None:
        tree.usage = Usage(half_life_us, state.at_us)
        tree.usage.begin(tree.queues.values())
    else:
        tree.usage.fade_by(half_life_us)


def plant(state: State, specs: Sequence[tuple[QueueSet, bool]] = ()) -> QueueTree:
    """The tree begins, with these queues, the parents first; the closed ones marked. All is counted from scratch."""
    tree = state.tree = QueueTree()
    state.pending.index()
    state.ledger.planning = 0
    for spec, closed in specs:
        queue = tree.put(spec)
        if closed:
            queue.closed = True
            del tree.said[queue.name]
    for node in state.ledger.nodes:
        if node is not None:
            tree.see(node)
    for job in state.jobs.values():
        if job.open:
            tree.of(job.queue).open += 1
        for instance in job.instances:
            attempt = instance.attempt
            if attempt is not None:
                attempt.charge = None
                if attempt.phase == "stop":
                    tree.stopping[attempt] = None
                elif attempt.held:
                    charge_attempt(tree, attempt)
    for nomination in state.nominations.values():
        charge = nomination.charge = nominated_amounts(nomination)
        job = nomination.instance.job
        tree.charge(tree.of(job.queue), job.user, charge)
    return tree


def _told_apart(tree: QueueTree, queue: Queue | None) -> dict[str, bool]:
    """For the queue and all below it, whether users are told apart there."""
    if queue is None:
        return {}
    found = {queue.name: tree.tells_users(queue)}
    for child in queue.children.values():
        found.update(_told_apart(tree, child))
    return found


def _regroup(state: State, name: str) -> None:
    """Who waits in this queue stands in other classes from now on."""
    waiting = state.pending.queues.get(name)
    if waiting is None:
        return
    instances = [instance for each in list(waiting.classes.values()) for instance in each.places().values()]
    for instance in instances:
        state.pending.discard(instance)
    for instance in instances:
        enqueue(state, instance)


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    QueueSet: _queue_set,
    QueueRemoved: _queue_removed,
}
