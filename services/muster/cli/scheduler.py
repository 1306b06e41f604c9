"""`muster scheduler`: one scheduler of a cell on Kafka, leading or standing by. What it is made of: `muster.up.bus_scheduler`."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from muster.cli.metrics import Metrics, checked_metrics
from muster.cli.output import OK, UNREADABLE, USAGE, Failure
from muster.doors.origin import is_name
from muster.up.places import CELL, default_data

app = typer.Typer(add_completion=False)

BusAddress = Annotated[str, typer.Option("--bus", metavar="kafka://HOST:PORT", help="Where the bus is.", envvar="MUSTER_BUS")]
BusConfig = Annotated[
    Path | None,
    typer.Option(
        "--bus-config",
        metavar="FILE",
        help="Settings of TLS and SASL, under the names that Kafka's clients have.",
        envvar="MUSTER_BUS_CONFIG",
    ),
]
BusCell = Annotated[str, typer.Option("--cell", metavar="CELL", help="The cell that it is for.")]


@app.command()
def scheduler(
    bus: BusAddress,
    bus_config: BusConfig = None,
    cell: BusCell = CELL,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Snapshots; each scheduler has a folder of its own. Else the user's."),
    ] = None,
    takeover_after: Annotated[
        float, typer.Option("--takeover-after", metavar="S", help="So long without a sign of a leader, and it may lead.", min=0.5)
    ] = 3.0,
    metrics: Metrics = "",
) -> int:
    """Run a scheduler: it follows the log, and leads when nobody else does. Start two or three, on different machines.

    It does not start where the topics are not as they must be, or where messages were lost that nobody has taken.

    Exit status: 0 told to stop; 2 the command makes no sense; 3 it cannot run: the sentence before says why.

    Example: muster scheduler --bus kafka://10.0.0.1:9092,10.0.0.2:9092 --data /var/lib/muster/scheduler
    """
    from muster.up.bus_scheduler import Options

    if not is_name(cell):
        raise Failure(f"--cell {cell!r}: lower-case letters, digits, - and . make the name of a cell, at most 63", USAGE)
    options = Options(
        bus=bus,
        config=str(bus_config.absolute()) if bus_config is not None else "",
        folder=str((data or default_data().with_name("scheduler")).absolute()),
        cell=cell,
        takeover_after_us=int(takeover_after * 1_000_000),
        metrics=checked_metrics(metrics),
    )
    return keep("the scheduler", "muster.up.bus_scheduler", bus, bus_config, options)


def keep(what: str, module: str, bus: str, bus_config: Path | None, options: msgspec.Struct) -> int:
    """Run this program until it is told to stop.

    Raises:
        Failure: it cannot run.
        BusConfigError: what it was told of the bus makes no sense.
    """
    from muster.log.bus import Bus
    from muster.up.keeper import Keeper
    from muster.up.process import FINAL

    Bus.parse(bus, bus_config)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="muster: %(message)s")
    status = asyncio.run(Keeper(what, module, msgspec.json.encode(options), FINAL).run())
    if status:
        raise Failure(f"{what} cannot run: the sentence above says why", UNREADABLE)
    return OK
