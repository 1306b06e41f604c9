"""`muster scoreboard`: published loads played on this build, ours beside what was published."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.output import FOUND, OK, UNREADABLE, USAGE, Failure, Json, errors, print_json, print_table, track
from muster.log.sqlite import SqliteFile
from muster.simulator.boards.table import BOARDS, NEED_DATA, Figure, Run

app = typer.Typer(add_completion=False)


@app.command()
def scoreboard(
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where the batch logs lie (SWF).")] = None,
    board: Annotated[list[str] | None, typer.Option("--board", metavar="NAME", help="This one only; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small cut of each, in seconds; marks are of the whole.")] = False,
    log: Annotated[Path | None, typer.Option("--log", metavar="DIR", help="Keep the logs here, one folder each.")] = None,
    cpu_time: Annotated[bool, typer.Option("--cpu-time", help="Time on a processor, where others use the machine too.")] = False,
    json: Json = False,
) -> int:
    """Play published loads through the real core in virtual time, and print ours beside what was published.

    Exit status: 0 every figure reaches its mark; 1 one does not; 2 no such board; 3 data cannot be read.

    Examples: muster scoreboard --board kai-reclaim

    muster scoreboard --data DIR --json
    """
    for name in board or ():
        if name not in BOARDS:
            raise Failure(f"there is no board {name[:64]!r}; there are {', '.join(BOARDS)}", USAGE)
    names = [name for name in BOARDS if name in board] if board else list(BOARDS)
    left = [name for name in names if name in NEED_DATA and data is None]
    if board and left:
        raise Failure(f"the board {left[0]} needs data: say its folder with --data", UNREADABLE)
    if left:
        errors.print(f"left out, for want of --data: {', '.join(left)}", markup=False, highlight=False)
    figures: list[Figure] = []
    for name in track([name for name in names if name not in left], "boards"):
        figures += _play(name, data, quick, log, cpu_time)
    if json:
        print_json(figures)
    else:
        columns = ("BOARD", "FIGURE", "POLICY", "OURS", "PUBLISHED", "MARK", "")
        said = [("" if quick else "holds" if each.holds else "MISSED") for each in figures]
        rows = [(f.board, f.figure, f.policy, f.ours, f.published, f.mark, last) for f, last in zip(figures, said, strict=True)]
        print_table(columns, rows)
    return OK if quick or all(each.holds for each in figures) else FOUND


def _play(name: str, data: Path | None, quick: bool, log: Path | None, cpu_time: bool) -> list[Figure]:
    with ExitStack() as stack:
        folder = log or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-boards-")))
        count = 0

        def opened(run: str) -> SqliteFile:
            nonlocal count
            count += 1
            return stack.enter_context(SqliteFile.open(folder / f"{name}-{count}-{run}", "board", writer=True))

        clock = time.process_time if cpu_time else time.perf_counter
        return list(BOARDS[name](Run(log=opened, data=data, quick=quick, clock=clock)))
