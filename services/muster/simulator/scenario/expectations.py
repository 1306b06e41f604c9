"""What a scene may expect, read into checks. Judging them is `muster.simulator.scenario.judge`."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec

from muster.cluster.rules import LEVELS
from muster.simulator.scenario.names import Mentions, Names
from muster.simulator.scenario.quantities import Exact, read_cpu, read_gpus, read_memory
from muster.simulator.scenario.reading import Value, show
from muster.simulator.scenario.reserving import read_states

STATES = (
    "running",
    "pending",
    "starting",
    "preempting",
    "stopping",
    "finished",
    "failed",
    "cancelled",
    "rejected",
    "degraded",
)
PLANNED_WORDS = ("beyond_horizon", "unknown_end", "overdue", "none")
"""What may be said of a planned start that is no instant: `none` where nothing is planned, for whatever reason."""
NODE_STATES = ("ready", "silent", "lost", "cordoned", "quarantined", "fenced")


class Check(msgspec.Struct, frozen=True):
    """One thing that must be true: what is asked, its arguments, where it stands and how it was written."""

    key: str
    args: Any
    line: int
    text: str


class Bound(msgspec.Struct, frozen=True):
    """A number, or bounds of one; None bounds nothing."""

    low: Exact | None = None
    high: Exact | None = None

    def holds(self, actual: Exact) -> bool:
        """Whether the number is within the bounds."""
        return (self.low is None or actual >= self.low) and (self.high is None or actual <= self.high)


def read_bound(value: Value, read: Callable[[Value], Exact] = Value.count) -> Bound:
    """A number, or `{at_least: n}`, `{at_most: n}`, or both."""
    if not isinstance(value.data, dict):
        number = read(value)
        return Bound(number, number)
    fields = value.known("a number", ["at_least", "at_most"])
    if not fields:
        raise value.error("needs at_least or at_most")
    return Bound(
        read(fields["at_least"]) if "at_least" in fields else None,
        read(fields["at_most"]) if "at_most" in fields else None,
    )


def read_checks(value: Value, mentions: Mentions) -> tuple[Check, ...]:
    """A mapping of expectations: all of them are meant at once."""
    fields = value.known("an expectation", _READERS)
    if not fields:
        raise value.error("expects nothing")
    return tuple(
        Check(key, _READERS[key](item, mentions), item.line, f"{key}: {show(item.plain())}") for key, item in fields.items()
    )


def _states(value: Value, mentions: Mentions) -> Names:
    if value.data == []:
        return Names()
    return mentions.job_names(value)


def _plain_jobs(value: Value, mentions: Mentions) -> list[str]:
    return list(mentions.job_names(value, picks=False).plain)


def _members(value: Value, mentions: Mentions) -> list[tuple[str, Bound]]:
    return mentions.by_job(value, "names to numbers", read_bound)


def _members_by_group(value: Value, mentions: Mentions) -> list[tuple[str, list[tuple[str, Bound]]]]:
    def groups(item: Value) -> list[tuple[str, Bound]]:
        return [(group, read_bound(entry)) for group, entry in item.mapping("groups to numbers").items()]

    return mentions.by_job(value, "names to groups", groups)


def _nodes_of_jobs(value: Value, mentions: Mentions) -> list[tuple[str, Names]]:
    def nodes(item: Value) -> Names:
        return Names() if item.data == [] else mentions.node_names(item)

    return mentions.by_job(value, "names to nodes", nodes)


def _same(value: Value, mentions: Mentions) -> list[tuple[str, list[str]]]:
    return mentions.by_job(value, "names to levels", lambda item: [one.word(LEVELS) for one in item.several()])


def _domains(value: Value, mentions: Mentions) -> list[tuple[str, list[tuple[str, Bound]]]]:
    def levels(item: Value) -> list[tuple[str, Bound]]:
        return [(level, read_bound(bound)) for level, bound in item.known("levels", LEVELS).items()]

    return mentions.by_job(value, "names to levels", levels)


def _licences(value: Value, mentions: Mentions) -> list[tuple[str, Bound]]:
    return [(name, read_bound(item)) for name, item in value.mapping("licences").items()]


def _devices(value: Value, mentions: Mentions) -> list[tuple[str, list[tuple[str, list[int] | Bound]]]]:
    def indices(item: Value) -> list[int] | Bound:
        if isinstance(item.data, list):
            return sorted(entry.count() for entry in item.data)
        return read_bound(item)

    return mentions.by_job(value, "names to devices", lambda item: mentions.by_node(item, "nodes to devices", indices))


def _same_devices(value: Value, mentions: Mentions) -> list[tuple[str, int]]:
    def instant(item: Value) -> int:
        at_us = item.micros()
        mentions.instants.append((at_us, item))
        return at_us

    return mentions.by_job(value, "names to times", instant)


def _decisions_since(value: Value, mentions: Mentions) -> tuple[int, Bound]:
    fields = value.known("decisions_since", ["at", "count"])
    if "at" not in fields or "count" not in fields:
        raise value.error("needs at and count")
    return fields["at"].micros(), read_bound(fields["count"])


def _reason(value: Value, mentions: Mentions) -> list[tuple[str, list[str]]]:
    return mentions.by_job(value, "names to texts", lambda item: [entry.scalar_text() for entry in item.several()])


_AMOUNTS: dict[str, Callable[[Value], Exact]] = {"gpus": read_gpus, "cpu": read_cpu, "memory": read_memory}


def _amounts(value: Value) -> list[tuple[str, Bound]]:
    fields = value.mapping("amounts")
    result = []
    for key, item in fields.items():
        read = read_gpus if key.startswith("gpus/") and len(key) > 5 else _AMOUNTS.get(key)
        if read is None:
            raise item.error(f"is unknown: amounts are {', '.join(_AMOUNTS)} and gpus/MODEL")
        result.append((key, read_bound(item, read)))
    if not result:
        raise value.error("names no amount")
    return result


def _free(value: Value, mentions: Mentions) -> list[tuple[str, list[tuple[str, Bound]]]]:
    return mentions.by_node(value, "nodes to amounts", _amounts)


def _by_queue(value: Value, mentions: Mentions) -> list[tuple[str, list[tuple[str, Bound]]]]:
    result = []
    for queue, item in value.mapping("queues to amounts").items():
        if queue not in mentions.queues:
            raise item.error(f"is no queue; there are {', '.join(mentions.queues)}")
        result.append((queue, _amounts(item)))
    return result


def _by_user(value: Value, mentions: Mentions) -> list[tuple[str, list[tuple[str, Bound]]]]:
    result = []
    for user, item in value.mapping("users to amounts").items():
        mentions.users.append((user, item))
        result.append((user, _amounts(item)))
    return result


def _node_states(value: Value, mentions: Mentions) -> list[tuple[str, str]]:
    return mentions.by_node(value, "nodes to states", lambda item: item.word(NODE_STATES))


def _planned(value: Value, mentions: Mentions) -> list[tuple[str, tuple[str, int]]]:
    def when(item: Value) -> tuple[str, int]:
        """`at` or `by` with an instant, or a word."""
        if isinstance(item.data, str):
            return item.word(PLANNED_WORDS), 0
        fields = item.known("a planned start", ["at", "by"])
        if len(fields) != 1:
            raise item.error(f"needs at or by, or is one of {', '.join(PLANNED_WORDS)}")
        key, instant = next(iter(fields.items()))
        return key, instant.micros()

    return mentions.by_job(value, "names to planned starts", when)


def _before(value: Value, mentions: Mentions) -> list[str]:
    names = _plain_jobs(value, mentions)
    if len(names) < 2:
        raise value.error("needs two names or more")
    return names


def _number(value: Value, mentions: Mentions) -> Bound:
    return read_bound(value)


def _any_of(value: Value, mentions: Mentions) -> list[tuple[Check, ...]]:
    outcomes = [read_checks(item, mentions) for item in value.items("outcomes")]
    if not outcomes:
        raise value.error("needs at least one outcome")
    return outcomes


Reader = Callable[[Value, Mentions], Any]

_READERS: dict[str, Reader] = {
    **dict.fromkeys(STATES, _states),
    **{f"{state}_exactly": _states for state in STATES},
    "exactly_one_of": _plain_jobs,
    "holds_nothing": _plain_jobs,
    "members": _members,
    "members_by_group": _members_by_group,
    "on": _nodes_of_jobs,
    "not_on": _nodes_of_jobs,
    "same": _same,
    "domains": _domains,
    "licences": _licences,
    "devices": _devices,
    "same_devices_as_at": _same_devices,
    "attempt": _members,
    "preempted": _states,
    "preempted_count": _number,
    "bound_count": _number,
    "decisions_since": _decisions_since,
    "reason": _reason,
    "free": _free,
    "queue": _by_queue,
    "user": _by_user,
    "held": _by_queue,
    "best_effort": _by_queue,
    "planned": _planned,
    "reservation": read_states,
    "node": _node_states,
    "before": _before,
    "refused": _number,
    "any_of": _any_of,
}


def amount(number: Exact, scale: int) -> str:
    """An amount in units of `scale`, as scenes write it."""
    value = Fraction(number) / scale
    if value.denominator == 1:
        return str(int(value))
    return str(Decimal(value.numerator) / Decimal(value.denominator))
