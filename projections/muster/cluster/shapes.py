"""Shapes: what makes two tasks equal for placement, and what makes two instances equal in a queue.

A `Shape` is one group's request without its name and its counts. A `Gang` is the list of shapes with counts of one job, and
what the job asks of all its places together (`muster.cluster.rules`). Both are interned by value, bounded, and hold nothing
that the request does not say: they may be dropped at any time.
"""

import hashlib
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from muster.cluster.rules import Rules, intern_rules
from muster.events.jobs import Constraints, GroupRequest, JobRequest, Preference, Requirement, Toleration
from muster.events.nodes import Taint

INTERNED_MAX: Final = 65_536
GPU: Final = 1_000_000
"""Quotas count GPUs in millionths."""
SLICES: Final = 7
"""So many compute slices has a GPU (MIG)."""


class Shape:
    """What one task needs. Two tasks of one shape fit on the same nodes.

    `key` is the BLAKE2b-64 digest of the canonical request, in hexadecimal: the name of the shape in the log.
    """

    __slots__ = (
        "any_of",
        "asks",
        "cpu_level",
        "cpu_milli",
        "datasets",
        "disk_mib",
        "gpu_memory_mib",
        "gpu_milli",
        "gpu_models",
        "gpus",
        "image",
        "key",
        "memory_mib",
        "needs_device",
        "numa",
        "part",
        "patient",
        "ports",
        "prefers",
        "profile",
        "selector",
        "share",
        "special",
        "strict",
        "tolerations",
    )

    def __init__(self, group: GroupRequest) -> None:
        self.cpu_milli: int = group.cpu_milli
        self.cpu_level: int = (group.cpu_milli // 1000).bit_length()
        """In which step of the ledger's CPU index a node must be at least."""
        self.memory_mib: int = group.memory_mib
        self.disk_mib: int = group.disk_mib
        self.gpus: int = group.gpus
        self.gpu_milli: int = group.gpu_milli
        self.gpu_memory_mib: int = group.gpu_memory_mib
        self.gpu_models: tuple[str, ...] = group.gpu_models
        self.profile: str = group.gpu_profile or ""
        """Of which slices it takes `gpus`; empty for whole GPUs, and then it never has a slice."""
        self.part: int = part_of(self.profile)
        """What each device that it takes whole counts in quotas, in millionths of a GPU."""
        self.selector: tuple[Requirement, ...] = group.selector
        self.asks: str = asked(group)
        """What its devices can do at least, in words; empty where it does not say. Its models are those that can."""
        self.any_of: tuple[tuple[Requirement, ...], ...] = group.any_of or ()
        self.prefers: tuple[Preference, ...] = group.prefers or ()
        self.tolerations: tuple[Toleration, ...] = group.tolerations
        self.share: bool = not group.gpus and bool(group.gpu_milli or group.gpu_memory_mib)
        """Whether a task takes a part of one device."""
        self.needs_device: bool = bool(group.gpus) or self.share
        self.patient: bool = any(toleration.seconds is not UNSET for toleration in group.tolerations)
        """Whether some taint is put up with for a while only."""
        self.numa: str = group.numa or ""
        """required, preferred, or empty where it does not matter."""
        self.ports: tuple[int, ...] = group.ports or ()
        self.image: str = group.image or ""
        self.datasets: tuple[str, ...] = group.datasets or ()
        self.special: bool = bool(self.ports) or self.numa == "required"
        """Whether more has to be asked of a node than amounts and devices."""
        strict = msgspec.structs.replace(group, numa="required") if self.numa == "preferred" else None
        self.strict: Shape | None = None if strict is None else Shape(strict)
        """Where one NUMA node is preferred: the shape that requires it, which is tried first."""
        self.key: str = hashlib.blake2b(_plain(group), digest_size=8).hexdigest()

    def tolerates(self, taint: Taint) -> bool:
        """Whether a task puts up with this taint, be it for a while only."""
        return any(_fits(toleration, taint) for toleration in self.tolerations)

    def tolerated_us(self, taint: Taint) -> int | None:
        """For how long a task puts up with this taint; None for ever. Of several tolerations the shortest counts."""
        spans = [one.seconds * 1_000_000 for one in self.tolerations if one.seconds is not UNSET and _fits(one, taint)]
        return min(spans) if spans and taint.effect == "NoExecute" else None

    def units(self, device_memory_mib: int) -> int:
        """What a task holds of one device that it shares, in units (thousandths of a MiB of its memory).

        A device has 1000 units for each MiB, so that a share of n thousandths and an amount of n MiB are both whole
        numbers and their sum is exact.
        """
        memory = device_memory_mib or 1
        return self.gpu_milli * memory if self.gpu_milli else self.gpu_memory_mib * 1000


def part_of(profile: str) -> int:
    """What a device of this profile counts, in millionths of a GPU: a slice by its compute slices, in sevenths."""
    return GPU * int(profile[0]) // SLICES if profile else GPU


def asked(group: GroupRequest) -> str:
    """What a group asks of its devices, in words."""
    parts = []
    if group.gpu_capability is not UNSET:
        parts.append(f"compute capability {group.gpu_capability // 10}.{group.gpu_capability % 10}")
    if group.gpu_bandwidth is not UNSET:
        parts.append(f"{group.gpu_bandwidth} GB/s")
    return " and ".join(parts)


_ALWAYS: Final = frozenset(
    (
        "name",
        "count",
        "min",
        "cpu_milli",
        "memory_mib",
        "disk_mib",
        "gpus",
        "gpu_milli",
        "gpu_memory_mib",
        "gpu_models",
        "selector",
        "tolerations",
    )
)
"""The fields that requests had at first. Later ones count only where they say something, so that the names of shapes stay."""
_DEFAULTS: Final = msgspec.to_builtins(GroupRequest())


def _plain(group: GroupRequest) -> bytes:
    """The canonical request without its name and its counts."""
    said = msgspec.to_builtins(msgspec.structs.replace(group, name="task", count=1, min=1))
    return msgspec.json.encode({name: value for name, value in said.items() if name in _ALWAYS or value != _DEFAULTS.get(name)})


def _fits(toleration: Toleration, taint: Taint) -> bool:
    return (
        (not toleration.key or toleration.key == taint.key)
        and (toleration.any_value or toleration.value == taint.value)
        and (not toleration.effect or toleration.effect == taint.effect)
    )


class Gang:
    """The groups of an instance: shapes with counts. A single task is a gang of one."""

    __slots__ = ("counts", "digest", "gpu_milli", "key", "minima", "offsets", "rules", "shapes", "single", "special", "tasks")

    def __init__(self, groups: tuple[GroupRequest, ...], asked: Constraints | UnsetType = UNSET) -> None:
        self.shapes: tuple[Shape, ...] = tuple([intern_shape(group) for group in groups])
        self.counts: tuple[int, ...] = tuple([group.count for group in groups])
        self.minima: tuple[int, ...] = tuple([group.min for group in groups])
        self.tasks: int = sum(self.counts)
        offsets = []
        at = 0
        for count in self.counts:
            offsets.append(at)
            at += count
        self.offsets: tuple[int, ...] = tuple(offsets)
        """The first rank of each group."""
        self.single: bool = self.tasks == 1
        self.gpu_milli: int | None = None
        """Thousandths of GPUs that it asks for at least, a share by memory not counted; None where it needs no device."""
        if any(shape.needs_device for shape, least in zip(self.shapes, self.minima, strict=True) if least):
            each = zip(self.shapes, self.minima, strict=True)
            self.gpu_milli = sum([least * (shape.part // 1000 * shape.gpus + shape.gpu_milli) for shape, least in each])
        self.key: str = "+".join(
            f"{shape.key}x{count}m{least}" for shape, count, least in zip(self.shapes, self.counts, self.minima, strict=True)
        )
        self.rules: Rules | None = intern_rules(asked)
        """What it asks beyond the shapes; None where it asks nothing."""
        self.special: bool = self.rules is not None or any(shape.numa or shape.ports for shape in self.shapes)
        """Whether it asks for anything that a filter of jobs looks at."""
        if self.rules is not None:
            self.key += f"!{self.rules.key}"
        self.digest: str = hashlib.blake2b(self.key.encode(), digest_size=8).hexdigest()
        """The name of the gang's shape in the log."""

    def group_of(self, rank: int) -> int:
        """The group that has this rank."""
        group = len(self.offsets) - 1
        while self.offsets[group] > rank:
            group -= 1
        return group


_shapes: dict[GroupRequest, Shape] = {}
_by_key: dict[str, Shape] = {}
_gangs: dict[tuple[GroupRequest, ...] | tuple[tuple[GroupRequest, ...], Constraints | UnsetType], Gang] = {}


def intern_shape(group: GroupRequest) -> Shape:
    """The shape of a group; equal requests give the same object while it is kept."""
    shape = _shapes.get(group)
    if shape is None:
        if len(_shapes) >= INTERNED_MAX:
            _shapes.clear()
            _by_key.clear()
        shape = Shape(group)
        shape = _shapes[group] = _by_key.setdefault(shape.key, shape)
    return shape


def intern_gang(request: JobRequest) -> Gang:
    """The gang of a request; equal groups and constraints give the same object while it is kept."""
    key = request.groups if request.constraints is UNSET else (request.groups, request.constraints)
    gang = _gangs.get(key)
    if gang is None:
        if len(_gangs) >= INTERNED_MAX:
            _gangs.clear()
        gang = _gangs[key] = Gang(request.groups, request.constraints)
    return gang
