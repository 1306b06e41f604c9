"""What stands on the nodes: devices, CPU and memory, what is held of them and by which queue, and fragmentation.

Each node's part is kept and made anew when something on it has changed; the ledger tells which. So a look costs what changed
since the last one, and `advance` takes at most `STEP` nodes of that at a time, so that nobody waits long for it.

Fragmentation. For a node with the idle thousandths r_g of its devices, R = sum of r_g, and a target workload of classes c with
weights w_c: F = sum over c of w_c / sum of w times all of R, where the node could not host a task of c (or c asks for no device),
and else the r_g of the devices that are too full for c. Source: Weng et al., ATC 2023, section 4; the arithmetic is that of the
score `fgd`. A node that takes no new work has nothing idle.
"""

from collections.abc import Iterator
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


class Part:
    """What one node adds to the sums."""

    __slots__ = ("capacity", "devices", "fragments", "held", "idle_milli", "models", "queues", "state")

    def __init__(self) -> None:
        self.state = ""
        self.capacity = [0, 0, 0]
        """CPU in thousandths, MiB, thousandths of healthy devices; nothing where the node is lost."""
        self.held = [0, 0, 0]
        self.devices: dict[tuple[str, str], int] = {}
        """How many, by model and state."""
        self.models: dict[str, list[int]] = {}
        """Healthy and held thousandths, by model."""
        self.queues: dict[str, list[int]] = {}
        """What its tasks hold, as in `capacity`."""
        self.idle_milli = 0
        self.fragments = 0
        """Fragmented thousandths times the sum of the target's weights."""


class NodeBook:
    """The sums over the nodes of one cell."""

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}
        self._stale: dict[int, None] = {}
        """Rows to look at again."""
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
            self._stale.update(dict.fromkeys(self._parts))
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
            self._stale.update(dict.fromkeys(range(max(len(ledger.nodes), len(self._parts)))))
        else:
            self._stale.update(dict.fromkeys(touched))
            self._stale.update(dict.fromkeys(altered))
        self._touched, self._altered = touched_upto, altered_upto

    def advance(self, state: State, most: int = STEP) -> bool:
        """Look at some rows that have changed. Whether there are more. Cost: `most` nodes and what they hold."""
        rows = [row for row, _ in zip(list(self._stale), range(most), strict=False)]
        nodes = state.nodes
        looked: list[tuple[Node, Part]] = []
        for row in rows:
            del self._stale[row]
            old = self._parts.pop(row, None)
            if old is not None:
                self._sum(old, -1)
            node = nodes[row] if row < len(nodes) else None
            if node is not None:
                looked.append((node, self._look(node)))
        self._measure(looked)
        for node, part in looked:
            self._parts[node.row] = part
            self._sum(part, 1)
        return bool(self._stale)

    def samples(self, queues: tuple[str, ...]) -> Iterator[Sample]:
        """As metrics; `queues` are those of the policy. Cost: the labels, which are bounded."""
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
        for queue in dict.fromkeys([*queues[:VALUES_MAX], *self.queues]):
            of_queue = self.queues.get(queue, [0, 0, 0])
            for resource, mine, whole in zip(RESOURCES, of_queue, self.capacity, strict=True):
                yield "muster_queue_share_ratio", (queue, resource), mine / whole if whole else 0.0
        for queue in queues[:VALUES_MAX]:
            yield "muster_queue_guarantee_ratio", (queue,), 0.0
            yield "muster_queue_weight", (queue,), 1

    def _look(self, node: Node) -> Part:
        """A node's part, without its fragments."""
        part = Part()
        part.state = _state_of(node)
        there = part.state != "lost"
        spec = node.spec
        units = node.device_units
        part.idle_milli = sum(_idle(node))
        if there:
            part.capacity[:2] = [spec.cpu_milli, spec.memory_mib]
        for device in node.devices:
            if device.present:
                model = self._label("model", device.model)
                state = "lost" if not there else "foreign" if device.foreign else device.health
                part.devices[model, state] = part.devices.get((model, state), 0) + 1
                milli = part.models.setdefault(model, [0, 0])
                if there and device.health == "healthy" and not device.foreign:
                    milli[0] += MILLI
                    part.capacity[2] += MILLI
        for task in node.tasks:
            shape = task.shape
            queue = self._label("queue", task.attempt.instance.job.queue)
            gpu_milli = 0
            for index in task.devices:
                taken = MILLI if shape.gpus else MILLI * shape.units(node.devices[index].memory_mib) // max(1, units[index])
                gpu_milli += taken
                part.models.setdefault(self._label("model", node.devices[index].model), [0, 0])[1] += taken
            held = part.queues.setdefault(queue, [0, 0, 0])
            for place, amount in enumerate((shape.cpu_milli, shape.memory_mib, gpu_milli)):
                held[place] += amount
                part.held[place] += amount
        return part

    def _measure(self, looked: list[tuple[Node, Part]]) -> None:
        """The fragments of these nodes."""
        idle = [(node, part, _idle(node)) for node, part in looked]
        idle = [each for each in idle if any(each[2])]
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

    def _sum(self, part: Part, sign: int) -> None:
        self.states[part.state] += sign
        self.idle_milli += sign * part.idle_milli
        self.fragments += sign * part.fragments
        for place in range(3):
            self.capacity[place] += sign * part.capacity[place]
            self.held[place] += sign * part.held[place]
        for key, count in part.devices.items():
            self.devices[key] = self.devices.get(key, 0) + sign * count
        for model, milli in part.models.items():
            of_model = self.models.setdefault(model, [0, 0])
            of_model[0] += sign * milli[0]
            of_model[1] += sign * milli[1]
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
    return [
        MILLI * max(0, free) // whole if whole else 0 for free, whole in zip(node.device_free, node.device_units, strict=True)
    ]
