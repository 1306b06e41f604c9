"""The rules by which samples are judged: what they are, and reading them from a file (`rules.toml` unless another is named).

A file is taken whole or not at all; what is wrong with it is one sentence that names the key. Nothing here judges: the reducer
does over windows, and an agent what is fatal by itself (`at_once`).
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from muster.events.base import DeviceHealth
from muster.events.telemetry import GpuSample
from muster.log.errors import OperatingError
from muster.telemetry.signals import SIGNALS, value_of

FILE: Final = Path(__file__).with_name("rules.toml")
VERSION: Final = 1
RULES_MAX: Final = 64
AHEAD_S: Final = 60
"""A sample that says it is so much later than the broker took it has a wrong time: it would make all others late."""
FILE_MAX_BYTES: Final = 1024 * 1024

Measure = Literal["max", "min", "increase", "share_percent"]
Sentence = Annotated[str, Meta(min_length=1, max_length=256)]


class BadRules(OperatingError):
    """The rules cannot be used. Its text names the file and the key, and what would be right."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
    signal: str
    measure: Measure
    window_s: Annotated[int, Meta(ge=1, le=3600)]
    at_least: Annotated[int, Meta(ge=1, le=2**53)]
    samples_min: Annotated[int, Meta(ge=1, le=10_000)] = 1
    health: Literal["degraded", "failed"]
    recovers_after: Annotated[int, Meta(ge=0, le=1000)] = 0
    at_once: bool = False
    reason: Sentence
    source: Sentence


class XidClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Xids after which the same is to be done."""

    action: Sentence
    health: DeviceHealth
    what: Sentence
    codes: dict[str, Sentence]


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of them."""

    version: int
    late_s: Annotated[int, Meta(ge=0, le=3600)]
    rule: Annotated[tuple[Rule, ...], Meta(min_length=1, max_length=RULES_MAX)]
    xid: dict[str, XidClass]

    def xids(self) -> dict[int, DeviceHealth]:
        """By number, what an Xid makes of its device."""
        return {int(code): kind.health for kind in self.xid.values() for code in kind.codes}

    def xid_names(self) -> dict[int, str]:
        """By number, what happened."""
        return {int(code): name for kind in self.xid.values() for code, name in kind.codes.items()}

    def reach_s(self) -> int:
        """What is older than this, by its own time, changes no proposal any more: so far back samples are read again."""
        back_s = max(rule.window_s * (1 + 2 * max(1, rule.recovers_after)) for rule in self.rule)
        return self.stands_s() + back_s + 2 * self.late_s + AHEAD_S

    def stands_s(self) -> int:
        """For so long at most a rule stands against a device, counted from the window before the one in which it held."""
        return max(rule.window_s * (2 + max(1, rule.recovers_after)) for rule in self.rule)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one sample says by itself."""

    rule: str
    health: DeviceHealth
    reason: str


def judge(rules: Rules, sample: GpuSample) -> Finding | None:
    """What is wrong with a device by this sample alone, the worst of it; None where nothing is."""
    found: Finding | None = None
    for rule in rules.rule:
        if not rule.at_once or (found is not None and (found.health == "failed" or rule.health == "degraded")):
            continue
        value = value_of(rule.signal, sample, rules.xids())
        if value is not None and value >= rule.at_least:
            told = told_xids(rules, rule, {each.code: each.count for each in sample.xids or ()})
            found = Finding(rule=rule.name, health=rule.health, reason=told or f"{rule.reason} ({rule.signal} is {value})")
    return found


def told_xids(rules: Rules, rule: Rule, seen: Mapping[int, int]) -> str:
    """The Xids that made a rule hold, as a sentence: `Xid 79: the GPU has fallen off the bus`. Empty of another rule."""
    if not rule.signal.startswith("xid_"):
        return ""
    healths, names = rules.xids(), rules.xid_names()
    codes = [code for code in sorted(seen) if healths.get(code) == rule.signal.removeprefix("xid_")]
    return "; ".join(f"Xid {code}: {names[code]}" for code in codes[:8])


@cache
def usual() -> Rules:
    """The rules that come with Muster."""
    return load(FILE)


def load(path: Path) -> Rules:
    """The rules of a file.

    Raises:
        BadRules: it cannot be read, or says what makes no sense.
    """
    try:
        if path.stat().st_size > FILE_MAX_BYTES:
            raise BadRules(f"{path}: it has more than {FILE_MAX_BYTES} bytes")
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRules(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    try:
        rules = msgspec.convert(tomllib.loads(text), Rules)
    except tomllib.TOMLDecodeError as error:
        raise BadRules(f"{path}: is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise BadRules(f"{path}: {_named(str(error))}") from None
    if wrong := _wrong(rules):
        raise BadRules(f"{path}: {wrong}")
    return rules


def _named(said: str) -> str:
    """msgspec says `... - at `$.rule[0].window_s``: say the key first."""
    match = re.search(r"^(.*) - at `(?:key in )?\$\.?(.*)`$", said, re.DOTALL)
    return f"{match[2]}: {match[1]}" if match and match[2] else said


def _wrong(rules: Rules) -> str:
    """What the types cannot say; empty where all is well."""
    if rules.version != VERSION:
        return f"version: must be {VERSION}, not {rules.version}"
    names: dict[str, None] = {}
    for index, rule in enumerate(rules.rule):
        where = f"rule[{index}]"
        if rule.signal not in SIGNALS:
            return f"{where}.signal: {rule.signal[:64]!r} is none; there are {', '.join(SIGNALS)}"
        if rule.name in names:
            return f"{where}.name: {rule.name!r} is another rule's too"
        if rule.at_once and rule.measure != "max":
            return f"{where}.at_once: one sample tells no {rule.measure}; only a max may be reported at once"
        if rule.measure == "share_percent" and rule.at_least > 100:
            return f"{where}.at_least: no share is {rule.at_least} of a hundred"
        names[rule.name] = None
    codes: dict[int, str] = {}
    for name, kind in rules.xid.items():
        for code in kind.codes:
            if not re.fullmatch(r"[0-9]{1,5}", code):
                return f"xid.{name}.codes: {code[:64]!r} is no number of an Xid"
            if int(code) in codes:
                return f"xid.{name}.codes.{code}: stands in xid.{codes[int(code)]} too"
            codes[int(code)] = name
    return ""
