"""`muster logs JOB`: what a task has written."""

import sys
from typing import Annotated

import typer

from muster.cli.gateway_client import Gateway, Where
from muster.cli.job import JobName

app = typer.Typer(add_completion=False)


@app.command()
def logs(
    job: JobName,
    rank: Annotated[int, typer.Option("--rank", metavar="N", help="Of which task.", min=0)] = 0,
    instance: Annotated[int, typer.Option("--instance", metavar="N", help="Which element of an array.", min=0)] = 0,
    attempt: Annotated[int, typer.Option("--attempt", metavar="N", help="Which attempt; 0 is the newest.", min=0)] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Standard error instead of standard output.")] = False,
    gateway: Where = "",
) -> None:
    """Print the output of a task, as the agent of its node has it.

    Exit status: 0; 2 no such job or task, or it has not begun; 4 no gateway answers; 5 not allowed.

    Examples: muster logs train --follow

    muster logs train --rank 3 --stderr
    """
    stream = "stderr" if stderr else "stdout"
    with Gateway(gateway) as to:
        for data in to.output(to.find(job), rank=rank, instance=instance, attempt=attempt, stream=stream, follow=follow):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
