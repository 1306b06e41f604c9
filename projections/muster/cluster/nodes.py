"""Nodes and their devices: what each has, what is held of it, and what a new task may have.

The truth is what the tasks hold (`Node.tasks`). `cpu_free`, `device_free` and their like are capacity, less what is held,
foreign, nominated for others or unhealthy; `Node.recount` makes them anew from the truth.
"""

from typing import TYPE_CHECKING, Final

from muster.cluster.shapes import Shape, part_of
from muster.events.base import DeviceHealth
from muster.events.nodes import Device as DeviceSpec
from muster.events.nodes import NodeSpec

if TYPE_CHECKING:
    from muster.cluster.jobs import Task

LEVELS: Final = 1000
"""In how many steps the free part of a shared device is told apart by the indexes."""


def cpu_level(cpu_milli: int) -> int:
    """In which of the steps of the CPU index so much CPU is: they double, from one core on."""
    return (cpu_milli // 1000).bit_length() if cpu_milli > 0 else 0


class Device:
    """A device of a node. Its index is its place in `Node.devices` and never means another device."""

    __slots__ = (
        "card",
        "foreign",
        "health",
        "island",
        "memory_mib",
        "model",
        "numa",
        "part",
        "present",
        "profile",
        "units",
        "uuid",
    )

    def __init__(self, spec: DeviceSpec) -> None:
        self.uuid: str = spec.uuid
        self.present = True
        self.foreign = False
        self.describe(spec)

    def describe(self, spec: DeviceSpec) -> None:
        """It is now as this says."""
        self.model: str = spec.model
        self.memory_mib: int = spec.memory_mib
        self.numa: int = spec.numa
        self.island: int = spec.island
        self.health: DeviceHealth = spec.health
        self.profile: str = spec.profile or ""
        """Of a slice its profile; empty for a whole GPU."""
        self.card: str = spec.card or ""
        self.part: int = part_of(self.profile)
        """What it counts in quotas, in millionths of a GPU."""
        self.units: int = 1000 * (spec.memory_mib or 1)
        """What the whole device is, in the units of `Shape.units`."""

    @property
    def usable(self) -> bool:
        """Whether new work may have it."""
        return self.present and not self.foreign and self.health == "healthy"


class Claim:
    """What the places of a nomination need of one node. Of all claims together what their victims still hold is kept already."""

    __slots__ = ("cpu_milli", "devices", "disk_mib", "memory_mib", "ports", "tasks")

    def __init__(self) -> None:
        self.cpu_milli = 0
        self.memory_mib = 0
        self.disk_mib = 0
        self.tasks = 0
        self.ports: tuple[int, ...] = ()
        self.devices: dict[int, int] = {}
        """Units by device index."""

    def add(self, shape: Shape, devices: tuple[int, ...], node: "Node") -> None:
        """Add a place's need."""
        self.cpu_milli += shape.cpu_milli
        self.memory_mib += shape.memory_mib
        self.disk_mib += shape.disk_mib
        self.tasks += 1
        self.ports += shape.ports
        for index in devices:
            device = node.devices[index]
            units = device.units if shape.gpus else shape.units(device.memory_mib)
            self.devices[index] = self.devices.get(index, 0) + units


class Node:
    """A node and what is free on it."""

    __slots__ = (
        "barred",
        "boot",
        "boots",
        "claims",
        "cordoned",
        "cpu_free",
        "device_free",
        "device_units",
        "devices",
        "disk_free",
        "drained",
        "fenced",
        "foreign_cpu",
        "foreign_memory",
        "heard_us",
        "indexed_cpu",
        "indexed_whole",
        "islands",
        "level_of",
        "liveness",
        "memory_free",
        "moved",
        "name",
        "plain",
        "quarantined_until_us",
        "row",
        "silences",
        "sliced",
        "spec",
        "tasks",
        "tasks_free",
        "uid",
        "uniform",
        "whole_free",
        "whole_units",
    )

    def __init__(self, row: int, name: str, uid: str, boot: str, spec: NodeSpec, at_us: int) -> None:
        self.row = row
        self.name = name
        self.uid = uid
        self.boot = boot
        self.boots = 0
        """The how manieth boot of the machine; 0 where that is not known."""
        self.spec = spec
        self.devices: list[Device] = [Device(device) for device in spec.devices]
        self.cordoned = False
        self.drained = False
        self.fenced = False
        self.liveness: str = "heard"
        """heard, silent, lost; `removed` once it has left the state."""
        self.heard_us = at_us
        self.quarantined_until_us = 0
        self.silences: list[int] = []
        self.foreign_cpu = 0
        self.foreign_memory = 0
        self.tasks: dict[Task, None] = {}
        """The tasks that hold something here, in the order of their binding."""
        self.claims: dict[tuple[str, int], Claim] = {}
        self.barred: list[int] | None = None
        """What is taken off besides, while a plan asks for somebody who may not have it."""
        self.cpu_free = self.memory_free = self.disk_free = self.tasks_free = 0
        self.device_free: list[int] = []
        self.device_units: list[int] = []
        """What each device is in all."""
        self.whole_free = 0
        self.level_of: list[int] = []
        """The level of each device that is in use and not full, in thousandths of it that are free; else -1."""
        self.indexed_whole = 0
        self.indexed_cpu = 0
        """Where the ledger's indexes have the node. They, and `level_of`, follow when somebody looks."""
        self.moved: list[int] = []
        """Devices whose level may have changed since."""
        self.plain = True
        """Whether every device is usable and nothing is claimed: then holdings can be added and taken off one by one."""
        self.uniform = True
        """Whether all devices are whole GPUs of one model and memory."""
        self.sliced = False
        """Whether some device is a slice of a GPU."""
        self.islands = 0
        self.whole_units = 0
        """Where all devices are alike, what one of them is in units."""
        self.recount()

    @property
    def open(self) -> bool:
        """Whether new work may come here at all."""
        return (
            self.liveness == "heard"
            and not self.cordoned
            and not self.drained
            and not self.fenced
            and not self.quarantined_until_us
        )

    def recount(self) -> None:
        """What is free, made anew from what is held, foreign, claimed and healthy."""
        spec = self.spec
        devices = self.devices
        cpu = spec.cpu_milli - self.foreign_cpu
        memory = spec.memory_mib - self.foreign_memory
        disk = spec.disk_mib
        tasks = spec.tasks_max
        free = [device.units for device in devices]
        for task in self.tasks:
            shape = task.shape
            cpu -= shape.cpu_milli
            memory -= shape.memory_mib
            disk -= shape.disk_mib
            tasks -= 1
            for index in task.devices:
                free[index] -= devices[index].units if shape.gpus else shape.units(devices[index].memory_mib)
        if self.claims:
            kept = self._kept()
            cpu -= max(0, kept[0])
            memory -= max(0, kept[1])
            disk -= max(0, kept[2])
            tasks -= max(0, kept[3])
            free = [units - max(0, kept[4 + index]) for index, units in enumerate(free)]
        if self.barred is not None:
            barred = self.barred
            cpu, memory, disk, tasks = cpu - barred[0], memory - barred[1], disk - barred[2], tasks - barred[3]
            free = [units - barred[4 + index] for index, units in enumerate(free)]
        self.cpu_free, self.memory_free, self.disk_free, self.tasks_free = cpu, memory, disk, tasks
        self.device_units = [device.units for device in devices]
        self.device_free = [units if device.usable else 0 for units, device in zip(free, devices, strict=True)]
        self.plain = not self.claims and self.barred is None and all(device.usable for device in devices)
        present = [device for device in devices if device.present]
        self.sliced = any(device.profile for device in present)
        alike = all(d.model == present[0].model and d.memory_mib == present[0].memory_mib for d in present[1:])
        self.uniform = alike and not self.sliced
        self.whole_units = present[0].units if present else 1
        self.islands = len(dict.fromkeys([device.island for device in present]))
        self.count_devices()

    def _kept(self) -> list[int]:
        """What all claims need beyond what their victims still hold: CPU, memory, disk, tasks, then units by device.

        One victim may be waited for by several: what it holds counts once.
        """
        kept = [0] * (4 + len(self.devices))
        for claim in self.claims.values():
            kept[0] += claim.cpu_milli
            kept[1] += claim.memory_mib
            kept[2] += claim.disk_mib
            kept[3] += claim.tasks
            for index, units in claim.devices.items():
                kept[4 + index] += units
        for task in self.tasks:
            if any(key in self.claims for key in (*task.attempt.by, *task.by)):
                shape = task.shape
                kept[0] -= shape.cpu_milli
                kept[1] -= shape.memory_mib
                kept[2] -= shape.disk_mib
                kept[3] -= 1
                for index in task.devices:
                    device = self.devices[index]
                    kept[4 + index] -= device.units if shape.gpus else shape.units(device.memory_mib)
        return kept

    def count_devices(self) -> None:
        """How many devices are entirely free; the levels of all may have changed."""
        pairs = list(zip(self.device_free, self.device_units, strict=True))
        self.whole_free = sum([free == units for free, units in pairs])
        self.level_of += [-1] * (len(pairs) - len(self.level_of))
        self.moved = list(range(len(pairs)))
