"""What stands on the nodes: devices, CPU and memory, what is held of them and by which queue, and fragmentation.

Each node's part is kept and made anew when something on it has changed; the ledger tells which. So a look costs what changed
since the last one, and `advance` takes at most `STEP` nodes of that at a time, so that nobody waits long for it.

Fragmentation. For a node with the idle thousandths r_g of its devices, R = sum of r_g, and a target workload of classes c with
weights w_c: F = sum over c of w_c / sum of w times all of R, where the node could not host a task of c (or c asks for no device),
and else the r_g of the devices that are too full for c. Source: Weng et al., ATC 2023, section 4; the arithmetic is that of the
score `fgd`. A node that takes no new work has nothing idle.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np

from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.engine.scores.fgd import Target
from muster.events.operations import TargetClass
from muster.metrics import Sample
from muster.metrics.catalogue import OTHER, VALUES_MAX

STEP: Final = 64
MILLI: Final = 1000
MIB: Final = 1 << 20
WHOLE_GPU: Final = (TargetClass(gpus=1),)
"""The target workload where nothing is known of any."""
STATES: Final = ("lost", "silent", "fenced", "quarantined", "drained", "cordoned", "open")
RESOURCES: Final = ("cpu", "memory", "gpu")


class Fixed:
    """What a node adds whatever it holds."""

    __slots__ = ("capacity", "devices", "healthy", "labels", "state")

    def __init__(self, state: str) -> None:
        self.state = state
        self.capacity = [0, 0, 0]
        """CPU in thousandths, MiB, thousandths of healthy devices; nothing where the node is lost."""
        self.devices: dict[tuple[str, str], int] = {}
        """How many, by model and state."""
        self.healthy: dict[str, int] = {}
        """Thousandths of healthy devices, by model."""
        self.labels: list[str] = []
        """The model of each device."""


class Part:
    """What one node adds to the sums."""

    __slots__ = ("fixed", "fragments", "held", "idle", "models", "queues")

    def __init__(self, fixed: Fixed, idle: list[int]) -> None:
        self.fixed = fixed
        self.held = [0, 0, 0]
        self.models: dict[str, int] = {}
        """Held thousandths of devices, by model."""
        self.queues: dict[str, list[int]] = {}
        """What its tasks hold, as in `Fixed.capacity`."""
        self.idle = idle
        """Thousandths of each device that new work could have."""
        self.fragments = 0
        """Fragmented thousandths times the sum of the target's weights."""


class NodeBook:
    """The sums over the nodes of one cell."""

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}
        self._stale: dict[int, bool] = {}
        """Rows to look at again, and whether more has changed there than what is held."""
        self._touched = -1
        self._altered = -1
        self._target = Target(WHOLE_GPU)
        self._wanted: tuple[TargetClass, ...] = WHOLE_GPU
        self._labels: dict[str, dict[str, None]] = {"model": {}, "queue": {}}
        self.states = dict.fromkeys(STATES, 0)
        self.capacity = [0, 0, 0]
        self.held = [0, 0, 0]
        self.devices: dict[tuple[str, str], int] = {}
        self.models: dict[str, list[int]] = {}
        self.queues: dict[str, list[int]] = {}
        self.idle_milli = 0
        self.fragments = 0

    def aim(self, targets: tuple[TargetClass, ...]) -> None:
        """Fragmentation is measured against this workload from now on. If it is another, every node is looked at again."""
        wanted = targets or WHOLE_GPU
        if wanted != self._wanted:
            self._wanted = wanted
            self._target = Target(wanted)
            for row in self._parts:
                self._stale.setdefault(row, False)
            self.fragments = 0  # in parts of other weights
            for part in self._parts.values():
                part.fragments = 0

    def notice(self, state: State) -> None:
        """Which rows have changed since the last time."""
        ledger = state.ledger
        touched_upto, altered_upto = ledger.touched_upto(), ledger.altered_upto
        touched = ledger.touched_since(self._touched) if self._touched >= 0 else None
        altered = ledger.altered_since(self._altered) if self._altered >= 0 else None
        if touched is None or altered is None:
            self._stale = dict.fromkeys(range(max(len(ledger.nodes), max(self._parts, default=-1) + 1)), True)
        else:
            for row in dict.fromkeys(touched):
                self._stale.setdefault(row, False)
            self._stale.update(dict.fromkeys(altered, True))
        self._touched, self._altered = touched_upto, altered_upto

    def advance(self, state: State, most: int = STEP) -> bool:
        """Look at some rows that have changed. Whether there are more. Cost: `most` nodes and what they hold."""
        nodes = state.nodes
        looked: list[tuple[Node, Part]] = []
        for row in list(islice(self._stale, most)):
            altered = self._stale.pop(row)
            old = self._parts.pop(row, None)
            node = nodes[row] if row < len(nodes) else None
            fixed = old.fixed if old is not None and not altered else None
            if old is not None:
                self._sum(old, -1)
                if fixed is None:
                    self._sum_fixed(old.fixed, -1)
            if node is not None:
                if fixed is None:
                    fixed = self._fixed(node)
                    self._sum_fixed(fixed, 1)
                looked.append((node, self._look(node, fixed)))
        self._measure(looked)
        for node, part in looked:
            self._parts[node.row] = part
            self._sum(part, 1)
        return bool(self._stale)

    def samples(self, queues: dict[str, tuple[float, int]]) -> Iterator[Sample]:
        """As metrics; `queues` are those that there are, with what part of the whole each is promised, and its weight.

        Cost: the labels, which are bounded.
        """
        for state, count in self.states.items():
            yield "muster_nodes", (state,), count
        yield "muster_cpu_capacity_cores", (), self.capacity[0] / MILLI
        yield "muster_cpu_allocated_cores", (), self.held[0] / MILLI
        yield "muster_memory_capacity_bytes", (), self.capacity[1] * MIB
        yield "muster_memory_allocated_bytes", (), self.held[1] * MIB
        for (model, state), count in self.devices.items():
            yield "muster_devices", (model, state), count
        for model, (healthy, held) in self.models.items():
            yield "muster_devices_allocated", (model,), held / MILLI
            yield "muster_device_utilization_ratio", (model,), held / healthy if healthy else 0.0
        fragmented = self.fragments / self._target.total
        yield "muster_fragmented_devices", (), fragmented / MILLI
        yield "muster_fragmentation_ratio", ("all",), fragmented / self.capacity[2] if self.capacity[2] else 0.0
        yield "muster_fragmentation_ratio", ("idle",), fragmented / self.idle_milli if self.idle_milli else 0.0
        known = list(queues)[:VALUES_MAX]
        for queue in dict.fromkeys([*known, *self.queues]):
            of_queue = self.queues.get(queue, [0, 0, 0])
            for resource, mine, whole in zip(RESOURCES, of_queue, self.capacity, strict=True):
                yield "muster_queue_share_ratio", (queue, resource), mine / whole if whole else 0.0
        for queue in known:
            guarantee, weight = queues[queue]
            yield "muster_queue_guarantee_ratio", (queue,), guarantee
            yield "muster_queue_weight", (queue,), weight

    def _fixed(self, node: Node) -> Fixed:
        fixed = Fixed(_state_of(node))
        there = fixed.state != "lost"
        if there:
            fixed.capacity[:2] = [node.spec.cpu_milli, node.spec.memory_mib]
        for device in node.devices:
            model = self._label("model", device.model)
            fixed.labels.append(model)
            if device.present:
                state = "lost" if not there else "foreign" if device.foreign else device.health
                fixed.devices[model, state] = fixed.devices.get((model, state), 0) + 1
                milli = MILLI if state == "healthy" else 0
                fixed.healthy[model] = fixed.healthy.get(model, 0) + milli
                fixed.capacity[2] += milli
        return fixed

    def _look(self, node: Node, fixed: Fixed) -> Part:
        """A node's part, without its fragments."""
        part = Part(fixed, _idle(node))
        models = part.models
        cpu_milli = memory_mib = gpus_milli = 0
        for task in node.tasks:
            shape = task.shape
            gpu_milli = 0
            for index in task.devices:
                if shape.gpus:
                    taken = MILLI
                else:
                    taken = MILLI * shape.units(node.devices[index].memory_mib) // max(1, node.device_units[index])
                gpu_milli += taken
                model = fixed.labels[index]
                models[model] = models.get(model, 0) + taken
            queue = self._label("queue", task.attempt.instance.job.queue)
            held = part.queues.get(queue)
            if held is None:
                held = part.queues[queue] = [0, 0, 0]
            held[0] += shape.cpu_milli
            held[1] += shape.memory_mib
            held[2] += gpu_milli
            cpu_milli += shape.cpu_milli
            memory_mib += shape.memory_mib
            gpus_milli += gpu_milli
        part.held = [cpu_milli, memory_mib, gpus_milli]
        return part

    def _measure(self, looked: list[tuple[Node, Part]]) -> None:
        """The fragments of these nodes."""
        idle = [(node, part, part.idle) for node, part in looked if any(part.idle)]
        if not idle:
            return
        widest = max(len(milli) for _, _, milli in idle)
        models: dict[str, int] = {"": 0}
        table = np.zeros((len(idle), widest), dtype=np.int64)
        which = np.zeros((len(idle), widest), dtype=np.int64)
        for row, (node, _, milli) in enumerate(idle):
            table[row, : len(milli)] = milli
            which[row, : len(milli)] = [models.setdefault(device.model, len(models)) for device in node.devices]
        target = self._target
        cpu = np.array([node.cpu_free for node, _, _ in idle], dtype=np.int64)
        usable, enough = target.usable(table, target.allowed(list(models))[which])
        hosted = target.hosted(target.weights(cpu), usable.sum(axis=1), enough.sum(axis=1))
        fragments = table.sum(axis=1) * target.total - hosted
        for (_, part, _), found in zip(idle, fragments.tolist(), strict=True):
            part.fragments = found

    def _sum_fixed(self, fixed: Fixed, sign: int) -> None:
        self.states[fixed.state] += sign
        for place in range(3):
            self.capacity[place] += sign * fixed.capacity[place]
        for key, count in fixed.devices.items():
            self.devices[key] = self.devices.get(key, 0) + sign * count
        for model, milli in fixed.healthy.items():
            self.models.setdefault(model, [0, 0])[0] += sign * milli

    def _sum(self, part: Part, sign: int) -> None:
        self.idle_milli += sign * sum(part.idle)
        self.fragments += sign * part.fragments
        for place in range(3):
            self.held[place] += sign * part.held[place]
        for model, milli in part.models.items():
            self.models.setdefault(model, [0, 0])[1] += sign * milli
        for queue, held in part.queues.items():
            of_queue = self.queues.setdefault(queue, [0, 0, 0])
            for place in range(3):
                of_queue[place] += sign * held[place]

    def _label(self, kind: str, value: str) -> str:
        known = self._labels[kind]
        if value not in known:
            if len(known) >= VALUES_MAX:
                return OTHER
            known[value] = None
        return value or "unknown"


def _state_of(node: Node) -> str:
    if node.liveness in ("lost", "silent"):
        return node.liveness
    if node.fenced:
        return "fenced"
    if node.quarantined_until_us:
        return "quarantined"
    if node.drained:
        return "drained"
    return "cordoned" if node.cordoned else "open"


def _idle(node: Node) -> list[int]:
    """Thousandths of each device that new work could have."""
    if not node.open:
        return [0] * len(node.device_free)
    return [MILLI * free // whole if free > 0 else 0 for free, whole in zip(node.device_free, node.device_units, strict=True)]
