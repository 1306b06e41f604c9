"""The fields of Muster's job files: how each is called, how it is read and written, and what it means.

One table for the door, for `muster convert` and for the reference in `docs/job-file.md`. A field that a person may set and
that is not here does not exist.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from muster.doors.dependencies import read_after, write_after
from muster.doors.quantities import read_cpu, read_instant, read_memory, read_share, read_span, write_instant
from muster.doors.service_fields import read_service, write_service
from muster.events.base import GROUPS_MAX
from muster.events.jobs import GroupRequest, JobRequest, JobRun, JobSubmitted, Requirement, Toleration
from muster.reading.values import Value

OPS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a file. `target` is the field of `part` that it sets."""

    key: str
    part: type[msgspec.Struct]
    target: str
    form: str
    """How it is written, for the reference."""
    read: Callable[[Value], Any]
    write: Callable[[Any], Any]
    about: str
    default: Any = msgspec.UNSET
    """Where it is not the default of the type."""

    def usual(self) -> Any:
        """What holds when the file does not say it."""
        if self.default is not msgspec.UNSET:
            return self.default
        field = next(field for field in msgspec.structs.fields(self.part) if field.name == self.target)
        if field.default is not msgspec.NODEFAULT:
            return field.default
        return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else msgspec.UNSET


def bounds(part: type[msgspec.Struct], target: str) -> tuple[int, int]:
    """The least and the most that the type takes."""
    info = msgspec.inspect.type_info(part)
    kind = next(field.type for field in info.fields if field.name == target)  # type: ignore[attr-defined]
    if isinstance(kind, msgspec.inspect.UnionType):
        kind = next(inner for inner in kind.types if not isinstance(inner, msgspec.inspect.NoneType))
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    return int(kind.ge if kind.ge is not None else -(2**53)), int(kind.le if kind.le is not None else 2**53)


def _same(value: Any) -> Any:
    return value


def _whole(part: type[msgspec.Struct], target: str) -> Callable[[Value], int]:
    least, most = bounds(part, target)
    return lambda value: value.whole(least, most)


def _texts(value: Value) -> tuple[str, ...]:
    return tuple(item.string() for item in value.several())


def _one_or_list(values: tuple[str, ...]) -> str | list[str]:
    return values[0] if len(values) == 1 else list(values)


def _labels(value: Value) -> dict[str, str]:
    return {key: item.scalar_text() for key, item in value.mapping("labels").items()}


def _environment(value: Value) -> dict[str, str]:
    found = {}
    for key, item in value.mapping("variables").items():
        if not key or "=" in key or "\0" in key:
            raise item.error("is no name of a variable: it may not be empty or hold =")
        found[key] = "" if item.data is None else item.scalar_text()
    return found


def _command(value: Value) -> tuple[str, ...]:
    if isinstance(value.data, list):
        words = tuple("" if item.data == "" else item.scalar_text() for item in value.data)
        if not words or not words[0]:
            raise value.error("must begin with the program to run")
        return words
    return ("bash", "-c", value.string())


def _write_command(command: tuple[str, ...]) -> Any:
    return command[2] if len(command) == 3 and command[:2] == ("bash", "-c") and command[2] else list(command)


def _array(value: Value) -> int:
    if isinstance(value.data, dict):
        fields = value.known("an array", ["count"])
        if "count" not in fields:
            raise value.error("needs a count")
        value = fields["count"]
    return value.whole(*bounds(JobRequest, "array"))


def read_selector(value: Value) -> tuple[Requirement, ...]:
    """Requirements on labels: a mapping of keys to values, or a list of them with their operators."""
    if isinstance(value.data, dict):
        return tuple(
            Requirement(key=key, values=tuple(entry.scalar_text() for entry in item.several()))
            for key, item in value.data.items()
        )
    found = []
    for item in value.items("requirements"):
        fields = item.known("a requirement", ["key", "op", "values"])
        if "key" not in fields:
            raise item.error("has a requirement without a key")
        op: Any = fields["op"].word(OPS) if "op" in fields else "In"
        values = tuple(entry.scalar_text() for entry in fields["values"].several()) if "values" in fields else ()
        found.append(Requirement(key=fields["key"].scalar_text(), op=op, values=values))
    return tuple(found)


def write_selector(selector: tuple[Requirement, ...]) -> Any:
    """The shorter of the two ways to write them."""
    plain = [requirement for requirement in selector if requirement.op == "In" and len(requirement.values) == 1]
    if len(plain) == len(selector) == len({requirement.key for requirement in selector}):
        return {requirement.key: requirement.values[0] for requirement in selector}
    return [
        {"key": requirement.key, "op": requirement.op} | ({"values": list(requirement.values)} if requirement.values else {})
        for requirement in selector
    ]


def _tolerations(value: Value) -> tuple[Toleration, ...]:
    return tuple(_toleration(item) for item in value.several())


def _toleration(item: Value) -> Toleration:
    effect: Any
    if isinstance(item.data, dict):
        fields = item.known("a toleration", ["key", "value", "effect", "seconds"])
        effect = fields["effect"].word(EFFECTS) if "effect" in fields else ""
        return Toleration(
            key=fields["key"].scalar_text() if "key" in fields else "",
            value=fields["value"].scalar_text() if "value" in fields else "",
            any_value="value" not in fields,
            effect=effect,
            seconds=fields["seconds"].whole(0, 10**9) if "seconds" in fields else msgspec.UNSET,
        )
    text, _, span = item.string().partition(" for ")
    head, colon, effect = text.rpartition(":")
    if not colon or effect not in EFFECTS or (span and not re.fullmatch("[0-9]{1,9}", span)):
        raise item.error(
            f"must be key=value:Effect, key:Effect or :Effect with one of {', '.join(EFFECTS)} (and ' for 300', in seconds), "
            f"not {item.said()}"
        )
    key, equals, label = head.partition("=")
    seconds = int(span) if span else msgspec.UNSET
    return Toleration(key=key, value=label, any_value=not equals, effect=effect, seconds=seconds)


def _write_tolerations(tolerations: tuple[Toleration, ...]) -> list[dict[str, Any]]:
    return [
        {
            key: text
            for key, text, said in (
                ("key", toleration.key, bool(toleration.key)),
                ("value", toleration.value, not toleration.any_value),
                ("effect", toleration.effect, bool(toleration.effect)),
                ("seconds", toleration.seconds, toleration.seconds is not msgspec.UNSET),
            )
            if said
        }
        for toleration in tolerations
    ]


def _write_cpu(milli: int) -> int | str:
    return milli // 1000 if milli % 1000 == 0 else f"{milli}m"


def _write_memory(mib: int) -> str | int:
    if mib == 0:
        return 0
    for unit, size in (("Ti", 1024**2), ("Gi", 1024)):
        if mib % size == 0:
            return f"{mib // size}{unit}"
    return f"{mib}Mi"


def _write_share(milli: int) -> str:
    return f"0.{milli:03d}".rstrip("0")


def _write_span(micros: int) -> int | str:
    if micros % 1_000_000:
        return f"{micros // 1_000_000}.{micros % 1_000_000:06d}".rstrip("0")
    seconds = micros // 1_000_000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return seconds


KINDS: Final = ("batch", "best-effort", "headroom")


def read_kind(value: Value) -> str | msgspec.UnsetType:
    """The kind of a job; unset for a batch job."""
    kind = value.string()
    if kind not in KINDS:
        raise value.error(f"must be {' or '.join(KINDS)}, not {value.said()}")
    return msgspec.UNSET if kind == "batch" else kind


def _directory(value: Value) -> str:
    return "" if value.data is None else value.string()


def _field(
    key: str,
    part: type[msgspec.Struct],
    target: str,
    form: str,
    about: str,
    read: Callable[[Value], Any] | None = None,
    write: Callable[[Any], Any] = _same,
    default: Any = msgspec.UNSET,
) -> Field:
    return Field(
        key=key,
        part=part,
        target=target,
        form=form,
        about=about,
        read=read or _whole(part, target),
        write=write,
        default=default,
    )


JOB_FIELDS = (
    _field("name", JobSubmitted, "name", "name", "What the job is called. It must be there.", Value.string),
    _field("user", JobSubmitted, "user", "name", "Whose job it is.", Value.string, default="who submits it"),
    _field("queue", JobSubmitted, "queue", "name", "Where it waits.", Value.string),
)
REQUEST_FIELDS = (
    _field("priority", JobRequest, "priority", "whole number", "Higher goes first, in its queue."),
    _field("preemptible", JobRequest, "preemptible", "true, false", "Whether a higher job may take its place.", Value.boolean),
    _field(
        "kind",
        JobRequest,
        "kind",
        "batch, best-effort, headroom",
        "`best-effort`: it takes what is idle, and stops for any other job. `headroom`: it runs nothing, and keeps room.",
        read_kind,
    ),
    _field(
        "budget",
        JobRequest,
        "budget",
        "whole number",
        "So many of its tasks may be disrupted at once, by preemption where that can be avoided, and by drains; else any number.",
    ),
    _field(
        "elastic",
        JobRequest,
        "elastic",
        "true, false",
        "Whether it grows while it runs, up to `count`, and gives up what is above `min` before anybody is evicted.",
        Value.boolean,
    ),
    _field(
        "checkpoint_every",
        JobRequest,
        "checkpoint_every_us",
        "span",
        "How often it says that it saved its work (`muster checkpoint JOB`); for people, no decision reads it.",
        read_span,
        _write_span,
    ),
    _field(
        "deadline",
        JobRequest,
        "deadline_us",
        "instant in quotes",
        "By when it should have finished, as `2026-12-01T18:00:00Z`. Among equals the earlier goes first. It ends nothing.",
        read_instant,
        write_instant,
    ),
    _field("array", JobRequest, "array", "whole number", "So many elements, each a whole instance of the job.", _array),
    _field("at_once", JobRequest, "at_once", "whole number", "With `array`: so many elements at once, in their order."),
    _field(
        "service",
        JobRequest,
        "service",
        "mapping",
        "It is a service: `replicas` are kept, and replaced one after the other when it is revised. See [services](services.md).",
        read_service,
        write_service,
    ),
    _field(
        "after",
        JobRequest,
        "after",
        "text or list",
        "The jobs for which it waits: `JOB` or `finished:JOB`, `ended:JOB`, `failed:JOB`, `started:JOB`.",
        read_after,
        write_after,
    ),
    _field(
        "max_retries",
        JobRequest,
        "max_retries",
        "whole number",
        "How often a failed attempt is tried again; lost nodes do not count.",
    ),
    _field("time_limit", JobRequest, "time_limit_us", "span", "From the start of an attempt.", read_span, _write_span),
    _field("grace", JobRequest, "grace_us", "span", "From SIGTERM to SIGKILL.", read_span, _write_span),
    _field(
        "degraded_grace",
        JobRequest,
        "degraded_grace_us",
        "span",
        "How long a gang that lost a member may run below its minimum.",
        read_span,
        _write_span,
    ),
    _field(
        "success",
        JobRequest,
        "success",
        "name of a group",
        "The group whose tasks decide the outcome; else all do.",
        Value.string,
    ),
    _field("labels", JobRequest, "labels", "mapping", "Whatever helps to find the job again.", _labels, dict),
)
TASK_FIELDS = (
    _field("count", GroupRequest, "count", "whole number", "How many tasks."),
    _field("min", GroupRequest, "min", "whole number", "With how many of them it may start.", default="count"),
    _field("cpu", GroupRequest, "cpu_milli", "cores", "Cores.", read_cpu, _write_cpu, default=100),
    _field("memory", GroupRequest, "memory_mib", "memory", "Memory.", read_memory, _write_memory, default=100),
    _field("disk", GroupRequest, "disk_mib", "memory", "Space on the node's own disk.", read_memory, _write_memory),
    _field("gpus", GroupRequest, "gpus", "whole number", "Whole GPUs."),
    _field(
        "gpu_share",
        GroupRequest,
        "gpu_milli",
        "decimal in quotes",
        "A share of one GPU, instead of `gpus`.",
        read_share,
        _write_share,
    ),
    _field(
        "gpu_memory",
        GroupRequest,
        "gpu_memory_mib",
        "memory",
        "The least memory that each GPU has in all; without `gpus` and `gpu_share`: so much of one GPU.",
        read_memory,
        _write_memory,
    ),
    _field(
        "gpu_model",
        GroupRequest,
        "gpu_models",
        "text or list",
        "The model, or several in order of preference.",
        _texts,
        _one_or_list,
    ),
    _field(
        "selector", GroupRequest, "selector", "mapping or list", "Which labels a node must have.", read_selector, write_selector
    ),
    _field(
        "tolerations",
        GroupRequest,
        "tolerations",
        "list",
        "Which taints the tasks put up with.",
        _tolerations,
        _write_tolerations,
    ),
)
RUN_FIELDS = (
    _field(
        "command",
        JobRun,
        "command",
        "text or list",
        "What each task runs: a line for bash, or a program and its arguments.",
        _command,
        _write_command,
    ),
    _field("image", JobRun, "image", "text", "The container image.", Value.string),
    _field("environment", JobRun, "environment", "mapping", "Variables for each task.", _environment, dict),
    _field(
        "directory",
        JobRun,
        "directory",
        "path or null",
        "Where each task starts. A relative path begins where the job is submitted; null is a folder of the task's own, which is "
        "empty and goes with it.",
        _directory,
        default="where it is submitted; with an image, the image's",
    ),
    _field(
        "output",
        JobRun,
        "output",
        "path",
        "Where standard output goes, with Slurm's patterns (`%j`, `%x`, `%t` ...).",
        Value.string,
    ),
    _field("error", JobRun, "error", "path", "Where standard error goes; else to `output` where that is said.", Value.string),
)
GROUP_KEYS = ("name", *(field.key for field in TASK_FIELDS))
JOB_KEYS = (*(field.key for field in (*JOB_FIELDS, *REQUEST_FIELDS, *TASK_FIELDS, *RUN_FIELDS)), "groups")
GROUPS_AT_MOST = GROUPS_MAX
