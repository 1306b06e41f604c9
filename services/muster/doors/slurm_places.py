"""Where a script's nodes may be: features, licences, nodes alone or apart, switches.

A feature is a label of a node, `feature.muster.io/NAME`, whatever its value; where the script asks for GPUs the name of a model
means that model, `40gb` the memory of each, and `gpu` what is asked for anyway. A leaf switch is a rack.
"""

import itertools
import re
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from muster.doors.errors import quoted
from muster.doors.origin import Notices, is_name, slug
from muster.doors.slurm_layout import Layout
from muster.doors.slurm_options import Said
from muster.doors.slurm_values import BadValue, read_count, read_time_us
from muster.events.jobs import Constraints, Licences, Preference, Requirement, Spread, Within
from muster.reading.catalogue import GB_MIB, find_model

FEATURE: Final = "feature.muster.io/"
PRODUCT: Final = "nvidia.com/gpu.product"
"""Agents set it to the model of their node's GPUs."""
TERMS_MAX: Final = 16
DEPTH_MAX: Final = 8
LICENCES_MAX: Final = 16
_SIZE: Final = re.compile(r"(?:gpu)?[-_]?([0-9]{1,3})gb?")
"""A feature that says how much memory each GPU has: `80gb`, `gpu_40g`."""
_TOKEN: Final = re.compile(r"\s*([A-Za-z0-9_.=+-]+|[&|,()\[\]*])")

Terms = list[tuple[str, ...]]
"""Alternatives, each of which is names that all hold."""


class Features(msgspec.Struct):
    """What `--constraint` comes to."""

    models: tuple[str, ...] = ()
    memory_mib: int = 0
    selector: tuple[Requirement, ...] = ()
    any_of: tuple[tuple[Requirement, ...], ...] = ()


def read_features(said: dict[str, Said], gpus: bool, notices: Notices) -> Features:
    """The nodes that have the features.

    Raises:
        DoorError: it makes no sense.
    """
    found = Features()
    if "constraint" not in said or not said["constraint"].value.strip("[] "):
        return found
    one = said["constraint"]
    for factor in _factors(one, notices):
        terms = [tuple(name for name in term if not (gpus and name.lower() == "gpu")) for term in factor]
        if not all(terms):
            continue  # what any node does that could take it
        size = _SIZE.fullmatch(terms[0][0].lower()) if gpus and len(terms) == len(terms[0]) == 1 else None
        if size is not None:
            found.memory_mib = max(found.memory_mib, int(size[1]) * GB_MIB)
            continue
        models = [find_model(term[0]) if len(term) == 1 else None for term in terms]
        known = [model for model in models if model is not None]
        if gpus and len(known) == len(terms):
            names = tuple(dict.fromkeys(name for name, _ in known))
            found.models = tuple(name for name in found.models if name in names) if found.models else names
            found.memory_mib = max(found.memory_mib, min(size for _, size in known))
            if len({size for _, size in known}) > 1:
                notices.add(one.line, one.spelled, "names GPUs of several sizes: the smallest of them is asked for")
        elif len(terms) == 1:
            found.selector += tuple(_requirement(name) for name in terms[0])
        else:
            more = [tuple(_requirement(name) for name in term) for term in terms]
            found.any_of = tuple((*old, *new) for old, new in itertools.product(found.any_of or ((),), more))
        if len(found.any_of) > TERMS_MAX or len(found.selector) > 16:
            raise one.error(f"comes to more than {TERMS_MAX} alternatives, or to more than 16 features at once")
    return found


def read_prefers(said: dict[str, Said], notices: Notices) -> tuple[Preference, ...] | UnsetType:
    """`--prefer`: the alternatives, each as a wish."""
    if "prefer" not in said:
        return UNSET
    terms = [term for factor in _factors(said["prefer"], notices) for term in factor][:TERMS_MAX]
    return tuple(Preference(labels=tuple(_requirement(name) for name in term)) for term in terms)


def read_constraints(said: dict[str, Said], layout: Layout, notices: Notices) -> Constraints | UnsetType:
    """What holds for all nodes of the job together.

    Raises:
        DoorError: a value makes no sense.
    """
    exclusive = "exclusive" in said and _exclusive(said["exclusive"], notices)
    apart = layout.nodes > 1 and (exclusive or "spread-job" in said)
    found = Constraints(
        within=_switches(said, notices),
        spread=(Spread(level="node", most=1),) if apart else (),
        exclusive=exclusive,
        licences=_licences(said, notices),
    )
    return UNSET if found == Constraints() else found


def _exclusive(one: Said, notices: Notices) -> bool:
    if one.value.lower() in ("", "yes"):
        return True
    if one.value.lower() not in ("user", "mcs", "topo", "no"):
        raise one.error(f"may be alone, or have the value user, mcs or topo, not {quoted(one.value)}")
    if one.value.lower() != "no":
        notices.add(one.line, one.spelled, f"{one.value} is not honoured: a node is for one job, or for whoever comes")
    return False


def _switches(said: dict[str, Said], notices: Notices) -> tuple[Within, ...]:
    if "switches" not in said:
        return ()
    one = said["switches"]
    count, at, patience = one.value.partition("@")
    try:
        number = read_count(count)
        if at:
            read_time_us(patience)
    except BadValue as error:
        raise one.error(f"must be COUNT or COUNT@TIME: {error}; it is {quoted(one.value)}") from None
    if number > 1:
        notices.add(one.line, one.spelled, f"{number} is not honoured: nodes stand in one rack, or anywhere")
        return ()
    if at:
        notices.add(one.line, one.spelled, "is a wish from the beginning on: nobody waits for one rack")
    return (Within(level="rack", required=not at),)


def _licences(said: dict[str, Said], notices: Notices) -> tuple[Licences, ...]:
    if "licenses" not in said:
        return ()
    one = said["licenses"]
    if "|" in one.value:
        notices.add(one.line, one.spelled, "alternatives (|) are not honoured: a job takes all licences that it names")
        return ()
    found: dict[str, int] = {}
    for part in re.split(r"[,;]", one.value):
        head, _, count = part.strip().partition(":")
        name = slug(head.partition("@")[0])
        if not is_name(name) or (count and not re.fullmatch("[1-9][0-9]{0,8}", count)):
            raise one.error(f"must be names of licences, each with a number: matlab:2,ansys; it has {quoted(part)}")
        found[name] = found.get(name, 0) + int(count or 1)
    if len(found) > LICENCES_MAX:
        raise one.error(f"names {len(found)} licences; at most {LICENCES_MAX} can be named")
    return tuple(Licences(name=name, count=count) for name, count in found.items())


def _requirement(name: str) -> Requirement:
    model = find_model(name)
    if model is not None:
        return Requirement(key=PRODUCT, values=(model[0],))
    return Requirement(key=FEATURE + name, op="Exists")


class _Reader:
    """Reads features: `&` and `,` bind closer than `|`; brackets and parentheses group."""

    def __init__(self, one: Said, notices: Notices) -> None:
        self.one = one
        self.notices = notices
        text = one.value.strip().strip("\"'")
        self.tokens = [match[1] for match in _TOKEN.finditer(text)]
        if "".join(self.tokens) != re.sub(r"\s", "", text) or len(text) > 1024:
            raise one.error(f"must be features with & and | between them, not {quoted(one.value)}")
        self.tokens.reverse()

    def factors(self, depth: int = 0) -> list[Terms]:
        """What all must hold, or one factor with the alternatives."""
        if depth > DEPTH_MAX:
            raise self.one.error("has too many brackets in each other")
        found = [self._several(depth)]
        while self.tokens and self.tokens[-1] == "|":
            self.tokens.pop()
            found.append(self._several(depth))
        if len(found) == 1:
            return found[0]
        return [[term for factors in found for term in self._whole(factors)]]

    def _several(self, depth: int) -> list[Terms]:
        found = self._one(depth)
        while self.tokens and self.tokens[-1] in ("&", ","):
            self.tokens.pop()
            found = [*found, *self._one(depth)]
        return found

    def _one(self, depth: int) -> list[Terms]:
        token = self.tokens.pop() if self.tokens else ""
        if token in ("(", "["):
            found = self.factors(depth + 1)
            end = self.tokens.pop() if self.tokens else ""
            if end != {"(": ")", "[": "]"}[token]:
                raise self.one.error(f"has a {token} that is not closed")
        elif token and token not in "&|,)]*":
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.=+-]{0,62}", token):
                raise self.one.error(f"has {quoted(token)}, which is no feature")
            found = [[(re.sub(r"[^A-Za-z0-9_.-]", "-", token).rstrip("-_."),)]]
        else:
            raise self.one.error(f"needs a feature {'before ' + quoted(token) if token else 'at its end'}")
        if self.tokens and self.tokens[-1] == "*":
            self.tokens.pop()
            count = self.tokens.pop() if self.tokens else ""
            if not count.isdecimal():
                raise self.one.error("needs a number of nodes behind *")
            self.notices.add(
                self.one.line, self.one.spelled, f"*{count[:9]} is not honoured: all nodes of the job have the features"
            )
        return found

    def _whole(self, factors: list[Terms]) -> Terms:
        """Alternatives of the whole."""
        found: Terms = [()]
        for terms in factors:
            found = [(*old, *new) for old in found for new in terms]
            if len(found) > TERMS_MAX:
                raise self.one.error(f"comes to more than {TERMS_MAX} alternatives")
        return found


def _factors(one: Said, notices: Notices) -> list[Terms]:
    reader = _Reader(one, notices)
    found = reader.factors()
    if reader.tokens:
        raise one.error(f"has {quoted(reader.tokens[-1])} where nothing was to follow")
    if any(len(terms) > TERMS_MAX for terms in found):
        raise one.error(f"comes to more than {TERMS_MAX} alternatives")
    return found


def with_features(each: dict[str, Any], found: Features, models: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a group with the features; a type that `--gres` says goes before a model that a feature names."""
    return each | {
        "gpu_models": models or found.models,
        "gpu_memory_mib": found.memory_mib,
        "any_of": found.any_of or UNSET,
        "selector": (*each["selector"], *found.selector),
    }
