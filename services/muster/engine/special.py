"""What a few tasks ask of a node beyond amounts and devices: ports of their own, and everything from one NUMA node.

NUMA. A node splits its CPU and memory evenly over its NUMA nodes; a device says to which it belongs. A task that requires
one NUMA node is held to use only that one: where it has devices, theirs; where it has none, any in which it fits. All
other tasks float: they take what is left, wherever it is. So a NUMA node has room if what is pinned to it, and the new
task, stay within its part; that the node as a whole has enough is asked elsewhere.
"""

from muster.cluster.nodes import Node
from muster.cluster.shapes import Shape


def special_fits(node: Node, shape: Shape) -> bool:
    """Whether the node has the ports of the shape free, and for a task without devices one NUMA node with room."""
    if shape.ports and not ports_free(node, shape):
        return False
    if shape.numa == "required" and not shape.needs_device:
        return bool(_with_room(node, shape))
    return True


def ports_free(node: Node, shape: Shape) -> bool:
    """Whether none of the shape's ports is held, or kept for another, on the node."""
    for task in node.tasks:
        for port in task.shape.ports:
            if port in shape.ports:
                return False
    return all(port not in claim.ports for claim in node.claims.values() for port in shape.ports)


def take_near(node: Node, shape: Shape, found: list[int]) -> tuple[int, ...] | None:
    """Of these whole devices those for one task on one NUMA node: where they leave the fewest free, else None.

    Among equals, where they are of one island; then the lowest NUMA node.
    """
    by_numa: dict[int, list[int]] = {}
    for index in found:
        by_numa.setdefault(node.devices[index].numa, []).append(index)
    rooms = _with_room(node, shape)
    best: tuple[tuple[int, int, int], tuple[int, ...]] | None = None
    for numa, members in by_numa.items():
        if len(members) < shape.gpus or numa not in rooms:
            continue
        chosen = _of_one_island(node, members, shape.gpus)
        islands = len(dict.fromkeys([node.devices[index].island for index in chosen]))
        key = (len(members), islands, numa)
        if best is None or key < best[0]:
            best = key, chosen
    return None if best is None else best[1]


def with_room(node: Node, shape: Shape, free: list[int]) -> list[int]:
    """What is free of each device, less those on NUMA nodes without room for the CPU and memory of one task."""
    rooms = _with_room(node, shape)
    return [units if device.numa in rooms else 0 for units, device in zip(free, node.devices, strict=True)]


def numa_large_enough(node: Node, shape: Shape) -> bool:
    """Whether one NUMA node of an empty node could hold a task."""
    count = node.spec.numa or 1
    if shape.cpu_milli > node.spec.cpu_milli // count or shape.memory_mib > node.spec.memory_mib // count:
        return False
    by_numa: dict[int, int] = {}
    for device in node.devices:
        if device.present:
            by_numa[device.numa] = by_numa.get(device.numa, 0) + 1
    return max(by_numa.values(), default=0) >= shape.gpus


def _of_one_island(node: Node, members: list[int], needed: int) -> tuple[int, ...]:
    islands: dict[int, list[int]] = {}
    for index in members:
        islands.setdefault(node.devices[index].island, []).append(index)
    order = sorted(islands.items(), key=lambda item: (len(item[1]), item[0]))
    for _, some in order:
        if len(some) >= needed:
            return tuple(some[:needed])
    return tuple(sorted([index for _, some in reversed(order) for index in some][:needed]))


def _with_room(node: Node, shape: Shape) -> dict[int, None]:
    """The NUMA nodes in which the CPU and memory of one task fit beside what is pinned there."""
    if shape.numa != "required":
        return dict.fromkeys([device.numa for device in node.devices])
    count = node.spec.numa or 1
    cpu = node.spec.cpu_milli // count
    memory = node.spec.memory_mib // count
    numas = dict.fromkeys([*range(count), *[device.numa for device in node.devices]])
    left = {numa: [cpu, memory] for numa in numas}
    floating = []
    for task in node.tasks:
        if task.shape.numa == "required":
            if task.devices:
                room = left[node.devices[task.devices[0]].numa]
                room[0] -= task.shape.cpu_milli
                room[1] -= task.shape.memory_mib
            else:
                floating.append((-task.shape.cpu_milli, -task.shape.memory_mib))
    for less_cpu, less_memory in sorted(floating):  # the largest first, each where it leaves the least
        fitting = [
            (room[0], room[1], numa) for numa, room in left.items() if room[0] + less_cpu >= 0 and room[1] + less_memory >= 0
        ]
        if fitting:
            room = left[min(fitting)[2]]
            room[0] += less_cpu
            room[1] += less_memory
    return {numa: None for numa, room in left.items() if room[0] >= shape.cpu_milli and room[1] >= shape.memory_mib}
