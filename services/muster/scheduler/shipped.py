"""The policies that Muster ships, by name: read from the one file that holds their parameters (`policies.toml`).

A shipped policy says what steers decisions. What belongs to the cell (its flat queues, its spans of liveness, its bounds) is
not its to say, and stays as it is when a cell is switched to one. Switching is an input like any other (`PolicySet`).
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from muster.events.operations import Policy

STEERING: Final = (
    "name",
    "version",
    "filters",
    "scores",
    "preemption",
    "min_runtime_us",
    "targets",
    "reclaim",
    "reclaim_min_runtime_us",
    "aging_after_us",
    "aging_max",
    "backfill",
    "order",
    "strict",
    "job_filters",
)
"""The fields of a policy that a shipped one decides; the others are the cell's."""


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of the file."""

    name: str
    version: int
    about: str
    tuned_on: str
    policy: Policy

    def onto(self, policy: Policy) -> Policy:
        """This policy in a cell that has that one now."""
        return msgspec.structs.replace(policy, **{name: getattr(self.policy, name) for name in STEERING})


@cache
def shipped() -> tuple[Shipped, ...]:
    """All of them, in the order of the file."""
    tables: list[dict[str, Any]] = tomllib.loads(files("muster.scheduler").joinpath("policies.toml").read_text())["policy"]
    found = []
    for table in tables:
        said = {"name": table["name"], "version": table["version"], **table["set"]}
        found.append(msgspec.convert({**{key: table[key] for key in table if key != "set"}, "policy": said}, Shipped))
    return tuple(found)


def named(name: str) -> Shipped | None:
    """The newest version of this name, or `NAME/VERSION`."""
    plain, _, version = name.partition("/")
    found = [each for each in shipped() if each.name == plain and version in ("", str(each.version))]
    return max(found, key=lambda each: each.version, default=None)
