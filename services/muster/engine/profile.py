"""What is free on one node over time, if everybody is gone when they promised (semantics 18).

A row's `Curve` is exact and counts everything: what tasks hold until their promised ends, what nominations keep until their
beneficiaries would be gone, what plans take from their starts to their ends. Two readings of it:

    raw     what is free from one instant to the next
    ever    what is free from an instant on for ever: the least of `raw` from there. It only grows, so that the first
            instant at which something fits by it is found by walking on; nothing is planned into a gap before a plan

A holder that is past its promised end is *overdue*: nobody knows when it goes, and nothing is planned on it. `lenient` takes it
as gone now, for the question whether a plan waits only for those who are overdue.
"""

from collections.abc import Iterable, Sequence

from muster.cluster.jobs import Task
from muster.cluster.nodes import Node
from muster.cluster.plans import FAR, length_us, task_promised_us
from muster.cluster.shapes import Gang, Shape
from muster.cluster.state import Nomination, State
from muster.engine.room import fitting, take_share, take_whole
from muster.events.decisions import Placement

Amounts = list[int]
"""CPU, memory, disk, tasks, then units of each device."""

Use = tuple[int, int, Amounts]
"""Start, end, amounts: what a plan takes of one node."""


class Curve:
    """Instants in order, and the amounts free at each."""

    __slots__ = ("ever", "raw", "times", "until_us")

    def __init__(self, times: list[int], raw: list[Amounts], until_us: int) -> None:
        self.times = times
        self.raw = raw
        self.until_us = until_us
        """After this instant somebody is overdue who was not."""
        least = raw[-1]
        ever = [least]
        for amounts in reversed(raw[:-1]):
            least = [a if a < b else b for a, b in zip(amounts, least, strict=True)]
            ever.append(least)
        ever.reverse()
        self.ever = ever

    def least(self, start_us: int, end_us: int) -> Amounts:
        """The least that is free at any time from `start_us` until before `end_us`."""
        least: Amounts | None = None
        last = len(self.times) - 1
        for at, time in enumerate(self.times):
            if time >= end_us and least is not None:
                break
            if at < last and self.times[at + 1] <= start_us:
                continue
            least = self.raw[at] if least is None else [min(pair) for pair in zip(least, self.raw[at], strict=True)]
        assert least is not None
        return least


def curve(state: State, node: Node, uses: Iterable[Use] = (), lenient: bool = False) -> Curve:
    """The node from now on, with these plans on it. Tasks as the ledger has them."""
    now = state.at_us
    policy = state.policy
    free = capacity(node)
    changes: list[tuple[int, Amounts, int]] = []
    until_us = FAR
    waited = {key: _waited(state, node, state.nominations[key], lenient) for key in node.claims}
    whole = _last_alone(state, node, lenient)
    for task in node.tasks:
        amounts = _task_amounts(node, task.shape, task.devices)
        if whole is not None:  # an exclusive job has all of it until its last task there has gone
            amounts = capacity(node) if task is whole else [0] * len(free)
        end_us = task_promised_us(policy, task)
        if end_us < now:
            end_us = now if lenient else FAR
        if waited and any(key in waited and waited[key][0] == FAR for key in task.attempt.by):
            end_us = FAR  # what it gives up is kept for somebody of whom nobody knows when he starts
        for at, amount in enumerate(amounts):
            free[at] -= amount
        if end_us != FAR:
            if end_us < until_us:
                until_us = end_us
            changes.append((end_us, amounts, 1))
    for key, claim in node.claims.items():
        start_us, held = waited[key]
        if start_us < until_us:
            until_us = start_us
        amounts = [claim.cpu_milli, claim.memory_mib, claim.disk_mib, claim.tasks, *[0] * len(node.devices)]
        for index, units in claim.devices.items():
            amounts[4 + index] += units
        beyond = [max(0, need - there) for need, there in zip(amounts, held, strict=True)]
        for at, amount in enumerate(beyond):  # kept already, while its victims hold the rest
            free[at] -= amount
        length = length_us(policy, state.nominations[key].instance.job)
        if start_us != FAR:
            changes += [(start_us, beyond, 1), (start_us, amounts, -1)]
            if length != FAR:
                changes.append((start_us + length, amounts, 1))
    for start_us, end_us, amounts in uses:
        amounts = amounts + [0] * (len(free) - len(amounts))
        changes.append((max(start_us, now), amounts, -1))
        if end_us != FAR:
            changes.append((max(end_us, now), amounts, 1))
    times, raw = [now], [free]
    for time, amounts, sign in sorted(changes, key=_by_time):
        if time > times[-1]:
            times.append(time)
            raw.append(list(raw[-1]))
        here = raw[-1]
        for at, amount in enumerate(amounts):
            here[at] += sign * amount
    return Curve(times, raw, until_us)


def _last_alone(state: State, node: Node, lenient: bool) -> Task | None:
    """Of the tasks of an exclusive job, the one that promised to be gone last; None where others may be beside."""
    if node.row not in state.ledger.tags.owners or not node.tasks:
        return None

    def gone_us(task: Task) -> int:
        end_us = task_promised_us(state.policy, task)
        if end_us < state.at_us:
            end_us = state.at_us if lenient else FAR
        return end_us

    return max(node.tasks, key=gone_us)


def _by_time(change: tuple[int, Amounts, int]) -> int:
    return change[0]


def _waited(state: State, node: Node, nomination: Nomination, lenient: bool) -> tuple[int, Amounts]:
    """Until when a nomination waits for its victims, and what these hold here now."""
    start_us = starts_us(state, nomination)
    if start_us < state.at_us:
        start_us = state.at_us if lenient else FAR
    held = [0] * (4 + len(node.devices))
    for task in node.tasks:
        if nomination.instance.key in task.attempt.by:
            for at, amount in enumerate(_task_amounts(node, task.shape, task.devices)):
                held[at] += amount
    return start_us, held


def starts_us(state: State, nomination: Nomination) -> int:
    """When the victims of a nomination promised to be gone."""
    return nomination.until_us - state.policy.nomination_ttl_us


def capacity(node: Node) -> Amounts:
    """What the node has for work; nothing of a device that new work may not have."""
    spec = node.spec
    return [
        spec.cpu_milli - node.foreign_cpu,
        spec.memory_mib - node.foreign_memory,
        spec.disk_mib,
        spec.tasks_max,
        *[device.units if device.usable else 0 for device in node.devices],
    ]


def _task_amounts(node: Node, shape: Shape, devices: Sequence[int]) -> Amounts:
    amounts = [shape.cpu_milli, shape.memory_mib, shape.disk_mib, 1, *[0] * len(node.devices)]
    for index in devices:
        device = node.devices[index]
        amounts[4 + index] += device.units if shape.gpus else shape.units(device.memory_mib)
    return amounts


def places_amounts(node: Node, gang: Gang, places: Iterable[Placement]) -> Amounts:
    """What these places of a gang take of their node. A device that is not there any more is not counted."""
    total = [0] * (4 + len(node.devices))
    for placement in places:
        shape = gang.shapes[gang.group_of(placement.rank)]
        devices = [index for index in placement.devices if index < len(node.devices)]
        total = [a + b for a, b in zip(total, _task_amounts(node, shape, devices), strict=True)]
    return total


def tasks_that_fit(node: Node, shape: Shape, free: Amounts, most: int) -> int:
    """For how many tasks, at most `most`, these amounts are enough."""
    count = min(most, free[3])
    for at, each in enumerate((shape.cpu_milli, shape.memory_mib, shape.disk_mib)):
        if each:
            count = min(count, free[at] // each)
        elif free[at] < 0:
            return 0
    if count <= 0 or not shape.needs_device:
        return max(0, count)
    fits = 0
    for index, device in enumerate(node.devices):
        units = free[4 + index]
        if units <= 0 or not fitting(node, shape, index):
            continue
        if shape.gpus:
            fits += units == device.units
        else:
            fits += units // shape.units(device.memory_mib)
    return min(count, fits // shape.gpus if shape.gpus else fits)


def less(node: Node, barred: Amounts) -> Amounts:
    """What is free on the node now, without what is barred."""
    free = [node.cpu_free, node.memory_free, node.disk_free, node.tasks_free, *node.device_free]
    return [a - b for a, b in zip(free, barred, strict=True)]


def instants(node: Node, shape: Shape, here: Curve, most: int) -> list[int]:
    """From when on one task fits for ever, two, and so on up to `most`; no longer than there is room."""
    found: list[int] = []
    for time, free in zip(here.times, here.ever, strict=True):
        count = tasks_that_fit(node, shape, free, most)
        while len(found) < count:
            found.append(time)
        if count >= most:
            break
    return found


def at_instant(here: Curve, time_us: int) -> Amounts:
    """What is free from this instant on for ever, as a list of its own."""
    at = 0
    while at + 1 < len(here.times) and here.times[at + 1] <= time_us:
        at += 1
    return list(here.ever[at])


def take(node: Node, shape: Shape, free: Amounts) -> tuple[int, ...] | None:
    """The devices for one task out of these amounts, which are lessened by it; None if it does not fit."""
    if free[0] < shape.cpu_milli or free[1] < shape.memory_mib or free[2] < shape.disk_mib or free[3] < 1 or min(free[:3]) < 0:
        return None
    devices: tuple[int, ...] | None = ()
    if shape.gpus:
        devices = take_whole(node, shape, free[4:])
    elif shape.share:
        devices = take_share(node, shape, free[4:], 0, 1) or take_share(node, shape, free[4:], None, 1)
    if devices is not None:
        for at, amount in enumerate(_task_amounts(node, shape, devices)):
            free[at] -= amount
    return devices
