"""`muster bench engine`: how fast the engine decides, each figure beside its floor."""

import cProfile
import pstats
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from muster.bench import engine as figures
from muster.cli.output import FOUND, Failure, Json, errors, print_json, print_table
from muster.log.sqlite import SqliteFile

app = typer.Typer(add_completion=False, help="Measure.")

PROFILE_LINES = 25
RECORDS_A_TRANSACTION = 64


@app.callback()
def bench() -> None:
    """Measure how fast Muster is."""


@app.command()
def engine(
    quick: Annotated[bool, typer.Option("--quick", help="A small cluster, in seconds; floors do not apply.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time of a placement goes (stderr).")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Audit and verify the logs that were written.")] = True,
    log: Annotated[Path | None, typer.Option("--log", help="Keep the logs here, one folder each.", metavar="DIR")] = None,
    cpu_time: Annotated[bool, typer.Option("--cpu-time", help="Time on a processor, where others use the machine too.")] = False,
    json: Json = False,
) -> None:
    """Measure the engine: placements, gangs, a long queue, recovery, explanations, memory.

    Exit status 1 if a figure is below its floor, or a log is not in order.
    """
    profiler = cProfile.Profile() if profile else None

    def on_cycle(begins: bool) -> None:
        if profiler is not None:
            (profiler.enable if begins else profiler.disable)()

    clock = time.thread_time if cpu_time else time.perf_counter
    taken = figures.Bench(figures.QUICK if quick else figures.FULL, _say, clock, on_cycle if profile else None)
    taken.run()
    if profiler is not None:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(PROFILE_LINES)
    if log is not None:
        for name, cell in taken.logs:
            _keep(log / name, cell.records)
    found = figures.results(taken, list(figures.checks(taken.logs, _say)) if check else [])
    if json:
        print_json(found)
    else:
        _print(found)
    if not found.holds:
        raise Failure("a figure is below its floor, or a log is not in order", FOUND)


def _say(what: str) -> None:
    if errors.is_terminal:
        errors.print(what, style="dim", highlight=False)


def _keep(folder: Path, records: list[bytes]) -> None:
    with SqliteFile.open(folder, "bench", writer=True) as file:
        if file.end():
            raise Failure(f"{file.path} holds a log already; name another folder")
        for begin in range(0, len(records), RECORDS_A_TRANSACTION):
            file.append_many(records[begin : begin + RECORDS_A_TRANSACTION])


def _print(found: figures.Results) -> None:
    rows = []
    for figure in found.figures:
        floor = "" if figure.floor is None else f"{'≥' if figure.better == 'higher' else '≤'} {figure.floor:,g}"
        holds = "" if figure.holds is None else "yes" if figure.holds else "NO"
        digits = 0 if figure.value >= 1000 else 2
        rows.append((figure.name, f"{figure.value:,.{digits}f} {figure.unit}".strip(), floor, holds, figure.limit))
    print_table(("figure", "median", "floor", "holds", "limited by"), rows)
    if found.checks:
        print_table(
            ("log", "check", "entries", "holds", "seconds"),
            [
                (
                    check.log,
                    check.check,
                    f"{check.entries:,}",
                    _verdict(check),
                    f"{check.took_s:.1f}",
                )
                for check in found.checks
            ],
        )


def _verdict(judged: figures.Check) -> str:
    return "yes" if judged.holds else f"NO: {judged.found}"
