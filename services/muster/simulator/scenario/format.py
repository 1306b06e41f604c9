"""A scenario file read into a `Scenario`: what `shared/scenario-format.md` says, for the features that exist.

An unknown key, a name that never existed, a wrong type or unit is an error with its place, never ignored; so is a key
whose feature does not exist yet. What only playing can show (a job that is not running when it is told to finish) is
not judged here.
"""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from muster.cluster.rules import LEVELS
from muster.events.queues import QueueSet
from muster.simulator.scenario.constraints import read_licences
from muster.simulator.scenario.expectations import Check, read_checks
from muster.simulator.scenario.fields import (
    TASK_FIELDS,
    JobScene,
    NodeScene,
    read_jobs,
    read_node_fields,
    read_nodes,
    read_policy,
    read_queue,
)
from muster.simulator.scenario.names import Mentions, read_plain, split_unit
from muster.simulator.scenario.quantities import read_cpu, read_memory, whole
from muster.simulator.scenario.reading import Value, read_file, read_text
from muster.simulator.scenario.reserving import read_reservation
from muster.simulator.scenario.services import read_metric, read_scale


class Verb(msgspec.Struct, frozen=True):
    """Something that happens in a step."""

    kind: str
    args: Any
    line: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What happens at one time, in order, and what must be true when all is quiet."""

    at_us: int
    line: int
    verbs: tuple[Verb, ...]
    expects: tuple[tuple[Check, ...], ...]
    nevers: tuple[tuple[Check, ...], ...]
    shuffle: bool


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A scene: a cluster, a policy, steps in the order of time."""

    file: str
    name: str
    about: str
    nodes: tuple[NodeScene, ...]
    licences: dict[str, int]
    policy: dict[str, Any]
    queues: tuple[QueueSet, ...]
    steps: tuple[Step, ...]
    capable: bool
    """Whether some job asks for what a GPU can do: then the catalogue of the package is recorded at the beginning."""
    instants: tuple[int, ...]
    """Times whose devices are compared with later ones."""


def load(path: Path) -> Scenario:
    """The scene in a file.

    Raises:
        ScenarioError: what is wrong, with its place.
    """
    return _scenario(read_file(path), str(path))


def parse(text: str, file: str = "scene.yaml") -> Scenario:
    """The scene in a text.

    Raises:
        ScenarioError: what is wrong, with its place.
    """
    return _scenario(read_text(text, file), file)


def _scenario(document: Value, file: str) -> Scenario:
    fields = document.known("a scene", ["name", "about", "cluster", "queues", "policy", "steps"])
    for key in ("name", "cluster", "steps"):
        if key not in fields:
            raise document.error(f"has no {key}")
    cluster = fields["cluster"].known("a cluster", ["nodes", "licences", "topology"])
    mentions = Mentions(_queue_names(fields))
    queues = [read_queue(item, mentions) for item in fields["queues"].items("queues")] if "queues" in fields else []
    nodes = read_nodes(cluster["nodes"]) if "nodes" in cluster and cluster["nodes"].data != [] else []
    if "topology" in cluster:
        nodes = _placed(cluster["topology"], nodes)
    licences = read_licences(cluster["licences"]) if "licences" in cluster else {}
    policy = read_policy(fields["policy"]) if "policy" in fields else {}
    steps = [_step(item, mentions) for item in fields["steps"].items("steps")]
    if not any(step.expects or step.nevers for step in steps):
        raise fields["steps"].error("expect nothing: a file in which no expectation follows a decision proves nothing")
    steps.sort(key=lambda step: step.at_us)
    _check_mentions(mentions, nodes, steps)
    about = fields["about"].string() if "about" in fields else ""
    return Scenario(
        file=file,
        name=fields["name"].scalar_text(),
        about=about,
        nodes=tuple(nodes),
        licences=licences,
        policy=policy,
        queues=tuple(queues),
        steps=tuple(steps),
        capable=mentions.capable,
        instants=tuple(sorted({at_us for at_us, _ in mentions.instants})),
    )


def _queue_names(fields: dict[str, Value]) -> list[str]:
    """Every queue that the file ever sets, and the one that is always there."""
    names = ["default"]
    said = fields["queues"].items("queues") if "queues" in fields else []
    for step in fields["steps"].items("steps"):
        if isinstance(step.data, dict) and "queue" in step.data:
            said = [*said, *step.data["queue"].several()]
    for item in said:
        if isinstance(item.data, dict) and "name" in item.data:
            names.extend(read_plain(item.data["name"]))
    return list(dict.fromkeys(names))


def _placed(value: Value, nodes: list[NodeScene]) -> list[NodeScene]:
    """The nodes in the domains that the topology names: level, then domain, then the names of its nodes."""
    found = {node.name: node for node in nodes}
    for level, domains in value.known("a topology", LEVELS[:-1]).items():
        for domain, names in domains.mapping("domains").items():
            for name in read_plain(names):
                if name not in found:
                    raise names.error(f"names the node {name!r}, which the cluster does not have")
                if getattr(found[name], level):
                    raise names.error(f"names {name!r}, which is in the {level} {getattr(found[name], level)!r} already")
                found[name] = msgspec.structs.replace(found[name], **{level: domain})
    return list(found.values())


def _step(value: Value, mentions: Mentions) -> Step:
    fields = value.known("a step", ["at", "shuffle", "expect", "never", *_VERBS])
    if "at" not in fields:
        raise value.error("needs the time in at")
    verbs: list[Verb] = []
    expects: list[tuple[Check, ...]] = []
    nevers: list[tuple[Check, ...]] = []
    for key, item in fields.items():
        if key == "expect":
            expects.extend(read_checks(entry, mentions) for entry in item.several())
        elif key == "never":
            nevers.extend(read_checks(entry, mentions) for entry in item.several())
        elif key not in ("at", "shuffle"):
            verbs.extend(Verb(key, args, item.line) for args in _VERBS[key](item, mentions))
    if not verbs and not expects and not nevers:
        raise value.error("is a step in which nothing happens")
    return Step(
        at_us=fields["at"].micros(),
        line=value.line,
        verbs=tuple(verbs),
        expects=tuple(expects),
        nevers=tuple(nevers),
        shuffle=fields["shuffle"].boolean() if "shuffle" in fields else False,
    )


def _check_mentions(mentions: Mentions, nodes: list[NodeScene], steps: list[Step]) -> None:
    """Every name that is used has to exist somewhere in the file."""
    jobs: dict[str, int | None] = {}
    groups: dict[str, list[str]] = {}
    users = {}
    node_names = {node.name: node for node in nodes}
    for step in steps:
        for verb in step.verbs:
            if verb.kind == "submit":
                for job in verb.args:
                    jobs[job.name] = max(jobs.get(job.name) or 0, job.array) if job.array is not None else jobs.get(job.name)
                    groups.setdefault(job.name, []).extend(name for name, _, _ in job.groups)
                    users[job.user] = job
            elif verb.kind == "add_nodes":
                node_names.update({node.name: node for node in verb.args})
    for name, value in mentions.jobs:
        base, index = split_unit(name)
        if base not in jobs:
            raise value.error(f"names the job {base!r}, which is never submitted")
        if index is not None and index >= (jobs[base] or 1):
            raise value.error(f"names {name!r}, but {base!r} has {jobs[base] or 1} instances, numbered from 0")
    for wanted, picked, value in mentions.picks:
        there = sum((jobs.get(name) or 1) for name in picked)
        if wanted > there:
            raise value.error(f"asks for {wanted} of {there}: {value.said()}")
    for name, value in mentions.nodes:
        if name not in node_names:
            raise value.error(f"names the node {name!r}, which never exists")
    for name, value in mentions.users:
        if name not in users:
            raise value.error(f"is no user of a job: {name!r}")
    latest = steps[-1].at_us
    for at_us, value in mentions.instants:
        if at_us > latest:
            raise value.error("is a time after the last step")


def _submit(value: Value, mentions: Mentions) -> list[Any]:
    return [read_jobs(value, mentions)]


def _revised(value: Value, mentions: Mentions) -> list[JobScene]:
    """Services as they are to be: what is not said again is as it was when they were submitted, or revised, before."""
    scenes = []
    for item in value.several():
        changes = dict(item.mapping("a revision"))
        if "job" not in changes:
            raise item.error("has a revision without job")
        named = changes.pop("job")
        for name in mentions.job_names(named, picks=False).plain:
            if name not in mentions.submitted:
                raise named.error(f"names {name!r}, which was not submitted before")
            before = mentions.submitted[name]
            kept = [key for key in before if not ("groups" in changes and key in TASK_FIELDS)]
            fields = {**{key: before[key] for key in kept}, **changes, "name": Value(name, name, item.file, item.line, "job")}
            scenes.extend(read_jobs(Value(fields, "", item.file, item.line, item.key), mentions))
    return scenes


def _jobs(value: Value, mentions: Mentions) -> list[Any]:
    return [list(mentions.job_names(value, picks=False).plain)]


def _nodes(value: Value, mentions: Mentions) -> list[Any]:
    return [list(mentions.node_names(value, picks=False).plain)]


def _fail(value: Value, mentions: Mentions) -> list[Any]:
    result: list[Any] = []
    for item in value.several():
        fields = _needs(item, "a failure", ["job"], ["rank", "reason"])
        rank = fields["rank"].count() if "rank" in fields else 0
        reason = fields["reason"].scalar_text() if "reason" in fields else ""
        result.extend((name, rank, reason) for name in mentions.job_names(fields["job"], picks=False).plain)
    return result


def _reprioritise(value: Value, mentions: Mentions) -> list[Any]:
    result: list[Any] = []
    for item in value.several():
        fields = _needs(item, "a change of priority", ["job", "priority"], [])
        priority = fields["priority"].whole()
        result.extend((name, priority) for name in mentions.job_names(fields["job"], picks=False).plain)
    return result


def _resize(value: Value, mentions: Mentions) -> list[Any]:
    result: list[Any] = []
    for item in value.several():
        fields = _needs(item, "a change of size", ["job", "count"], [])
        count = fields["count"].whole()
        result.extend((name, count) for name in mentions.job_names(fields["job"], picks=False).plain)
    return result


def _add_nodes(value: Value, mentions: Mentions) -> list[Any]:
    return [read_nodes(value)]


def _update_node(value: Value, mentions: Mentions) -> list[Any]:
    result: list[Any] = []
    for item in value.several():
        names, changes = read_node_fields(item)
        if not changes:
            raise item.error("changes nothing")
        mentions.node_names(item.mapping("a node")["name"], picks=False)
        result.extend((name, changes) for name in names)
    return result


def _reregister(value: Value, mentions: Mentions) -> list[Any]:
    result: list[Any] = []
    for item in value.several():
        fields = _needs(item, "a registration", ["name", "order"], [])
        order = [entry.count() for entry in fields["order"].items("indices")]
        if sorted(order) != list(range(len(order))):
            raise fields["order"].error(f"must hold each index from 0 once, not {fields['order'].said()}")
        result.extend((name, order) for name in mentions.node_names(fields["name"], picks=False).plain)
    return result


def _device(value: Value, mentions: Mentions) -> list[Any]:
    result: list[Any] = []
    for item in value.several():
        fields = _needs(item, "a device", ["node", "index", "health"], [])
        health = fields["health"].word(("failed", "degraded", "healthy"))
        for name in mentions.node_names(fields["node"], picks=False).plain:
            result.extend((name, entry.count(), health) for entry in fields["index"].several())
    return result


def _foreign(value: Value, mentions: Mentions) -> list[Any]:
    result: list[Any] = []
    for item in value.several():
        fields = _needs(item, "foreign use", ["node"], ["cpu", "memory", "gpus"])
        cpu = whole(fields["cpu"], read_cpu(fields["cpu"])) if "cpu" in fields else 0
        memory = whole(fields["memory"], read_memory(fields["memory"])) if "memory" in fields else 0
        gpus = fields["gpus"].count() if "gpus" in fields else 0
        result.extend((name, cpu, memory, gpus) for name in mentions.node_names(fields["node"], picks=False).plain)
    return result


def _queue(value: Value, mentions: Mentions) -> list[Any]:
    return [read_queue(item, mentions) for item in value.several()]


def _remove_queue(value: Value, mentions: Mentions) -> list[Any]:
    names = read_plain(value)
    for name in names:
        if name not in mentions.queues:
            raise value.error(f"names the queue {name!r}, which does not exist; there are {', '.join(mentions.queues)}")
    return list(names)


def _policy(value: Value, mentions: Mentions) -> list[Any]:
    return [read_policy(value)]


def _late(value: Value, mentions: Mentions) -> list[Any]:
    result: list[Any] = []
    for item in value.several():
        fields = _needs(item, "a late report", ["job", "attempt", "report"], ["rank", "code"])
        attempt = fields["attempt"].count()
        if attempt < 1:
            raise fields["attempt"].error("must be 1 or more: attempts count from 1")
        rank = fields["rank"].count() if "rank" in fields else 0
        report = fields["report"].word(("ready", "started", "exited"))
        code = fields["code"].whole() if "code" in fields else 0
        result.append((mentions.job(fields["job"]), attempt, rank, report, code))
    return result


def _needs(value: Value, what: str, needed: list[str], optional: list[str]) -> dict[str, Value]:
    fields = value.known(what, [*needed, *optional])
    for key in needed:
        if key not in fields:
            raise value.error(f"has {what} without {key}")
    return fields


def _true(value: Value, mentions: Mentions) -> list[Any]:
    if not value.boolean():
        raise value.error("can only be true")
    return [True]


def _repeat(value: Value, mentions: Mentions) -> list[Any]:
    if value.count() < 1:
        raise value.error("must be 1 or more")
    return [value.count()]


def _clock(value: Value, mentions: Mentions) -> list[Any]:
    if isinstance(value.data, bool) or not isinstance(value.data, int | Decimal):
        raise value.error(f"must be seconds such as +3600, not {value.said()}")
    return [value.micros(signed=True)]


_VERBS: dict[str, Callable[[Value, Mentions], list[Any]]] = {
    "submit": _submit,
    "cancel": _jobs,
    "finish": _jobs,
    "fail": _fail,
    "reprioritise": _reprioritise,
    "resize": _resize,
    "checkpoint": _jobs,
    "add_nodes": _add_nodes,
    "remove_nodes": _nodes,
    "update_node": _update_node,
    "reregister": _reregister,
    "silence": _nodes,
    "return": _nodes,
    "fence": _nodes,
    "cordon": _nodes,
    "uncordon": _nodes,
    "drain": _nodes,
    "device": _device,
    "foreign": _foreign,
    "policy": _policy,
    "queue": _queue,
    "remove_queue": _remove_queue,
    "repeat_last": _repeat,
    "scale": read_scale,
    "revise": lambda value, mentions: list(_revised(value, mentions)),
    "metric": read_metric,
    "licences": lambda value, mentions: [read_licences(value)],
    "reserve": lambda value, mentions: [read_reservation(item, mentions) for item in value.several()],
    "unreserve": lambda value, mentions: list(read_plain(value)),
    "late": _late,
    "unreadable": _nodes,
    "readable": _nodes,
    "lease_extend": lambda value, mentions: [value.micros()],
    "clock": _clock,
    "restart": _true,
    "takeover": _true,
    "restart_with_gap": lambda value, mentions: [value.micros()],
    "fail_append": lambda value, mentions: [value.word(("lost", "landed"))],
    "malformed": lambda value, mentions: [item.scalar_text() for item in value.several()],
}
