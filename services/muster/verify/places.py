"""Whether an instance may have the places it is given: the gang's shape, each node's conditions, and room.

Every function answers with a sentence that says what is wrong, or with an empty one. Room is counted from the tasks
that are on the node: nothing is remembered between two questions.
"""

import re
from collections.abc import Iterable, Mapping

from muster.events.decisions import Placement
from muster.events.jobs import GroupRequest, Requirement
from muster.events.nodes import Device
from muster.verify.world import Attempt, AttemptKey, Instance, Job, Node, Task, Use, World, tolerated

Gone = Mapping[AttemptKey | Task, None]
"""Who is taken as gone: attempts, and members of those that go on."""


def gang_fault(job: Job, places: tuple[Placement, ...]) -> str:
    """Ranks are valid and distinct; each group has between its min and its count, and its first ranks."""
    ranks = dict.fromkeys([place.rank for place in places])
    if not places or len(ranks) < len(places) or any(job.group_of(rank) is None for rank in ranks):
        return f"{len(places)} places with {len(ranks)} different ranks, or with a rank that is none of the job's"
    first = 0
    for group in job.request.groups:
        bound = sum(rank in ranks for rank in range(first, first + group.count))
        if bound < group.min:
            return f"{bound} tasks of group {group.name} are placed; it takes {group.min} to {group.count}"
        if any(rank not in ranks for rank in range(first, first + bound)):
            return f"the {bound} ranks placed of group {group.name} are not its first ones"
        first += group.count
    return ""


def node_fault(world: World, job: Job, node: Node, group: GroupRequest) -> str:
    """The node takes new work, and this job's."""
    quarantined = world.at_us < node.quarantined_until_us
    if node.closed or quarantined or node.liveness != "heard" or node.uid in job.avoid:
        said = f"quarantined {quarantined}, avoided {node.uid in job.avoid}, {node.liveness}"
        return f"{node.name} takes no task of it: {', '.join([*node.closed, said])}"
    for taint in node.spec.taints:
        if taint.effect != "PreferNoSchedule" and not tolerated(group, taint):
            return f"{node.name} has the taint {taint.key}={taint.value}:{taint.effect}, which {group.name} does not tolerate"
    for requirement in group.selector:
        if not meets(node.spec.labels.get(requirement.key), requirement):
            return f"labels of {node.name}: {group.name} wants {requirement.key} {requirement.op} {list(requirement.values)}"
    labels = node.spec.labels
    if group.any_of and not any(all(meets(labels.get(one.key), one) for one in term) for term in group.any_of):
        return f"labels of {node.name} meet none of the {len(group.any_of)} selectors in any_of of {group.name}"
    return ""


def device_fault(node: Node, group: GroupRequest, indices: tuple[int, ...]) -> str:
    """As many devices as were asked for, distinct, there, healthy, of a model that will do, with memory enough."""
    wanted = group.gpus or (1 if group.gpu_milli or group.gpu_memory_mib else 0)
    if len(indices) != wanted or len(dict.fromkeys(indices)) != wanted:
        return f"{group.name} asks for {wanted} devices and is given {list(indices)} on {node.name}"
    for index in indices:
        if index >= len(node.devices) or node.devices[index].health != "healthy":
            return f"device {index} of {node.name} is not there or not healthy"
        device = node.devices[index]
        if group.gpu_models and device.model not in group.gpu_models:
            return f"device {index} of {node.name} is a {device.model}; {group.name} takes {list(group.gpu_models)}"
        if device.profile != group.gpu_profile:
            has, wants = device.profile or "a whole GPU", group.gpu_profile or "whole GPUs"
            return f"device {index} of {node.name} is {has}; {group.name} takes {wants}"
        if device.memory_mib < group.gpu_memory_mib:
            return f"device {index} of {node.name} has {device.memory_mib} MiB, not {group.gpu_memory_mib}"
    return ""


def shortage(node: Node, asked: Iterable[Use], taken: Iterable[Use], strict: bool = False) -> str:
    """What is asked, with what is taken, stays within the node and its devices, less foreign use.

    In amounts that are not asked for a node may be over its capacity, by an update or a failure, unless `strict`.
    """
    spec, foreign, old = node.spec, node.foreign, _total(node, taken)
    room: dict[str | int, int] = {
        "cpu_milli": spec.cpu_milli - foreign.cpu_milli,
        "memory_mib": spec.memory_mib - foreign.memory_mib,
        "disk_mib": spec.disk_mib,
        "tasks": spec.tasks_max,
        **{i: 0 if device.uuid in foreign.devices else _capacity(device) for i, device in enumerate(node.devices)},
    }
    for what, amount in _total(node, asked).items():
        if (amount or strict) and amount + old.get(what, 0) > room.get(what, 0):
            name = f"units of device {what}" if isinstance(what, int) else what
            return f"{node.name} has {room.get(what, 0)} {name}: {old.get(what, 0)} are taken and {amount} more are given"
    return ""


def held(node: Node, gone: Gone) -> list[Use]:
    """What the tasks on the node hold, without those of attempts that are taken as gone."""
    return [(task.group, task.devices) for task in node.tasks if not is_gone(task, gone)]


def is_gone(task: Task, gone: Gone) -> bool:
    """Whether it is taken as gone: its attempt, or this one member."""
    return task.attempt.key in gone or task in gone


def spare(attempt: Attempt, gone: Iterable[Task]) -> bool:
    """Whether an attempt, without these tasks too, has the minimum of each group."""
    left = {group.name: -group.min for group in attempt.instance.job.request.groups}
    for task in attempt.tasks.values():
        left[task.group.name] += not task.going and task not in gone
    return all(many >= 0 for many in left.values())


def outranks(world: World, asker: Instance, other: Instance) -> bool:
    """A strictly higher priority, in one queue or below one that says so. There is no other priority across queues."""
    mine, theirs = asker.job, other.job
    if mine.request.kind:
        return False
    if theirs.request.kind and mine.queue == theirs.queue:
        return theirs.request.kind == "best-effort" or mine.priority >= theirs.priority
    if mine.priority <= theirs.priority or mine.queue == theirs.queue or world.books is None:
        return mine.queue == theirs.queue and mine.priority > theirs.priority
    books = world.books
    common = [name for name in books.path(mine.queue) if name in books.path(theirs.queue) and name in books.said]
    return any(books.said[name].preemption == "subtree" for name in common)


def _capacity(device: Device) -> int:
    """In units: a thousand for each MiB, so that thousandths of the device and MiB of it are both whole numbers."""
    return 1000 * max(device.memory_mib, 1)


def _total(node: Node, uses: Iterable[Use]) -> dict[str | int, int]:
    """Amounts by name, and units by index of device: a share of m thousandths is m times the memory, an amount of
    b MiB is 1000 b, a whole device all it has."""
    total: dict[str | int, int] = {"cpu_milli": 0, "memory_mib": 0, "disk_mib": 0, "tasks": 0}
    for group, indices in uses:
        total["cpu_milli"] += group.cpu_milli
        total["memory_mib"] += group.memory_mib
        total["disk_mib"] += group.disk_mib
        total["tasks"] += 1
        for index in dict.fromkeys(indices):
            capacity = _capacity(node.devices[index]) if index < len(node.devices) else 0
            part = group.gpu_milli * (capacity // 1000) if group.gpu_milli else 1000 * group.gpu_memory_mib
            total[index] = total.get(index, 0) + (capacity if group.gpus else part)
    return total


def meets(label: str | None, requirement: Requirement) -> bool:
    """Whether a label, or that there is none, meets one requirement."""
    op, values = requirement.op, requirement.values
    if op in ("Gt", "Lt"):
        if label is None or re.fullmatch(r"-?[0-9]{1,15}", label) is None:
            return False
        return int(label) > int(values[0]) if op == "Gt" else int(label) < int(values[0])
    there, listed = label is not None, label in values
    return {"In": listed, "NotIn": not listed, "Exists": there, "DoesNotExist": not there}[op]
