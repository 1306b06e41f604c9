"""Slurm's `-o` formats: `%.18i %9P %j`, a dot for right alignment, a width that also cuts, letters for fields."""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from muster.slurm.say import Refused

Row = TypeVar("Row")
Field = tuple[str, Callable[[Row], object]]
"""The heading of a column, and what stands in it."""

_PART = re.compile(r"%(\.?)([0-9]{0,4})([A-Za-z%])|([^%]+)|(%)", re.DOTALL)


def print_rows(template: str, fields: Mapping[str, Field[Row]], rows: list[Row], heading: bool) -> None:
    """Print the rows as the template says, under a heading where wanted.

    Raises:
        Refused: the template has a letter that is not supported.
    """
    parts = list(_PART.finditer(template))
    for part in parts:
        letter = part[3]
        if letter and letter != "%" and letter not in fields:
            raise Refused(
                f"the format has %{letter}, which is not supported; there are {' '.join('%' + name for name in fields)}"
            )
    if heading:
        print(_line(parts, lambda letter: fields[letter][0]))
    for row in rows:
        print(_line(parts, lambda letter, row=row: str(fields[letter][1](row))))  # type: ignore[misc]  # bound at once


def print_long(template: str, fields: Mapping[str, Field[Row]], rows: list[Row], heading: bool, names: Mapping[str, str]) -> None:
    """As `print_rows`, for `-O name:width,name`.

    Raises:
        Refused: a name is not supported.
    """
    letters = []
    for part in template.split(","):
        name, _, width = part.strip().partition(":")
        letter = names.get(name.lower())
        if letter is None:
            raise Refused(f"the format has {name!r}, which is not supported; there are {', '.join(names)}")
        size = width.lstrip(".-") or "20"
        if not size.isdigit():
            raise Refused(f"the format has the width {width!r}, which is none")
        letters.append(f"%{'.' if width.startswith('.') else ''}{size}{letter}")
    print_rows("".join(letters), fields, rows, heading)


def _line(parts: list[re.Match[str]], text_of: Callable[[str], str]) -> str:
    line = ""
    for part in parts:
        right, width, letter, plain, lone = part.groups()
        if letter is None:
            line += (plain or lone).replace("\\n", "\n").replace("\\t", "\t")
        elif letter == "%":
            line += "%"
        else:
            text = text_of(letter)
            if width:
                size = int(width)
                text = text[:size].rjust(size) if right else text[:size].ljust(size)
            line += text
    return line.rstrip(" ")
