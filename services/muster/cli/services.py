"""`muster scale`, `muster revise`, `muster rollback` and `muster metric`: what is said of a service that runs."""

import re
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.gateway_client import Accepted, Gateway, Where
from muster.cli.output import Failure, Json, print_json
from muster.cli.submit import read_jobs
from muster.doors import DoorError
from muster.events.services import REPLICAS_MAX

scale_app = typer.Typer(add_completion=False)
revise_app = typer.Typer(add_completion=False)
rollback_app = typer.Typer(add_completion=False)
metric_app = typer.Typer(add_completion=False)

ServiceName = Annotated[str, typer.Argument(metavar="JOB", help="Its id, the beginning of it, or its name.", show_default=False)]


@scale_app.command()
def scale(
    job: ServiceName,
    replicas: Annotated[int, typer.Argument(metavar="N", help="So many replicas.", min=0, max=REPLICAS_MAX, show_default=False)],
    json: Json = False,
    gateway: Where = "",
) -> None:
    """Give a service so many replicas. Returns when that is durable, and not when they run.

    Exit status: 0; 2 no such service, or one that is scaled by a metric; 4 no gateway answers; 5 not allowed.

    Examples: muster scale web 5
    """
    with Gateway(gateway) as to:
        id = to.find(job)
        _said(id, to.scale(id, replicas), json)


@revise_app.command()
def revise(
    job: ServiceName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A job file with the service as it is to be.", show_default=False)],
    images: Annotated[Path | None, typer.Option("--images", help="Commands that stand for images.", show_default=False)] = None,
    json: Json = False,
    gateway: Where = "",
) -> None:
    """Replace the replicas of a service by such as the file says, one after the other; `muster job` shows how far it is.

    Name, user and queue stay as they are. A roll in which a replica fails stops: revise again, or `muster rollback`.

    Exit status: 0; 2 no such service, or the file makes no sense; 3 it cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster revise web web.yaml
    """
    try:
        jobs, _ = read_jobs([file], {}, images)
    except DoorError as wrong:
        raise Failure(str(wrong)) from None
    if len(jobs) != 1:
        raise Failure(f"{file} holds {len(jobs)} jobs: a service is revised to one")
    with Gateway(gateway) as to:
        id = to.find(job)
        _said(id, to.revise(id, jobs[0].request, jobs[0].run), json)


@rollback_app.command()
def rollback(job: ServiceName, json: Json = False, gateway: Where = "") -> None:
    """Revise a service to what it was before its last revision.

    Exit status: 0; 2 no such service, or nothing to go back to; 4 no gateway answers; 5 not allowed.

    Examples: muster rollback web
    """
    with Gateway(gateway) as to:
        id = to.find(job)
        _said(id, to.rollback(id), json)


@metric_app.command()
def metric(
    job: ServiceName,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Over all replicas; three digits after the point.")],
    name: Annotated[str, typer.Option("--name", help="Of the metric; else the one by which it is scaled.")] = "",
    json: Json = False,
    gateway: Where = "",
) -> None:
    """Say what the metric is by which a service is scaled. It stands until another value comes.

    Exit status: 0; 2 no such service, or it is scaled by no such metric; 4 no gateway answers; 5 not allowed.

    Examples: muster metric web 42.5
    """
    match = re.fullmatch(r"([0-9]{1,12})(?:\.([0-9]{1,3}))?", value)
    if match is None:
        raise Failure(f"VALUE must be a number such as 42 or 42.125, not {value!r}")
    milli = int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0"))
    with Gateway(gateway) as to:
        id = to.find(job)
        _said(id, to.metric(id, milli, name), json)


def _said(job: str, accepted: Accepted, json: bool) -> None:
    if json:
        print_json({"job": job, "cycle": accepted.cycle})
