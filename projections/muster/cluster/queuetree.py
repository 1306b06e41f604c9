"""The tree of queues: what each is promised and may have, and what it is charged with.

Charged is what is bound and not told to stop, and what is nominated: exact, in integers, for each queue with all that
stand below it, and in each for every user. Amounts are mappings from dimensions to numbers:

    cpu             milli-CPU
    memory          MiB
    gpus            millionths of a GPU, of whatever model; a share by memory is rounded down
    gpus/MODEL      the same of one model, as it was given and not as it was asked for
    jobs            instances

Guarantees are effective ones: a queue that names none for a dimension is promised what its children are, and no less than
that. Where the queues below the root are promised more than the nodes that are well have, all are scaled by one ratio; and so
are those below a queue that was scaled, where they are promised more than is left to it.

There is no tree before the first `QueueSet`: nothing is counted then, and nothing that reads a tree is asked.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from muster.cluster.jobs import Attempt, Task
from muster.cluster.nodes import Node
from muster.cluster.shapes import GPU, Gang, Shape
from muster.cluster.usage import Usage
from muster.events.decisions import Placement
from muster.events.queues import DEPTH_MAX, QUEUES_MAX, Amounts, QueueRemoved, QueueSet

if TYPE_CHECKING:
    from muster.cluster.state import Nomination

Charge = dict[str, int]

DEFAULT: Final = "default"
NOTHING: Final[tuple[Charge, Charge, int]] = ({}, {}, 0)


class Queue:
    """One queue. The root has no name and no parent."""

    __slots__ = (
        "attempts",
        "caps",
        "charged",
        "children",
        "closed",
        "drops",
        "guarantee",
        "kept",
        "memo",
        "name",
        "open",
        "parent",
        "path",
        "promised",
        "spec",
        "user_caps",
        "users",
        "version",
    )

    def __init__(self, name: str, parent: "Queue | None") -> None:
        self.name = name
        self.parent = parent
        self.path: tuple[Queue, ...] = ()
        """Itself and those above it, without the root."""
        self.children: dict[str, Queue] = {}
        self.spec: QueueSet | None = None
        """None for one that is not in the tree by anybody's word: those of the policy, and `default`."""
        self.closed = False
        self.open = 0
        """Jobs that named it and have not ended."""
        self.charged: Charge = {}
        self.users: dict[str, Charge] = {}
        self.attempts: dict[Attempt, None] = {}
        """Of jobs that named it: what is charged, without nominations."""
        self.drops = 0
        """Counts how often less was charged than before: caches that stood before it are stale."""
        self.version = 0
        """Counts how often another amount was charged."""
        self.memo: object | None = None
        """The engine's: what it worked out of the queue as of some version."""
        self.promised: Charge = {}
        """The guarantee, of its children where it names none, not scaled."""
        self.guarantee: Charge = {}
        """The same, scaled."""
        self.kept: Charge = {}
        """What of the guarantee is lent to nobody."""
        self.caps: Charge = {}
        """The most that it may be charged with."""
        self.user_caps: Charge = {}
        """The most that each user may be charged with."""

    @property
    def weight(self) -> int:
        """Its weight among its siblings."""
        return self.spec.weight if self.spec is not None else 1

    @property
    def tier(self) -> int:
        """Its tier among its siblings."""
        return self.spec.tier if self.spec is not None else 0

    @property
    def fair(self) -> bool:
        """Whether its users are told apart by what they have."""
        return self.spec is not None and self.spec.order == "fair"

    @property
    def spared(self) -> bool:
        """Whether nobody in it is told to stop for another."""
        return self.spec is not None and self.spec.preemption == "off"


class QueueTree:
    """All queues of a cell, what they are charged with, and what there is."""

    __slots__ = (
        "capacity",
        "dimensions",
        "healthy",
        "largest_mib",
        "lenders",
        "models",
        "queues",
        "released",
        "root",
        "said",
        "seen",
        "settled",
        "stale",
        "stopping",
        "subtrees",
        "tiered",
        "usage",
        "widened",
    )

    def __init__(self) -> None:
        self.root = Queue("", None)
        self.usage: Usage | None = None
        """What was used of late; None where the policy keeps no history."""
        self.queues: dict[str, Queue] = {}
        self.said: dict[str, QueueSet] = {}
        """What was said of each queue that is open."""
        self.capacity: Charge = {}
        """What the registered nodes have, whatever their health."""
        self.healthy: Charge = {}
        """What those have of it that are not lost or fenced, without devices that are not healthy."""
        self.seen: dict[int, tuple[Charge, Charge, int]] = {}
        """What each row adds to both, and the memory of its largest device."""
        self.lenders: list[Queue] = []
        """Queues that do not lend all that they are promised, by name."""
        self.stale = True
        """Guarantees, and what else is worked out from all queues and nodes, have to be worked out anew."""
        self.settled = 0
        """Counts how often they were."""
        self.tiered = self.subtrees = False
        """Some queue has a tier; some queue lets jobs of a higher priority have others stopped that are anywhere below it."""
        self.dimensions: list[tuple[str, int]] = []
        """What shares are of, and how much of it there is: CPU, memory, and the GPUs of each model."""
        self.models: tuple[str, ...] = ()
        """The models of GPU that there are, by name."""
        self.released = 0
        """Counts the drops of all queues."""
        self.stopping: dict[Attempt, None] = {}
        """Attempts that were told to stop and have not ended."""
        self.largest_mib = 0
        """The memory of the largest device."""
        self.widened = 0
        """Counts how often a queue with a guarantee went further beyond it: more of it may be taken back since."""

    # Queues

    def of(self, name: str) -> Queue:
        """The queue of this name; one that nobody made stands below the root and has no limits."""
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = Queue(name, self.root)
            found.path = (found,)
            self.root.children[name] = found
        return found

    def all_said(self) -> list[tuple[QueueSet, bool]]:
        """What was said of each queue that is open or closed, and whether it is closed; the parents first, then by name."""
        queues = sorted(self.queues.values(), key=lambda queue: (len(queue.path), queue.name))
        return [(queue.spec, queue.closed) for queue in queues if queue.spec is not None]

    def put(self, event: QueueSet) -> Queue:
        """The queue is as this says from now on."""
        name = event.queue
        parent = self.of(event.parent) if event.parent else self.root
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name, parent)
            parent.children[name] = queue
        elif queue.parent is not parent:
            self._move(queue, parent)
        queue.spec = self.said[name] = event
        queue.closed = False
        self._set_paths(queue)
        self.stale = True
        return queue

    def close(self, queue: Queue) -> None:
        """Nothing new from it; it is gone when it is empty."""
        queue.closed = True
        del self.said[queue.name]
        self.stale = True
        self.drop_if_empty(queue)

    def drop_if_empty(self, queue: Queue) -> None:
        """Forget a queue that is closed, or that nobody made, once nothing of it is left."""
        if queue.open or queue.children or not (queue.closed or queue.spec is None):
            return
        parent = queue.parent
        assert parent is not None
        del self.queues[queue.name]
        del parent.children[queue.name]
        if parent is not self.root:
            self.drop_if_empty(parent)

    def _move(self, queue: Queue, parent: Queue) -> None:
        before = queue.parent
        assert before is not None
        if self.usage is not None:
            self.usage.touch_all(self)
        del before.children[queue.name]
        self._shift(before, queue, -1)
        queue.parent = parent
        parent.children[queue.name] = queue
        self._shift(parent, queue, 1)

    def _shift(self, above: Queue | None, queue: Queue, sign: int) -> None:
        """What the queue is charged with is charged above it too, or no more."""
        while above is not None:
            _add(above.charged, queue.charged, sign)
            for user, charge in queue.users.items():
                _add_user(above, user, charge, sign)
            above.drops += 1
            above.version += 1
            above = above.parent
        self.released += 1

    def _set_paths(self, queue: Queue) -> None:
        parent = queue.parent
        queue.path = (queue, *(parent.path if parent is not None else ()))
        for child in queue.children.values():
            self._set_paths(child)

    # Charges

    def charge(self, queue: Queue, user: str, amounts: Charge) -> None:
        """So much more is charged."""
        if self.stale:
            self.settle()
        if self.usage is not None:
            self.usage.touch(self, queue, user)
        for each in queue.path:
            each.version += 1
            charged = each.charged
            guarantee = each.guarantee
            for what, amount in amounts.items():
                now = charged[what] = charged.get(what, 0) + amount
                if 0 < guarantee.get(what, 0) < now:
                    self.widened += 1
            _add_user(each, user, amounts, 1)
        _add(self.root.charged, amounts, 1)

    def release(self, queue: Queue, user: str, amounts: Charge) -> None:
        """So much less is charged."""
        if self.usage is not None:
            self.usage.touch(self, queue, user)
        self.shift(queue, user, amounts, -1)
        for each in queue.path:
            each.drops += 1
        self.root.drops += 1
        self.released += 1

    def shift(self, queue: Queue, user: str, amounts: Charge, sign: int) -> None:
        """As if so much more, or less, were charged: for a plan, which takes it back."""
        for each in queue.path:
            each.version += 1
            _add(each.charged, amounts, sign)
            _add_user(each, user, amounts, sign)
        _add(self.root.charged, amounts, sign)

    # What there is

    def see(self, node: Node) -> bool:
        """Take in what a node has now. Whether that is another than before."""
        now = _node_amounts(node)
        before = self.seen.get(node.row, NOTHING)
        if now == before:
            return False
        if self.usage is not None:
            self.usage.touch_all(self)
        _add(self.capacity, before[0], -1)
        _add(self.healthy, before[1], -1)
        _add(self.capacity, now[0], 1)
        _add(self.healthy, now[1], 1)
        self.seen[node.row] = now
        self.stale = True
        return True

    def unsee(self, node: Node) -> None:
        """The node is gone."""
        if self.usage is not None:
            self.usage.touch_all(self)
        before = self.seen.pop(node.row, NOTHING)
        _add(self.capacity, before[0], -1)
        _add(self.healthy, before[1], -1)
        self.stale = True

    # Guarantees

    def settle(self) -> None:
        """Work out the guarantees. Cost: all queues."""
        self.stale = False
        self.settled += 1
        root = self.root
        for child in root.children.values():
            self._promise(child)
        self._scale(root, self.healthy)
        self.largest_mib = max([0, *[each[2] for each in self.seen.values()]])
        # What has gone with its last node is not there any more: it must not be told from what never was.
        there = sorted([item for item in self.capacity.items() if item[1] > 0])
        self.models = tuple([what[5:] for what, _ in there if what.startswith("gpus/")])
        self.dimensions = [(what, amount) for what, amount in there if what in ("cpu", "memory") or what.startswith("gpus/")]
        self.lenders = []
        self.tiered = any(spec.tier for spec in self.said.values())
        self.subtrees = any(spec.preemption == "subtree" for spec in self.said.values())
        for name in sorted(self.queues):
            queue = self.queues[name]
            if queue.spec is not None:
                lend = amounts_of(queue.spec.lend)
                queue.kept = {what: max(0, queue.guarantee.get(what, 0) - amount) for what, amount in lend.items()}
                if queue.kept and not queue.closed:
                    self.lenders.append(queue)
                queue.caps = _least(amounts_of(queue.spec.limit), amounts_of(queue.spec.borrow), queue.guarantee)
                queue.user_caps = amounts_of(queue.spec.user_limit)

    def _scale(self, queue: Queue, there: Charge) -> None:
        """Where those below a queue are promised more than it is itself, all of them get the same part of that."""
        children = queue.children.values()
        total = _sum([child.promised for child in children])
        for child in children:
            child.guarantee = {
                what: amount * there.get(what, 0) // total[what] if total[what] > there.get(what, 0) else amount
                for what, amount in child.promised.items()
            }
            self._scale(child, child.guarantee)

    def _promise(self, queue: Queue) -> None:
        for child in queue.children.values():
            self._promise(child)
        below = _sum([child.promised for child in queue.children.values()])
        own = amounts_of(queue.spec.guarantee) if queue.spec is not None and not queue.closed else {}
        if "gpus" not in own and (models := [amount for what, amount in own.items() if what.startswith("gpus/")]):
            own["gpus"] = sum(models)
        queue.promised = {what: max(own.get(what, 0), below.get(what, 0)) for what in {**own, **below}}

    # Who is told apart

    def tells_users(self, queue: Queue) -> bool:
        """Whether two users of this queue may be served differently."""
        return queue.fair or any(each.spec is not None and bool(amounts_of(each.spec.user_limit)) for each in queue.path)

    def max_time_us(self, queue: Queue) -> int | None:
        """The longest time limit that the queue and those above it allow, or None."""
        limits = [each.spec.max_time_us for each in queue.path if each.spec is not None and each.spec.max_time_us is not None]
        return min(limits) if limits else None


# What may be said of a tree


def fault(specs: Mapping[str, QueueSet], event: QueueSet | QueueRemoved) -> str:
    """Why this cannot be said where these queues are open, in one sentence; empty if it can."""
    if isinstance(event, QueueRemoved):
        if event.queue == DEFAULT:
            return "queue: default is always there and cannot be removed"
        if event.queue not in specs:
            return f"queue: there is no queue {event.queue!r} to remove"
        below = sorted([name for name, each in specs.items() if each.parent == event.queue])
        if below:
            named = ", ".join(below[:3]) + (" and others" if len(below) > 3 else "")
            return f"queue: {event.queue} has {named} below it: remove these first"
        return ""
    if event.queue not in specs and len(specs) >= QUEUES_MAX:
        return f"queue: there are {len(specs)} queues; at most {QUEUES_MAX} can be"
    if event.parent and event.parent not in specs:
        return f"parent: there is no queue {event.parent!r}; set it first"
    if event.queue in specs and specs[event.queue].parent == event.parent:
        return ""
    chain = [event.queue]
    above = event.parent
    while above:
        if above == event.queue:
            return f"parent: {' below '.join([*chain, above])} is a circle"
        chain.append(above)
        above = specs[above].parent
    depth = len(chain) + _height(specs, event.queue)
    if depth > DEPTH_MAX:
        return f"parent: queues would stand {depth} deep; at most {DEPTH_MAX} are taken"
    return ""


def _height(specs: Mapping[str, QueueSet], name: str) -> int:
    """How many levels stand below a queue that may move."""
    if name not in specs:
        return 0
    below: dict[str, list[str]] = {}
    for child, each in specs.items():
        below.setdefault(each.parent, []).append(child)
    height, level = 0, below.get(name, [])
    while level and height <= DEPTH_MAX:
        height += 1
        level = [child for each in level for child in below.get(each, [])]
    return height


# Amounts


def amounts_of(said: Amounts) -> Charge:
    """What an operator said, by dimension."""
    found = {f"gpus/{model}": 1000 * amount for model, amount in sorted(said.gpu_milli_by_model.items())}
    if said.gpu_milli is not None:
        found["gpus"] = 1000 * said.gpu_milli
    if said.cpu_milli is not None:
        found["cpu"] = said.cpu_milli
    if said.memory_mib is not None:
        found["memory"] = said.memory_mib
    if said.jobs is not None:
        found["jobs"] = said.jobs
    return found


def task_amounts(shape: Shape, node: Node, devices: Iterable[int]) -> Charge:
    """What a task of this shape is charged with that has these devices of the node."""
    amounts = {"cpu": shape.cpu_milli, "memory": shape.memory_mib}
    gpus = 0
    for index in devices:
        device = node.devices[index]
        if shape.gpus:
            part = shape.part
        elif shape.gpu_milli:
            part = GPU // 1000 * shape.gpu_milli
        else:
            part = GPU * shape.gpu_memory_mib // (device.memory_mib or 1)
        gpus += part
        model = f"gpus/{device.model}"
        amounts[model] = amounts.get(model, 0) + part
    if gpus:
        amounts["gpus"] = gpus
    return amounts


def tasks_amounts(tasks: Iterable[Task]) -> Charge:
    """What one instance is charged with for these tasks of its."""
    total: Charge = {"jobs": 1}
    for task in tasks:
        _add(total, task_amounts(task.shape, task.node, task.devices), 1)
    return total


def places_amounts(gang: Gang, placements: Iterable[Placement], nodes: Mapping[int, Node]) -> Charge:
    """What an instance would be charged with on these places; `nodes` by row."""
    total: Charge = {"jobs": 1}
    for placement in placements:
        shape = gang.shapes[gang.group_of(placement.rank)]
        _add(total, task_amounts(shape, nodes[placement.row], placement.devices), 1)
    return total


def nominated_amounts(nomination: "Nomination") -> Charge:
    """What a nomination is charged with."""
    nodes = {node.row: node for node in nomination.nodes}
    return places_amounts(nomination.instance.job.gang, nomination.placements, nodes)


def _node_amounts(node: Node) -> tuple[Charge, Charge, int]:
    """What a node has, what of it is well, and the memory of its largest device."""
    total: Charge = {"cpu": node.spec.cpu_milli, "memory": node.spec.memory_mib}
    well = dict(total)
    for device in node.devices:
        if device.present:
            for what in ("gpus", f"gpus/{device.model}"):
                total[what] = total.get(what, 0) + device.part
                if device.health == "healthy":
                    well[what] = well.get(what, 0) + device.part
    largest = max([0, *[device.memory_mib for device in node.devices if device.present]])
    return total, well if node.liveness in ("heard", "silent") and not node.fenced else {}, largest


def _add(total: Charge, amounts: Charge, sign: int) -> None:
    for what, amount in amounts.items():
        total[what] = total.get(what, 0) + sign * amount


def _add_user(queue: Queue, user: str, amounts: Charge, sign: int) -> None:
    """A user with nothing bound is not kept."""
    charge = queue.users.get(user)
    if charge is None:
        charge = queue.users[user] = {}
    _add(charge, amounts, sign)
    if sign < 0 and not charge.get("jobs"):
        del queue.users[user]


def _sum(many: Iterable[Charge]) -> Charge:
    total: Charge = {}
    for each in many:
        _add(total, each, 1)
    return total


def _least(limit: Charge, borrow: Charge, guarantee: Charge) -> Charge:
    """The limit, and no more than may be borrowed beyond the guarantee."""
    least = dict(limit)
    for what, amount in borrow.items():
        most = guarantee.get(what, 0) + amount
        least[what] = min(most, least.get(what, most))
    return least
