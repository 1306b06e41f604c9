"""Lists of hosts as Slurm writes them: `gpu[170-179,190]`, `a[1-2]b[01-03],c`.

`expand` and `compress` are each other's inverse for sorted lists. What a list may expand to is bounded.
"""

import re
from collections.abc import Iterable

HOSTS_MAX = 65_536
TEXT_MAX = 65_536

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)


class BadHostlist(ValueError):
    """It is no list of hosts: one sentence."""


def expand(text: str) -> list[str]:
    """The hosts, in the order of the list.

    Raises:
        BadHostlist: brackets that do not match, a range that runs backwards, or more than `HOSTS_MAX` hosts.
    """
    if len(text) > TEXT_MAX:
        raise BadHostlist(f"has {len(text)} characters; at most {TEXT_MAX} are read")
    hosts: list[str] = []
    for part in _split(text):
        hosts.extend(_expand_part(part, HOSTS_MAX - len(hosts)))
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """The hosts in bracket form, in the order in which their prefixes come first: `n1 n2 n3 n7 m` is `n[1-3,7],m`."""
    groups: dict[tuple[str, int], list[int]] = {}
    for host in hosts:
        match = _NUMBERED.fullmatch(host)
        if match is None:
            groups.setdefault((host, -1), [])
            continue
        digits = match[2]
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        groups.setdefault((match[1], width), []).append(int(digits))
    parts = []
    for (prefix, width), numbers in _by_width(groups).items():
        parts.append(prefix if width < 0 else prefix + _brackets(sorted(dict.fromkeys(numbers)), width))
    return ",".join(parts)


def _by_width(groups: dict[tuple[str, int], list[int]]) -> dict[tuple[str, int], list[int]]:
    """Numbers with leading zeros and numbers of the same width without them (`08`, `09`, `10`) stand together."""
    merged: dict[tuple[str, int], list[int]] = {}
    for (prefix, width), numbers in groups.items():
        if width == 0:
            padded = [other for (name, other) in groups if name == prefix and other > 0]
            rest = []
            for number in numbers:
                if len(str(number)) in padded:
                    merged.setdefault((prefix, len(str(number))), []).append(number)
                else:
                    rest.append(number)
            if rest:
                merged.setdefault((prefix, 0), []).extend(rest)
        else:
            merged.setdefault((prefix, width), []).extend(numbers)
    return merged


def _brackets(numbers: list[int], width: int) -> str:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    texts = [f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}" for first, last in runs]
    return texts[0] if len(texts) == 1 and "-" not in texts[0] else f"[{','.join(texts)}]"


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    parts: list[str] = []
    start = depth = 0
    for index, sign in enumerate(text):
        if sign == "[":
            depth += 1
            if depth > 1:
                raise BadHostlist("has a bracket inside a bracket")
        elif sign == "]":
            depth -= 1
            if depth < 0:
                raise BadHostlist("closes a bracket that is not open")
        elif sign == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    if depth:
        raise BadHostlist("does not close a bracket")
    parts.append(text[start:])
    found = [part.strip() for part in parts]
    if any(re.search(r"\s", part) for part in found):
        raise BadHostlist("has white space inside a name")
    return [part for part in found if part]


def _expand_part(part: str, room: int) -> list[str]:
    names = [""]
    for piece in re.split(r"(\[[^\]]*\])", part):
        if not piece:
            continue
        inner = _numbers(piece[1:-1], room) if piece.startswith("[") else [piece]
        if len(names) * len(inner) > room:
            raise BadHostlist(f"has more than {HOSTS_MAX} hosts")
        names = [name + number for name in names for number in inner]
    return names


def _numbers(text: str, room: int) -> list[str]:
    found: list[str] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise BadHostlist(f"has {item[:40]!r} in brackets, which is neither a number nor a range such as 1-9")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise BadHostlist(f"has the range {item[:40]} that runs backwards")
        if int(last) - int(first) >= room - len(found):
            raise BadHostlist(f"has more than {HOSTS_MAX} hosts")
        found.extend(f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
    return found
