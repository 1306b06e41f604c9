"""A TOML file as values that know their key. TOML says no lines once it is read, so errors name the keys on the way."""

import tomllib
from decimal import Decimal
from typing import Any

from muster.reading.errors import FileError
from muster.reading.values import BYTES_MAX, Value


def parse_toml(text: str, file: str) -> Value:
    """The whole file as a mapping.

    Raises:
        FileError: it is no TOML, or too large.
    """
    if len(text.encode()) > BYTES_MAX:
        raise FileError(file, 0, "the file", f"may have {BYTES_MAX} bytes")
    try:
        found = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise FileError(file, 0, "the file", f"is no TOML: {error}") from None
    return _value(found, file, "")


def _value(data: Any, file: str, key: str) -> Value:
    if isinstance(data, dict):
        inside = {name: _value(item, file, f"{key}.{name}" if key else name) for name, item in data.items()}
        return Value(inside, "", file, 0, key)
    if isinstance(data, list):
        return Value([_value(item, file, f"{key}[{place}]") for place, item in enumerate(data)], "", file, 0, key)
    if not isinstance(data, str | bool | int | Decimal):
        raise FileError(file, 0, key, "must be text, a number, true or false")
    return Value(data, str(data).lower() if isinstance(data, bool) else str(data), file, 0, key)
