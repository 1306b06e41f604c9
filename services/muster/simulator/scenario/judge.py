"""Whether what a scene expects is true, judged on the state and on what the log said so far."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from muster.cluster.jobs import Attempt, Instance, Task
from muster.cluster.nodes import Node
from muster.cluster.rules import domain_of
from muster.engine.around import Around
from muster.engine.eta import eta
from muster.engine.explain import explain
from muster.engine.reserved import reserved_devices
from muster.simulator.scenario.book import Unit
from muster.simulator.scenario.expectations import STATES, Bound, Check, amount
from muster.simulator.scenario.names import Names, split_unit
from muster.simulator.scenario.reading import show
from muster.simulator.scenario.reserving import judge_states
from muster.simulator.scenario.world import World

STARTED = ("ready", "running")
"""Phases of a task of a started attempt that has not exited; one that was replaced is not back before it is ready."""


def judge(world: World, check: Check) -> str | None:
    """None if it is true, else what is so instead."""
    return _JUDGES[check.key](world, check.args)


# Names


def units(world: World, name: str) -> list[Unit]:
    """The instances that a name means; none before the submission."""
    base, index = split_unit(name)
    job = world.newest(base)
    if job is None:
        return []
    if index is not None:
        return [(job, index)]
    return _all_units(world, job)


def unit_name(world: World, unit: Unit) -> str:
    """How the file calls an instance."""
    scene = world.scenes[unit[0]]
    return f"{scene.name}/{unit[1]}" if scene.array is not None else scene.name


def _plain_and_picks(world: World, names: Names) -> tuple[list[Unit], list[tuple[int, list[Unit]]]]:
    plain = [unit for name in names.plain for unit in units(world, name)]
    return plain, [(k, [unit for name in picked for unit in units(world, name)]) for k, picked in names.picks]


def instances(world: World, name: str) -> list[Instance]:
    """The instances of a name that the state knows."""
    found = [world.state.instance(job, index) for job, index in units(world, name)]
    return [instance for instance in found if instance is not None]


def service_units(world: World, job: str) -> list[Unit]:
    """The replicas of a service that are wanted; all that it ever had where none is."""
    known = world.state.jobs.get(job)
    if known is None:
        return [unit for unit in world.book.outcomes if unit[0] == job] or [(job, 0)]
    numbers = [one.index for one in known.instances if one.reason not in ("scaled", "revised")]
    return [(job, number) for number in numbers or range(len(known.instances))]


# States of jobs


def states_of(world: World, unit: Unit) -> list[str]:
    """All states that the instance is in."""
    instance = world.state.instance(*unit)
    if instance is None:
        if unit in world.book.outcomes:
            return [world.book.outcomes[unit]]
        return ["rejected"] if unit[0] in world.refused_jobs() else []
    attempt = instance.attempt
    if instance.phase == "stopping" and attempt is not None:
        return ["preempting" if attempt.stop_reason == "preempted" and not instance.cancelling else "stopping"]
    if instance.phase != "running" or attempt is None:
        return [instance.phase]
    states = ["running"] if at_minimum(attempt) else []
    if attempt.degraded_until_us:
        states.append("degraded")
    return states


def at_minimum(attempt: Attempt) -> bool:
    """Whether each group of a started attempt has at least its minimum of members, those that are done included."""
    groups = attempt.instance.job.request.groups
    counts = [0] * len(groups)
    for task in attempt.tasks.values():
        if task.phase in STARTED or (task.phase == "exited" and task.code == 0):
            counts[task.group] += 1
    return all(count >= group.min for count, group in zip(counts, groups, strict=True))


def _in_state(state: str) -> Callable[[World, Names], str | None]:
    def check(world: World, names: Names) -> str | None:
        plain, picks = _plain_and_picks(world, names)
        missing = [name for name in names.plain if not units(world, name)]
        wrong = [unit for unit in plain if state not in states_of(world, unit)]
        if missing or wrong:
            return "; ".join([f"{name} is not submitted" for name in missing] + [_is(world, unit) for unit in wrong])
        for wanted, picked in picks:
            there = [unit for unit in picked if state in states_of(world, unit)]
            if len(there) != wanted:
                return f"{len(there)} of {len(picked)}: {show([unit_name(world, unit) for unit in there])}"
        return None

    return check


def _exactly(state: str) -> Callable[[World, Names], str | None]:
    def check(world: World, names: Names) -> str | None:
        everything = [unit for ids in world.jobs.values() for job in ids for unit in _all_units(world, job)]
        there = [unit for unit in everything if state in states_of(world, unit)]
        return _is_set(world, names, there)

    return check


def _all_units(world: World, job: str) -> list[Unit]:
    if "service" in world.scenes[job].request:
        return service_units(world, job)
    return [(job, number) for number in range(max(1, world.scenes[job].array or 1))]


def _is_set(world: World, names: Names, there: list[Unit]) -> str | None:
    """Whether these instances are those that the names mean, and no other."""
    plain, picks = _plain_and_picks(world, names)
    found = dict.fromkeys(there)
    allowed = dict.fromkeys(plain)
    right = all(unit in found for unit in plain) and all(units(world, name) for name in names.plain)
    for wanted, picked in picks:
        allowed.update(dict.fromkeys(picked))
        right = right and sum(unit in found for unit in picked) == wanted
    if right and all(unit in allowed for unit in found):
        return None
    return show([unit_name(world, unit) for unit in found])


def _is(world: World, unit: Unit) -> str:
    return f"{unit_name(world, unit)} is {' and '.join(states_of(world, unit)) or 'below its minimum'}"


def _exactly_one_of(world: World, names: list[str]) -> str | None:
    running, holding = [], []
    for name in names:
        states = [states_of(world, unit) for unit in units(world, name)]
        if states and all("running" in state or "starting" in state for state in states):
            running.append(name)
        elif any(_held(instance) for instance in instances(world, name)):
            holding.append(name)
    if len(running) == 1 and not holding:
        return None
    return f"{show(running)} run" + (f", {show(holding)} hold something" if holding else "")


def _held(instance: Instance) -> list[Task]:
    return [task for task in instance.attempt.tasks.values() if task.holding] if instance.attempt is not None else []


def _holds_nothing(world: World, names: list[str]) -> str | None:
    for name in names:
        for instance in instances(world, name):
            tasks = _held(instance)
            if tasks:
                return f"{name} holds {len(tasks)} places"
    return None


# Members and places


def _started(instance: Instance) -> list[Task]:
    attempt = instance.attempt
    if attempt is None or not attempt.started_us:
        return []
    return [task for task in attempt.tasks.values() if task.phase in STARTED]


def _members(world: World, wanted: list[tuple[str, Bound]]) -> str | None:
    return _numbers(
        [(name, sum(len(_started(instance)) for instance in instances(world, name)), bound) for name, bound in wanted]
    )


def _members_by_group(world: World, wanted: list[tuple[str, list[tuple[str, Bound]]]]) -> str | None:
    found = []
    for name, groups in wanted:
        for group, bound in groups:
            count = 0
            for instance in instances(world, name):
                request = instance.job.request.groups
                count += sum(request[task.group].name == group for task in _started(instance))
            found.append((f"{name}.{group}", count, bound))
    return _numbers(found)


def _numbers(found: list[tuple[str, Any, Bound]]) -> str | None:
    wrong = [f"{name}: {amount(number, 1)}" for name, number, bound in found if not bound.holds(number)]
    return ", ".join(wrong) or None


def _nodes(world: World, name: str) -> list[str]:
    nodes = [task.node.name for instance in instances(world, name) for task in _held(instance)]
    return sorted(dict.fromkeys(nodes))


def _on(world: World, wanted: list[tuple[str, Names]]) -> str | None:
    wrong = []
    for name, names in wanted:
        nodes = dict.fromkeys(_nodes(world, name))
        allowed = dict.fromkeys(names.all())
        right = all(node in nodes for node in names.plain) and all(node in allowed for node in nodes)
        if not right or any(sum(node in nodes for node in picked) != k for k, picked in names.picks):
            wrong.append(f"{name} is on {show(list(nodes))}")
    return ", ".join(wrong) or None


def _not_on(world: World, wanted: list[tuple[str, Names]]) -> str | None:
    wrong = [f"{name} is on {node}" for name, names in wanted for node in _nodes(world, name) if node in names.all()]
    return ", ".join(wrong) or None


def _same(world: World, wanted: list[tuple[str, list[str]]]) -> str | None:
    return _domains(world, [(name, [(level, Bound(1, 1)) for level in levels]) for name, levels in wanted])


def _domains(world: World, wanted: list[tuple[str, list[tuple[str, Bound]]]]) -> str | None:
    """How many domains the tasks of a job touch; a node that names none is one of its own."""
    wrong = []
    for name, levels in wanted:
        nodes = [task.node for instance in instances(world, name) for task in _held(instance)]
        for level, bound in levels:
            found = sorted(dict.fromkeys([domain_of(node.name, node.spec, level) or f"none ({node.name})" for node in nodes]))
            if not bound.holds(len(found)):
                wrong.append(f"{name} is in {level} {show(found)}")
    return ", ".join(wrong) or None


def _licences(world: World, wanted: list[tuple[str, Bound]]) -> str | None:
    """How many are left: neither in use nor kept."""
    around = Around(world.state)
    return _numbers([(name, around.licences_left(name), bound) for name, bound in wanted])


def _devices(world: World, wanted: list[tuple[str, list[tuple[str, list[int] | Bound]]]]) -> str | None:
    wrong = []
    for name, nodes in wanted:
        tasks = [task for instance in instances(world, name) for task in _held(instance)]
        for node, devices in nodes:
            held = sorted(dict.fromkeys([index for task in tasks if task.node.name == node for index in task.devices]))
            agent = world.fleet.agents.get(node)
            found = sorted([index if agent is None else agent.gpu_of(index) for index in held])
            right = devices.holds(len(found)) if isinstance(devices, Bound) else devices in (found, sorted(dict.fromkeys(found)))
            if not right:
                wrong.append(f"{name} has {show(found)} of {node}")
    return ", ".join(wrong) or None


def capture(world: World) -> None:
    """Keep which devices every instance holds now."""
    world.captured[world.now_us] = {
        (job.id, instance.index): _uuids(instance) for job in world.state.jobs.values() for instance in job.instances
    }


def _uuids(instance: Instance) -> list[str]:
    return sorted([task.node.devices[index].uuid for task in _held(instance) for index in task.devices])


def _same_devices(world: World, wanted: list[tuple[str, int]]) -> str | None:
    wrong = []
    for name, at_us in wanted:
        for instance in instances(world, name):
            before = world.captured[at_us].get(instance.key, [])
            now = _uuids(instance)
            if now != before:
                wrong.append(f"{name} has {show(now)} and had {show(before)}")
    return ", ".join(wrong) or None


# Counts


def _attempt(world: World, wanted: list[tuple[str, Bound]]) -> str | None:
    found = [(name, instance.attempts, bound) for name, bound in wanted for instance in instances(world, name)]
    missing = [f"{name} is not there" for name, _ in wanted if not instances(world, name)]
    return ", ".join(missing) or _numbers(found)


def _preempted(world: World, names: Names) -> str | None:
    return _is_set(world, names, [victim for victim, _ in world.book.preempted])


def _count(read: Callable[[World], int]) -> Callable[[World, Bound], str | None]:
    def check(world: World, bound: Bound) -> str | None:
        number = read(world)
        return None if bound.holds(number) else str(number)

    return check


def _decisions_since(world: World, wanted: tuple[int, Bound]) -> str | None:
    since_us, bound = wanted
    number = sum(at_us >= since_us for at_us in world.book.changed_at_us)
    return None if bound.holds(number) else str(number)


def _before(world: World, names: list[str]) -> str | None:
    bound = world.book.first_bound
    places = []
    for name in names:
        known = [bound[unit] for unit in units(world, name) if unit in bound]
        places.append(min(known) if known else None)
    for earlier, later in itertools.pairwise(places):
        if earlier is None or (later is not None and later <= earlier):
            order = sorted([(place, name) for place, name in zip(places, names, strict=True) if place is not None])
            return f"bound in the order {show([name for _, name in order])}"
    return None


def _reason(world: World, wanted: list[tuple[str, list[str]]]) -> str | None:
    for name, texts in wanted:
        found = instances(world, name)
        if not found:
            return f"{name} is not there"
        for instance in found:
            said = "; ".join(explain(world.state, instance.job.id, instance.index, advise=True).lines)
            if any(text.lower() not in said.lower() for text in texts):
                return f"{name}: {said}"
    return None


# Amounts, in the unit of the file: GPUs and cores in thousandths, memory in MiB


def task_amounts(node: Node | None, task: Task) -> dict[str, Fraction]:
    """What a task holds."""
    return _shape_amounts(node, task.shape, task.devices)


def _shape_amounts(node: Node | None, shape: Any, devices: tuple[int, ...]) -> dict[str, Fraction]:
    amounts = {"cpu": Fraction(shape.cpu_milli), "memory": Fraction(shape.memory_mib), "gpus": Fraction(0)}
    for index in devices:
        device = node.devices[index] if node is not None else None
        milli = Fraction(shape.part, 1000)
        if device is not None and not shape.gpus:
            milli = Fraction(1000 * shape.units(device.memory_mib), device.units)
        amounts["gpus"] += milli
        if device is not None:
            key = f"gpus/{device.model}"
            amounts[key] = amounts.get(key, Fraction(0)) + milli
    return amounts


def _charged(world: World, of: Callable[[Instance], str], name: str, stopping: bool, spare: bool = False) -> dict[str, Fraction]:
    """What instances are charged with, their nominations too; or with `stopping` what they hold, stopping or not.

    `spare`: of best-effort jobs only, with which nobody is charged.
    """
    total: dict[str, Fraction] = {}
    for job in world.state.jobs.values():
        if job.spare != spare and (spare or not stopping):
            continue
        for instance in job.instances:
            if of(instance) == name and (stopping or instance.phase != "stopping"):
                for task in _held(instance):
                    if stopping or not task.going:
                        _add(total, task_amounts(task.node, task))
    for nomination in world.state.nominations.values() if not stopping else ():
        if of(nomination.instance) == name:
            gang = nomination.instance.job.gang
            for placement in nomination.placements:
                shape = gang.shapes[gang.group_of(placement.rank)]
                _add(total, _shape_amounts(world.state.nodes[placement.row], shape, placement.devices))
    return total


def _add(total: dict[str, Fraction], amounts: dict[str, Fraction]) -> None:
    for key, number in amounts.items():
        total[key] = total.get(key, Fraction(0)) + number


Amounts = list[tuple[str, list[tuple[str, Bound]]]]


def _by(of: Callable[[Instance], str], stopping: bool) -> Callable[[World, Amounts], str | None]:
    def check(world: World, wanted: Amounts) -> str | None:
        wrong = []
        for name, bounds in wanted:
            wrong.extend(_compare(name, _charged(world, of, name, stopping), bounds))
        return ", ".join(wrong) or None

    return check


def _by_queue(stopping: bool, spare: bool = False) -> Callable[[World, Amounts], str | None]:
    """The same for queues, each with all that stand below it."""

    def check(world: World, wanted: Amounts) -> str | None:
        wrong = []
        for name, bounds in wanted:
            total: dict[str, Fraction] = {}
            for queue in _below(world, name):
                _add(total, _charged(world, lambda instance: instance.job.queue, queue, stopping, spare))
            wrong.extend(_compare(name, total, bounds))
        return ", ".join(wrong) or None

    return check


def _below(world: World, name: str) -> list[str]:
    """The queue and all below it, by what was said of them."""
    tree = world.state.tree
    found = [name]
    for each in found:
        if tree is not None:
            found.extend([other for other, queue in tree.queues.items() if queue.spec is not None and queue.spec.parent == each])
    return found


def _compare(name: str, amounts: dict[str, Fraction], bounds: list[tuple[str, Bound]]) -> list[str]:
    wrong = []
    for key, bound in bounds:
        number = amounts.get(key, Fraction(0))
        if not bound.holds(number):
            said = f"{amount(number, 1)}Mi" if key == "memory" else amount(number, 1000)
            wrong.append(f"{name} {key} {said}")
    return wrong


def _free(world: World, wanted: Amounts) -> str | None:
    wrong = []
    for name, bounds in wanted:
        node = world.node(name)
        amounts: dict[str, Fraction] = {}
        reserved = reserved_devices(world.state, name)
        if node is not None and node.open and reserved is not None:
            amounts["cpu"] = Fraction(max(0, node.cpu_free))
            amounts["memory"] = Fraction(max(0, node.memory_free))
            for index, (free, device) in enumerate(zip(node.device_free, node.devices, strict=True)):
                if device.usable and free == device.units and index not in reserved and not device.profile:
                    _add(amounts, {"gpus": Fraction(1000), f"gpus/{device.model}": Fraction(1000)})
        wrong.extend(_compare(name, amounts, bounds))
    return ", ".join(wrong) or None


# Nodes


def node_states(world: World, name: str) -> list[str]:
    """All states that the node is in."""
    node = world.node(name)
    if node is None:
        return []
    states = []
    if node.liveness in ("silent", "lost"):
        states.append(node.liveness)
    if node.cordoned or node.drained:
        states.append("cordoned")
    if node.quarantined_until_us:
        states.append("quarantined")
    if node.fenced:
        states.append("fenced")
    return states or ["ready"]


def _node(world: World, wanted: list[tuple[str, str]]) -> str | None:
    wrong = [
        f"{name} is {' and '.join(node_states(world, name)) or 'not there'}"
        for name, state in wanted
        if state not in node_states(world, name)
    ]
    return ", ".join(wrong) or None


def _planned(world: World, wanted: list[tuple[str, tuple[str, int]]]) -> str | None:
    wrong = []
    for name, (key, instant_us) in wanted:
        for instance in instances(world, name):
            found = eta(world.state, *instance.key)
            start_us = None if found.start_us is None else found.start_us - world.fleet.epoch_us
            so = {
                "at": found.code in ("planned", "overdue") and start_us == instant_us,
                "by": found.code in ("planned", "overdue", "started") and start_us is not None and start_us <= instant_us,
                "none": found.code not in ("planned", "overdue"),
            }.get(key, found.code == key.replace("_", "-"))
            if not so:
                at = "" if start_us is None else f" at {amount(start_us, 1_000_000)}"
                wrong.append(f"{unit_name(world, instance.key)} is {found.code}{at}")
        if not instances(world, name):
            wrong.append(f"{name} is not there")
    return ", ".join(wrong) or None


def _any_of(world: World, outcomes: list[tuple[Check, ...]]) -> str | None:
    failures = []
    for outcome in outcomes:
        wrong = [f"{check.key}: {actual}" for check in outcome if (actual := judge(world, check)) is not None]
        if not wrong:
            return None
        failures.append(" and ".join(wrong))
    return " | ".join(failures)


_JUDGES: dict[str, Callable[[World, Any], str | None]] = {
    **{state: _in_state(state) for state in STATES},
    **{f"{state}_exactly": _exactly(state) for state in STATES},
    "exactly_one_of": _exactly_one_of,
    "holds_nothing": _holds_nothing,
    "members": _members,
    "members_by_group": _members_by_group,
    "on": _on,
    "not_on": _not_on,
    "same": _same,
    "domains": _domains,
    "licences": _licences,
    "devices": _devices,
    "same_devices_as_at": _same_devices,
    "attempt": _attempt,
    "preempted": _preempted,
    "preempted_count": _count(lambda world: len(world.book.preempted)),
    "bound_count": _count(lambda world: world.book.bound),
    "decisions_since": _decisions_since,
    "reason": _reason,
    "free": _free,
    "queue": _by_queue(stopping=False),
    "user": _by(lambda instance: instance.job.user, stopping=False),
    "held": _by_queue(stopping=True),
    "best_effort": _by_queue(stopping=True, spare=True),
    "planned": _planned,
    "reservation": judge_states,
    "node": _node,
    "before": _before,
    "refused": _count(lambda world: len(world.book.refused)),
    "any_of": _any_of,
}
