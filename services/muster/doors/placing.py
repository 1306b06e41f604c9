"""The fields of a job file about the places of a job as a whole, and what a task wants of its node beside amounts."""

from typing import Any, get_args

from msgspec import UNSET

from muster.doors.fields import Field, read_selector, write_selector
from muster.events.jobs import Constraints, GroupRequest, JobTerm, Level, Licences, Preference, Spread, Within
from muster.reading.catalogue import read_bandwidth, read_capability, read_profile, write_capability
from muster.reading.values import Value

LEVELS: tuple[str, ...] = get_args(Level)
COUNT_MAX = 1_000_000_000


def _level(key: str, value: Value) -> Any:
    if key not in LEVELS:
        raise value.error(f"is no level: {key!r}; there are {', '.join(LEVELS)}")
    return key


def _within(value: Value) -> tuple[Within, ...]:
    return tuple(
        Within(level=_level(key, item), required=item.word(("required", "preferred")) == "required")
        for key, item in value.mapping("levels").items()
    )


def _write_within(within: tuple[Within, ...]) -> dict[str, str]:
    return {one.level: "required" if one.required else "preferred" for one in within}


def _spread(value: Value) -> tuple[Spread, ...]:
    found = []
    for key, item in value.mapping("levels").items():
        if isinstance(item.data, dict):
            said = {name: bound.whole(1, 100_000) for name, bound in item.known("a spread", ["most", "skew"]).items()}
        else:
            said = {"most": item.whole(1, 100_000)}
        found.append(Spread(level=_level(key, item), **said))
    return tuple(found)


def _write_spread(spread: tuple[Spread, ...]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for one in spread:
        bounds = {"most": one.most, "skew": one.skew}
        written[one.level] = {name: bound for name, bound in bounds.items() if bound} if one.skew else one.most
    return written


def _terms(value: Value) -> tuple[JobTerm, ...]:
    found = []
    for item in value.several():
        fields = item.known("a term", ["labels", "by", "required"])
        if "labels" not in fields:
            raise item.error("needs the labels of the other jobs in labels")
        by: Any = fields["by"].word(LEVELS) if "by" in fields else "node"
        required = fields["required"].boolean() if "required" in fields else True
        found.append(JobTerm(labels=read_selector(fields["labels"]), by=by, required=required))
    return tuple(found)


def _write_terms(terms: tuple[JobTerm, ...]) -> list[dict[str, Any]]:
    return [
        {"labels": write_selector(term.labels), "by": term.by} | ({} if term.required else {"required": False}) for term in terms
    ]


def _licences(value: Value) -> tuple[Licences, ...]:
    return tuple(Licences(name=name, count=item.whole(1, COUNT_MAX)) for name, item in value.mapping("licences").items())


def _any_of(value: Value) -> Any:
    return tuple(read_selector(item) for item in value.several()) or UNSET


def _preferences(value: Value) -> Any:
    found = []
    for item in value.several():
        fields = item.known("a preference", ["labels", "weight"])
        if "labels" not in fields:
            raise item.error("needs the labels that it prefers in labels")
        weight = fields["weight"].whole(1, 100) if "weight" in fields else 1
        found.append(Preference(labels=read_selector(fields["labels"]), weight=weight))
    return tuple(found) or UNSET


def _write_preferences(wishes: tuple[Preference, ...]) -> list[dict[str, Any]]:
    return [{"labels": write_selector(wish.labels)} | ({} if wish.weight == 1 else {"weight": wish.weight}) for wish in wishes]


def _ports(value: Value) -> Any:
    return tuple(item.whole(1, 65_535) for item in value.several()) or UNSET


def _datasets(value: Value) -> Any:
    return tuple(item.string() for item in value.several()) or UNSET


def _field(key: str, part: Any, form: str, about: str, read: Any, write: Any, target: str = "") -> Field:
    return Field(key=key, part=part, target=target or key, form=form, read=read, write=write, about=about)


CONSTRAINT_FIELDS = (
    _field(
        "within",
        Constraints,
        "levels: required or preferred",
        "All tasks in one domain of `zone`, `block`, `rack`, `nvlink_domain` or `node`.",
        _within,
        _write_within,
    ),
    _field(
        "spread",
        Constraints,
        "levels: whole number, or {most, skew}",
        "At most so many tasks in one domain, or so many more than in the emptiest.",
        _spread,
        _write_spread,
    ),
    _field(
        "affinity",
        Constraints,
        "{labels, by, required}, or a list",
        "In a domain, `by`, in which a job with such labels is held.",
        _terms,
        _write_terms,
    ),
    _field(
        "anti_affinity",
        Constraints,
        "{labels, by, required}, or a list",
        "In a domain, `by`, in which no job with such labels is held.",
        _terms,
        _write_terms,
    ),
    _field("exclusive", Constraints, "true or false", "Nothing of another job shares a node with it.", Value.boolean, bool),
    _field(
        "licences",
        Constraints,
        "mapping",
        "Consumables of the cell, by name, for each instance.",
        _licences,
        lambda licences: {one.name: one.count for one in licences},
    ),
)
PLACE_FIELDS = (
    _field(
        "gpu_capability",
        GroupRequest,
        "decimal",
        "The least compute capability of its GPUs (`8.0`); the cell's catalogue knows the models.",
        read_capability,
        write_capability,
    ),
    _field(
        "gpu_bandwidth",
        GroupRequest,
        "GB/s",
        "The least memory bandwidth of its GPUs: `2000`, `3.35TB/s`.",
        read_bandwidth,
        int,
    ),
    _field(
        "mig",
        GroupRequest,
        "text",
        "Slices of GPUs (MIG) of this profile, `gpus` of them, instead of whole ones: `3g.40gb`.",
        read_profile,
        str,
        "gpu_profile",
    ),
    _field(
        "any_of",
        GroupRequest,
        "list of selectors",
        "Selectors of which a node must meet one, beside `selector`.",
        _any_of,
        lambda terms: [write_selector(term) for term in terms],
    ),
    _field(
        "prefers",
        GroupRequest,
        "{labels, weight}, or a list",
        "Of the nodes that would do, those that meet most, by `weight` (1 to 100; 1), are taken first.",
        _preferences,
        _write_preferences,
    ),
    _field(
        "numa",
        GroupRequest,
        "required or preferred",
        "Devices, CPU and memory of a task are of one NUMA node.",
        lambda value: value.word(("required", "preferred")),
        str,
    ),
    _field("ports", GroupRequest, "whole number or list", "Ports of its node that a task takes for itself.", _ports, list),
    _field("datasets", GroupRequest, "text or list", "Data sets that the score `data-locality` looks for.", _datasets, list),
)
