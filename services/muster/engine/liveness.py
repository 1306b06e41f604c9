"""Which nodes are silent, lost, back, or flapping: deadlines come due, and nodes that were heard again."""

from muster.cluster.evolve_nodes import lost_at_us
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.decisions import NodeLost, NodeQuarantined, NodeReleased, NodeReturned, NodeSilent


def due(state: State, node: Node) -> Event | None:
    """What the node's timer, which is due, is about."""
    now = state.at_us
    if node.quarantined_until_us and node.quarantined_until_us <= now:
        return NodeReleased(node=node.name, row=node.row)
    if node.row in state.missing:
        if node.liveness == "heard" and node.heard_us + state.policy.silent_after_us <= now:
            return NodeSilent(node=node.name, row=node.row)
        if node.liveness == "silent" and lost_at_us(state, node) <= now:
            return NodeLost(node=node.name, row=node.row)
    return None


def returned(state: State, node: Node) -> list[Event]:
    """What follows from being heard again. A node that flaps is put into quarantine."""
    decisions: list[Event] = [NodeReturned(node=node.name, row=node.row)]
    policy = state.policy
    since = state.at_us - policy.flap_window_us
    recent = [at_us for at_us in node.silences if at_us > since]
    if policy.flap_limit and len(recent) >= policy.flap_limit and not node.quarantined_until_us:
        decisions.append(NodeQuarantined(node=node.name, row=node.row, until_us=state.at_us + policy.quarantine_us))
    return decisions
