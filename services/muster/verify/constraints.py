"""Whether places meet what a job asks of all of them together: one domain, apart, near others, alone, with licences.

Everything is counted from the tasks that hold something, each time anew. As in `muster.verify.places` an answer is a sentence
that says what is wrong, or an empty one.
"""

from collections.abc import Iterable

from muster.events.jobs import Constraints, GroupRequest, JobTerm
from muster.verify.places import Gone, is_gone, meets, outranks
from muster.verify.world import Instance, Job, Node, World

Place = tuple[GroupRequest, Node, tuple[int, ...]]
"""A task: what it asks for, where it is, on which devices."""

Held = tuple[Job, GroupRequest, Node, tuple[int, ...], bool]
"""The same of somebody else, with his job; and whether he is there, or has it kept only."""


def constraint_fault(world: World, asker: Instance, new: list[Place], gone: Gone) -> str:
    """What is wrong with these new places, once the attempts `gone` are."""
    if world.plain:
        return ""
    job, asked = asker.job, asked_by(asker.job)
    mine = [] if asker.attempt is None else [(t.group, t.node, t.devices) for t in asker.attempt.tasks.values() if t.holds]
    others = list(_held(world, asker, gone))
    return (
        topology_fault(asked, mine + new)
        or _near(job, asked, mine, new, [held for held in others if held[4]])
        or _away(job, asked, mine, new, others)
        or _alone(job, asked, new, others)
        or _ports(new, [*mine, *[held[1:4] for held in others]])
        or _numa(new, [*mine, *[held[1:4] for held in others]])
        or _licences(world, asker, asked, gone)
    )


def asked_by(job: Job) -> Constraints:
    """The constraints of a job; without any where it names none."""
    return job.request.constraints or Constraints()


def domain(node: Node, level: str) -> str:
    """The domain of a node; empty where it names none."""
    return node.name if level == "node" else str(getattr(node.spec, level))


def _held(world: World, asker: Instance, gone: Gone) -> Iterable[Held]:
    """Everybody else's tasks, and what is kept for those whom the asker does not outrank."""
    for node in world.rows.values():
        for task in node.tasks:
            if task.attempt.instance is not asker and not is_gone(task, gone):
                yield task.attempt.instance.job, task.group, node, task.devices, True
    for kept in world.nominations.values():
        if kept.instance is not asker and not outranks(world, asker, kept.instance):
            for node, uses in kept.uses.items():
                for group, devices in uses:
                    yield kept.instance.job, group, node, devices, False


def topology_fault(asked: Constraints, places: list[Place]) -> str:
    """What is wrong with the domains in which these places are, whoever else is there."""
    for within in asked.within:
        found = dict.fromkeys([domain(node, within.level) for _, node, _ in places])
        if within.required and (len(found) > 1 or "" in found):
            return f"it has to stay within one {within.level} and is in {list(found)}"
    for spread in asked.spread:
        counts: dict[str, int] = {}
        for _, node, _ in places:
            counts[domain(node, spread.level)] = counts.get(domain(node, spread.level), 0) + 1
        if "" in counts or (spread.most and max(counts.values(), default=0) > spread.most):
            return f"at most {spread.most} of its tasks may be in one {spread.level}, and there are {counts}"
        if spread.skew and len(counts) > 1 and max(counts.values()) - min(counts.values()) > spread.skew:
            return f"its tasks in one {spread.level} may be {spread.skew} more than in another, and there are {counts}"
    return ""


def _about(term: JobTerm, job: Job) -> bool:
    return all(meets(job.request.labels.get(one.key), one) for one in term.labels)


def _near(job: Job, asked: Constraints, mine: list[Place], new: list[Place], others: list[Held]) -> str:
    for term in asked.affinity if new else ():
        there = {domain(node, term.by): None for other, _, node, *_ in others if _about(term, other)}
        there |= {domain(node, term.by): None for _, node, _ in mine if _about(term, job)}
        here = dict.fromkeys([domain(node, term.by) for _, node, _ in new])
        first = not there and _about(term, job) and len(here) == 1
        if term.required and not first and any(not one or one not in there for one in here):
            return f"it wants to be near {term.labels} and is in {term.by} {list(here)}, they in {list(there)}"
    return ""


def _away(job: Job, asked: Constraints, mine: list[Place], new: list[Place], others: list[Held]) -> str:
    for term in asked.anti_affinity:
        there = {domain(node, term.by): None for other, _, node, *_ in others if _about(term, other)}
        there.pop("", None)
        own = [domain(node, term.by) for _, node, _ in [*mine, *new] if _about(term, job) and domain(node, term.by)]
        if term.required and (len(dict.fromkeys(own)) < len(own) or any(domain(node, term.by) in there for _, node, _ in new)):
            return f"it wants to be away from {term.labels}, who are in {term.by} {list(there)} {own}"
    for other, _, node, *_ in others:
        for term in asked_by(other).anti_affinity:
            if term.required and _about(term, job) and domain(node, term.by):
                if any(domain(place, term.by) == domain(node, term.by) for _, place, _ in new):
                    return f"a job in {term.by} {domain(node, term.by)} wants to be away from it"
    return ""


def _alone(job: Job, asked: Constraints, new: list[Place], others: list[Held]) -> str:
    rows = {node.row: node.name for _, node, _ in new}
    for other, _, node, *_ in others:
        if other.instances is not job.instances and node.row in rows and (asked.exclusive or asked_by(other).exclusive):
            return f"{node.name} is shared with another job, and one of the two wants it for itself"
    return ""


def _ports(new: list[Place], others: list[Place]) -> str:
    taken = [(node.row, port) for group, node, _ in others for port in group.ports or ()]
    for group, node, _ in new:
        for port in group.ports or ():
            if (node.row, port) in taken:
                return f"port {port} of {node.name} is taken"
            taken.append((node.row, port))
    return ""


def _numa(new: list[Place], others: list[Place]) -> str:
    for group, node, devices in new:
        if group.numa == "required":
            count = node.spec.numa or 1
            numas = dict.fromkeys([node.devices[index].numa for index in devices if index < len(node.devices)])
            if len(numas) > 1:
                return f"devices {list(devices)} of {node.name} are of several NUMA nodes: {list(numas)}"
            pinned = [
                one
                for one, where, theirs in [*others, *new]
                if where is node and one.numa == "required" and theirs and node.devices[theirs[0]].numa in numas
            ] or [group]
            for what, has in (("cpu_milli", node.spec.cpu_milli), ("memory_mib", node.spec.memory_mib)):
                if sum(getattr(one, what) for one in pinned) > has // count:
                    return f"one NUMA node of {node.name} has {has // count} {what}, and more is pinned to it"
    return ""


def _licences(world: World, asker: Instance, asked: Constraints, gone: Gone) -> str:
    attempts = {task.attempt.key: task.attempt for node in world.rows.values() for task in node.tasks}
    promised = [
        kept for kept in world.nominations.values() if kept.instance is not asker and not outranks(world, asker, kept.instance)
    ]
    spared = {**gone, **{victim: None for kept in promised for victim in kept.victims}}
    for one in asked.licences if asker.attempt is None or not asker.attempt.tasks else ():
        held = [each.instance.job for key, each in attempts.items() if key not in spared and each.instance is not asker]
        returned = [each.instance.job for key, each in attempts.items() if key in spared and key not in gone]
        use = sum(_count(job, one.name) for job in held)
        kept_for = sum(_count(kept.instance.job, one.name) for kept in promised)
        use += max(kept_for, sum(_count(job, one.name) for job in returned))
        if use + one.count > world.licences.get(one.name, 0):
            return f"it needs {one.count} licences {one.name} of {world.licences.get(one.name, 0)}, and {use} are in use or kept"
    return ""


def _count(job: Job, name: str) -> int:
    return sum(one.count for one in asked_by(job).licences if one.name == name)
