"""A brute-force engine for tiny clusters: every placement and every set of victims is tried. Slow, and obviously right.

It reads the requests, the nodes' specs and the tasks that hold something, and none of the engine's counts.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

from muster.cluster.jobs import Attempt, Instance, Task
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.events.decisions import Placement
from muster.events.jobs import GroupRequest

Rank = tuple[int, int]
"""Priority, and 1 if it has started."""

Word = tuple[int, list[Rank]]
"""Tasks that go beyond budgets, then the ranks of victims, the highest first: compared like words."""

LOWEST = -(2**60)
"""The rank of best-effort jobs is counted from here."""


class Room:
    """What is free on a node: CPU, memory, tasks, and of each device its units."""

    def __init__(self, node: Node, gone: Collection[Attempt]) -> None:
        self.node = node
        self.cpu = node.spec.cpu_milli
        self.memory = node.spec.memory_mib
        self.tasks = node.spec.tasks_max
        self.units = [1000 * device.memory_mib if device.health == "healthy" else 0 for device in node.spec.devices]
        for task in node.tasks:
            if task.attempt not in gone:
                self.put(_asked(task), task.devices)

    def put(self, group: GroupRequest, devices: Sequence[int], sign: int = 1) -> None:
        """A task stands here from now on; with sign -1, it did and is gone."""
        self.cpu -= sign * group.cpu_milli
        self.memory -= sign * group.memory_mib
        self.tasks -= sign
        for index in devices:
            memory = self.node.spec.devices[index].memory_mib
            self.units[index] -= sign * (1000 * memory if group.gpus else _part(group, memory))

    def choices(self, group: GroupRequest) -> Iterator[tuple[int, ...]]:
        """Every set of devices that one more task could take here."""
        if self.cpu < group.cpu_milli or self.memory < group.memory_mib or self.tasks < 1:
            return
        taking = [
            index
            for index, device in enumerate(self.node.spec.devices)
            if device.health == "healthy"
            and device.memory_mib >= group.gpu_memory_mib
            and (not group.gpu_models or device.model in group.gpu_models)
        ]
        specs = self.node.spec.devices
        if group.gpus:
            free = [index for index in taking if self.units[index] == 1000 * specs[index].memory_mib]
            yield from combinations(free, group.gpus)
        elif group.gpu_milli or group.gpu_memory_mib:
            yield from [(index,) for index in taking if self.units[index] >= _part(group, specs[index].memory_mib)]
        else:
            yield ()


def fits(state: State, instance: Instance, gone: Collection[Attempt]) -> bool:
    """Whether the minima of all its groups can be placed at once, as if these attempts held nothing."""
    rooms = [Room(node, gone) for node in state.ledger.nodes if node is not None and _open(node, instance)]
    wanted = [group for group in instance.job.request.groups for _ in range(group.min)]
    wanted.sort(key=lambda group: (-group.gpus, -group.gpu_milli, -group.cpu_milli, group.name))
    return _place(rooms, wanted, 0, 0)


def legal(state: State, instance: Instance, places: Sequence[Placement], gone: Collection[Attempt]) -> str:
    """What is wrong with these places once these attempts are gone, or an empty string."""
    rooms = {node.row: Room(node, gone) for node in state.ledger.nodes if node is not None and _open(node, instance)}
    counts = dict.fromkeys([group.name for group in instance.job.request.groups], 0)
    for place in places:
        group = group_of(instance, place.rank)
        counts[group.name] += 1
        if place.row not in rooms:
            return f"row {place.row} takes nothing"
        if tuple(sorted(place.devices)) not in [tuple(sorted(choice)) for choice in rooms[place.row].choices(group)]:
            return f"rank {place.rank} cannot have {place.devices} in row {place.row}"
        rooms[place.row].put(group, place.devices)
    for group in instance.job.request.groups:
        if not group.min <= counts[group.name] <= group.count:
            return f"{counts[group.name]} of group {group.name}"
    return ""


def group_of(instance: Instance, rank: int) -> GroupRequest:
    """The group that has this rank."""
    for group in instance.job.request.groups:
        if rank < group.count:
            return group
        rank -= group.count
    raise AssertionError("no such rank")


def stopping(state: State) -> list[Attempt]:
    """What goes anyway."""
    return [attempt for attempt in _attempts(state) if attempt.phase == "stop"]


def eligible(state: State, instance: Instance) -> list[Attempt]:
    """Who may be a victim for this instance."""
    now_us, least_us = state.at_us, state.policy.min_runtime_us
    return [
        attempt
        for attempt in _attempts(state)
        if attempt.phase != "stop"
        and attempt.instance.job.request.preemptible
        and attempt.instance.job.queue == instance.job.queue
        and (
            attempt.instance.job.request.kind == "best-effort"
            or (
                attempt.instance.job.priority < instance.job.priority
                and (attempt.phase != "run" or now_us - attempt.started_us >= least_us)
            )
        )
    ]


def word(victims: Collection[Attempt]) -> Word:
    """Their ranks, the highest first."""
    ranks = [(_priority(attempt), int(attempt.phase == "run")) for attempt in victims]
    beyond = 0
    for attempt in victims:  # each is the only instance of its job, and none of these is disrupted before
        budget = attempt.instance.job.request.budget
        if isinstance(budget, int) and attempt.phase == "run":
            beyond += max(0, sum(task.holding for task in attempt.tasks.values()) - budget)
    return beyond, sorted(ranks, reverse=True)


def _priority(attempt: Attempt) -> int:
    job = attempt.instance.job
    return job.priority + (LOWEST if job.request.kind == "best-effort" else 0)


def best_word(state: State, instance: Instance, free: Sequence[Attempt]) -> Word | None:
    """The best word of any set of victims with which the instance fits, beside those who are gone anyway."""
    among = eligible(state, instance)
    best: Word | None = None
    for size in range(len(among) + 1):
        for victims in combinations(among, size):
            ranks = word(victims)
            if (best is None or ranks < best) and fits(state, instance, [*free, *victims]):
                best = ranks
    return best


def _attempts(state: State) -> list[Attempt]:
    found: dict[tuple[str, int], Attempt] = {}
    for node in state.ledger.nodes:
        for task in node.tasks if node is not None else ():
            found[task.attempt.instance.key] = task.attempt
    return [attempt for _, attempt in sorted(found.items())]


def _asked(task: Task) -> GroupRequest:
    return task.attempt.instance.job.request.groups[task.group]


def _part(group: GroupRequest, memory_mib: int) -> int:
    return group.gpu_milli * memory_mib if group.gpu_milli else 1000 * group.gpu_memory_mib


def _open(node: Node, instance: Instance) -> bool:
    closed = node.cordoned or node.drained or node.fenced or node.quarantined_until_us or node.liveness != "heard"
    return not closed and node.uid not in instance.job.avoid


def _place(rooms: Sequence[Room], wanted: Sequence[GroupRequest], at: int, first: int) -> bool:
    """Place the wanted tasks from `at` on. Equal tasks go to rooms in their order, the first of them to `first` at least."""
    if at == len(wanted):
        return True
    group = wanted[at]
    for number in range(first, len(rooms)):
        for devices in list(rooms[number].choices(group)):
            rooms[number].put(group, devices)
            again = number if at + 1 < len(wanted) and wanted[at + 1] is group else 0
            found = _place(rooms, wanted, at + 1, again)
            rooms[number].put(group, devices, -1)
            if found:
                return True
    return False
