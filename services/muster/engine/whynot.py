"""Why is my job not on that node? Everything that keeps a task of it off this one node, with numbers. Nothing here decides."""

from typing import Final

import msgspec

from muster.cluster.jobs import TERMINAL, Instance, Job
from muster.cluster.nodes import Node
from muster.cluster.rules import domain_of
from muster.cluster.shapes import Shape
from muster.cluster.state import State
from muster.engine.explain import unfree
from muster.engine.filters import JOB_FILTERS
from muster.engine.place import Placer
from muster.engine.preempt import may_be_victim
from muster.engine.reserved_why import reserved_from

VERBS: Final = {
    "have ": "has ",
    "are ": "is ",
    "do not ": "does not ",
    "take ": "takes ",
    "hold ": "holds ",
    "name ": "names ",
}
"""How what is said of nodes begins, and how it begins of one."""


class WhyNot(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: `fits` is whether one task of each group could stand there now; `lines` say it all, for a person."""

    job: str
    instance: int
    node: str
    phase: str
    cycle: int
    fits: bool
    lines: tuple[str, ...]


def why_not(state: State, job_id: str, name: str, index: int = 0, placer: Placer | None = None) -> WhyNot:
    """What keeps the instance off the node.

    Raises:
        KeyError: the state knows no such job, instance or node.
    """
    job = state.jobs[job_id]
    node = state.node(name)
    if node is None or index >= len(job.instances):
        raise KeyError(f"there is no node {name}" if node is None else f"job {job_id} has {len(job.instances)} instances")
    instance = job.instances[index]
    placer = placer or Placer(state)
    lines: list[str] = []
    for number, (group, shape) in enumerate(zip(job.request.groups, job.gang.shapes, strict=True)):
        against = _against(state, placer, instance, shape, node)
        title = f"group {group.name}: " if len(job.gang.shapes) > 1 else ""
        lines += [f"{title}{node.name}: {text}" for text in against]
        if not against:
            room = placer.bound.domains.room_on(shape, node.row)
            lines.append(
                f"{title}{node.name} has room for {min(room, job.gang.counts[number])} of {job.gang.counts[number]} tasks"
            )
    fits = not any(_against(state, placer, instance, shape, node) for shape in job.gang.shapes)
    if fits:
        lines += _whole(placer, job, node)
    lines += _held(state, job, node)
    return WhyNot(
        job=job.id,
        instance=index,
        node=name,
        phase=instance.phase,
        cycle=state.number,
        fits=fits,
        lines=(_standing(instance, node), *lines) if instance.phase != "pending" else tuple(lines),
    )


def _standing(instance: Instance, node: Node) -> str:
    attempt = instance.attempt
    if attempt is None or instance.phase in TERMINAL:
        return f"it is {instance.phase}"
    here = sum([task.node is node for task in attempt.tasks.values() if task.holding])
    return f"it is {instance.phase}, with {here} of its tasks on {node.name}"


def _against(state: State, placer: Placer, instance: Instance, shape: Shape, node: Node) -> list[str]:
    """Every reason, not only the first."""
    job = instance.job
    bit = 1 << node.row
    cache = placer.cache
    cache.index.refresh()
    found = []
    for each in cache.filters:
        if not each.passes(cache.index, shape, bit):
            found.append(_single(each.sentence(shape)))
    if node.uid in job.avoid:
        found.append("failed to start this job before")
    for other in JOB_FILTERS.values():
        if not other.passes(placer.bound.around, job, bit):
            found.append(_single(other.sentence(placer.bound.around, job)))
    return found or [
        _single(reason.text)
        for reason in unfree(state, shape, "", bit, {}, reserved_from(state, placer, instance))
        if reason.code != "fits"
    ]


def _single(sentence: str) -> str:
    """What is said of nodes, of one."""
    for many, one in VERBS.items():
        if sentence.startswith(many):
            return one + sentence.removeprefix(many)
    return sentence


def _whole(placer: Placer, job: Job, node: Node) -> list[str]:
    """Where a task fits: what of the whole instance would not."""
    rules = job.gang.rules
    placer.bound.around.topology.refresh()
    for level in placer.bound.required(job, rules) if rules is not None else ():
        value = domain_of(node.name, node.spec, level)
        rows = placer.bound.around.topology.rows(level, value)
        for shape, least in zip(job.gang.shapes, job.gang.minima, strict=True):
            room = placer.bound.domains.room_in(shape, rows)
            if room < least:
                return [f"the {level} {value} of {node.name} has room for {room} tasks of the {least} that stay within one"]
    return [] if job.gang.single else ["the whole instance has to fit at once, here and elsewhere"]


def _held(state: State, job: Job, node: Node) -> list[str]:
    """Who is there, and whether they could be preempted for it."""
    attempts = {task.attempt.instance.key: task.attempt for task in node.tasks}
    if not attempts:
        return []
    could = sum([may_be_victim(state, attempt, job) for attempt in attempts.values()])
    stop = sum([attempt.phase == "stop" for attempt in attempts.values()])
    text = f"{node.name} holds tasks of {len(attempts)} attempts: {could} could be preempted for it, {stop} stop already"
    kept = [key for key in sorted(node.claims) if key[0] != job.id]
    return [text, *[f"something of {node.name} is kept for {key[0]}/{key[1]}" for key in kept[:4]]]
