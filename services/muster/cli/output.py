"""How commands speak: one-sentence failures, exit codes, tables or JSON, instants as text, a progress bar.

Results go to standard output, everything about how it went to standard error. Nothing here reads a log.
"""

import datetime
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

OK = 0
FOUND = 1
"""The command did its work and found something wrong."""
USAGE = 2
"""The command cannot be understood, or names something that is not there."""
UNREADABLE = 3
"""The log or a file cannot be read."""

LogPlace = Annotated[
    str, typer.Argument(metavar="LOG", help="A log: its folder, its file, or kafka://HOST:PORT.", show_default=False)
]
Cell = Annotated[str | None, typer.Option("--cell", metavar="CELL", help="Whose log, where the folder holds several.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

Item = TypeVar("Item")

console = Console()
errors = Console(stderr=True)


class Failure(Exception):
    """The command stops: one sentence for a person, and the exit code."""

    def __init__(self, sentence: str, code: int = USAGE) -> None:
        super().__init__(sentence)
        self.code = code


def print_json(value: Any) -> None:
    """One JSON document, on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their widest cell, nothing cut off and nothing wrapped."""
    lines = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for number, line in enumerate(lines):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        console.print(text, style="bold" if number == 0 else "", markup=False, highlight=False, soft_wrap=True)


def instant(at_us: int) -> str:
    """An instant of log time: a date where it is one, else seconds since the start (virtual time begins at 0)."""
    if at_us >= 10**15:
        whole = datetime.datetime.fromtimestamp(at_us // 1_000_000, datetime.UTC)
        return f"{whole:%Y-%m-%dT%H:%M:%S}.{at_us % 1_000_000:06d}Z"
    return f"{at_us // 1_000_000}.{at_us % 1_000_000:06d}"


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a progress bar on standard error while it is a terminal."""
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(task)
