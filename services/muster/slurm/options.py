"""Options as Slurm's programs read them: `--name=value`, `--name value`, an unambiguous beginning, `-n2`, `-n 2`, `-hl`."""

from typing import Final

import msgspec

from muster.slurm.say import Refused

NEEDS: Final = "needs"
FLAG: Final = "flag"
MAY: Final = "may"
"""Takes a value only with `=` or right behind its letter."""


class Option(msgspec.Struct, frozen=True):
    """One option: its long name, its letter, and whether it takes a value."""

    name: str
    letter: str = ""
    value: str = NEEDS
    ignored: str = ""
    """Why it is not honoured; `-` where that makes no difference."""


class Parsed(msgspec.Struct, frozen=True):
    """The values by long names (a flag has ""), what follows the options, and what is not honoured."""

    values: dict[str, str]
    rest: list[str]
    ignored: list[str]


def parse(table: tuple[Option, ...], words: list[str], interleaved: bool = False) -> Parsed:
    """Read the options before the first word that is none; with `interleaved`, after it too.

    Raises:
        Refused: an option that is not in the table, or one without its value.
    """
    parsed = Parsed({}, [], [])
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = _long(table, name)
            if option.value == NEEDS and not equals:
                value = _next(rest, f"--{option.name}")
            _put(parsed, option, value)
        elif word.startswith("-") and len(word) > 1:
            _letters(table, word[1:], rest, parsed)
        elif interleaved:
            parsed.rest.append(word)
        else:
            rest.append(word)
            break
    parsed.rest.extend(reversed(rest))
    return parsed


def number(parsed: Parsed, name: str, least: int = 1) -> int | None:
    """The whole number that an option gives; None where it is not given.

    Raises:
        Refused: it is none, or too small.
    """
    text = parsed.values.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
        raise Refused(f"--{name} must be a whole number from {least}, not {text!r}")
    return int(text)


def _letters(table: tuple[Option, ...], letters: str, rest: list[str], parsed: Parsed) -> None:
    while letters:
        letter, letters = letters[0], letters[1:]
        option = next((option for option in table if option.letter == letter), None)
        if option is None:
            raise Refused(f"-{letter} is no option here", 2)
        value = ""
        if option.value == NEEDS:
            value, letters = (letters.removeprefix("=") or _next(rest, f"-{letter}")), ""
        elif option.value == MAY:
            value, letters = letters, ""
        _put(parsed, option, value)


def _put(parsed: Parsed, option: Option, value: str) -> None:
    parsed.values[option.name] = value
    if option.ignored not in ("", "-"):
        parsed.ignored.append(f"--{option.name} is not honoured: {option.ignored}")


def _next(rest: list[str], spelled: str) -> str:
    if not rest:
        raise Refused(f"{spelled} needs a value", 2)
    return rest.pop()


def _long(table: tuple[Option, ...], name: str) -> Option:
    fitting = [option for option in table if option.name == name] or [option for option in table if option.name.startswith(name)]
    if len(fitting) != 1 or not name:
        names = ", ".join(f"--{option.name}" for option in fitting[:6])
        raise Refused(f"--{name} may stand for {names}: write it out" if fitting and name else f"--{name} is no option here", 2)
    return fitting[0]
