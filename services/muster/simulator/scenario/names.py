"""Names in scenes: `name[a-b]` is every number from a to b, `k of NAMES` any k of them, a list mixes both."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from muster.events.base import NAME_PATTERN
from muster.simulator.scenario.reading import Value

RANGE_MAX = 100_000

_RANGE = re.compile(r"\[([0-9]{1,9})-([0-9]{1,9})\]")
_PICK = re.compile(r"^([0-9]{1,9}) +of +(.+)$")
_NAME = re.compile(NAME_PATTERN)
_UNIT = re.compile(r"^(.*?)(?:/([0-9]{1,9}))?$")


class Names(msgspec.Struct, frozen=True):
    """What a scene means by some names: all of `plain`, and of each pick exactly so many."""

    plain: tuple[str, ...] = ()
    picks: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def all(self) -> list[str]:
        """Every name that is mentioned, in order, once."""
        mentioned = list(self.plain)
        for _, names in self.picks:
            mentioned.extend(names)
        return list(dict.fromkeys(mentioned))


def read_names(value: Value, picks: bool = True) -> Names:
    """A name, a range, `k of NAMES`, or a list of these."""
    plain: list[str] = []
    picked: list[tuple[int, tuple[str, ...]]] = []
    for item in value.several():
        text = item.scalar_text()
        match = _PICK.match(text)
        if match is None:
            plain.extend(_checked(item, text))
            continue
        if not picks:
            raise item.error(f"must say exactly which, not {text!r}")
        names: list[str] = []
        listed = re.fullmatch(r"\[(.*[^0-9].*)\]", match[2].strip())
        for part in re.split(r"[\s,]+", (listed[1] if listed else match[2]).strip()):
            names.extend(_checked(item, part))
        picked.append((int(match[1]), tuple(names)))
    return Names(tuple(plain), tuple(picked))


def read_plain(value: Value) -> list[str]:
    """Names without `k of`."""
    return list(read_names(value, picks=False).plain)


def read_one(value: Value) -> str:
    """One name, no range and no list."""
    if isinstance(value.data, list):
        raise value.error(f"must be one name, not {value.said()}")
    names = read_plain(value)
    if len(names) != 1:
        raise value.error(f"must be one name, not {value.said()}")
    return names[0]


def expand(text: str) -> list[str]:
    """Every name of a text with ranges; the last range counts fastest.

    Raises:
        ValueError: a range runs backwards or is too long.
    """
    match = _RANGE.search(text)
    if match is None:
        return [text]
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise ValueError(f"the range {match[0]} runs backwards")
    if last - first >= RANGE_MAX:
        raise ValueError(f"the range {match[0]} has more than {RANGE_MAX} names")
    width = len(match[1]) if match[1].startswith("0") else 0
    rest = expand(text[match.end() :])
    if (last - first + 1) * len(rest) > RANGE_MAX:
        raise ValueError(f"{text} is more than {RANGE_MAX} names")
    return [f"{text[: match.start()]}{number:0{width}d}{tail}" for number in range(first, last + 1) for tail in rest]


def split_unit(name: str) -> tuple[str, int | None]:
    """`job/2` as the job's name and the index; None where there is no index."""
    base, slash, index = name.partition("/")
    return base, int(index) if slash else None


class Mentions:
    """Names that the file uses, each with its place, to be compared with those that it defines."""

    def __init__(self, queues: list[str]) -> None:
        self.queues = queues
        self.jobs: list[tuple[str, Value]] = []
        self.nodes: list[tuple[str, Value]] = []
        self.users: list[tuple[str, Value]] = []
        self.instants: list[tuple[int, Value]] = []
        self.capable = False
        """Whether some job asks for what a GPU can do."""
        self.submitted: dict[str, dict[str, Value]] = {}
        """The fields of each job as the file said them last."""
        self.picks: list[tuple[int, tuple[str, ...], Value]] = []
        """`k of NAMES`: an array counts with its elements, which only the whole file says."""

    def job_names(self, value: Value, picks: bool = True) -> Names:
        """Names of jobs or of their elements."""
        names = read_names(value, picks)
        self.jobs.extend((name, value) for name in names.all())
        self.picks.extend((wanted, picked, value) for wanted, picked in names.picks)
        return names

    def job(self, value: Value) -> str:
        """One job."""
        name = read_one(value)
        self.jobs.append((name, value))
        return name

    def node_names(self, value: Value, picks: bool = True) -> Names:
        """Names of nodes."""
        names = read_names(value, picks)
        self.nodes.extend((name, value) for name in names.all())
        self.picks.extend((wanted, picked, value) for wanted, picked in names.picks)
        return names

    def by_job(self, value: Value, what: str, read: Callable[[Value], Any]) -> list[tuple[str, Any]]:
        """A mapping from names of jobs (ranges allowed) to something."""
        result: list[tuple[str, Any]] = []
        for key, item in value.mapping(what).items():
            name_value = Value(key, key, item.file, item.line, item.key)
            result.extend((name, read(item)) for name in self.job_names(name_value, picks=False).plain)
        return result

    def by_node(self, value: Value, what: str, read: Callable[[Value], Any]) -> list[tuple[str, Any]]:
        """A mapping from names of nodes (ranges allowed) to something."""
        result: list[tuple[str, Any]] = []
        for key, item in value.mapping(what).items():
            name_value = Value(key, key, item.file, item.line, item.key)
            result.extend((name, read(item)) for name in self.node_names(name_value, picks=False).plain)
        return result


def _checked(value: Value, text: str) -> list[str]:
    try:
        names = expand(text.strip())
    except ValueError as error:
        raise value.error(f"is no name: {error}") from None
    for name in names:
        match = _UNIT.match(name)
        if match is None or not _NAME.match(match[1]):
            raise value.error(f"is no name: {name!r} (lower case letters, digits, '-' and '.'; job/2 for an element)")
    return names
