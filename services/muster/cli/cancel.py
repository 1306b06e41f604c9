"""`muster cancel JOB ...`: ends jobs, or one instance of one."""

from typing import Annotated

import typer

from muster.cli.gateway_client import Gateway, Where
from muster.cli.output import Failure, Json, print_json

app = typer.Typer(add_completion=False)


@app.command()
def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids, beginnings of ids, or names.", show_default=False)],
    instance: Annotated[
        int | None, typer.Option("--instance", metavar="N", help="Only this element of an array.", min=0, show_default=False)
    ] = None,
    json: Json = False,
    gateway: Where = "",
) -> None:
    """Tell jobs to end: SIGTERM, their grace, SIGKILL. Returns when that is durable, and not when they have ended.

    Exit status: 0; 2 no such job; 4 no gateway answers; 5 not allowed.

    Examples: muster cancel train

    muster cancel 019a --instance 7
    """
    if instance is not None and len(jobs) > 1:
        raise Failure("--instance goes with one job")
    told = []
    with Gateway(gateway) as to:
        for job in [to.find(text) for text in jobs]:
            told.append({"job": job, "instance": instance, "cycle": to.cancel(job, instance).cycle})
    if json:
        print_json(told)
