"""A YAML or JSON file as values that know where they stand.

YAML 1.2: only `true` and `false` are booleans, so `on` is a string. A key that stands twice is an error. Numbers keep
every digit (`Decimal`). Several documents in one file are several values. This module knows no key by name.

What a hostile file may cost is bounded: its size, its depth, and how many values it has once aliases are followed.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any

import yaml

from muster.reading.errors import FileError, quoted

BYTES_MAX = 1024 * 1024
DEPTH_MAX = 32
VALUES_MAX = 100_000
DIGITS_MAX = 40

Scalar = str | int | Decimal | bool | None


class Value:
    """One value of a file with its place: a mapping, a list or a scalar in `data`, and the scalar's own text.

    `size` is how many values it holds, itself included.
    """

    __slots__ = ("data", "file", "key", "line", "size", "text")

    def __init__(self, data: "dict[str, Value] | list[Value] | Scalar", text: str, file: str, line: int, key: str) -> None:
        self.data = data
        self.text = text
        self.file = file
        self.line = line
        self.key = key
        self.size = 1

    def error(self, sentence: str) -> FileError:
        """The error that this value is, to be raised."""
        return FileError(self.file, self.line, self.key, sentence)

    def mapping(self, what: str) -> "dict[str, Value]":
        """The value as a mapping; nothing at all is an empty one."""
        if self.data is None:
            return {}
        if not isinstance(self.data, dict):
            raise self.error(f"must be a mapping ({what}), not {self.said()}")
        return self.data

    def known(self, what: str, known: Iterable[str]) -> "dict[str, Value]":
        """The value as a mapping with no other keys than these."""
        fields = self.mapping(what)
        names = list(known)
        for key, value in fields.items():
            if key not in names:
                raise value.error(f"is unknown: {what} knows {', '.join(names)}")
        return fields

    def items(self, what: str) -> "list[Value]":
        """The value as a list; nothing at all is an empty one."""
        if self.data is None:
            return []
        if not isinstance(self.data, list):
            raise self.error(f"must be a list of {what}, not {self.said()}")
        return self.data

    def several(self) -> "list[Value]":
        """The items of a list, or the value itself as the only one."""
        return self.data if isinstance(self.data, list) else [self]

    def string(self) -> str:
        """The value as text that is not empty."""
        if not isinstance(self.data, str) or not self.data:
            raise self.error(f"must be text, not {self.said()}")
        return self.data

    def scalar_text(self) -> str:
        """The text of a scalar as it stands in the file, whatever it looks like."""
        if isinstance(self.data, dict | list) or self.data is None:
            raise self.error(f"must be text, not {self.said()}")
        return self.text

    def word(self, known: Iterable[str]) -> str:
        """The value as one of these words."""
        words = list(known)
        if not isinstance(self.data, str) or self.data not in words:
            raise self.error(f"must be one of {', '.join(words)}, not {self.said()}")
        return self.data

    def whole(self, least: int | None = None, most: int | None = None) -> int:
        """The value as a whole number within these bounds."""
        number = self.data
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not whole or (least is not None and number < least) or (most is not None and number > most):  # type: ignore[operator]
            bounds = "" if least is None else f" from {least}" + ("" if most is None else f" to {most}")
            raise self.error(f"must be a whole number{bounds}, not {self.said()}")
        return number  # type: ignore[return-value]  # a whole number, as was looked at

    def count(self) -> int:
        """The value as a whole number from 0."""
        return self.whole(0)

    def micros(self, signed: bool = False) -> int:
        """Seconds, with fractions, in microseconds."""
        if isinstance(self.data, bool) or not isinstance(self.data, int | Decimal):
            raise self.error(f"must be seconds, not {self.said()}")
        micros = Decimal(self.data) * 1_000_000
        if micros != micros.to_integral_value() or (micros < 0 and not signed):
            raise self.error(f"must be seconds from 0 in whole microseconds, not {self.said()}")
        if abs(micros) > 10**15:
            raise self.error(f"must be less than thirty years, not {self.said()}")
        return int(micros)

    def plain(self) -> object:
        """The value without its places."""
        if isinstance(self.data, dict):
            return {key: value.plain() for key, value in self.data.items()}
        if isinstance(self.data, list):
            return [value.plain() for value in self.data]
        return self.data

    def boolean(self) -> bool:
        """The value as true or false."""
        if not isinstance(self.data, bool):
            raise self.error(f"must be true or false, not {self.said()}")
        return self.data

    def said(self) -> str:
        """The value as a message quotes it."""
        if isinstance(self.data, dict):
            return "a mapping"
        if isinstance(self.data, list):
            return "a list"
        return "nothing" if self.data is None else quoted(self.text)


def decoded(data: bytes, file: str, bytes_max: int = BYTES_MAX) -> str:
    """The file as text.

    Raises:
        FileError: too large, or not UTF-8.
    """
    if len(data) > bytes_max:
        raise FileError(file, 1, "file", f"has {len(data)} bytes; at most {bytes_max} are read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileError(file, line, "file", f"is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from None


def read_documents(text: str, file: str) -> list[Value]:
    """The documents of a YAML file, or the value of a JSON file; empty documents are left out.

    Raises:
        FileError: it is neither.
    """
    if text.lstrip()[:1] in ("{", "["):
        try:
            json = _Json(text, file).read()
        except _NotJson:
            pass  # YAML has a flow style that looks alike
        else:
            return [json]
    return _Yaml(text, file).documents()


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")


def _plain(text: str) -> Scalar:
    """What a scalar without quotes means (the core schema of YAML 1.2). A number with very many digits stays text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if len(text) <= DIGITS_MAX:
        if _INT.fullmatch(text):
            return int(text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return Decimal(text)
    return text


def _join(key: str, name: str) -> str:
    return name if key == "file" else f"{key}.{name}"


def _full(value: Value) -> Value:
    """The collection with its size, which is bounded."""
    inside = list(value.data.values()) if isinstance(value.data, dict) else value.data
    if isinstance(inside, list):
        value.size = 1 + sum(item.size for item in inside)
    if value.size > VALUES_MAX:
        raise value.error(f"holds more than {VALUES_MAX} values")
    return value


class _Yaml:
    """Values from libyaml's events."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._anchors: dict[str, Value] = {}
        self._made = 0

    def documents(self) -> list[Value]:
        found: list[Value] = []
        try:
            for event in (events := iter(yaml.parse(self._text, Loader=yaml.CSafeLoader))):
                if isinstance(event, yaml.DocumentStartEvent):
                    self._anchors = {}
                    value = self._value(events, next(events), "file", 0)
                    if value.data is not None or value.text:
                        found.append(value)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            lines = self._text.count("\n") + (not self._text.endswith("\n"))
            line = min(mark.line + 1, max(lines, 1)) if mark else 1
            raise FileError(self._file, line, "file", f"is not YAML: {quoted(error.problem or error.context)}") from None
        except (yaml.YAMLError, UnicodeError, ValueError, StopIteration) as error:
            place = _CONTROL.search(self._text)
            line = self._text.count("\n", 0, place.start()) + 1 if place else 1
            why = f"holds the control character {place[0]!r}" if place else f"is not YAML: {quoted(str(error))}"
            raise FileError(self._file, line, "file", why) from None
        return found

    def _value(self, events: Iterator[Any], event: Any, key: str, depth: int) -> Value:
        line = event.start_mark.line + 1
        if depth > DEPTH_MAX:
            raise FileError(self._file, line, key, f"is nested more than {DEPTH_MAX} deep")
        self._spend(1, line, key)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise FileError(self._file, line, key, f"names the anchor {quoted(event.anchor)}, which is not there")
            value = self._anchors[event.anchor]
            self._spend(value.size, line, key)
            return value
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, key, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(events, event, key, depth)
        else:
            value = self._mapping(events, event, key, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _spend(self, values: int, line: int, key: str) -> None:
        """A file may not hold more values than this, aliases followed: twice as much text must not cost ten times the time."""
        self._made += values
        if self._made > VALUES_MAX:
            raise FileError(self._file, line, key, f"is beyond the {VALUES_MAX} values that are read of one file")

    def _scalar(self, event: Any, key: str, line: int) -> Value:
        text = event.value
        if _SURROGATE.search(text):
            raise FileError(self._file, line, key, "holds half of a character (a lone surrogate)")
        if event.tag is None and not event.style:
            return Value(_plain(text), text, self._file, line, key)
        if event.tag in (None, "!", "tag:yaml.org,2002:str"):
            return Value(text, text, self._file, line, key)
        raise FileError(self._file, line, key, f"has the tag {quoted(event.tag)}, which is not used here")

    def _sequence(self, events: Iterator[Any], event: Any, key: str, depth: int) -> Value:
        items: list[Value] = []
        while not isinstance(inner := next(events), yaml.SequenceEndEvent):
            items.append(self._value(events, inner, f"{key}[{len(items)}]", depth + 1))
        return _full(Value(items, "", self._file, event.start_mark.line + 1, key))

    def _mapping(self, events: Iterator[Any], event: Any, key: str, depth: int) -> Value:
        fields: dict[str, Value] = {}
        merged: list[Value] = []
        while not isinstance(inner := next(events), yaml.MappingEndEvent):
            line = inner.start_mark.line + 1
            if not isinstance(inner, yaml.ScalarEvent):
                raise FileError(self._file, line, key, "has a key that is no text")
            name = self._scalar(inner, key, line).text
            value = self._value(events, next(events), _join(key, name[:128]), depth + 1)
            if name == "<<" and not inner.style:
                merged.extend(value.several())
                continue
            if name in fields:
                raise FileError(self._file, line, _join(key, name[:128]), f"stands twice; first in line {fields[name].line}")
            if value.data is None or not isinstance(value.data, dict | list):
                value = Value(value.data, value.text, value.file, line, _join(key, name[:128]))
            fields[name] = value
        for value in merged:
            inside = value.mapping("a mapping to merge")
            self._spend(len(inside), value.line, key)
            for name, item in inside.items():
                fields.setdefault(name, item)
        return _full(Value(fields, "", self._file, event.start_mark.line + 1, key))


class _NotJson(Exception):
    """It is no JSON; it may be YAML."""


_JSON_TOKEN = re.compile(
    r"[ \t\r\n]*(?:([{}\[\],:])"
    r'|("(?:[^"\\\x00-\x1f]|\\.)*")'
    r"|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
    r"|(true|false|null)\b)"
)
_JSON_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_JSON_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class _Json:
    """Values from JSON's tokens, with their lines."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._at = 0
        self._line = 1
        self._token = ""
        self._kind = 0

    def read(self) -> Value:
        self._next()
        value = self._value("file", 0)
        if self._text[self._at :].strip():
            raise _NotJson
        return value

    def _next(self) -> None:
        match = _JSON_TOKEN.match(self._text, self._at)
        if match is None:
            raise _NotJson
        self._kind = match.lastindex or 0
        self._token = match[self._kind]
        self._line += self._text.count("\n", self._at, match.start(self._kind))
        self._at = match.end()

    def _value(self, key: str, depth: int) -> Value:
        """The value that begins with the current token, which stays current until it is used up."""
        line, token = self._line, self._token
        if depth > DEPTH_MAX:
            raise FileError(self._file, line, key, f"is nested more than {DEPTH_MAX} deep")
        if self._kind == 2:
            return Value(text := self._string(token, key), text, self._file, line, key)
        if self._kind in (3, 4):
            return Value(_plain(token), token, self._file, line, key)
        if token == "{":
            return self._object(key, depth, line)
        if token == "[":
            return self._array(key, depth, line)
        raise _NotJson

    def _object(self, key: str, depth: int, line: int) -> Value:
        fields: dict[str, Value] = {}
        self._next()
        while self._token != "}" or self._kind != 1:
            if self._kind != 2:
                raise _NotJson
            at, name = self._line, self._string(self._token, key)
            self._expect(":")
            self._next()
            value = self._value(_join(key, name[:128]), depth + 1)
            if name in fields:
                raise FileError(self._file, at, _join(key, name[:128]), f"stands twice; first in line {fields[name].line}")
            fields[name] = value
            self._comma("}")
        return _full(Value(fields, "", self._file, line, key))

    def _array(self, key: str, depth: int, line: int) -> Value:
        items: list[Value] = []
        self._next()
        while self._token != "]" or self._kind != 1:
            items.append(self._value(f"{key}[{len(items)}]", depth + 1))
            self._comma("]")
        return _full(Value(items, "", self._file, line, key))

    def _expect(self, sign: str) -> None:
        self._next()
        if self._kind != 1 or self._token != sign:
            raise _NotJson

    def _comma(self, end: str) -> None:
        """After a value: a comma and the next token, or the end."""
        self._next()
        if self._kind == 1 and self._token == ",":
            self._next()
            if self._kind == 1 and self._token == end:
                raise _NotJson
        elif self._kind != 1 or self._token != end:
            raise _NotJson

    def _string(self, token: str, key: str) -> str:
        text = _JSON_ESCAPE.sub(_unescape, token[1:-1])
        if _SURROGATE.search(text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text


def _unescape(match: re.Match[str]) -> str:
    if match[1] is not None:
        return chr(int(match[1], 16))
    if match[2] not in _JSON_ESCAPES:
        raise _NotJson
    return _JSON_ESCAPES[match[2]]


Reader = Callable[[Value], Any]
"""Reads one value, or raises a `FileError` with its place."""
