"""The schemas in `events/schema` are those of the types, and a change of them that breaks something is found."""

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.events.registry import KINDS
from muster.events.schema import FOLDER, Schema, breaks, render, schemas, write

ROOT = Path(__file__).parents[2]
NOW = schemas()


def tagged() -> dict[str, Schema]:
    """The schemas of the last version tagged in git; none where there is no tag."""
    listed = _git("tag", "--list", "v*", "--sort=-version:refname").split()
    if not listed:
        return {}
    paths = _git("ls-tree", "--name-only", listed[0], "events/schema/").split()
    return {Path(path).stem: json.loads(_git("show", f"{listed[0]}:{path}")) for path in paths}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def test_the_committed_schemas_are_those_of_the_types() -> None:
    made = schemas()
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{name}.json" for name in made)
    stale = [name for name, schema in made.items() if (FOLDER / f"{name}.json").read_text(encoding="utf-8") != render(schema)]
    assert not stale, "run: python -m muster.events.schema"


def test_there_is_one_schema_a_kind_and_one_for_each_other_message() -> None:
    assert set(schemas()) == {*KINDS, "Record", "NodeReport", "Assignment", "GpusSampled"}


def test_rewriting_the_folder_drops_what_is_no_schema_any_more(tmp_path: Path) -> None:
    (tmp_path / "JobLevitated.json").write_text("{}")
    write(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(schemas())


def test_nothing_breaks_what_the_last_tagged_version_took() -> None:
    old = tagged()
    assert breaks(old, NOW) == []
    assert breaks(NOW, NOW) == []


def node(schema: Schema, path: str) -> Any:
    """`Part.field.items` inside the definitions."""
    place: Any = schema["$defs"]
    for step in path.split("."):
        place = place["properties"][step] if "properties" in place and step in place["properties"] else place[step]
    return place


def planted(kind: str, path: str, change: Callable[[Any], object]) -> dict[str, Schema]:
    made = copy.deepcopy(NOW)
    change(node(made[kind], path) if path else made[kind])
    return made


BREAKS: dict[str, tuple[str, str, Callable[[Any], object], str]] = {
    "field removed": ("JobSubmitted", "JobSubmitted.properties", lambda at: at.pop("queue"), "JobSubmitted.queue is gone"),
    "field renamed": (
        "JobSubmitted",
        "JobSubmitted.properties",
        lambda at: at.update(owner=at.pop("user")),
        "JobSubmitted.user is gone",
    ),
    "field required": ("JobSubmitted", "JobSubmitted.required", lambda at: at.append("queue"), "JobSubmitted.queue is required"),
    "new field required": (
        "NodeFenced",
        "NodeFenced",
        lambda at: (at["properties"].update(row={"type": "integer"}), at["required"].append("row")),
        "NodeFenced.row is required",
    ),
    "type changed": (
        "JobReprioritised",
        "JobReprioritised.priority",
        lambda at: at.update(type="string"),
        "JobReprioritised.priority: was integer and is string",
    ),
    "null not taken": (
        "JobCancelRequested",
        "JobCancelRequested.instance",
        lambda at: at["anyOf"].pop(),
        "JobCancelRequested.instance: was null and is integer",
    ),
    "value removed": (
        "DeviceHealthChanged",
        "DeviceHealthChanged.health.enum",
        lambda at: at.remove("degraded"),
        "DeviceHealthChanged.health: 'degraded' is not taken any more",
    ),
    "values listed": ("JobRejected", "JobRejected.reason", lambda at: at.update(enum=["no"]), "only ['no'] are taken"),
    "greater least": (
        "JobSubmitted",
        "GroupRequest.gpus",
        lambda at: at.update(minimum=1),
        "groups[].gpus: minimum was 0 and is 1",
    ),
    "smaller most": ("JobSubmitted", "JobSubmitted.name", lambda at: at.update(maxLength=62), "maxLength was 63 and is 62"),
    "new bound": ("JobSubmitted", "JobSubmitted.job", lambda at: at.update(format="uuid"), "format was none and is uuid"),
    "pattern": ("JobSubmitted", "JobSubmitted.job", lambda at: at.update(pattern="^a$"), "pattern was"),
    "default": (
        "JobSubmitted",
        "JobRequest.preemptible",
        lambda at: at.update(default=False),
        "the default was True and is False",
    ),
    "default gone": (
        "JobSubmitted",
        "JobRequest.preemptible",
        lambda at: at.pop("default"),
        "the default was True and is 'none'",
    ),
    "items": ("NodesHeard", "NodesHeard.missing.items", lambda at: at.update(maximum=9), "NodesHeard.missing[]: maximum was"),
    "place of an array": ("InstanceBound", "Placement.prefixItems", lambda at: at.pop(), "placements[]: had 3 places and has 2"),
    "more places needed": (
        "InstanceBound",
        "Placement",
        lambda at: at.update(minItems=3),
        "placements[]: minItems was 2 and is 3",
    ),
    "keys of a mapping": (
        "JobSubmitted",
        "JobRequest.labels.propertyNames",
        lambda at: at.update(maxLength=5),
        "labels.*: maxLength",
    ),
    "values of a mapping": (
        "Record",
        "Envelope.positions.additionalProperties",
        lambda at: at.update(maximum=5),
        "Record.positions.*: maximum",
    ),
    "unknown keyword": (
        "JobRejected",
        "JobRejected.reason",
        lambda at: at.update(contains="x"),
        "nobody has said whether that adds",
    ),
    "side": ("JobRejected", "", lambda at: at["x-muster"].update(side="input"), "JobRejected was on the side 'decision'"),
    "version back": ("JobRejected", "", lambda at: at["x-muster"].update(version=0), "JobRejected was at version 1 and is at 0"),
    "version without a step": ("JobRejected", "", lambda at: at["x-muster"].update(version=3), "no step leads from version 1"),
    "kind of an entry": (
        "Record",
        "Envelope.decisions.items.prefixItems",
        lambda at: at[0]["enum"].remove("NodeLost"),
        "'NodeLost'",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_planted_break_is_found_and_named(name: str) -> None:
    kind, path, change, says = BREAKS[name]
    found = breaks(NOW, planted(kind, path, change))
    assert any(says in sentence for sentence in found), found


def test_a_kind_that_is_gone_is_found() -> None:
    new = dict(NOW)
    del new["NodeFenced"]
    assert breaks(NOW, new) == ["NodeFenced is gone"]


ADDS: dict[str, tuple[str, str, Callable[[Any], object]]] = {
    "optional field": (
        "JobSubmitted",
        "JobRequest.properties",
        lambda at: at.update(colour={"type": "string", "default": ""}),
    ),
    "value": ("DeviceHealthChanged", "DeviceHealthChanged.health.enum", lambda at: at.append("unknown")),
    "smaller least": ("JobSubmitted", "GroupRequest.count", lambda at: at.update(minimum=0)),
    "no bound": ("JobSubmitted", "JobSubmitted.name", lambda at: at.pop("maxLength")),
    "null too": (
        "JobReprioritised",
        "JobReprioritised.properties",
        lambda at: at.update(priority={"anyOf": [at["priority"], {"type": "null"}]}),
    ),
    "not required": ("JobReprioritised", "JobReprioritised.required", lambda at: at.remove("priority")),
    "place of an array": ("InstanceBound", "Placement", lambda at: (at["prefixItems"].append({}), at.update(maxItems=4))),
    "words": ("NodeLost", "NodeLost", lambda at: at.update(description="Gone.", title="Lost")),
}


@pytest.mark.parametrize("name", ADDS)
def test_what_only_adds_breaks_nothing(name: str) -> None:
    kind, path, change = ADDS[name]
    new = planted(kind, path, change)
    assert new != NOW
    assert breaks(NOW, new) == []


def test_a_new_kind_breaks_nothing_and_a_new_version_with_its_steps_may_differ() -> None:
    new = planted("JobRejected", "", lambda at: at.update({"x-muster": {"side": "decision", "version": 3}, "$defs": {}}))
    new["JobLevitated"] = NOW["JobRejected"]
    assert breaks(NOW, new, {("JobRejected", 1), ("JobRejected", 2)}) == []
    assert breaks(NOW, new, {("JobRejected", 1)}) == ["JobRejected: no step leads from version 2 to the next"]
