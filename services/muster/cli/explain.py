"""`muster explain [LOG] JOB`: why a job waits or where it stands, worked out anew from the state at a cycle."""

from typing import Annotated

import typer

from muster.cli.gateway_client import Where
from muster.cli.output import Cell, Failure, Json, print_json
from muster.cli.source import Log, open_source

app = typer.Typer(add_completion=False)


@app.command()
def explain(
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
    """Say for each reason how many nodes it holds for and by how much, and the job's place in its queue.

    Nothing is read from the log but the state: the reasons are worked out anew, with all numbers.

    Exit status: 0; 2 no such job or cycle; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster explain train-a

    muster explain LOG train-a --at 120
    """
    if len(words) > 2 or (len(words) == 2 and log is not None):
        raise Failure(f"explain takes a log and a job, and was given {', '.join(map(repr, words))}")
    with open_source(gateway, words[0] if len(words) == 2 else log, cycle, cell) as source:
        job = source.find(words[-1], cycle)
        explanation = source.explain(job, instance, cycle)
    if json:
        print_json(explanation)
        return
    print(f"{words[-1]} ({job}) after cycle {explanation.cycle}")
    for line in explanation.lines:
        print(line)
