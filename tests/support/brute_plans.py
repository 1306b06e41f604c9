"""A brute-force planner for tiny clusters: every instant at which anything changes is tried, and every placement at it.

What is free from an instant on for ever is counted anew for each instant, from the tasks, their requests and the plans.
"""

from collections.abc import Sequence

from muster.cluster.jobs import Attempt, Instance
from muster.cluster.nodes import Node
from muster.cluster.plans import PlannedStart
from muster.cluster.state import State
from muster.events.jobs import GroupRequest
from tests.support.brute import Room, _open, _part, _place, group_of

NEVER = 2**62

Holding = tuple[int, int, Node, GroupRequest, tuple[int, ...]]
"""From when, until when, where, what and which devices."""


def earliest(state: State, instance: Instance, before: Sequence[PlannedStart], resolution_us: int, horizon_us: int) -> int | None:
    """When the instance could start at the earliest: never in a gap before a plan; None if not within the horizon."""
    held = holdings(state, before)
    instants = sorted({state.at_us, *[end_us for _, end_us, *_ in held if end_us < NEVER]})
    for time_us in instants:
        start_us = -(-max(time_us, state.at_us) // resolution_us) * resolution_us
        if start_us > state.at_us + horizon_us:
            return None
        if fits_from(state, instance, held, start_us):
            return start_us
    return None


def holdings(state: State, before: Sequence[PlannedStart]) -> list[Holding]:
    """What is held and planned, and until when. Who is overdue stays for ever."""
    found: list[Holding] = []
    for node in state.ledger.nodes:
        for task in node.tasks if node is not None else ():
            end_us = promised_us(state, task.attempt)
            group = task.attempt.instance.job.request.groups[task.group]
            found.append((0, NEVER if end_us < state.at_us else end_us, task.node, group, task.devices))
    for planned in before:
        start_us = max(planned.start_us, state.at_us)
        end_us = gone_us(state, planned.instance, start_us)
        for place in planned.placements:
            found.append((start_us, end_us, state.ledger.node(place.row), group_of(planned.instance, place.rank), place.devices))
    return found


def gone_us(state: State, instance: Instance, start_us: int) -> int:
    """When it is gone if it starts then."""
    request = instance.job.request
    if request.time_limit_us is None:
        return NEVER
    return start_us + request.time_limit_us + request.grace_us + state.policy.kill_margin_us


def promised_us(state: State, attempt: Attempt) -> int:
    """When the attempt said that it would be gone."""
    if attempt.phase == "stop":
        return attempt.kill_at_us + state.policy.kill_margin_us
    return gone_us(state, attempt.instance, attempt.started_us or attempt.bound_us)


def fits_from(state: State, instance: Instance, held: Sequence[Holding], start_us: int) -> bool:
    """Whether its minima have places that are free from this instant on for ever."""
    times = [start_us, *[since_us for since_us, *_ in held if since_us > start_us]]
    nodes = [node for node in state.ledger.nodes if node is not None and _open(node, instance)]
    within = instance.job.request.constraints.within if instance.job.request.constraints else ()
    if within:  # one level, required
        racks = sorted({node.spec.rack for node in nodes} - {""})
        return any(fits_on(instance, held, times, [node for node in nodes if node.spec.rack == rack]) for rack in racks)
    return fits_on(instance, held, times, nodes)


def fits_on(instance: Instance, held: Sequence[Holding], times: Sequence[int], nodes: Sequence[Node]) -> bool:
    """Whether its minima have places on these nodes that are free at all these instants."""
    rooms = [Least(node, held, times) for node in nodes]
    wanted = [group for group in instance.job.request.groups for _ in range(group.min)]
    wanted.sort(key=lambda group: (-group.gpus, -group.gpu_milli, -group.cpu_milli, group.name))
    return _place(rooms, wanted, 0, 0)


class Least(Room):
    """The least that is free on a node at any of these instants."""

    def __init__(self, node: Node, held: Sequence[Holding], times: Sequence[int]) -> None:
        super().__init__(node, ())
        whole = [1000 * device.memory_mib if device.health == "healthy" else 0 for device in node.spec.devices]
        rooms = []
        for time_us in times:
            room = [node.spec.cpu_milli, node.spec.memory_mib, node.spec.tasks_max, *whole]
            for since_us, end_us, where, group, devices in held:
                if where is node and since_us <= time_us < end_us:
                    room[0] -= group.cpu_milli
                    room[1] -= group.memory_mib
                    room[2] -= 1
                    for index in devices:
                        memory = node.spec.devices[index].memory_mib
                        room[3 + index] -= 1000 * memory if group.gpus else _part(group, memory)
            rooms.append(room)
        least = [min(amounts) for amounts in zip(*rooms, strict=True)]
        self.cpu, self.memory, self.tasks, self.units = least[0], least[1], least[2], least[3:]
