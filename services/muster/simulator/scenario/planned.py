"""What must hold of planned starts after every cycle of any scene: nobody who ranks below delays one.

Counted from the tasks, the requests and the plans as they stand, not from the engine's own structures.
"""

from muster.cluster.jobs import Attempt, Instance
from muster.cluster.nodes import Node
from muster.cluster.plans import PlannedStart, standing, where_of
from muster.cluster.state import State
from muster.events.decisions import InstanceBound, Placement
from muster.events.record import Cycle

NEVER = 2**62


def delayed(state: State, cycle: Cycle) -> tuple[Instance, Instance] | None:
    """Who was bound in this cycle on what somebody above is planned for, beyond his start: the one and the other."""
    for event in cycle.decisions:
        instance = state.instance(event.job, event.instance) if isinstance(event, InstanceBound) else None
        attempt = instance.attempt if instance is not None else None
        if instance is None or attempt is None or not attempt.held:
            continue
        for plan in state.plans.by_key.values():
            if plan.at_us < state.at_us and _above(state, plan.instance, instance) and _lacks(state, plan, None):
                if not _lacks(state, plan, attempt):
                    return instance, plan.instance
    return None


def _above(state: State, one: Instance, other: Instance) -> bool:
    mine, theirs = (standing(state.policy, each.job, state.at_us) for each in (one, other))
    order = [(-rank, each.job.turn, where_of(state.policy, each)) for rank, each in ((mine, one), (theirs, other))]
    return order[0] < order[1]


def _lacks(state: State, plan: PlannedStart, without: Attempt | None) -> bool:
    """Whether something of the plan's places is held at its start by others than who is overdue."""
    start_us = max(plan.start_us, state.at_us)
    for row in dict.fromkeys([place.row for place in plan.placements]):
        node = state.ledger.nodes[row]
        if node is None:
            return False
        places = [place for place in plan.placements if place.row == row]
        amounts = [node.spec.cpu_milli - node.foreign_cpu, node.spec.memory_mib - node.foreign_memory, node.spec.disk_mib]
        free = [*amounts, node.spec.tasks_max, *[device.units for device in node.devices]]
        for task in node.tasks:
            end_us = _end_us(state, task.attempt)
            if task.attempt is not without and end_us > start_us:
                _take(free, node, task.attempt.instance, Placement(task.rank, row, task.devices))
        for place in places:
            _take(free, node, plan.instance, place)
        if min(free) < 0:
            return True
    return False


def _end_us(state: State, attempt: Attempt) -> int:
    request, margin_us = attempt.instance.job.request, state.policy.kill_margin_us
    if attempt.phase == "stop":
        return attempt.kill_at_us + margin_us
    if request.time_limit_us is None:
        return NEVER
    return (attempt.started_us or attempt.bound_us) + request.time_limit_us + request.grace_us + margin_us


def _take(free: list[int], node: Node, instance: Instance, place: Placement) -> None:
    group = instance.job.request.groups[instance.job.gang.group_of(place.rank)]
    for at, amount in enumerate((group.cpu_milli, group.memory_mib, group.disk_mib, 1)):
        free[at] -= amount
    for index in place.devices:
        device = node.devices[index]
        part = group.gpu_milli * device.memory_mib if group.gpu_milli else 1000 * group.gpu_memory_mib
        free[4 + index] -= device.units if group.gpus else part
