"""`muster gateway`: a gateway of a cell on Kafka, without a scheduler. What it is made of: `muster.up.bus_gateway`."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.metrics import checked_metrics
from muster.cli.output import USAGE, Failure
from muster.cli.scheduler import BusAddress, BusCell, BusConfig, keep
from muster.doors.origin import is_name
from muster.up import places

app = typer.Typer(add_completion=False)


@app.command()
def gateway(
    bus: BusAddress,
    bus_config: BusConfig = None,
    cell: BusCell = places.CELL,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="Snapshots, and tokens; each gateway has a folder of its own. Else the user's."
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", help="Tokens and keys, where several gateways share them; else as --data."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen. Elsewhere than on loopback tokens are required.")
    ] = places.HOST,
    port: Annotated[int, typer.Option("--port", help="0 takes any that is free.", min=0, max=65_535)] = places.PORT,
    tokens: Annotated[bool, typer.Option("--tokens", help="Require tokens on loopback too.")] = False,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Serve /metrics, which is at the gateway anyway, there too.")
    ] = "",
) -> int:
    """Serve the API, agents and people from the log on Kafka. Start as many as you like; agents take several --gateway.

    What is asked for is answered from the log as far as it was read: `/v1/state` says how far that is. What is sent is
    answered once Kafka has it.

    Exit status: 0 told to stop; 2 the command makes no sense; 3 it cannot run: the sentence before says why.

    Example: muster gateway --bus kafka://10.0.0.1:9092 --host 0.0.0.0 --data /var/lib/muster/gateway
    """
    from muster.up.bus_gateway import Options

    if not is_name(cell):
        raise Failure(f"--cell {cell!r}: lower-case letters, digits, - and . make the name of a cell, at most 63", USAGE)
    options = Options(
        bus=bus,
        config=str(bus_config.absolute()) if bus_config is not None else "",
        folder=str((data or places.default_data().with_name("gateway")).absolute()),
        keys=str(keys.absolute()) if keys is not None else "",
        cell=cell,
        host=host,
        port=port or _free_port(host),
        tokens=tokens,
        metrics=checked_metrics(metrics),
    )
    return keep("the gateway", "muster.up.bus_gateway", bus, bus_config, options)


def _free_port(host: str) -> int:
    """One that is free now, and is kept through every start of the gateway."""
    with socket.create_server((host, 0)) as free:
        return int(free.getsockname()[1])
