"""What must hold after every cycle of any scene, whatever it expects.

Each check starts from the tasks, the records and the agents, not from the engine's own structures; those are compared
by `muster.cluster.invariants`. The numbers in the docstrings are those of the list in the scenes' format.
"""

from muster.cluster.check import BrokenInvariant
from muster.cluster.invariants import check_invariants
from muster.cluster.jobs import TERMINAL, Attempt, Instance, Job
from muster.cluster.nodes import Node
from muster.cluster.queuetree import tasks_amounts
from muster.cluster.reservations import those_for
from muster.cluster.state import Nomination
from muster.events.base import INT_MAX
from muster.events.decisions import (
    InstanceBound,
    InstanceGrown,
    InstancePreempted,
    MembersReplaced,
    Nominated,
    NominationEnded,
    Placement,
)
from muster.events.jobs import GroupRequest, Requirement
from muster.events.nodes import Taint
from muster.events.record import Cycle
from muster.events.services import ReplicaOpened
from muster.simulator.scenario.book import Unit, is_beat
from muster.simulator.scenario.judge import at_minimum, unit_name
from muster.simulator.scenario.planned import delayed
from muster.simulator.scenario.world import SceneFailure, World


class Invariants:
    """Watches a world: `check` after every cycle, `finish` at the end.

    Raises:
        SceneFailure: one is broken.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._ended: dict[Unit, str] = {}

    def check(self, cycle: Cycle) -> None:
        """After a cycle."""
        if is_beat(cycle):
            return
        try:
            check_invariants(self.world.state)
        except BrokenInvariant as error:
            raise SceneFailure("the state to be consistent", str(error)) from None
        self._gangs()
        self._terminal(cycle)
        self._one_attempt()
        self._placements(cycle)
        self._preemptions(cycle)
        found = delayed(self.world.state, cycle)
        if found is not None:  # 4
            who, whom = [self._name(instance.key) for instance in found]
            raise SceneFailure(f"the planned start of {whom} not to be delayed from below", f"{who} holds what it needs then")

    def finish(self) -> None:
        """2: every beneficiary was bound, waits for its victims, or lost its nomination for a recorded reason."""
        book = self.world.book
        ended = [unit for unit, _ in book.nominations_ended]
        for victim, beneficiary in book.preempted:
            waits = beneficiary in self.world.state.nominations
            if not (waits or beneficiary in ended or beneficiary in book.first_bound):
                actual = f"{self._name(beneficiary)} neither ran nor waits, and nothing says why"
                raise SceneFailure(f"the preemption of {self._name(victim)} to be for something", actual)

    def _name(self, unit: Unit) -> str:
        return unit_name(self.world, unit)

    def _gangs(self) -> None:
        """1: the tasks of attempts in phase running are none or at least the minimum, outside a recorded degradation."""
        for job in self.world.state.jobs.values():
            for instance in job.instances:
                attempt = instance.attempt
                if attempt is None or instance.phase == "stopping":
                    continue
                name = self._name(instance.key)
                if instance.phase == "starting" and not _placed_whole(attempt):
                    raise SceneFailure(f"{name} to be bound whole", "a group is below its minimum")
                if instance.phase == "running" and not attempt.degraded_until_us and not at_minimum(attempt):
                    raise SceneFailure(f"{name} to run at its minimum or not at all", "it runs below, and nothing says so")

    def _terminal(self, cycle: Cycle) -> None:
        """6: terminal states absorb. The number of a replica that its service wants again begins anew."""
        for event in cycle.decisions:
            if type(event) is ReplicaOpened:
                self._ended.pop((event.job, event.instance), None)
        for job in self.world.state.jobs.values():
            for instance in job.instances:
                before = self._ended.get(instance.key)
                if before is not None and instance.phase != before:
                    raise SceneFailure(f"{self._name(instance.key)} to stay {before}", f"it is {instance.phase}")
                if instance.phase in TERMINAL:
                    self._ended[instance.key] = instance.phase

    def _one_attempt(self) -> None:
        """5: two attempts of an instance never hold anything at once, on the nodes as they are."""
        seen: dict[Unit, int] = {}
        for agent in self.world.fleet.agents.values():
            for task in agent.tasks.values():
                if task.phase != "exited":
                    attempt = seen.setdefault((task.key[0], task.key[1]), task.key[2])
                    if attempt != task.key[2]:
                        name = self._name((task.key[0], task.key[1]))
                        raise SceneFailure(f"one attempt of {name} at a time", f"{attempt} and {task.key[2]} are alive")

    def _placements(self, cycle: Cycle) -> None:
        """3 and 8: what this cycle placed is where it may be, and no node or device holds more than it has."""
        touched: dict[int, Node] = {}
        for event in cycle.decisions:
            if not isinstance(event, InstanceBound | MembersReplaced | InstanceGrown):
                continue
            instance = self.world.state.instance(event.job, event.instance)
            if instance is None:
                continue
            for placement in event.placements:
                node = self.world.state.nodes[placement.row]
                if node is None:
                    raise SceneFailure(f"{self._name(instance.key)} to be on a node", f"row {placement.row} is empty")
                why = unfit(instance, _group(instance, placement), node, placement)
                if why:
                    raise SceneFailure(f"{self._name(instance.key)} to be where it may be", f"on {node.name}: {why}")
                touched[node.row] = node
        for node in touched.values():
            _check_capacity(node)

    def _preemptions(self, cycle: Cycle) -> None:
        """2: a victim is one of a nomination's, does not outrank its beneficiary, and was needed."""
        state = self.world.state
        over = [(event.job, event.instance) for event in cycle.decisions if type(event) is NominationEnded]
        told: dict[Unit, Unit] = {}
        for event in cycle.decisions:
            if type(event) is InstancePreempted:
                told[event.job, event.instance] = (event.by_job, event.by_instance)
                victim = state.instance(event.job, event.instance)
                beneficiary = state.instance(event.by_job, event.by_instance)
                if victim is None or beneficiary is None:
                    raise SceneFailure("a preemption to be of and for a job", "one of them is not there")
                names = f"{self._name(victim.key)} for {self._name(beneficiary.key)}"
                one_queue = victim.job.queue == beneficiary.job.queue  # across queues the second judge knows the grounds
                if one_queue and not victim.job.soft and victim.job.priority >= beneficiary.job.priority:
                    raise SceneFailure("no victim to outrank its beneficiary", f"{names} of no higher priority")
                nomination = state.nominations.get(beneficiary.key)
                if nomination is None and beneficiary.key not in over:
                    raise SceneFailure("a preemption to be for a nomination", f"{names}, which has none")
        for event in cycle.decisions:
            if type(event) is Nominated:
                nomination = state.nominations.get((event.job, event.instance))
                needless = self._needless(nomination, told) if nomination is not None else None
                if needless is not None:
                    raise SceneFailure("no proper subset of the victims to do", f"{self._name(needless)} was not needed")

    def _needless(self, nomination: Nomination, told: dict[Unit, Unit]) -> Unit | None:
        """A victim told to stop without which the gang would have fitted too.

        Only gangs of one group are judged, and only where nothing counts but amounts: the second judge looks at the others.
        """
        groups = nomination.instance.job.request.groups
        if len(groups) != 1 or groups[0].ports or groups[0].numa:
            return None
        if any(job.gang.rules is not None for job in self.world.state.jobs.values()):
            return None
        if nomination.members:
            return None  # the second judge looks at these
        reserved = self._reserved(nomination.instance.job)
        for spared in nomination.victims:
            if told.get(spared.instance.key) != nomination.instance.key or not spared.held:
                continue  # it stops anyway, or has left at once: what it had is free now
            gone = [victim for victim in nomination.victims if victim is not spared]
            room = 0
            for node in self.world.state.nodes:
                if node is not None and node.name not in reserved and room < groups[0].min:
                    room += self._room(nomination, groups[0], node, gone)
            if room >= groups[0].min and not self._over_limit(nomination, spared):
                return spared.instance.key
        return None

    def _reserved(self, job: Job) -> dict[str, None]:
        """The nodes of which something is reserved for others, whenever that is: room there may be of no use."""
        state = self.world.state
        own = those_for(state, job)
        found: dict[str, None] = {}
        for name, each in state.reservations.by_name.items():
            if name not in own:
                found.update(dict.fromkeys([*each.spec.nodes, *[piece.node for piece in each.pieces]]))
        return found

    def _over_limit(self, nomination: Nomination, spared: Attempt) -> bool:
        """Whether some limit would be exceeded if this victim stayed."""
        tree = self.world.state.tree
        if tree is None:
            return False
        mine, theirs = nomination.instance.job, spared.instance.job
        charge = tasks_amounts([task for task in spared.tasks.values() if task.holding])
        common = [queue for queue in tree.of(mine.queue).path if queue in tree.of(theirs.queue).path]
        for queue in common:
            if any(queue.charged.get(what, 0) + amount > queue.caps.get(what, INT_MAX) for what, amount in charge.items()):
                return True
            used = queue.users.get(mine.user, {})
            if mine.user == theirs.user:
                if any(used.get(what, 0) + amount > queue.user_caps.get(what, INT_MAX) for what, amount in charge.items()):
                    return True
        return False

    def _room(self, nomination: Nomination, group: GroupRequest, node: Node, gone: list[Attempt]) -> int:
        """How many tasks of the group the node has room for once these attempts are gone."""
        instance = nomination.instance
        if unfit(instance, group, node, None):
            return 0
        cpu = node.spec.cpu_milli - node.foreign_cpu
        memory = node.spec.memory_mib - node.foreign_memory
        disk = node.spec.disk_mib
        tasks = node.spec.tasks_max
        free = [_fitting_units(group, node, index) for index in range(len(node.devices))]
        holders = [(task.shape, task.devices) for task in node.tasks if task.attempt not in gone]
        for other in self.world.state.nominations.values():
            if other is not nomination:
                gang = other.instance.job.gang
                places = [place for place in other.placements if place.row == node.row and node in other.nodes]
                holders.extend((gang.shapes[gang.group_of(place.rank)], place.devices) for place in places)
        for shape, devices in holders:
            cpu -= shape.cpu_milli
            memory -= shape.memory_mib
            disk -= shape.disk_mib
            tasks -= 1
            for index in devices:
                device = node.devices[index]
                free[index] -= device.units if shape.gpus else shape.units(device.memory_mib)
        bounds = [tasks]
        for amount, each in ((cpu, group.cpu_milli), (memory, group.memory_mib), (disk, group.disk_mib)):
            if each:
                bounds.append(amount // each)
        if group.gpus:
            whole = sum(units == device.units for units, device in zip(free, node.devices, strict=True))
            bounds.append(whole // group.gpus)
        elif group.gpu_milli or group.gpu_memory_mib:
            shape = instance.job.gang.shapes[0]
            shares = zip(free, node.devices, strict=True)
            bounds.append(sum(max(0, units) // shape.units(device.memory_mib) for units, device in shares))
        return max(0, min(bounds))


def _group(instance: Instance, placement: Placement) -> GroupRequest:
    return instance.job.request.groups[instance.job.gang.group_of(placement.rank)]


def _placed_whole(attempt: Attempt) -> bool:
    groups = attempt.instance.job.request.groups
    counts = [0] * len(groups)
    for task in attempt.tasks.values():
        counts[task.group] += 1
    return all(count >= group.min for count, group in zip(counts, groups, strict=True))


def _check_capacity(node: Node) -> None:
    spec = node.spec
    cpu = sum(task.shape.cpu_milli for task in node.tasks)
    memory = sum(task.shape.memory_mib for task in node.tasks)
    disk = sum(task.shape.disk_mib for task in node.tasks)
    for what, held, has in (
        ("cpu_milli", cpu, spec.cpu_milli - node.foreign_cpu),
        ("memory_mib", memory, spec.memory_mib - node.foreign_memory),
        ("disk_mib", disk, spec.disk_mib),
        ("tasks", len(node.tasks), spec.tasks_max),
    ):
        if held > has:
            raise SceneFailure(f"{node.name} to hold no more than it has", f"{what} {held} of {has}")
    for index, device in enumerate(node.devices):
        units = 0
        for task in node.tasks:
            if index in task.devices:
                units += device.units if task.shape.gpus else task.shape.units(device.memory_mib)
        if units > device.units:
            raise SceneFailure(f"device {index} of {node.name} to hold no more than it has", f"{units} of {device.units} units")


def unfit(instance: Instance, group: GroupRequest, node: Node, placement: Placement | None) -> str:
    """Why a task may not be placed on the node, whatever else is there; empty if it may."""
    if node.liveness != "heard" or node.cordoned or node.drained or node.fenced or node.quarantined_until_us:
        return "it takes no new work"
    if node.uid in instance.job.avoid:
        return "it failed the job before"
    for taint in node.spec.taints:
        if taint.effect != "PreferNoSchedule" and not _tolerated(group, taint):
            return f"the taint {taint.key} is not tolerated"
    for requirement in group.selector:
        if not _meets(requirement, node.spec.labels):
            return f"the selector's {requirement.key} is not met"
    if group.any_of and not any(all(_meets(one, node.spec.labels) for one in term) for term in group.any_of):
        return "none of the selectors in any_of is met"
    if placement is not None:
        wanted = group.gpus or int(bool(group.gpu_milli or group.gpu_memory_mib))
        if len(dict.fromkeys(placement.devices)) != wanted:
            return f"{len(placement.devices)} devices for {wanted}"
        for index in placement.devices:
            if not _fitting_units(group, node, index):
                return f"device {index} is not one that it may have"
    return ""


def _fitting_units(group: GroupRequest, node: Node, index: int) -> int:
    """The units of a device if it may serve the group, else 0."""
    device = node.devices[index]
    if not device.present or device.foreign or device.health != "healthy":
        return 0
    if group.gpu_models and device.model not in group.gpu_models:
        return 0
    if device.profile != (group.gpu_profile or ""):
        return 0
    return device.units if device.memory_mib >= group.gpu_memory_mib else 0


def _tolerated(group: GroupRequest, taint: Taint) -> bool:
    return any(
        (not toleration.key or toleration.key == taint.key)
        and (not toleration.effect or toleration.effect == taint.effect)
        and (toleration.any_value or not toleration.key or toleration.value == taint.value)
        for toleration in group.tolerations
    )


def _meets(requirement: Requirement, labels: dict[str, str]) -> bool:
    value = labels.get(requirement.key)
    op = requirement.op
    if op == "Exists":
        return value is not None
    if op == "DoesNotExist":
        return value is None
    if op == "In":
        return value in requirement.values
    if op == "NotIn":
        return value not in requirement.values
    try:
        number = int(value or "")
    except ValueError:
        return False
    return number > int(requirement.values[0]) if op == "Gt" else number < int(requirement.values[0])
