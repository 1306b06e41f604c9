"""A scenario file as values that know where they stand.

YAML 1.2: only `true` and `false` are booleans, so `on` is a string. A key that stands twice is an error. Numbers keep
every digit (`Decimal`), because quantities are judged by their digits. This module knows no key by name.
"""

import re
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path

import yaml

Scalar = str | int | Decimal | bool | None


class ScenarioError(Exception):
    """The file is wrong: `FILE:LINE: key ...`, one sentence."""

    def __init__(self, file: str, line: int, key: str, sentence: str) -> None:
        super().__init__(f"{file}:{line}: {key} {sentence}")
        self.file = file
        self.line = line
        self.key = key


class Value:
    """One value of the file with its place: a mapping, a list or a scalar in `data`, and the scalar's own text."""

    __slots__ = ("data", "file", "key", "line", "text")

    def __init__(self, data: "dict[str, Value] | list[Value] | Scalar", text: str, file: str, line: int, key: str) -> None:
        self.data = data
        self.text = text
        self.file = file
        self.line = line
        self.key = key

    def error(self, sentence: str) -> ScenarioError:
        """The error that this value is, to be raised."""
        return ScenarioError(self.file, self.line, self.key, sentence)

    def mapping(self, what: str, known: Iterable[str], later: dict[str, str] | None = None) -> "dict[str, Value]":
        """The value as a mapping with no other keys than these.

        `later` names the keys that are not supported yet and what they arrive with.
        """
        if not isinstance(self.data, dict):
            raise self.error(f"must be a mapping ({what}), not {self.said()}")
        names = list(known)
        for key, value in self.data.items():
            if key in names:
                continue
            if later and key in later:
                raise value.error(f"is not supported yet: it arrives with {later[key]}")
            raise value.error(f"is unknown: {what} knows {', '.join(names)}")
        return self.data

    def any_mapping(self, what: str) -> "dict[str, Value]":
        """The value as a mapping whose keys are names."""
        if not isinstance(self.data, dict):
            raise self.error(f"must be a mapping ({what}), not {self.said()}")
        return self.data

    def items(self, what: str) -> "list[Value]":
        """The value as a list."""
        if not isinstance(self.data, list):
            raise self.error(f"must be a list of {what}, not {self.said()}")
        return self.data

    def several(self) -> "list[Value]":
        """The items of a list, or the value itself as the only one."""
        return self.data if isinstance(self.data, list) else [self]

    def string(self) -> str:
        """The value as text."""
        if not isinstance(self.data, str) or not self.data:
            raise self.error(f"must be text, not {self.said()}")
        return self.data

    def word(self, known: Iterable[str]) -> str:
        """The value as one of these words."""
        words = list(known)
        if not isinstance(self.data, str) or self.data not in words:
            raise self.error(f"must be one of {', '.join(words)}, not {self.said()}")
        return self.data

    def scalar_text(self) -> str:
        """The text of a scalar as it stands in the file, whatever it looks like."""
        if isinstance(self.data, dict | list) or self.data is None:
            raise self.error(f"must be text, not {self.said()}")
        return self.text

    def whole(self) -> int:
        """The value as a whole number."""
        if not isinstance(self.data, int) or isinstance(self.data, bool):
            raise self.error(f"must be a whole number, not {self.said()}")
        return self.data

    def count(self) -> int:
        """The value as a whole number from 0."""
        number = self.whole()
        if number < 0:
            raise self.error(f"must be 0 or more, not {self.said()}")
        return number

    def boolean(self) -> bool:
        """The value as true or false."""
        if not isinstance(self.data, bool):
            raise self.error(f"must be true or false, not {self.said()}")
        return self.data

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

    def said(self) -> str:
        """The value as a message quotes it."""
        plain = self.plain()
        if isinstance(plain, str):
            return repr(plain)
        return "nothing" if plain is None else show(plain)

    def plain(self) -> object:
        """The value without its places."""
        if isinstance(self.data, dict):
            return {key: value.plain() for key, value in self.data.items()}
        if isinstance(self.data, list):
            return [value.plain() for value in self.data]
        return self.data


def show(plain: object) -> str:
    """A plain value in the flow style in which scenes are written."""
    if isinstance(plain, dict):
        return "{" + ", ".join(f"{key}: {show(value)}" for key, value in plain.items()) + "}"
    if isinstance(plain, list | tuple):
        return "[" + ", ".join(show(value) for value in plain) + "]"
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return "null" if plain is None else str(plain)


class _Loader(yaml.CSafeLoader):
    """The composer of libyaml with the plain scalars of YAML 1.2's core schema."""


_Loader.yaml_implicit_resolvers = {}


def _resolver(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))


_resolver("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_resolver("int", r"^[-+]?[0-9]+$", "-+0123456789")
_resolver("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+0123456789.")
_resolver("null", r"^(?:~|null|Null|NULL|)$", "~nN\0")
_Loader.yaml_implicit_resolvers[""] = [("tag:yaml.org,2002:null", re.compile(r"^$"))]

_SCALARS: dict[str, Callable[[str], Scalar]] = {
    "tag:yaml.org,2002:bool": lambda text: text.lower() == "true",
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": Decimal,
    "tag:yaml.org,2002:null": lambda text: None,
    "tag:yaml.org,2002:str": str,
}


def read_file(path: Path) -> Value:
    """The file's only document.

    Raises:
        ScenarioError: it cannot be read, or is not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(str(path), 1, "file", f"cannot be read: {error}") from None
    return read_text(text, str(path))


def read_text(text: str, file: str) -> Value:
    """The text's only document.

    Raises:
        ScenarioError: it is not YAML.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ScenarioError(
            file, mark.line + 1 if mark else 1, "file", f"is not YAML: {error.problem or error.context}"
        ) from None
    except yaml.YAMLError as error:
        raise ScenarioError(file, 1, "file", f"is not YAML: {error}") from None
    finally:
        loader.dispose()
    if node is None:
        raise ScenarioError(file, 1, "file", "is empty")
    return _place(node, file, "file", 0)


def _place(node: yaml.Node, file: str, key: str, depth: int) -> Value:
    line = node.start_mark.line + 1
    if depth > 32:
        raise ScenarioError(file, line, key, "is nested more than 32 deep")
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Value] = {}
        for key_node, value_node in node.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ScenarioError(file, at, key, "has a key that is no text")
            name = str(key_node.value)
            if name in result:
                raise ScenarioError(file, at, name, "stands twice")
            value = _place(value_node, file, name, depth + 1)
            value.line = at
            result[name] = value
        return Value(result, "", file, line, key)
    if isinstance(node, yaml.SequenceNode):
        return Value([_place(item, file, key, depth + 1) for item in node.value], "", file, line, key)
    make = _SCALARS.get(node.tag)
    if make is None:
        raise ScenarioError(file, line, key, f"has the tag {node.tag}, which scenes do not use")
    try:
        return Value(make(node.value), str(node.value), file, line, key)
    except (ValueError, InvalidOperation):
        raise ScenarioError(file, line, key, f"is no value: {node.value!r}") from None
