"""`muster why-not [LOG] JOB NODE`: everything that keeps a job off one node, worked out anew from the state at a cycle."""

from typing import Annotated

import typer

from muster.cli.gateway_client import Where
from muster.cli.output import Cell, Failure, Json, print_json
from muster.cli.source import Log, open_source

app = typer.Typer(add_completion=False)


@app.command()
def why_not(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOG] JOB NODE", help="The job's id, the beginning of it, or its name; a node.", show_default=False
        ),
    ],
    cycle: Annotated[int, typer.Option("--at", metavar="N", help="After this cycle; 0 is the newest.", min=0)] = 0,
    instance: Annotated[int, typer.Option("--instance", metavar="N", help="Which element of an array.", min=0)] = 0,
    log: Log = None,
    json: Json = False,
    gateway: Where = "",
    cell: Cell = None,
) -> None:
    """Say why the job is not on this node: each filter that keeps it off, what is short there, and who holds it.

    Exit status: 0; 2 no such job, node or cycle; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster why-not train-a gpu-17

    muster why-not LOG train-a gpu-17 --at 120
    """
    if not 2 <= len(words) <= 3 or (len(words) == 3 and log is not None):
        raise Failure(f"why-not takes a log, a job and a node, and was given {', '.join(map(repr, words))}")
    with open_source(gateway, words[0] if len(words) == 3 else log, cycle, cell) as source:
        job = source.find(words[-2], cycle)
        answer = source.why_not(job, words[-1], instance, cycle)
    if json:
        print_json(answer)
        return
    print(f"{words[-2]} ({job}) on {answer.node} after cycle {answer.cycle}")
    for line in answer.lines:
        print(line)
