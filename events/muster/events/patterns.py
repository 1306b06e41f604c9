"""Names, uids and keys of jobs against their patterns, at the edge and nowhere else.

The patterns stand in the types as JSON Schema sees them (`muster.events.base`); checkers are built from the types once.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import msgspec

Check = Callable[[Any], tuple[str, str] | None]
"""From a value to None, or to the place of what is wrong inside it and what is wrong."""

KNOWN_MAX = 65_536


def checker(kind: type[msgspec.Struct]) -> Check | None:
    """A check of every patterned field inside `kind`, however deep; None where there is none."""
    return _checker(msgspec.inspect.type_info(kind), {})


def patterned(kind: type[msgspec.Struct]) -> dict[str, str] | None:
    """The pattern of each patterned field of `kind`; None where a field holds patterned text deeper inside."""
    found: dict[str, str] = {}
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        pattern = (getattr(field.type, "extra_json_schema", None) or {}).get("pattern")
        if pattern is not None:
            found[field.name] = pattern
        elif _checker(field.type, {}) is not None:
            return None
    return found


class Texts:
    """The texts that match a pattern as a whole."""

    def __init__(self, pattern: str) -> None:
        self._match = re.compile(pattern.removeprefix("^").removesuffix("$")).fullmatch
        self.known: dict[str, None] = {}
        """Some that did, up to a bound: to look in before `fits` is called. Always the same dict."""

    def fits(self, text: str) -> bool:
        """Whether this one does."""
        if text in self.known:
            return True
        if self._match(text) is None:
            return False
        if len(self.known) >= KNOWN_MAX:
            self.known.clear()
        self.known[text] = None
        return True


class Lines:
    """The texts that match a pattern as a whole, many looked at together.

    The pattern says no more than which characters may stand first, between and last, and that there is one; how long a text
    may be is said by its type.
    """

    def __init__(self, pattern: str) -> None:
        match = re.compile(pattern.removeprefix("^").removesuffix("$")).fullmatch
        every = [chr(code) for code in range(128)]
        some = next(character for character in every if match(character))
        between = [character for character in every if match(some + character + some)]
        first = [character for character in between if match(character + some)]
        last = [character for character in between if match(some + character)]
        self._between = "".join(between).encode() + b"\n"
        self._first = "".join(first).encode()
        self._last = b"" if last == between else "".join(last).encode()
        """Empty where what may stand between may stand last."""

    def fit(self, texts: list[str]) -> bool:
        """Whether each does."""
        joined = "\n".join(texts)
        if joined.encode().translate(None, self._between) or joined.count("\n") >= max(1, len(texts)):
            return False  # a character that may stand nowhere, or a new line inside a text
        first = "".join([text[:1] for text in texts])
        if len(first) != len(texts) or first.encode().translate(None, self._first):
            return False
        return not self._last or not "".join([text[-1] for text in texts]).encode().translate(None, self._last)


def _checker(kind: msgspec.inspect.Type, made: dict[type, Check | None]) -> Check | None:
    if isinstance(kind, msgspec.inspect.Metadata):
        pattern = (kind.extra_json_schema or {}).get("pattern")
        return _text(pattern) if pattern is not None else _checker(kind.type, made)
    if isinstance(kind, msgspec.inspect.StructType):
        if kind.cls not in made:
            made[kind.cls] = None  # no event holds itself
            made[kind.cls] = _struct([(field.name, _checker(field.type, made)) for field in kind.fields])
        return made[kind.cls]
    if isinstance(kind, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
        item = _checker(kind.item_type, made)
        return _items(item) if item is not None else None
    if isinstance(kind, msgspec.inspect.UnionType):
        inner = [check for check in (_checker(part, made) for part in kind.types) if check is not None]
        if not inner:
            return None
        if len(kind.types) == 2 and kind.includes_none:
            return _optional(inner[0])
    elif isinstance(kind, msgspec.inspect.DictType):
        if _checker(kind.key_type, made) is None and _checker(kind.value_type, made) is None:
            return None
    elif not isinstance(kind, msgspec.inspect.TupleType):
        return None
    raise TypeError(f"no event may hold patterned text in a {type(kind).__name__}: say here how it is checked")


class _Text:
    """The check of one pattern: what one kind has seen is known to the others."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._texts = Texts(pattern)
        self.known = self._texts.known

    def __call__(self, value: str) -> tuple[str, str] | None:
        return None if self._texts.fits(value) else ("", f"{value!r} must match {self._pattern}")


_text = functools.cache(_Text)


def _struct(fields: list[tuple[str, Check | None]]) -> Check | None:
    nothing: dict[str, None] = {}
    checks = [(name, check, check.known if isinstance(check, _Text) else nothing) for name, check in fields if check is not None]
    if not checks:
        return None

    def check(value: Any) -> tuple[str, str] | None:
        for name, inner, known in checks:
            held = getattr(value, name)
            if held is not msgspec.UNSET and (known is nothing or held not in known):
                bad = inner(held)
                if bad is not None:
                    return f".{name}{bad[0]}", bad[1]
        return None

    return check


def _items(inner: Check) -> Check:
    def check(value: Any) -> tuple[str, str] | None:
        for index, item in enumerate(value):
            bad = inner(item)
            if bad is not None:
                return f"[{index}]{bad[0]}", bad[1]
        return None

    return check


def _optional(inner: Check) -> Check:
    def check(value: Any) -> tuple[str, str] | None:
        return inner(value) if value is not None else None

    return check
