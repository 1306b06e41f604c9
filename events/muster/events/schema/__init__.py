"""JSON Schemas of everything on the wire, and what a change of them would break.

`python -m muster.events.schema` rewrites `events/schema/`, one file a kind, and one each for the record, the report, the
assignment and samples; a test holds the files equal to the types. `breaks` compares two sets of schemas: what was taken must be
taken still, and mean the same. Whoever needs more makes a new version of the kind and an upcaster.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from muster.events.levels import Assignment, NodeReport
from muster.events.record import Envelope
from muster.events.registry import DECISIONS, INPUTS, KINDS, VERSIONS
from muster.events.telemetry import GpusSampled
from muster.events.upcast import STEPS

Schema = dict[str, Any]

FOLDER = Path(__file__).parents[3] / "schema"
"""`events/schema` of a checkout."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_SAID = ("title", "description", "$defs", "$schema", "x-muster")
"""What a schema says to people, or where it keeps its parts."""
_SHAPE = ("$ref", "anyOf", "type", "enum", "const", "properties", "required", "items", "prefixItems", "default")
_SHAPE_TOO = ("additionalProperties", "propertyNames", "pattern", "format")


def schemas() -> dict[str, Schema]:
    """The schema of each file, by its name without `.json`."""
    made = {kind: _named(KINDS[kind], side="input" if kind in INPUTS else "decision", version=VERSIONS[kind]) for kind in KINDS}
    made["Record"] = _record()
    made["NodeReport"] = _named(NodeReport, side="report")
    made["Assignment"] = _named(Assignment, side="assignment")
    made["GpusSampled"] = _named(GpusSampled, side="samples")
    return made


def render(schema: Schema) -> str:
    """The file's text."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write(folder: Path = FOLDER) -> None:
    """Make the folder hold the schemas of the types, and no others."""
    folder.mkdir(parents=True, exist_ok=True)
    made = schemas()
    for path in folder.glob("*.json"):
        if path.stem not in made:
            path.unlink()
    for name, schema in made.items():
        (folder / f"{name}.json").write_text(render(schema), encoding="utf-8")


def breaks(old: Mapping[str, Schema], new: Mapping[str, Schema], steps: Collection[tuple[str, int]] = STEPS.keys()) -> list[str]:
    """What `new` breaks of `old`, one sentence each; empty if it only adds.

    A kind of a higher version may differ in any way if steps lead to it.
    """
    found: list[str] = []
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            found.append(f"{name} is gone")
            continue
        was, now = before["x-muster"], after["x-muster"]
        if was["side"] != now["side"]:
            found.append(f"{name} was on the side {was['side']!r} and is on the side {now['side']!r}")
        was_version, version = was.get("version", 0), now.get("version", 0)
        if version < was_version:
            found.append(f"{name} was at version {was_version} and is at {version}")
        elif version > was_version:
            missing = [step for step in range(was_version, version) if (name, step) not in steps]
            found.extend(f"{name}: no step leads from version {step} to the next" for step in missing)
        else:
            found.extend(_Comparison(before, after).compare(name, before, after))
    return found


def _named(kind: type[msgspec.Struct], **facts: str | int) -> Schema:
    return {"$schema": DIALECT, "x-muster": facts, **msgspec.json.schema(kind)}


def _record() -> Schema:
    """The envelope with its entries, whose bodies the other files describe."""
    schema = _named(Envelope, side="record")
    properties = schema["$defs"]["Envelope"]["properties"]
    for side, kinds in (("inputs", INPUTS), ("decisions", DECISIONS)):
        entry = [{"enum": sorted(kinds)}, {"type": "integer", "minimum": 1}, {"type": "object"}]
        properties[side]["items"] = {"type": "array", "prefixItems": entry, "minItems": 3, "maxItems": 3}
    return schema


class _Comparison:
    """Of two schemas, node by node."""

    def __init__(self, before: Schema, after: Schema) -> None:
        self._before = before
        self._after = after
        self._seen: dict[tuple[str, str], None] = {}

    def compare(self, path: str, old: Schema, new: Schema) -> list[str]:
        pair = old.get("$ref", ""), new.get("$ref", "")
        if all(pair):
            if pair in self._seen:
                return []
            self._seen[pair] = None
        found = self._default(path, old, new)
        old, new = _resolved(old, self._before), _resolved(new, self._after)
        if "anyOf" in old or "anyOf" in new:
            return found + self._alternatives(path, old, new)
        for part in (self._values, self._bounds, self._object, self._array, self._rest):
            found += part(path, old, new)
        return found

    def _default(self, path: str, old: Schema, new: Schema) -> list[str]:
        if "default" in old and ("default" not in new or old["default"] != new["default"]):
            return [f"{path}: the default was {old['default']!r} and is {new.get('default', 'none')!r}"]
        return []

    def _alternatives(self, path: str, old: Schema, new: Schema) -> list[str]:
        found = []
        for before in old.get("anyOf", [old]):
            tries = [self._tried(path, before, after) for after in new.get("anyOf", [new])]
            if all(tries):
                found.append(min(tries, key=len)[0] if len(tries) == 1 else f"{path}: {_say(before)} is not taken any more")
        return found

    def _tried(self, path: str, old: Schema, new: Schema) -> list[str]:
        seen = dict(self._seen)
        found = self.compare(path, old, new)
        if found:
            self._seen = seen
        return found

    def _values(self, path: str, old: Schema, new: Schema) -> list[str]:
        found = []
        if "type" in new and old.get("type") != new["type"]:
            found.append(f"{path}: was {_say(old)} and is {_say(new)}")
        was, now = _allowed(old), _allowed(new)
        if now is not None:
            if was is None:
                found.append(f"{path}: only {now} are taken from now on")
            else:
                found.extend(f"{path}: {value!r} is not taken any more" for value in was if value not in now)
        return found

    def _bounds(self, path: str, old: Schema, new: Schema) -> list[str]:
        found = []
        for key in _LEAST:
            if key in new and (key not in old or new[key] > old[key]):
                found.append(f"{path}: {key} was {old.get(key, 'none')} and is {new[key]}")
        for key in _MOST:
            if key in new and (key not in old or new[key] < old[key]):
                found.append(f"{path}: {key} was {old.get(key, 'none')} and is {new[key]}")
        for key in ("pattern", "format"):
            if key in new and old.get(key) != new[key]:
                found.append(f"{path}: {key} was {old.get(key, 'none')} and is {new[key]}")
        return found

    def _object(self, path: str, old: Schema, new: Schema) -> list[str]:
        was, now = old.get("properties", {}), new.get("properties", {})
        found = [f"{path}.{name} is gone" for name in was if name not in now]
        found += [
            f"{path}.{name} is required from now on" for name in new.get("required", []) if name not in old.get("required", [])
        ]
        for name in was:
            if name in now:
                found += self.compare(f"{path}.{name}", was[name], now[name])
        for key in ("additionalProperties", "propertyNames"):
            before, after = old.get(key, {}), new.get(key, {})
            if before is not False and after is False:
                found.append(f"{path}: no further fields are taken any more")
            elif before is not False and isinstance(after, dict) and after:
                found += self.compare(f"{path}.*", before if isinstance(before, dict) else {}, after)
        return found

    def _array(self, path: str, old: Schema, new: Schema) -> list[str]:
        found = []
        was, now = old.get("prefixItems", []), new.get("prefixItems", [])
        if len(now) < len(was):
            found.append(f"{path}: had {len(was)} places and has {len(now)}")
        for index, (before, after) in enumerate(zip(was, now, strict=False)):
            found += self.compare(f"{path}[{index}]", before, after)
        if isinstance(new.get("items"), dict) and old.get("items") is not False:
            found += self.compare(f"{path}[]", old.get("items", {}), new["items"])
        return found

    def _rest(self, path: str, old: Schema, new: Schema) -> list[str]:
        known = (*_SAID, *_SHAPE, *_SHAPE_TOO, *_LEAST, *_MOST)
        return [
            f"{path}: {key} was {old.get(key, 'none')!r} and is {new.get(key, 'none')!r}, and nobody has said whether that adds"
            for key in dict.fromkeys([*old, *new])
            if key not in known and old.get(key) != new.get(key)
        ]


def _resolved(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def _allowed(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values: list[Any] | None = schema.get("enum")
    return values


def _say(schema: Schema) -> str:
    name: str = schema.get("$ref", "").rsplit("/", 1)[-1] or schema.get("type", "anything")
    return name
