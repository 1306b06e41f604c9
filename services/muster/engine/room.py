"""What is free on one node for tasks of one shape, and which devices they would take.

Devices: whole ones are taken from the island that they leave fullest used, so that whole islands stay free; a share takes
the device in use with the least that is enough, and a free one only where none in use will do.
"""

from collections.abc import Container

from muster.cluster.jobs import Attempt
from muster.cluster.nodes import LEVELS, Node
from muster.cluster.shapes import Shape
from muster.engine.special import special_fits, take_near, with_room


def fits(node: Node, shape: Shape) -> bool:
    """Whether the amounts that are not devices are enough for one task."""
    return (
        node.cpu_free >= shape.cpu_milli
        and node.memory_free >= shape.memory_mib
        and node.tasks_free > 0
        and node.disk_free >= shape.disk_mib
        and (not shape.special or special_fits(node, shape))
    )


def room(node: Node, shape: Shape, limit: int) -> int:
    """For how many tasks, at most `limit`, the amounts that are not devices are enough."""
    count = min(limit, node.tasks_free)
    if shape.cpu_milli:
        count = min(count, node.cpu_free // shape.cpu_milli)
    elif node.cpu_free < 0:
        count = 0
    if shape.memory_mib:
        count = min(count, node.memory_free // shape.memory_mib)
    elif node.memory_free < 0:
        count = 0
    if shape.disk_mib:
        count = min(count, node.disk_free // shape.disk_mib)
    if shape.special:  # one at a time: each changes what the next one finds
        count = min(count, int(special_fits(node, shape)))
    return max(0, count)


class Left:
    """What would be free on a node if some attempts were gone from it, at best. Nothing is changed to see it."""

    __slots__ = ("cpu", "disk", "free", "memory", "node", "tasks", "whole")

    def __init__(self, node: Node, gone: Container[Attempt]) -> None:
        self.node = node
        devices, spec = node.devices, node.spec
        cpu, memory = spec.cpu_milli - node.foreign_cpu, spec.memory_mib - node.foreign_memory
        disk, tasks = spec.disk_mib, spec.tasks_max
        free = [device.units for device in devices]
        claims = node.claims
        kept = [0] * len(devices)
        for claim in claims.values():
            for index, units in claim.devices.items():
                kept[index] += units
        for task in node.tasks:
            if task.attempt in gone:
                continue
            held = task.shape
            cpu -= held.cpu_milli
            memory -= held.memory_mib
            disk -= held.disk_mib
            tasks -= 1
            waited = bool(claims) and any(key in claims for key in (*task.attempt.by, *task.by))
            for index in task.devices:
                units = devices[index].units if held.gpus else held.units(devices[index].memory_mib)
                free[index] -= units
                if waited:
                    kept[index] -= units
        if claims:
            free = [units - max(0, less) for units, less in zip(free, kept, strict=True)]
        if not node.plain:
            free = [units if device.usable else 0 for units, device in zip(free, devices, strict=True)]
        self.cpu, self.memory, self.disk, self.tasks = cpu, memory, disk, tasks
        self.free = free
        self.whole = sum([units == device.units for units, device in zip(free, devices, strict=True)])

    def may_take(self, shape: Shape) -> bool:
        """Whether one task might fit: if not, it surely does not."""
        if self.cpu < shape.cpu_milli or self.memory < shape.memory_mib or self.disk < shape.disk_mib or self.tasks <= 0:
            return False
        if not shape.needs_device:
            return True
        if self.whole < shape.gpus:
            return False
        node = self.node
        if shape.gpus:
            if not shape.gpu_models and not shape.gpu_memory_mib and not shape.profile and not node.sliced:
                return True
            pairs = enumerate(zip(self.free, node.devices, strict=True))
            return sum([units == device.units and fitting(node, shape, at) for at, (units, device) in pairs]) >= shape.gpus
        for index, units in enumerate(self.free):
            if 0 < units >= shape.units(node.devices[index].memory_mib) and fitting(node, shape, index):
                return True
        return False


def fitting(node: Node, shape: Shape, index: int) -> bool:
    """Whether the device is of a model, a memory and a profile that the shape takes: a slice is no GPU, and a GPU no slice."""
    device = node.devices[index]
    return (
        (not shape.gpu_models or device.model in shape.gpu_models)
        and device.memory_mib >= shape.gpu_memory_mib
        and device.profile == shape.profile
    )


def whole_devices(node: Node, shape: Shape, free: list[int]) -> list[int]:
    """The devices that are entirely free by `free` and that the shape takes, the most preferred model first."""
    devices = node.devices
    found = [index for index, units in enumerate(free) if units > 0 and units == devices[index].units]
    if not node.uniform and (shape.gpu_models or shape.gpu_memory_mib or node.sliced):
        found = [index for index in found if fitting(node, shape, index)]
        if shape.profile:
            found = by_card(node, found, free)
        if len(shape.gpu_models) > 1:
            found.sort(key=lambda index: (shape.gpu_models.index(devices[index].model), index))
    return found


def by_card(node: Node, found: list[int], free: list[int]) -> list[int]:
    """The same slices, those first whose GPU has the fewest free ones, so that whole GPUs become free to be cut anew."""
    left: dict[str, int] = {}
    for device, units in zip(node.devices, free, strict=True):
        left[device.card] = left.get(device.card, 0) + (device.part if units > 0 else 0)
    return sorted(found, key=lambda index: (left[node.devices[index].card], index))


def take_whole(node: Node, shape: Shape, free: list[int]) -> tuple[int, ...] | None:
    """The whole devices for one task, or None."""
    needed = shape.gpus
    if needed == 1 and node.islands <= 1 and node.uniform and not shape.numa:
        units = node.whole_units
        return (free.index(units),) if units in free else None
    found = whole_devices(node, shape, free)
    if len(found) < needed:
        return None
    if shape.numa == "required":
        return take_near(node, shape, found)
    if node.islands > 1 and len(found) > needed:
        found = _by_island(node, found, needed)
    return tuple(found[:needed])


def _by_island(node: Node, found: list[int], needed: int) -> list[int]:
    """The same devices, those to take first: one island if one is enough, the least full of those; else the fullest first."""
    islands: dict[int, list[int]] = {}
    for index in found:
        islands.setdefault(node.devices[index].island, []).append(index)
    order = sorted(islands.items(), key=lambda item: (len(item[1]), item[0]))
    for _, members in order:
        if len(members) >= needed:
            return members
    return [index for _, members in reversed(order) for index in members]


def take_share(node: Node, shape: Shape, free: list[int], level: int | None, levels: int) -> tuple[int, ...] | None:
    """The device for one task that shares it, or None.

    With a level, only devices in use whose free part is of that level, the one with the least first; without, a device
    that is entirely free, the first.
    """
    if shape.numa == "required":
        free = with_room(node, shape, free)
    if node.uniform:
        if not free:
            return None
        return _take_uniform(free, node.whole_units, shape.units(node.devices[0].memory_mib), level, levels)
    best = -1
    for index, units in enumerate(free):
        device = node.devices[index]
        if units <= 0 or units < shape.units(device.memory_mib):
            continue
        if (shape.gpu_models or shape.gpu_memory_mib or node.sliced) and not fitting(node, shape, index):
            continue
        if level is None:
            if units == device.units:
                return (index,)
        elif units != device.units and units * levels // device.units == level:
            if best < 0 or units < free[best]:
                best = index
    return None if best < 0 else (best,)


def _take_uniform(free: list[int], whole: int, need: int, level: int | None, levels: int) -> tuple[int, ...] | None:
    """The same where all devices are alike."""
    if level is None:
        return (free.index(whole),) if whole in free and need <= whole else None
    best = -1
    least = whole
    for index, units in enumerate(free):
        if need <= units < least and units * levels // whole == level and units > 0:
            best, least = index, units
    return None if best < 0 else (best,)


def take_level(node: Node, shape: Shape, level: int) -> tuple[int, ...] | None:
    """The device of this level for one task that shares it, by what is free now, or None."""
    level_of = node.level_of
    if node.uniform and not shape.numa and level_of.count(level) == 1:
        index = level_of.index(level)
        return (index,) if node.device_free[index] >= shape.units(node.device_units[index] // 1000) else None
    return take_share(node, shape, node.device_free, level, LEVELS)
