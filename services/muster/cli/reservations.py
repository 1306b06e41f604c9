"""`muster reserve|unreserve|reservations`: what is reserved, for whom and when."""

from typing import Annotated, Any

import typer

from muster.cli.gateway_client import Gateway, Where
from muster.cli.output import Cell, Failure, Json, instant, print_json, print_table
from muster.cli.source import At, Log, open_source
from muster.gateway.reserved import ReservationShown
from muster.reading.recurring import length_of

reserve_app = typer.Typer(add_completion=False)
unreserve_app = typer.Typer(add_completion=False)
reservations_app = typer.Typer(add_completion=False)

COLUMNS = ("RESERVATION", "STATE", "FOR", "WHAT", "FROM", "UNTIL", "RECURS", "IN THE WAY")
SHOWN_MAX = 4
"""So many nodes or jobs are named in a line."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)]


@reserve_app.command()
def reserve(
    name: Name,
    for_: Annotated[str, typer.Option("--for", metavar="SPAN", help="How long: 90m, 4h, 2d.", show_default=False)],
    nodes: Annotated[
        list[str] | None, typer.Option("--node", metavar="NODE", help="Whole nodes; repeat, or with commas.")
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", help="So many pieces, each on one node.", min=0)] = 0,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", help="GPUs of each piece.", min=0)] = 0,
    begin: Annotated[str, typer.Option("--from", metavar="WHEN", help="2026-12-05T08:00, by the zone's clocks.")] = "",
    queue: Annotated[str, typer.Option("--queue", metavar="QUEUE", help="For this queue and those below it.")] = "",
    user: Annotated[str, typer.Option("--user", metavar="USER", help="For this user.")] = "",
    job: Annotated[str, typer.Option("--job", metavar="ID", help="For the job of this id.")] = "",
    every: Annotated[str, typer.Option("--every", metavar="WHEN", help="daily@02:00, weekdays@22:30, mon,thu@06:00, 12h.")] = "",
    zone: Annotated[str, typer.Option("--zone", metavar="ZONE", help="Whose clocks, such as Europe/Berlin.")] = "UTC",
    times: Annotated[int, typer.Option("--times", metavar="N", help="How often at most; 0 is 400 times.", min=0)] = 0,
    json: Json = False,
    gateway: Where = "",
) -> None:
    """Reserve nodes or an amount of GPUs for a queue, a user or a job; for nobody it is maintenance. Said again, it is changed.

    Nobody else starts there who would not be gone before it begins. Who is there when it begins and may be preempted is told to
    stop; else it waits for him.

    Exit status: 0; 2 it makes no sense or something else is reserved there; 4 no gateway answers; 5 not allowed.

    Examples: muster reserve patches --node gpu-7 --from 2026-12-05T08:00 --zone Europe/Berlin --for 4h

    muster reserve course --count 8 --gpus 1 --user ada --every weekdays@09:00 --for 2h
    """
    for_us = length_of(for_)
    if for_us is None:
        raise Failure(f"--for must be a span such as 90m, 4h or 1d12h, not {for_!r}")
    said: dict[str, Any] = {"nodes": [part for each in nodes or [] for part in each.split(",") if part]}
    said |= {"count": count or int(gpus > 0), "gpus": gpus, "queue": queue, "user": user, "job": job}
    said |= {"begin": begin, "for_us": for_us, "every": every, "zone": zone, "times": times}
    with Gateway(gateway) as to:
        cycle = to.reserve(name, said).cycle
    if json:
        print_json({"reservation": name, "cycle": cycle})


@unreserve_app.command()
def unreserve(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of reservations.", show_default=False)],
    json: Json = False,
    gateway: Where = "",
) -> None:
    """Remove reservations. What runs there goes on.

    Exit status: 0; 2 no such reservation; 4 no gateway answers; 5 not allowed.

    Example: muster unreserve patches
    """
    with Gateway(gateway) as to:
        told = [{"reservation": name, "cycle": to.unreserve(name).cycle} for name in names]
    if json:
        print_json(told)


@reservations_app.command()
def reservations(at: At = 0, log: Log = None, json: Json = False, gateway: Where = "", cell: Cell = None) -> None:
    """List what is reserved: for whom, when, and who is in the way.

    Exit status: 0; 2 no such cycle; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster reservations

    muster reservations --json
    """
    with open_source(gateway, log, at, cell) as source:
        found = source.reservations(at)
    if json:
        print_json(found)
        return
    print_table(COLUMNS, [cells(row) for row in found.reservations])


def cells(row: ReservationShown) -> tuple[object, ...]:
    """What a line of the list shows."""
    whom = f"queue {row.queue}" if row.queue else f"user {row.user}" if row.user else f"job {row.job}" if row.job else "nobody"
    what = _some(row.nodes) if row.nodes else f"{row.count} x {row.gpus} GPUs"
    if row.pieces:
        what += f" on {_some(tuple(dict.fromkeys([piece.node for piece in row.pieces])))}"
    recurs = f"{row.every} {row.zone}".rstrip() + f", {row.windows_left} left" if row.every else ""
    return (
        row.reservation,
        row.phase,
        whom,
        what,
        instant(row.window.from_us),
        instant(row.window.until_us),
        recurs,
        _some(row.held_by),
    )


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
