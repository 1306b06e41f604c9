"""`muster jobs`: the jobs that the cell knows."""

from typing import Annotated

import typer

from muster.cli.gateway_client import Where
from muster.cli.output import Cell, Failure, Json, instant, print_json, print_table
from muster.cli.source import At, Log, open_source
from muster.gateway.shown import JobRow

app = typer.Typer(add_completion=False)

STATES = ("pending", "starting", "running", "stopping", "finished", "failed", "cancelled", "rejected")
COLUMNS = ("JOB", "NAME", "USER", "QUEUE", "PRIORITY", "STATE", "INSTANCES", "GPUS", "ATTEMPTS", "NODES", "REASON")
NODES_SHOWN = 4


def _states() -> list[str]:
    return list(STATES)


@app.command()
def jobs(
    state: Annotated[
        str,
        typer.Option(
            "--state", metavar="STATE", help=f"Only these: {', '.join(STATES)}.", autocompletion=_states, show_default=False
        ),
    ] = "",
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Only this user's.", show_default=False)] = "",
    queue: Annotated[str, typer.Option("--queue", metavar="NAME", help="Only in this queue.", show_default=False)] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Only with this name.", show_default=False)] = "",
    at: At = 0,
    log: Log = None,
    json: Json = False,
    gateway: Where = "",
    cell: Cell = None,
) -> None:
    """List jobs, in the order in which they were submitted.

    Exit status: 0; 2 no such state or cycle; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster jobs --state pending

    muster jobs --user ada --at 1200 --json
    """
    if state and state not in STATES:
        raise Failure(f"no job is in the state {state!r}; there are {', '.join(STATES)}")
    with open_source(gateway, log, at, cell) as source:
        found = source.jobs(at, state=state, user=user, queue=queue, name=name)
    if json:
        print_json(found)
        return
    print_table(COLUMNS, [job_cells(row) for row in found.jobs])
    if at or log is not None:
        print(f"after cycle {found.cycle}, at {instant(found.at_us)}")


def job_cells(row: JobRow) -> tuple[object, ...]:
    """What a line of the list shows."""
    instances = ", ".join(f"{count} {phase}" for phase, count in row.instances.items()) if sum(row.instances.values()) > 1 else ""
    nodes = ",".join(row.nodes[:NODES_SHOWN]) + (
        f" and {len(row.nodes) - NODES_SHOWN} more" if len(row.nodes) > NODES_SHOWN else ""
    )
    return row.job, row.name, row.user, row.queue, row.priority, row.state, instances, row.gpus, row.attempts, nodes, row.reason
