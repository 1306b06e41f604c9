"""`muster recover`: what only a person can say about a bus on which something is lost."""

import asyncio
import getpass
from typing import Annotated

import typer

from muster.cli.output import OK, USAGE, Failure, Json, console, print_json
from muster.cli.scheduler import BusAddress, BusCell, BusConfig
from muster.events.operations import LossAccepted
from muster.up.places import CELL

app = typer.Typer(add_completion=False)


@app.command()
def recover(
    bus: BusAddress,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on without the messages that are gone. It is recorded, and by whom.")
    ] = False,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who says so; else the user of this machine.")] = "",
    bus_config: BusConfig = None,
    cell: BusCell = CELL,
    json: Json = False,
) -> int:
    """Let schedulers start again although messages were lost that no cycle has taken.

    A scheduler stops where a topic no longer has what was to be read next: it was deleted, truncated, or forgot too soon.
    Jobs that were submitted in what is lost have to be submitted again. While a scheduler leads nothing needs to be said.

    Run this before producers go on where a topic was deleted and made again: once it holds as many messages as the old
    one had, it cannot be told from that, and what stands below the old position is not read.

    Exit status: 0 it is recorded, or nothing is lost; 2 --accept-loss is missing, or a scheduler leads; 3 the log cannot be
    read.

    Example: muster recover --accept-loss --bus kafka://10.0.0.1:9092
    """
    if not accept_loss:
        raise Failure("what is to be done has to be said: --accept-loss", USAGE)
    event = asyncio.run(_accept(bus, str(bus_config or ""), cell, by or getpass.getuser()))
    if json:
        print_json({"lost": event.lost if event is not None else []})
    elif event is None:
        console.print("nothing is lost: every position of the log is there")
    else:
        for loss in event.lost:
            console.print(f"{loss.source}: {loss.position} was to be read next, {loss.resumed} is", highlight=False)
        console.print("recorded; schedulers can start again")
    return OK


async def _accept(address: str, config: str, cell: str, by: str) -> LossAccepted | None:
    from muster.log.bus import Bus
    from muster.log.kafka import KafkaLog
    from muster.log.topics import require_fit
    from muster.scheduler.kafka_inbox import KafkaInbox
    from muster.scheduler.loss import SomebodyLeads, accept_loss
    from muster.scheduler.recovery import recover_whole

    bus = Bus.parse(address, config or None)
    await require_fit(bus)
    log = await KafkaLog.open(bus, writer=True)
    inbox = KafkaInbox(bus, cell, "muster recover")
    await inbox.start()
    try:
        recovered = await recover_whole(log, cell)
        return await accept_loss(recovered, log, inbox, by)
    except SomebodyLeads as error:
        raise Failure(str(error), USAGE) from None
    finally:
        await inbox.close()
        await log.close()
