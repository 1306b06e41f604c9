"""`muster bus create|check|describe`: the topics on Kafka."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.output import FOUND, OK, Json, console, errors, print_json, print_table
from muster.log import topics
from muster.log.admit import Admitted, Halt, admit, genesis
from muster.log.bus import Bus
from muster.log.errors import LogDamaged
from muster.log.kafka import KafkaLog
from muster.scheduler.kafka_inbox import KafkaInbox
from muster.up.places import CELL

app = typer.Typer(add_completion=False, no_args_is_help=True)

Address = Annotated[
    str, typer.Option("--bus", metavar="ADDRESS", envvar="MUSTER_BUS", help="Where Kafka is: kafka://HOST:PORT[,HOST:PORT].")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--bus-config",
        metavar="FILE",
        envvar="MUSTER_BUS_CONFIG",
        help="How to reach it: TLS and SASL, under the names of librdkafka or of Kafka's Java client.",
    ),
]


@app.callback()
def bus() -> None:
    """Make the topics that Muster uses on Kafka, and see whether they are as they must be."""


@app.command()
def create(
    address: Address,
    config: Config = None,
    copies: Annotated[
        int | None, typer.Option("--copies", help="Of each topic; three where there are three brokers, else one.", min=1)
    ] = None,
    json: Json = False,
) -> int:
    """Make the topics that are missing. Those that are there stay as they are; what is wrong with them is named.

    Example: muster bus create --bus kafka://localhost:9092

    Exit status: 0 all are as they must be; 1 one is not.
    """
    where = Bus.parse(address, config)
    made = asyncio.run(topics.create(where, copies=copies))
    wrong = asyncio.run(topics.check(where))
    if json:
        print_json({"made": made, "wrong": wrong})
        return FOUND if wrong else OK
    for name in made:
        console.print(f"made {name}", markup=False, highlight=False, soft_wrap=True)
    return _say_wrong(wrong, f"all {len(topics.declared())} topics are as they must be")


@app.command()
def check(
    address: Address,
    config: Config = None,
    cell: Annotated[str, typer.Option("--cell", metavar="CELL", help="Whose log says what was read.")] = CELL,
    json: Json = False,
) -> int:
    """Name what is wrong with the topics, and what is gone from them that no cycle has taken.

    A scheduler does not start on what is named here. What was taken stands in the log, which is read for that.

    Exit status: 0 all is as it must be; 1 something is not.
    """
    where = Bus.parse(address, config)
    wrong = asyncio.run(topics.check(where)) or asyncio.run(_lost(where, cell))
    if json:
        print_json({"wrong": wrong})
        return FOUND if wrong else OK
    return _say_wrong(wrong, f"all {len(topics.declared())} topics are as they must be, and nothing is lost")


@app.command()
def describe(address: Address, config: Config = None, json: Json = False) -> int:
    """Show the topics: partitions, what stands in them, copies, and the settings that matter.

    Exit status: 0 all are as they must be; 1 one is not.
    """
    found = asyncio.run(topics.describe(Bus.parse(address, config)))
    wrong = [sentence for topic in found.topics for sentence in topic.wrong]
    if json:
        print_json(found)
        return FOUND if wrong else OK
    console.print(f"{found.address}: brokers {', '.join(found.brokers)}", markup=False, highlight=False, soft_wrap=True)
    rows = [
        (
            f"{topic.name}/{part.partition}",
            _number(part.begin),
            _number(part.end),
            part.leader,
            _ids(part.copies),
            _ids(part.in_sync),
        )
        for topic in found.topics
        for part in topic.partitions
    ]
    print_table(("PARTITION", "BEGIN", "END", "LEADER", "COPIES", "IN SYNC"), rows)
    for topic in found.topics:
        console.print(f"\n{topic.name}: {topic.what}", markup=False, highlight=False, soft_wrap=True)
        for name, value in topic.settings.items():
            console.print(f"  {name}={value}", markup=False, highlight=False, soft_wrap=True)
    return _say_wrong(wrong, "")


async def _lost(bus: Bus, cell: str) -> list[str]:
    """What a scheduler could not go on from, one sentence each."""
    positions: dict[str, int] = {}
    head, after = genesis(cell), 0
    log = await KafkaLog.open(bus, writer=False)
    try:
        end = await log.end()
        while after < end:
            records = await log.read(after)
            if not records:
                await log.end()  # fails where nobody answers any more
            for record in records:
                after = record.position
                verdict = admit(head, record.data)
                if isinstance(verdict, Admitted):
                    head = verdict.head
                    positions.update(verdict.envelope.positions)
                elif isinstance(verdict, Halt):
                    return [f"the log halts at position {after}, after cycle {head.number}: {verdict.reason}"]
    except LogDamaged as error:
        return [str(error)]
    finally:
        await log.close()
    inbox = KafkaInbox(bus, cell, "muster bus check")
    await inbox.start()
    try:
        return [str(lost) for lost in await inbox.lost(positions)]
    finally:
        await inbox.close()


def _say_wrong(wrong: list[str], well: str) -> int:
    for sentence in wrong:
        errors.print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)
    if wrong:
        return FOUND
    if well:
        console.print(well, markup=False, highlight=False, soft_wrap=True)
    return OK


def _number(offset: int | None) -> str:
    return "?" if offset is None else str(offset)


def _ids(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))
