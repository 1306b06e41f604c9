"""`muster resize JOB N` gives a gang another size; `muster checkpoint JOB` says that a job saved its work."""

from typing import Annotated

import typer

from muster.cli.gateway_client import Gateway, Where
from muster.cli.output import Json, print_json

resize_app = typer.Typer(add_completion=False)
checkpoint_app = typer.Typer(add_completion=False)

Job = Annotated[str, typer.Argument(metavar="JOB", help="An id, the beginning of one, or a name.", show_default=False)]


@resize_app.command()
def resize(
    job: Job,
    count: Annotated[int, typer.Argument(metavar="N", help="How many tasks it is to have.", min=1, show_default=False)],
    json: Json = False,
    gateway: Where = "",
) -> None:
    """Give a gang so many tasks: an elastic one at any time, another before it runs. Returns when that is durable.

    An elastic gang that runs gives up what is beyond N at once, with its grace, and grows up to N as places become free.

    Exit status: 0; 2 no such job, or not of such a size; 4 no gateway answers; 5 not allowed.

    Examples: muster resize train 16
    """
    with Gateway(gateway) as to:
        found = to.find(job)
        cycle = to.resize(found, count).cycle
    if json:
        print_json({"job": found, "count": count, "cycle": cycle})


@checkpoint_app.command()
def checkpoint(
    job: Job,
    instance: Annotated[
        int | None, typer.Option("--instance", metavar="N", help="Only this element of an array.", min=0, show_default=False)
    ] = None,
    json: Json = False,
    gateway: Where = "",
) -> None:
    """Say that a job saved its work: where somebody has to stop, those go first who lose least since then.

    Exit status: 0; 2 no such job; 4 no gateway answers; 5 not allowed.

    Examples: muster checkpoint train
    """
    with Gateway(gateway) as to:
        found = to.find(job)
        cycle = to.checkpoint(found, instance).cycle
    if json:
        print_json({"job": found, "instance": instance, "cycle": cycle})
