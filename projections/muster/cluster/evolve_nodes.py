"""How nodes and devices change, and what that means for the tasks on them. Each function folds one kind of entry."""

import heapq
from collections.abc import Callable
from typing import Any, Final

from muster.cluster.charging import charge_attempt
from muster.cluster.check import broken, check
from muster.cluster.disruption import note_drain
from muster.cluster.evolve_tasks import fault_of, release
from muster.cluster.jobs import Attempt, Fault, Task
from muster.cluster.nodes import Device, Node
from muster.cluster.patience import note_taints
from muster.cluster.queuetree import nominated_amounts
from muster.cluster.rules import LEVELS, domain_of
from muster.cluster.state import Nomination, State
from muster.events.base import Event
from muster.events.decisions import NodeLost, NodeQuarantined, NodeReleased, NodeReturned, NodeSilent
from muster.events.nodes import DeviceHealthChanged, ForeignUseChanged, NodeRegistered, NodeRemoved, NodesHeard
from muster.events.operations import NodeCordoned, NodeDrained, NodeFenced, NodeUncordoned

LIVES_MAX: Final = 16
"""So many earlier lives are known of a name."""
NAMES_MAX: Final = 20_000
"""Of so many names; whose last life ended longest ago is forgotten first."""


def _node_registered(state: State, event: NodeRegistered) -> None:
    node = state.node(event.node)
    if node is not None and node.uid == event.uid:
        _update(state, node, event)
        return
    if node is not None:
        _remove(state, node)
    free = state.ledger.free_rows
    row = heapq.heappop(free) if free else len(state.ledger.nodes)
    node = Node(row, event.node, event.uid, event.boot, event.spec, state.at_us)
    node.boots = event.boots
    state.ledger.add(node)
    _see(state, node)
    state.plans.move([row])


def _update(state: State, node: Node, event: NodeRegistered) -> None:
    """A known node has this now. Devices keep their indexes by uuid."""
    if event.boot != node.boot:
        _retire(state, node)
        node.boot = event.boot
        node.boots = event.boots
        node.fenced = False
        lose_tasks(state, node, "node-rebooted")
    charged = _uncharge(state, node) if state.tree is not None else []
    moved = any(domain_of("", node.spec, level) != domain_of("", event.spec, level) for level in LEVELS)
    node.spec = event.spec
    if moved:
        state.ledger.tags.moved(state.ledger.nodes)
    node.heard_us = state.at_us
    set_timer(state, node)
    known = {device.uuid: device for device in node.devices}
    for device in node.devices:
        device.present = False
    for spec in event.spec.devices:
        old = known.get(spec.uuid)
        if old is None:
            node.devices.append(Device(spec))
        else:
            old.describe(spec)
            old.present = True
    for about in charged:
        _charge(state, about)
    for task in in_order(node):
        if any(not node.devices[index].present or node.devices[index].health == "failed" for index in task.devices):
            fault_of(state, task, Fault("device-failed", 0, node.name, lost=True))
        elif any(taint.effect == "NoExecute" and not task.shape.tolerates(taint) for taint in event.spec.taints):
            fault_of(state, task, Fault("taint", 0, node.name, lost=True))
        elif task.shape.patient:
            note_taints(state, task.attempt, node)
    set_timer(state, node)
    _altered(state, node)


def _node_removed(state: State, event: NodeRemoved) -> None:
    node = state.node(event.node)
    if node is not None and node.uid == event.uid:
        _remove(state, node)


def _remove(state: State, node: Node) -> None:
    _retire(state, node)
    lose_tasks(state, node, "node-removed")
    state.ledger.remove(node)
    if state.tree is not None:
        state.tree.unsee(node)
        state.wakes += 1
    state.plans.move([node.row])
    heapq.heappush(state.ledger.free_rows, node.row)
    state.missing.pop(node.row, None)
    state.back.pop(node.row, None)
    state.timers.node.cancel(node)
    for key in sorted(node.claims):
        state.todo[state.nominations[key].instance] = None


def _retire(state: State, node: Node) -> None:
    """This life of the node is over for good."""
    lives = (*state.retired.pop(node.name, ())[1 - LIVES_MAX :], (node.uid, node.boot))
    state.retired[node.name] = lives
    if len(state.retired) > NAMES_MAX:
        del state.retired[next(iter(state.retired))]


def in_order(node: Node) -> list[Task]:
    """The tasks on a node, in an order that does not depend on how the state came about."""
    return sorted(node.tasks, key=lambda task: (task.attempt.instance.place, task.rank))


def lose_tasks(state: State, node: Node, reason: str) -> None:
    """Whatever ran here has ended."""
    for task in in_order(node):
        release(state, task, "lost")
        fault_of(state, task, Fault(reason, 0, node.name, lost=True))


def _altered(state: State, node: Node) -> None:
    """What decides whether new work may come here has changed."""
    state.ledger.recount(node)
    state.ledger.alter(node.row)
    _see(state, node)
    state.plans.move([node.row])
    for key in sorted(node.claims):
        nomination = state.nominations[key]
        if broken_place(nomination):
            state.todo[nomination.instance] = None
        elif not nomination.instance.cancelling:
            state.todo.pop(nomination.instance, None)


def _see(state: State, node: Node) -> None:
    """What there is may have changed, and with it what queues are promised."""
    if state.tree is not None and state.tree.see(node):
        state.wakes += 1


def _uncharge(state: State, node: Node) -> list[Attempt | Nomination]:
    """What is charged for places on a node whose devices are about to change; nothing is, for a moment."""
    tree = state.tree
    assert tree is not None
    about: list[Attempt | Nomination] = [*dict.fromkeys([task.attempt for task in in_order(node)])]
    about += [state.nominations[key] for key in sorted(node.claims)]
    found = [each for each in about if each.charge is not None]
    for each in found:
        job = each.instance.job
        assert each.charge is not None
        tree.release(tree.of(job.queue), job.user, each.charge)
    return found


def _charge(state: State, about: Attempt | Nomination) -> None:
    tree = state.tree
    assert tree is not None
    if isinstance(about, Nomination):
        charge = about.charge = nominated_amounts(about)
        tree.charge(tree.of(about.instance.job.queue), about.instance.job.user, charge)
    else:
        charge_attempt(tree, about)


def broken_place(nomination: Nomination) -> str:
    """Why the places of a nomination cannot be had any more: `node-lost`, `infeasible`, or empty if they can."""
    for node in nomination.nodes:
        if node.liveness != "heard" or node.fenced:
            return "node-lost"
        if not node.open:
            return "infeasible"
    for placement in nomination.placements:
        for node in nomination.nodes:
            if node.row == placement.row and any(not node.devices[index].usable for index in placement.devices):
                return "infeasible"
    return ""


# Being heard


def _nodes_heard(state: State, event: NodesHeard) -> None:
    ledger = state.ledger
    before = state.missing
    unread = dict.fromkeys(event.unread)
    missing: dict[int, None] = {}
    for row in event.missing:
        node = _at(state, row)
        if node is not None:
            missing[row] = None
            if row not in before:
                node.heard_us = max(node.heard_us, state.beat_us)
    for row in event.unread:
        node = _at(state, row)
        if node is not None and row in before:
            node.heard_us = state.at_us
            missing[row] = None
    state.missing = missing
    state.beat_us = state.at_us
    for row in missing:
        if row not in before or row in unread:
            set_timer(state, ledger.node(row))
    for row in before:
        if row not in missing:
            node = ledger.node(row)
            node.heard_us = state.at_us
            set_timer(state, node)
            if node.liveness != "heard":
                state.back[row] = None


def _at(state: State, row: int) -> Node | None:
    nodes = state.ledger.nodes
    return nodes[row] if row < len(nodes) else None


def set_timer(state: State, node: Node) -> None:
    """When the node next needs a decision although nothing is said about it."""
    due = []
    policy = state.policy
    if node.row in state.missing:
        if node.liveness == "heard":
            due.append(node.heard_us + policy.silent_after_us)
        elif node.liveness == "silent":
            due.append(lost_at_us(state, node))
    if node.quarantined_until_us:
        due.append(node.quarantined_until_us)
    if due:
        state.timers.node.set(node, min(due))
    else:
        state.timers.node.cancel(node)


def lost_at_us(state: State, node: Node) -> int:
    """When a node that stays missing is lost: no task on it can be alive then, by the leases of their supervisors."""
    return max(node.heard_us + state.policy.lease_us + state.policy.margin_us, state.lease_until_us)


def _named(state: State, event: NodeSilent | NodeReturned | NodeLost | NodeQuarantined | NodeReleased) -> Node:
    node = _at(state, event.row)
    if node is None or node.name != event.node:
        broken(f"{type(event).__name__} names node {event.node} in row {event.row}, which is not there")
    return node


def _node_silent(state: State, event: NodeSilent) -> None:
    node = _named(state, event)
    check(node.liveness == "heard", f"NodeSilent {node.name}: it is {node.liveness}")
    node.liveness = "silent"
    window = state.at_us - state.policy.flap_window_us
    node.silences = [*[at_us for at_us in node.silences if at_us > window][-1000:], state.at_us]
    set_timer(state, node)
    _altered(state, node)


def _node_returned(state: State, event: NodeReturned) -> None:
    node = _named(state, event)
    check(node.liveness != "heard", f"NodeReturned {node.name}: it was heard all the time")
    node.liveness = "heard"
    state.back.pop(node.row, None)
    set_timer(state, node)
    _altered(state, node)


def _node_lost(state: State, event: NodeLost) -> None:
    node = _named(state, event)
    check(node.liveness == "silent", f"NodeLost {node.name}: it is {node.liveness}")
    node.liveness = "lost"
    set_timer(state, node)
    lose_tasks(state, node, "node-lost")
    _altered(state, node)


def _node_quarantined(state: State, event: NodeQuarantined) -> None:
    node = _named(state, event)
    node.quarantined_until_us = event.until_us
    set_timer(state, node)
    _altered(state, node)


def _node_released(state: State, event: NodeReleased) -> None:
    node = _named(state, event)
    node.quarantined_until_us = 0
    node.silences = []
    set_timer(state, node)
    _altered(state, node)


# What is said of a node from outside


def _node_cordoned(state: State, event: NodeCordoned) -> None:
    node = state.node(event.node)
    if node is not None and not node.cordoned:
        node.cordoned = True
        _altered(state, node)


def _node_uncordoned(state: State, event: NodeUncordoned) -> None:
    node = state.node(event.node)
    if node is not None and not node.open:
        node.cordoned = node.drained = node.fenced = False
        node.quarantined_until_us = 0
        node.silences = []
        for attempt in dict.fromkeys([task.attempt for task in node.tasks]) if state.draining else ():
            note_drain(state, attempt)
        set_timer(state, node)
        _altered(state, node)


def _node_drained(state: State, event: NodeDrained) -> None:
    node = state.node(event.node)
    if node is None:
        return
    node.drained = True
    for task in in_order(node):
        if task.attempt.phase == "run" and task.attempt.instance.job.budgeted:
            note_drain(state, task.attempt)
        else:
            fault_of(state, task, Fault("drained", 0, node.name, lost=True))
    _altered(state, node)


def _node_fenced(state: State, event: NodeFenced) -> None:
    node = state.node(event.node)
    if node is not None:
        node.fenced = True
        lose_tasks(state, node, "node-lost")
        _altered(state, node)


def _device_health_changed(state: State, event: DeviceHealthChanged) -> None:
    node = state.node(event.node)
    if node is None or node.uid != event.uid:
        return
    for index, device in enumerate(node.devices):
        if device.uuid == event.device and device.health != event.health:
            device.health = event.health
            if event.health == "failed":
                for task in in_order(node):
                    if index in task.devices:
                        fault_of(state, task, Fault("device-failed", 0, node.name, lost=True))
            _altered(state, node)


def _foreign_use_changed(state: State, event: ForeignUseChanged) -> None:
    node = state.node(event.node)
    if node is None or node.uid != event.uid:
        return
    node.foreign_cpu = event.cpu_milli
    node.foreign_memory = event.memory_mib
    for device in node.devices:
        device.foreign = device.uuid in event.devices
    _altered(state, node)


HANDLERS: dict[type[Event], Callable[[State, Any], None]] = {
    NodeRegistered: _node_registered,
    NodeRemoved: _node_removed,
    NodesHeard: _nodes_heard,
    NodeSilent: _node_silent,
    NodeReturned: _node_returned,
    NodeLost: _node_lost,
    NodeQuarantined: _node_quarantined,
    NodeReleased: _node_released,
    NodeCordoned: _node_cordoned,
    NodeUncordoned: _node_uncordoned,
    NodeDrained: _node_drained,
    NodeFenced: _node_fenced,
    DeviceHealthChanged: _device_health_changed,
    ForeignUseChanged: _foreign_use_changed,
}
