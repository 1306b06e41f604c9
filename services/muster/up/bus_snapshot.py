"""Writes a snapshot of a cell on Kafka, so that the next start folds little, and ends.

`python -m muster.up.bus_snapshot OPTIONS` (JSON) folds the log from the newest snapshot in its folder up to the end, and writes
the state down if that is far enough on. It is a process of its own and of the lowest priority, started now and then by
`muster.up.keeper`: neither a leader nor a gateway, both of which are to answer at once, has to wait while it is done. Whatever
happens to it, a start reads the older snapshot or the log itself.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from muster.log.bus import Bus
from muster.log.errors import OperatingError
from muster.log.kafka import KafkaLog
from muster.measures.book import Book
from muster.scheduler.recovery import recover
from muster.scheduler.snapshots import EVERY, Snapshots

NICE: Final = 19

logger = logging.getLogger("muster.snapshot")


class Options(msgspec.Struct, frozen=True):
    """Of the program whose folder it is: what is needed here."""

    bus: str
    folder: str
    cell: str
    config: str = ""
    snapshot_every: int = EVERY


async def write(options: Options) -> Path | None:
    """Write a snapshot if one is due.

    Raises:
        OperatingError: the log cannot be read.
        OSError: the snapshot cannot be written.
    """
    log = await KafkaLog.open(Bus.parse(options.bus, options.config or None), writer=False)
    try:
        snapshots = Snapshots(Path(options.folder), options.cell, options.snapshot_every)
        book = Book(Path(options.folder), options.cell)
        snapshots.written = book.written
        recovered = await recover(log, options.cell, snapshots, counted=book.follow)
        head = recovered.core.head
        if not snapshots.due(head.number):
            return None
        return snapshots.write(recovered.core.state, head, recovered.head_position, prove=True)
    finally:
        await log.close()


if __name__ == "__main__":
    os.nice(NICE)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="muster: %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        asyncio.run(write(msgspec.json.decode(sys.argv[1], type=Options)))
    except (OperatingError, OSError) as error:
        logger.warning("no snapshot is written: %s", error)
        sys.exit(1)
