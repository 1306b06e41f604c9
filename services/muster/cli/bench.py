"""`muster bench engine` and `muster bench pipeline`: how fast Muster is, each figure beside its floor."""

import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from muster.bench import engine as figures
from muster.bench import whole
from muster.bench.pipeline import bus, bus_parts, parts, report, stack
from muster.cli.output import FOUND, USAGE, Failure, Json, errors, print_json, print_table
from muster.log.sqlite import SqliteFile

app = typer.Typer(add_completion=False, help="Measure.")

PROFILE_LINES = 25
RECORDS_A_TRANSACTION = 64
LOGS = ("sqlite", "kafka")

SomeSize = TypeVar("SomeSize", bound=parts.Size)


@app.callback()
def bench() -> None:
    """Measure how fast Muster is."""


@app.command()
def engine(
    quick: Annotated[bool, typer.Option("--quick", help="A small cluster, in seconds; floors do not apply.")] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="All that the default policy knows: a tree of queues, a full cluster."),
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time of a placement goes (stderr).")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Audit and verify the logs that were written.")] = True,
    log: Annotated[Path | None, typer.Option("--log", help="Keep the logs here, one folder each.", metavar="DIR")] = None,
    cpu_time: Annotated[bool, typer.Option("--cpu-time", help="Time on a processor, where others use the machine too.")] = False,
    json: Json = False,
) -> None:
    """Measure the engine: placements, gangs, a long queue, recovery, explanations, memory.

    With --full: starts in a tree of 1,000 queues with 100,000 pending jobs, preemption, reclaim, planned starts.

    Exit status 1 if a figure is below its floor, or a log is not in order.
    """
    profiler = cProfile.Profile() if profile else None

    def on_cycle(begins: bool) -> None:
        if profiler is not None:
            (profiler.enable if begins else profiler.disable)()

    clock = time.thread_time if cpu_time else time.perf_counter
    taken = figures.Bench(figures.QUICK if quick else figures.FULL, _say, clock, on_cycle if profile else None)
    if full:
        whole.run(taken, whole.QUICK if quick else whole.FULL)
    else:
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


@app.command()
def pipeline(
    log: Annotated[str, typer.Option("--log", help="What the log is on: " + ", ".join(LOGS) + ".")] = "sqlite",
    address: Annotated[
        str,
        typer.Option(
            "--bus",
            metavar="kafka://HOST:PORT",
            help="With --log kafka: this bus, which holds no topics of Muster's; else one broker is started here.",
        ),
    ] = "",
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            metavar="NAME",
            help=f"Only this one; several times. {', '.join(parts.PARTS)}; with --log kafka: {', '.join(bus_parts.PARTS)}.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="How long a load goes on, instead of each part's own time.", min=1, max=86_400),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small load, in seconds; floors do not apply.")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Audit and verify the logs that were written.")] = True,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Keep the logs here, one folder each; on a real disk.")
    ] = None,
    json: Json = False,
) -> int:
    """Measure the whole stack: real programs, clients in processes of their own, over HTTP or by Kafka.

    Exit status 1 if a figure is below its floor, or a log is not in order.

    Examples: muster bench pipeline --log sqlite --json

    muster bench pipeline --part lives --seconds 20

    muster bench pipeline --log kafka --json
    """
    if log not in LOGS:
        raise Failure(f"--log {log!r}: there are {', '.join(LOGS)}", USAGE)
    on_bus = log == "kafka"
    known = list(bus_parts.PARTS if on_bus else parts.PARTS)
    for name in part or ():
        if name not in known:
            raise Failure(f"--part {name!r}: there are {', '.join(known)}", USAGE)
    if address and not on_bus:
        raise Failure("--bus is for --log kafka", USAGE)
    if data is not None and data.exists() and any(data.iterdir()):
        raise Failure(f"--data {data}: there is something in it; name a new folder", USAGE)
    with ExitStack() as exits:
        scratch = exits.enter_context(
            tempfile.TemporaryDirectory(prefix="muster-bench-", dir=None if data is None else data.parent)
        )
        folder = (data or Path(scratch)).absolute()
        bench: parts.Bench
        if on_bus:
            home = exits.enter_context(bus.home(address, folder / "broker"))
            bench = bus_parts.BusBench(_sized(bus_parts.QUICK if quick else bus_parts.FULL, seconds), home, folder, _say, check)
        else:
            bench = parts.Bench(_sized(parts.QUICK if quick else parts.FULL, seconds), stack.SqliteStack, folder, _say, check)
        found = report.results(log, quick, list(bench.run(part or known)))
    if json:
        print_json(found)
    else:
        for each in found.parts:
            _print_part(each)
    if not found.holds:
        raise Failure("a figure is below its floor, or a log is not in order", FOUND)
    return 0


def _sized(size: SomeSize, seconds: float | None) -> SomeSize:
    """The same, with each load as long as was said."""
    if seconds is None:
        return size
    return msgspec.structs.replace(size, bound_s=seconds, lives_s=seconds, beside_s=seconds)


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
        rows.append((figure.name, *_value(figure.value, figure.unit, figure.better, figure.floor, figure.holds), figure.limit))
    print_table(("figure", "median", "floor", "holds", "limited by"), rows)
    _print_checks(found.checks)


def _print_part(found: report.Part) -> None:
    print(f"{found.name}: {found.what}")
    rows = [(each.name, *_value(each.value, each.unit, each.better, each.floor, each.holds)) for each in found.figures]
    print_table(("figure", "value", "floor", "holds"), rows)
    print(f"limited by: {found.limit}")
    _print_checks(found.checks)
    print()


def _value(value: float, unit: str, better: str, floor: float | None, holds: bool | None) -> tuple[str, str, str]:
    """A figure, its floor, and whether it holds, as they are printed."""
    digits = 0 if value >= 1000 else 2
    bound = "" if floor is None else f"{'≥' if better == 'higher' else '≤'} {floor:,g}"
    return f"{value:,.{digits}f} {unit}".strip(), bound, "" if holds is None else "yes" if holds else "NO"


def _print_checks(checks: Sequence[figures.Check]) -> None:
    if checks:
        rows = [(each.log, each.check, f"{each.entries:,}", _verdict(each), f"{each.took_s:.1f}") for each in checks]
        print_table(("log", "check", "entries", "holds", "seconds"), rows)


def _verdict(judged: figures.Check) -> str:
    return "yes" if judged.holds else f"NO: {judged.found}"
