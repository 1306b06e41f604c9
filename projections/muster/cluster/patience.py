"""For how long attempts put up with the taints of their nodes: a toleration may have an end."""

from muster.cluster.jobs import Attempt
from muster.cluster.nodes import Node
from muster.cluster.state import State


def note_taints(state: State, attempt: Attempt, node: Node) -> None:
    """Until when the tasks of the attempt put up with the taints of this node, from when both are there."""
    before = attempt.evictions or {}
    due = {taint: due_us for taint, due_us in before.items() if taint[0] != node.row}
    for task in attempt.tasks.values():
        for taint in node.spec.taints if task.holding and task.node is node and attempt.phase != "stop" else ():
            span_us = task.shape.tolerated_us(taint)
            if span_us is not None:
                key = (node.row, taint.key, taint.value)
                until_us = before.get(key, state.at_us + span_us)
                due[key] = min(due.get(key, until_us), until_us)
    attempt.evictions = due or None
    set_eviction(state, attempt)


def set_eviction(state: State, attempt: Attempt) -> None:
    """When the first taint has been put up with for long enough."""
    if attempt.evictions:
        state.timers.evict.set(attempt.instance, min(attempt.evictions.values()))
    else:
        state.timers.evict.cancel(attempt.instance)
