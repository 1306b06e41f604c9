"""`muster eta [LOG] JOB`: when a job is to start, worked out from the state at a cycle."""

from typing import Annotated

import typer

from muster.cli.gateway_client import Where
from muster.cli.output import Cell, Failure, Json, print_json
from muster.cli.source import Log, open_source

app = typer.Typer(add_completion=False)


@app.command()
def eta(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[LOG] JOB", help="The job's id, the beginning of it, or its name.", show_default=False),
    ],
    cycle: Annotated[int, typer.Option("--at", metavar="N", help="After this cycle; 0 is the newest.", min=0)] = 0,
    instance: Annotated[int, typer.Option("--instance", metavar="N", help="Which element of an array.", min=0)] = 0,
    log: Log = None,
    json: Json = False,
    gateway: Where = "",
    cell: Cell = None,
) -> None:
    """Say when and where a job is planned to start, or when it could as everybody's promised end stands.

    A plan is a promise where all that run end by their time limits; who is past his is said to be overdue. Without a plan the
    answer is an estimate, or that it lies beyond the policy's horizon, or that somebody without a time limit is in the way.

    Exit status: 0; 2 no such job or cycle; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster eta train-a

    muster eta LOG train-a --at 120
    """
    if len(words) > 2 or (len(words) == 2 and log is not None):
        raise Failure(f"eta takes a log and a job, and was given {', '.join(map(repr, words))}")
    with open_source(gateway, words[0] if len(words) == 2 else log, cycle, cell) as source:
        found = source.eta(source.find(words[-1], cycle), instance, cycle)
    if json:
        print_json(found)
        return
    print(f"{words[-1]} ({found.job}) after cycle {found.cycle}: {found.text}")
