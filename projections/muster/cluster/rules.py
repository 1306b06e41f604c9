"""What a job asks of its places beyond what each task needs: its `Constraints`, read once for many jobs.

Interned by value, bounded, and holding nothing that the request does not say, as shapes are.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from msgspec import UnsetType

from muster.events.codec import encode
from muster.events.jobs import Constraints, JobTerm, Requirement, Spread
from muster.events.nodes import NodeSpec

INTERNED_MAX: Final = 16_384

LEVELS: Final = ("zone", "block", "rack", "nvlink_domain", "node")
"""From the widest to the narrowest."""


class Rules:
    """The constraints of a job, in the order in which they are tried."""

    __slots__ = ("affinity", "anti_affinity", "exclusive", "foreseen", "key", "licences", "preferred", "required", "spread")

    def __init__(self, asked: Constraints) -> None:
        levels = sorted(asked.within, key=lambda one: LEVELS.index(one.level))
        self.required: tuple[str, ...] = tuple([one.level for one in levels if one.required])
        """Levels of which all tasks stand in one domain, the widest first."""
        self.preferred: tuple[str, ...] = tuple([one.level for one in levels if not one.required])
        """Levels of which they stand in as few as can be, the widest first."""
        self.spread: tuple[Spread, ...] = asked.spread
        self.affinity: tuple[JobTerm, ...] = asked.affinity
        self.anti_affinity: tuple[JobTerm, ...] = asked.anti_affinity
        self.exclusive: bool = asked.exclusive
        self.licences: dict[str, int] = {one.name: one.count for one in asked.licences}
        around = self.spread or self.affinity or self.anti_affinity or self.exclusive or self.licences
        self.foreseen: bool = not around
        """Whether who else is there then has no part in where it may be: what stays within domains and asks nothing more."""
        self.key: str = hashlib.blake2b(encode(asked), digest_size=8).hexdigest()


_rules: dict[Constraints, Rules] = {}


def intern_rules(asked: Constraints | UnsetType) -> Rules | None:
    """The rules of a job, or None where it asks nothing."""
    if not asked or asked == Constraints():
        return None
    found = _rules.get(asked)
    if found is None:
        if len(_rules) >= INTERNED_MAX:
            _rules.clear()
        found = _rules[asked] = Rules(asked)
    return found


def domain_of(name: str, spec: NodeSpec, level: str) -> str:
    """The domain of this level in which the node is; empty where it is in none."""
    if level == "node":
        return name
    value: str = getattr(spec, level)
    return value


def meets(labels: Mapping[str, str], requirement: Requirement) -> bool:
    """Whether the labels meet one requirement. A value that is no integer meets neither `Gt` nor `Lt`."""
    value = labels.get(requirement.key)
    op = requirement.op
    if op == "Exists":
        return value is not None
    if op == "DoesNotExist":
        return value is None
    if op == "NotIn":
        return value not in requirement.values
    if value is None:
        return False
    if op == "In":
        return value in requirement.values
    if not value.lstrip("-").isdecimal() or len(value) > 16 or "-" in value[1:]:
        return False
    bound = int(requirement.values[0])
    return int(value) > bound if op == "Gt" else int(value) < bound
