"""`muster explain LOG JOB`: why a job waits or where it stands, worked out anew from the state at a cycle."""

from typing import Annotated

import typer

from muster.cli.find import find_job, find_state
from muster.cli.output import Cell, Failure, Json, LogPlace, instant, print_json
from muster.engine.explain import explain as explain_job

app = typer.Typer(add_completion=False)


@app.command()
def explain(
    log: LogPlace,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its id, the beginning of it, or its name.", show_default=False)],
    cycle: Annotated[int, typer.Option("--at", metavar="N", help="After this cycle; 0 is the newest.")] = 0,
    instance: Annotated[int, typer.Option("--instance", metavar="N", help="Which element of an array.")] = 0,
    json: Json = False,
    cell: Cell = None,
) -> None:
    """Say for each reason how many nodes it holds for and by how much, and the job's place in its queue.

    Nothing is read from the log but the state: the reasons are worked out anew, with all numbers.

    Example: muster explain LOG train-a --at 120
    """
    state = find_state(log, cycle, cell)
    found = find_job(state, job)
    if not 0 <= instance < len(found.instances):
        raise Failure(f"{found.name} has the instances 0 to {len(found.instances) - 1}, not {instance}")
    explanation = explain_job(state, found.id, instance)
    if json:
        print_json(explanation)
        return
    print(f"{found.name} ({found.id}) after cycle {state.number}, at {instant(state.at_us)}")
    for line in explanation.lines:
        print(line)
