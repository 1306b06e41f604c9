"""One entry of the log as one line: its kind and what it says, without the fields that are at their defaults."""

from typing import Any

import msgspec

from muster.events.base import Event
from muster.events.decisions import AttemptRef, InstanceBound, InstanceGrown, MembersReplaced, Nominated, Placement
from muster.events.jobs import JobSubmitted
from muster.events.nodes import NodeRegistered

PLACES_SHOWN = 4
TEXT_MAX = 160


def line(event: Event, names: dict[str, str]) -> str:
    """The entry for a person. `names` gives the names of jobs by id, as far as they are known; it learns from this entry."""
    if isinstance(event, JobSubmitted):
        names[event.job] = event.name
    fields = " ".join(_fields(event, names))
    return f"{type(event).__name__} {fields}".rstrip()


def _fields(event: Event, names: dict[str, str]) -> list[str]:
    if isinstance(event, JobSubmitted):
        groups = " + ".join(_group(group) for group in event.request.groups)
        array = f" array={event.request.array}" if event.request.array else ""
        return [
            f"{event.name} ({event.job}) user={event.user} queue={event.queue} priority={event.request.priority}{array} {groups}"
        ]
    if isinstance(event, NodeRegistered):
        return [f"node={event.node} uid={event.uid} cpu_milli={event.spec.cpu_milli} gpus={len(event.spec.devices)}"]
    return [text for name in event.__struct_fields__ if (text := _field(event, name, names))]


def _group(group: Any) -> str:
    gpu = (
        f"{group.gpus} {group.gpu_profile or 'GPU'}" if group.gpus else f"{group.gpu_milli} milli-GPU" if group.gpu_milli else ""
    )
    gpu = gpu or (f"{group.gpu_memory_mib} MiB of a GPU" if group.gpu_memory_mib else f"{group.cpu_milli} milli-CPU")
    least = f" (at least {group.min})" if group.min != group.count else ""
    return f"{group.name}: {group.count}{least} x {gpu}"


def _field(event: Event, name: str, names: dict[str, str]) -> str:
    value = getattr(event, name)
    if value in (None, "", (), {}) or value == _default(type(event), name):
        return ""
    if name in ("job", "by_job") and isinstance(value, str):
        value = names.get(value, value)
    elif name == "placements" and isinstance(event, (InstanceBound, InstanceGrown, Nominated, MembersReplaced)):
        value = _places(event.placements)
    elif name == "victims":
        value = ",".join(_attempt(reference, names) for reference in value)
    elif not isinstance(value, (str, int)):
        value = msgspec.json.encode(value).decode()
    text = str(value)
    return f"{name}={text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + '…'}"


def _default(kind: type[Event], name: str) -> object:
    return next((field.default for field in msgspec.structs.fields(kind) if field.name == name), msgspec.NODEFAULT)


def _places(placements: tuple[Placement, ...]) -> str:
    """`rank@row[devices]`, the first few."""
    shown = [
        f"{place.rank}@{place.row}" + (f"[{','.join(map(str, place.devices))}]" if place.devices else "") for place in placements
    ]
    more = f" and {len(shown) - PLACES_SHOWN} more" if len(shown) > PLACES_SHOWN else ""
    return ",".join(shown[:PLACES_SHOWN]) + more


def _attempt(reference: AttemptRef, names: dict[str, str]) -> str:
    return f"{names.get(reference.job, reference.job)}/{reference.instance}#{reference.attempt}"
