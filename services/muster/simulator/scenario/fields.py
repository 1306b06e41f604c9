"""Nodes, jobs and policies as scenes write them, read into what the events need.

A field whose feature does not exist yet is an error by name. A field of a wrong type or unit is an error of the file;
an amount that no scheduler may accept (too many digits, too large, a minimum above the count) is not: the scheduler has
to refuse it, so it is passed on as it is.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec

from muster.cluster.rules import LEVELS
from muster.engine.policies import unknown
from muster.events.edge import Malformed, check_queue
from muster.events.nodes import Taint
from muster.events.operations import Backfill, Policy, Weight
from muster.events.queues import Amounts, QueueSet
from muster.events.services import REPLICAS_MAX
from muster.reading.catalogue import read_bandwidth, read_capability
from muster.scheduler.shipped import STEERING, named
from muster.simulator.scenario.constraints import CONSTRAINTS, read_constraints, read_preferences, read_requirements
from muster.simulator.scenario.mig import read_cuts, read_slices
from muster.simulator.scenario.names import Mentions, read_one, read_plain, split_unit
from muster.simulator.scenario.quantities import Exact, read_cpu, read_gpus, read_memory, read_share, whole
from muster.simulator.scenario.reading import Value
from muster.simulator.scenario.services import SERVICE_FIELDS, read_service

TOPOLOGY = LEVELS[:-1]
"""The levels above the node."""
QUEUES = "the queue tree"

NEVER = -1
"""`stop_takes: never`: only the kill ends it."""


class NodeScene(msgspec.Struct, frozen=True, kw_only=True):
    """A node as its agent will report it. Amounts in the events' units."""

    name: str
    gpus: int = 0
    gpu_model: str = "H100"
    gpu_memory_mib: int = 80 * 1024
    cpu_milli: int = 64_000
    memory_mib: int = 512 * 1024
    disk_mib: int = 1024 * 1024
    pods: int = 1000
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    zone: str = ""
    block: str = ""
    rack: str = ""
    nvlink_domain: str = ""
    numa: int = 0
    images: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    mig: dict[int, tuple[str, ...]] = {}
    """By GPU, the profiles of the slices that it is cut into."""


class StartFails(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts with a task on one of these nodes fail before their start, so many times; None means always."""

    on: tuple[str, ...] = ()
    times: int | None = None


class JobScene(msgspec.Struct, frozen=True, kw_only=True):
    """A job: the submission's fields as plain JSON, and how its tasks behave (spans in microseconds)."""

    name: str
    user: str
    queue: str
    array: int | None
    """How many elements; of a service, how many replicas it may ever have."""
    groups: tuple[tuple[str, int, int], ...]
    """Name, count and minimum of each group."""
    request: dict[str, Any]
    after: tuple[tuple[str, str], ...] = ()
    """Names of jobs for which it waits, and what must come of each. One that was not submitted yet is the next of its name."""
    stop_takes_us: int = 0
    runtime_us: int | None = None
    ready_takes_us: int = 0
    start_fails: StartFails | None = None


def _models(value: Value) -> list[str]:
    return [item.string() for item in value.several()]


def _labels(value: Value) -> dict[str, str]:
    return {key: item.scalar_text() for key, item in value.mapping("labels").items()}


def _taints(value: Value) -> tuple[Taint, ...]:
    taints = []
    for item in value.several():
        head, colon, effect = item.string().rpartition(":")
        key, _, label = head.partition("=")
        if not colon or not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise item.error(f"must be key=value:NoSchedule (or PreferNoSchedule, NoExecute), not {item.said()}")
        taints.append(Taint(key=key, value=label, effect=effect))  # type: ignore[arg-type]  # checked above
    return tuple(taints)


def _texts(value: Value) -> tuple[str, ...]:
    return tuple(item.scalar_text() for item in value.several())


_NODE_FIELDS: dict[str, tuple[str, Callable[[Value], Any]]] = {
    "gpus": ("gpus", Value.count),
    "gpu_model": ("gpu_model", Value.string),
    "gpu_memory": ("gpu_memory_mib", lambda value: whole(value, read_memory(value))),
    "cpu": ("cpu_milli", lambda value: whole(value, read_cpu(value))),
    "memory": ("memory_mib", lambda value: whole(value, read_memory(value))),
    "disk": ("disk_mib", lambda value: whole(value, read_memory(value))),
    "pods": ("pods", Value.count),
    "labels": ("labels", _labels),
    "taints": ("taints", _taints),
    **{level: (level, Value.scalar_text) for level in TOPOLOGY},
    "numa": ("numa", Value.count),
    "images": ("images", _texts),
    "datasets": ("datasets", _texts),
    "mig": ("mig", read_cuts),
}


def read_node_fields(value: Value) -> tuple[list[str], dict[str, Any]]:
    """The names of a node entry and the fields of `NodeScene` that it sets."""
    fields = value.known("a node", ["name", *_NODE_FIELDS])
    if "name" not in fields:
        raise value.error("has a node without a name")
    changes = {}
    for key, item in fields.items():
        if key != "name":
            target, read = _NODE_FIELDS[key]
            changes[target] = read(item)
    if changes.get("gpus", 0) > 64:
        raise fields["gpus"].error(f"must be at most 64, not {fields['gpus'].said()}")
    for gpu in changes.get("mig", ()):
        if gpu >= changes.get("gpus", 0):
            raise fields["mig"].error(f"cuts GPU {gpu}; the node has {changes.get('gpus', 0)}, counted from 0")
    if changes.get("numa", 1) not in range(1, 65):
        raise fields["numa"].error("must be 1 to 64")
    if changes.get("pods", 1) < 1:
        raise fields["pods"].error("must be at least 1")
    names = read_plain(fields["name"])
    for name in names:
        if split_unit(name)[1] is not None:
            raise fields["name"].error(f"is no name of a node: {name!r}")
    return names, changes


def read_nodes(value: Value) -> list[NodeScene]:
    """A list of node entries, ranges expanded."""
    nodes: list[NodeScene] = []
    seen: dict[str, None] = {}
    for item in value.several():
        names, changes = read_node_fields(item)
        for name in names:
            if name in seen:
                raise item.error(f"has the node {name!r} twice")
            seen[name] = None
            nodes.append(NodeScene(name=name, **changes))
    return nodes


def _number(amount: Exact) -> int | float:
    """As JSON writes it: a float where the scheduler has to refuse it."""
    return float(amount) if isinstance(amount, Fraction) else amount


def _tolerations(value: Value) -> list[dict[str, Any]]:
    result = []
    for item in value.several():
        text, _, span = item.string().partition(" for ")
        head, colon, effect = text.rpartition(":")
        if not colon or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute") or (span and not span.isdecimal()):
            raise item.error(f"must be key=value:Effect, key:Effect or :Effect (and ' for 300', in seconds), not {item.said()}")
        key, equals, label = head.partition("=")
        toleration = {"key": key, "value": label, "any_value": not equals, "effect": effect}
        result.append(toleration | ({"seconds": int(span)} if span else {}))
    return result


TASK_FIELDS: dict[str, tuple[str, Callable[[Value], Any]]] = {
    "count": ("count", Value.whole),
    "min": ("min", Value.whole),
    "gpus": ("gpus", Value.whole),
    "gpu_share": ("gpu_milli", lambda value: _number(read_share(value))),
    "gpu_memory": ("gpu_memory_mib", lambda value: _number(read_memory(value))),
    "cpu": ("cpu_milli", lambda value: _number(read_cpu(value))),
    "memory": ("memory_mib", lambda value: _number(read_memory(value))),
    "disk": ("disk_mib", lambda value: _number(read_memory(value))),
    "gpu_model": ("gpu_models", _models),
    "gpu_capability": ("gpu_capability", read_capability),
    "gpu_bandwidth": ("gpu_bandwidth", read_bandwidth),
    "selector": ("selector", read_requirements),
    "any_of": ("any_of", lambda value: [read_requirements(item) for item in value.several()]),
    "prefers": ("prefers", read_preferences),
    "tolerations": ("tolerations", _tolerations),
    "numa": ("numa", lambda value: value.word(("required", "preferred"))),
    "ports": ("ports", lambda value: [item.whole() for item in value.several()]),
    "image": ("image", Value.scalar_text),
    "datasets": ("datasets", lambda value: [item.scalar_text() for item in value.several()]),
    "mig": ("gpu_profile", read_slices),
}

_AFTER = {"after": "started", "after_ok": "finished", "after_any": "ended", "after_fail": "failed"}

_JOB_FIELDS = [
    "name",
    "queue",
    "user",
    "priority",
    *TASK_FIELDS,
    "kind",
    "array",
    "replicas",
    *SERVICE_FIELDS,
    "preemptible",
    "budget",
    "deadline",
    "grace",
    "stop_takes",
    "runtime",
    "time_limit",
    "max_retries",
    "degraded_grace",
    "elastic",
    "checkpoint_every",
    "start_fails",
    "ready_takes",
    "labels",
    "groups",
    *_AFTER,
    *CONSTRAINTS,
]


def read_jobs(value: Value, mentions: Mentions) -> list[JobScene]:
    """A job entry, or a list of them, ranges of names expanded, in the order of the file."""
    jobs = []
    for item in value.several():
        fields = item.known("a job", _JOB_FIELDS)
        if "name" not in fields:
            raise item.error("has a job without a name")
        parts = [fields, *(part.mapping("a group") for part in fields["groups"].several())] if "groups" in fields else [fields]
        mentions.capable |= any("gpu_capability" in part or "gpu_bandwidth" in part for part in parts)
        for name in read_plain(fields["name"]):
            if split_unit(name)[1] is not None:
                raise fields["name"].error(f"is no name of a job: {name!r}")
            jobs.append(_job(name, item, fields, mentions))
            mentions.submitted[name] = fields
    return jobs


def _whole(value: Value, mentions: Mentions) -> tuple[str, ...]:
    """Names of jobs, not of their elements."""
    names = mentions.job_names(value, picks=False).plain
    for name in names:
        if split_unit(name)[1] is not None:
            raise value.error(f"must name jobs, not elements: {name!r}")
    return names


def _job(name: str, item: Value, fields: dict[str, Value], mentions: Mentions) -> JobScene:
    if "kind" in fields:
        kind = fields["kind"].word(("batch", "service", "best-effort", "headroom"))
    queue = read_one(fields["queue"]) if "queue" in fields else "default"
    if queue not in mentions.queues:
        raise fields["queue"].error(f"names the queue {queue!r}, which does not exist; there are {', '.join(mentions.queues)}")
    array = at_once = None
    if "array" in fields:
        spec = fields["array"].known("an array", ["count", "at_once"])
        if "count" not in spec:
            raise fields["array"].error("needs a count")
        array = spec["count"].whole()
        if "at_once" in spec:
            at_once = spec["at_once"].whole()
    if "groups" in fields:
        for key in fields:
            if key in TASK_FIELDS:
                raise fields[key].error("must stand in the groups: a job with groups has none of its own")
        groups = [_group(entry, named=True) for entry in fields["groups"].items("groups")]
        if not groups:
            raise fields["groups"].error("must have at least one group")
    else:
        groups = [_group(item, named=False)]
    request: dict[str, Any] = {"groups": groups}
    if "kind" in fields and kind not in ("batch", "service"):
        request["kind"] = kind
    for key, target, read in (
        ("priority", "priority", Value.whole),
        ("preemptible", "preemptible", Value.boolean),
        ("budget", "budget", Value.whole),
        ("deadline", "deadline_us", Value.micros),
        ("max_retries", "max_retries", Value.whole),
        ("time_limit", "time_limit_us", Value.micros),
        ("grace", "grace_us", Value.micros),
        ("degraded_grace", "degraded_grace_us", Value.micros),
        ("labels", "labels", _labels),
        ("elastic", "elastic", Value.boolean),
        ("checkpoint_every", "checkpoint_every_us", Value.micros),
    ):
        if key in fields:
            request[target] = read(fields[key])
    if array is not None:
        request["array"] = array
    if at_once is not None:
        request["at_once"] = at_once
    service = read_service(item, fields)
    if service is not None:
        request["service"] = service
        array = REPLICAS_MAX
    constraints = read_constraints(fields)
    if constraints:
        request["constraints"] = constraints
    return JobScene(
        name=name,
        user=read_one(fields["user"]) if "user" in fields else "u",
        queue=queue,
        array=array,
        groups=tuple((group["name"], group["count"], group["min"]) for group in groups),
        request=request,
        after=tuple((other, when) for key, when in _AFTER.items() if key in fields for other in _whole(fields[key], mentions)),
        stop_takes_us=_stop_takes(fields.get("stop_takes")),
        runtime_us=fields["runtime"].micros() if "runtime" in fields else None,
        ready_takes_us=fields["ready_takes"].micros() if "ready_takes" in fields else 0,
        start_fails=_start_fails(fields.get("start_fails"), mentions),
    )


def _group(item: Value, named: bool) -> dict[str, Any]:
    if named:
        fields = item.known("a group", ["name", *TASK_FIELDS])
        if "name" not in fields:
            raise item.error("has a group without a name")
        name = read_one(fields["name"])
    else:
        fields = item.mapping("a job")
        name = "task"
    group: dict[str, Any] = {"name": name, "count": 1, "cpu_milli": 100, "memory_mib": 100}
    for key, (target, read) in TASK_FIELDS.items():
        if key in fields:
            group[target] = read(fields[key])
    if "mig" in fields:
        group["gpu_profile"], count = group["gpu_profile"]
        if count and "gpus" in group:
            raise fields["mig"].error("counts the slices, and gpus does too: one of them is enough")
        group.setdefault("gpus", count or 1)
    group.setdefault("min", group["count"])
    return group


def _stop_takes(value: Value | None) -> int:
    if value is None:
        return 0
    return NEVER if value.data == "never" else value.micros()


def _start_fails(value: Value | None, mentions: Mentions) -> StartFails | None:
    if value is None:
        return None
    fields = value.known("start_fails", ["on", "times"])
    if "on" not in fields:
        raise value.error("needs the names of the nodes in on")
    return StartFails(
        on=mentions.node_names(fields["on"], picks=False).plain,
        times=fields["times"].count() if "times" in fields else None,
    )


_SPANS = {field.name[:-3]: field.name for field in msgspec.structs.fields(Policy) if field.name.endswith("_us")}
_COUNTS = ("aging_max", "flap_limit", "inputs_max", "decisions_max", "placements_max", "deferrals_max", "pending_max")
_SWITCHES = ("preemption", "reclaim", "strict")
_PLANNING = {"horizon": "horizon_us", "resolution": "resolution_us", "plan_ttl": "plan_ttl_us"}
"""Policy fields of a scene that stand in the policy's `backfill`; they count only where it plans."""


def read_policy(value: Value) -> dict[str, Any]:
    """The fields of `Policy` that a scene sets.

    `backfill` comes as the fields of `Backfill` that the scene sets, None where it plans nothing: `with_changes` reads it.
    """
    known = [
        "name",
        "version",
        "filters",
        "job_filters",
        "scores",
        "order",
        *_SWITCHES,
        "backfill",
        *_PLANNING,
        *_SPANS,
        *_COUNTS,
        *_SPANS.values(),
    ]
    fields = value.known("a policy", list(dict.fromkeys(known)))
    changes: dict[str, Any] = {}
    for key, item in fields.items():
        if key == "name":
            changes.update(_shipped(item))
        elif key == "order":
            changes["order"] = item.word(("shortest", "smallest"))
        elif key in _SWITCHES:
            changes[key] = item.boolean()
        elif key == "backfill":
            changes["backfill"] = _backfill(item)
        elif key in _PLANNING:
            changes.setdefault("planning", {})[_PLANNING[key]] = item.micros()
        elif key in ("filters", "job_filters"):
            changes[key] = tuple(entry.string() for entry in item.items(key))
        elif key == "scores":
            changes["scores"] = tuple(_weight(entry) for entry in item.items("scores"))
        elif key in _SPANS:
            changes[_SPANS[key]] = item.micros()
        else:
            changes[key] = item.count()
    changes = {**changes.pop("shipped", {}), **changes}
    policy = with_changes(Policy(), changes)
    why = unknown(policy)
    if why:
        raise value.error(f"names a plugin that is not there: {why}")
    try:
        msgspec.convert(msgspec.to_builtins(policy), Policy)
    except msgspec.ValidationError as error:
        raise value.error(f"cannot be set: {error}") from None
    return changes


_QUEUE_FIELDS = (
    "name",
    "parent",
    "guarantee",
    "limit",
    "user_limit",
    "borrow",
    "lend",
    "weight",
    "tier",
    "order",
    "preemption",
    "protected_from",
    "max_time",
    "default_priority",
    "users",
)


def read_queue(value: Value, mentions: Mentions) -> QueueSet:
    """A queue as an operator says it is."""
    fields = value.known("a queue", list(_QUEUE_FIELDS))
    if "name" not in fields:
        raise value.error("has a queue without a name")
    said: dict[str, Any] = {"queue": read_one(fields["name"])}
    if "parent" in fields:
        said["parent"] = read_one(fields["parent"])
        if said["parent"] not in mentions.queues:
            raise fields["parent"].error(f"names the queue {said['parent']!r}, which does not exist")
    for key in ("guarantee", "limit", "user_limit", "borrow", "lend"):
        if key in fields:
            said[key] = _queue_amounts(fields[key], key in ("limit", "user_limit"))
    for key in ("weight", "tier", "protected_from", "default_priority"):
        if key in fields:
            said[key] = fields[key].whole()
    if "order" in fields:
        said["order"] = fields["order"].word(("fifo", "fair"))
    if "preemption" in fields:
        item = fields["preemption"]
        word = item.word(("queue", "subtree", "off")) if isinstance(item.data, str) else ""
        said["preemption"] = word or ("queue" if item.boolean() else "off")
    if "max_time" in fields:
        said["max_time_us"] = fields["max_time"].micros()
    if "users" in fields:
        said["users"] = tuple(read_plain(fields["users"]))
    try:
        event = msgspec.convert(msgspec.to_builtins(QueueSet(**said)), QueueSet)
        check_queue(event)
    except (msgspec.ValidationError, Malformed) as error:
        raise value.error(f"cannot be set: {error}") from None
    return event


def _queue_amounts(value: Value, jobs: bool) -> Amounts:
    said: dict[str, Any] = {}
    by_model = {}
    for key, item in value.mapping("amounts").items():
        if key.startswith("gpus/") and len(key) > 5:
            by_model[key[5:]] = whole(item, read_gpus(item))
        elif key == "gpus":
            said["gpu_milli"] = whole(item, read_gpus(item))
        elif key == "cpu":
            said["cpu_milli"] = whole(item, read_cpu(item))
        elif key == "memory":
            said["memory_mib"] = whole(item, read_memory(item))
        elif key == "jobs" and jobs:
            said["jobs"] = item.count()
        else:
            raise item.error(f"is unknown: amounts are gpus, gpus/MODEL, cpu, memory{' and jobs' if jobs else ''}")
    return Amounts(gpu_milli_by_model=by_model, **said)


def with_changes(policy: Policy, changes: dict[str, Any]) -> Policy:
    """The policy with what a scene sets of it: what it says of planning counts from when it plans on."""
    plain = {key: change for key, change in changes.items() if key not in ("backfill", "planning")}
    planning = changes.get("planning", {})
    backfill = policy.backfill
    if "backfill" in changes:
        settings = changes["backfill"]
        if settings is None:
            backfill = msgspec.UNSET
        else:
            kept = Backfill() if backfill is msgspec.UNSET else backfill
            backfill = msgspec.structs.replace(kept, **settings)
    if backfill is not msgspec.UNSET:
        backfill = msgspec.structs.replace(backfill, **planning)
    return msgspec.structs.replace(policy, backfill=backfill, **plain)


def _shipped(value: Value) -> dict[str, Any]:
    """The name of a policy; for one that is shipped also what it sets, under `shipped`."""
    found = named(value.string())
    if found is None:
        return {"name": read_one(value)}
    sets = {name: getattr(found.policy, name) for name in STEERING}
    if found.name == Policy().name and "/" not in value.string():
        return {"name": found.name}  # in a scene that is what a cell has until it is told otherwise
    backfill = sets.pop("backfill")
    planned = None if backfill is msgspec.UNSET else msgspec.structs.asdict(backfill)
    return {"name": found.name, "shipped": {**sets, "backfill": planned}}


def _backfill(value: Value) -> dict[str, Any] | None:
    if isinstance(value.data, bool):
        return {"reservations": 1} if value.data else None
    fields = value.known("backfill", ["reservations", *_PLANNING])
    settings = {_PLANNING[key]: item.micros() for key, item in fields.items() if key != "reservations"}
    return {"reservations": fields["reservations"].count() if "reservations" in fields else 1, **settings}


def _weight(value: Value) -> Weight:
    if isinstance(value.data, str):
        return Weight(name=value.data)
    fields = value.known("a score", ["name", "weight"])
    if "name" not in fields:
        raise value.error("has a score without a name")
    return Weight(name=fields["name"].string(), weight=fields["weight"].whole() if "weight" in fields else 1)
