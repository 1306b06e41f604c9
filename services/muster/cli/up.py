"""`muster up`: the whole stack on this machine, until stopped. What it is made of: `muster.up`."""

import asyncio
import logging
import re
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.metrics import checked_metrics
from muster.cli.output import OK, USAGE, Failure, errors
from muster.doors.origin import is_name
from muster.up import places

app = typer.Typer(add_completion=False)


@app.command()
def up(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Where everything is kept; else the user's data folder.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen. Elsewhere than on loopback tokens are required.")
    ] = places.HOST,
    port: Annotated[int, typer.Option("--port", help="0 takes any that is free.", min=0, max=65_535)] = places.PORT,
    no_agent: Annotated[bool, typer.Option("--no-agent", help="Scheduler and gateway only.")] = False,
    agents: Annotated[int, typer.Option("--agents", help="So many agents; more than one needs --devices.", min=1, max=64)] = 1,
    devices: Annotated[
        str, typer.Option("--devices", metavar="8xH100-80GB", help="Simulated devices for each agent, instead of the real ones.")
    ] = "",
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="NAME", help="A queue beside `default`; several times. Without, those of the log stay."),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Require tokens on loopback too.")] = False,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Serve /metrics, which is at the gateway anyway, there too.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="If another one runs on the folder, wait until it ends.")] = False,
    stop_tasks: Annotated[
        bool, typer.Option("--stop-tasks", help="At the end stop what runs; its jobs run again after the next start.")
    ] = False,
    snapshot_every: Annotated[
        int,
        typer.Option("--snapshot-every", metavar="CYCLES", help="Snapshot so often; a start reads what came after.", min=1),
    ] = places.SNAPSHOT_EVERY,
) -> int:
    """Run scheduler, gateway and agents until stopped (Ctrl-C, SIGTERM). Started again, it goes on where it was.

    When it ends, tasks go on under their supervisors for as long as their lease lasts (five minutes), so that a quick
    start finds them running; with --stop-tasks they are told to stop, with their grace.

    Exit status: 0 told to stop; 2 the command makes no sense; 3 the folder is taken, or cannot be read.

    Examples: muster up

    muster up --agents 2 --devices 8xH100-80GB --queue gpu --data /tmp/muster
    """
    from muster.up.parent import Lock, Parent, wait_for_lock

    if agents > 1 and not devices:
        raise Failure("several agents on one machine would all offer the same devices: say --devices, such as 8xH100-80GB", USAGE)
    for name in queue or ():
        if not is_name(name):
            raise Failure(f"--queue {name!r}: lower-case letters, digits, - and . make the name of a queue, at most 63", USAGE)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="muster: %(message)s")
    own = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower())[:50].strip("-") or "node"
    names = () if no_agent else (own,) if agents == 1 else tuple([f"{own}-{number}" for number in range(agents)])
    options = places.Options(
        folder=str((data or places.default_data()).absolute()),
        host=host,
        port=port,
        devices=devices,
        names=names,
        queues=tuple(queue or ()),
        tokens=tokens,
        metrics=checked_metrics(metrics),
        stop_tasks=stop_tasks,
        snapshot_every=snapshot_every,
    )
    try:
        lock = wait_for_lock(options, _say) if wait else Lock(options)
    except OSError as error:
        raise Failure(f"the folder {options.data} cannot be used: {error.strerror}", USAGE) from None
    try:
        _say(f"the log is in {options.data}" + (f"; nodes: {', '.join(names)}" if names else ""))
        asyncio.run(Parent(options, _say).run())
    except OSError as error:
        raise Failure(f"the folder {options.data} cannot be used: {error.strerror or error}", USAGE) from None
    finally:
        lock.close()
    return OK


def _say(sentence: str) -> None:
    errors.print(f"muster: {sentence}", markup=False, highlight=False, soft_wrap=True)
