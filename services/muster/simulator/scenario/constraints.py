"""What a scene asks of the places of a job beyond what each task needs, read into the fields of `Constraints`."""

from collections.abc import Callable
from typing import Any

from muster.cluster.rules import LEVELS
from muster.simulator.scenario.reading import Value


def read_requirements(value: Value) -> list[dict[str, Any]]:
    """Requirements on labels: a mapping of keys to values, or a list of them with their operators."""
    if isinstance(value.data, dict):
        return [
            {"key": key, "op": "In", "values": [entry.scalar_text() for entry in item.several()]}
            for key, item in value.data.items()
        ]
    result = []
    for item in value.items("requirements"):
        fields = item.known("a requirement", ["key", "op", "values"])
        if "key" not in fields:
            raise item.error("has a requirement without a key")
        op = fields["op"].word(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")) if "op" in fields else "In"
        values = [entry.scalar_text() for entry in fields["values"].several()] if "values" in fields else []
        result.append({"key": fields["key"].scalar_text(), "op": op, "values": values})
    return result


def read_preferences(value: Value) -> list[dict[str, Any]]:
    """`{labels, weight}`, or several."""
    result = []
    for item in value.several():
        fields = item.known("a preference", ["labels", "weight"])
        if "labels" not in fields:
            raise item.error("needs the labels that it prefers in labels")
        weight = {"weight": fields["weight"].whole()} if "weight" in fields else {}
        result.append({"labels": read_requirements(fields["labels"])} | weight)
    return result


def _within(value: Value) -> list[dict[str, Any]]:
    return [
        {"level": _level(key, item), "required": item.word(("required", "preferred")) == "required"}
        for key, item in value.mapping("levels").items()
    ]


def _spread(value: Value) -> list[dict[str, Any]]:
    found = []
    for key, item in value.mapping("levels").items():
        spread: dict[str, Any] = {"level": _level(key, item)}
        if isinstance(item.data, dict):
            fields = item.known("a spread", ["most", "skew"])
            spread.update({name: bound.whole() for name, bound in fields.items()})
        else:
            spread["most"] = item.whole()
        found.append(spread)
    return found


def _terms(value: Value) -> list[dict[str, Any]]:
    found = []
    for item in value.several():
        fields = item.known("a term", ["labels", "job", "by", "required"])
        if ("labels" in fields) == ("job" in fields):
            raise item.error("needs the labels of the other jobs in labels")
        term: dict[str, Any] = {"labels": read_requirements(fields["labels"] if "labels" in fields else fields["job"])}
        if "by" in fields:
            term["by"] = fields["by"].word(LEVELS)
        if "required" in fields:
            term["required"] = fields["required"].boolean()
        found.append(term)
    return found


def read_licences(value: Value) -> dict[str, int]:
    """Counts by name."""
    return {name: item.count() for name, item in value.mapping("licences").items()}


def _licences(value: Value) -> list[dict[str, Any]]:
    return [{"name": name, "count": item.whole()} for name, item in value.mapping("licences").items()]


def _level(key: str, value: Value) -> str:
    if key not in LEVELS:
        raise value.error(f"is no level: {key!r}; there are {', '.join(LEVELS)}")
    return key


_READERS: dict[str, Callable[[Value], Any]] = {
    "within": _within,
    "spread": _spread,
    "affinity": _terms,
    "anti_affinity": _terms,
    "exclusive": Value.boolean,
    "licences": _licences,
}

CONSTRAINTS = tuple(_READERS)
"""The fields of a job that are constraints."""


def read_constraints(fields: dict[str, Value]) -> dict[str, Any]:
    """Those of the fields that are there and ask for something."""
    found = {key: read(fields[key]) for key, read in _READERS.items() if key in fields}
    return {key: asked for key, asked in found.items() if asked}
