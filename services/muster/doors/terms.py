"""Constraints as a line says them, for the flags of `muster submit`: each becomes what a job file would have.

Selectors are written as kubectl writes them: `zone=a`, `zone!=a`, `zone in (a, b)`, `zone notin (a, b)`, `spot`, `!spot`, and
`generation>3`, `generation<9` beside these; a comma between two means that both hold.
"""

import re
from typing import Any, Final

LEVELS_HINT: Final = "zone, block, rack, nvlink_domain or node"
TEXT_MAX: Final = 8192
_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]{0,126}[A-Za-z0-9])?"
_AMONG: Final = re.compile(rf"\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*")
_PLAIN: Final = re.compile(rf"\s*({_KEY})\s*(==|=|!=|>|<)\s*([^\s=!<>(),]*)\s*")
_THERE: Final = re.compile(rf"\s*(!?)\s*({_KEY})\s*")
_OPS: Final = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt", "in": "In", "notin": "NotIn"}


class BadTerm(ValueError):
    """It makes no sense: one sentence, that begins behind the name of the flag."""


def read_selector_text(text: str) -> list[dict[str, Any]]:
    """The requirements of one selector.

    Raises:
        BadTerm: it is none.
    """
    if not text.strip() or len(text) > TEXT_MAX:
        raise BadTerm(f"must be a selector such as zone=a, zone in (a, b), !spot or generation>3, not {text[:80]!r}")
    return [_requirement(part, text) for part in re.split(r",(?![^(]*\))", text)]


def read_preference(text: str) -> dict[str, Any]:
    """`[WEIGHT:]SELECTOR`."""
    weight, colon, rest = text.partition(":")
    if colon and weight.strip().isdecimal():
        return {"labels": read_selector_text(rest), "weight": int(weight)}
    return {"labels": read_selector_text(text)}


def read_term(text: str) -> dict[str, Any]:
    """`SELECTOR[@LEVEL][:preferred]`, for who is to be near or away."""
    head, found, wish = text.partition(":")
    if found and wish not in ("preferred", "required"):
        raise BadTerm(f"may end with :required or :preferred, not :{wish[:80]}")
    labels, at, level = head.partition("@")
    said: dict[str, Any] = {"labels": read_selector_text(labels)}
    if at:
        said["by"] = _level(level)
    return said | ({"required": False} if wish == "preferred" else {})


def read_within(text: str) -> tuple[str, str]:
    """`LEVEL[:preferred]`."""
    level, colon, wish = text.partition(":")
    if colon and wish not in ("preferred", "required"):
        raise BadTerm(f"must be LEVEL, LEVEL:required or LEVEL:preferred, not {text[:80]!r}")
    return _level(level), wish or "required"


def read_spread(text: str) -> tuple[str, Any]:
    """`LEVEL:MOST`, `LEVEL:skew=N`, `LEVEL:most=N,skew=N`."""
    level, _, bounds = text.partition(":")
    if bounds.isdecimal():
        return _level(level), int(bounds)
    said = {}
    for part in bounds.split(","):
        name, _, number = part.strip().partition("=")
        if name not in ("most", "skew") or not number.isdecimal():
            raise BadTerm(f"must be LEVEL:MOST, LEVEL:skew=N or LEVEL:most=N,skew=N, such as node:1, not {text[:80]!r}")
        said[name] = int(number)
    return _level(level), said


def read_licence(text: str) -> tuple[str, int]:
    """`NAME[:COUNT]`."""
    name, colon, count = text.partition(":")
    if not name or (colon and not count.isdecimal()):
        raise BadTerm(f"must be NAME or NAME:COUNT, such as solver:2, not {text[:80]!r}")
    return name, int(count or 1)


def _level(text: str) -> str:
    if not text:
        raise BadTerm(f"needs a level: {LEVELS_HINT}")
    return text


def _requirement(part: str, text: str) -> dict[str, Any]:
    if match := _AMONG.fullmatch(part):
        values = [value.strip() for value in match[3].split(",")]
        return {"key": match[1], "op": _OPS[match[2]], "values": values}
    if match := _PLAIN.fullmatch(part):
        return {"key": match[1], "op": _OPS[match[2]], "values": [match[3]]}
    if match := _THERE.fullmatch(part):
        return {"key": match[2], "op": "DoesNotExist" if match[1] else "Exists"}
    raise BadTerm(f"must be a selector such as zone=a, zone in (a, b), !spot or generation>3; {part.strip()[:80]!r} is none")
