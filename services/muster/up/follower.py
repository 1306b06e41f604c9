"""The follower of the embedded stack: it writes a snapshot beside the log, so that the next start folds little.

`python -m muster.up.follower FOLDER EVERY` folds the log from the newest snapshot up to the end that it has now, writes the
state down if that is EVERY cycles or more further on, and ends. `muster.up.parent` starts it when there is so much to fold.

It is a process of its own and of the lowest priority, so that the scheduler neither waits for it nor shares its memory; it
takes no lock, reads a bounded piece of the log at a time, and holds a state only while it runs. Whatever happens to it, a
start reads the older snapshot or the log itself.
"""

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Final

from muster.log.errors import OperatingError
from muster.log.sqlite import SqliteFile, SqliteLog
from muster.measures.book import Book
from muster.scheduler.recovery import recover
from muster.scheduler.snapshots import Snapshots
from muster.up.places import CELL

EXIT_FAILED: Final = 1
NICE: Final = 19
OOM_SCORE: Final = 900
"""Where memory is short the kernel takes this process before others."""

logger = logging.getLogger("muster.up")


async def follow(folder: Path, every: int) -> Path | None:
    """Write a snapshot if one is due.

    Raises:
        OperatingError: the log cannot be read, or was altered.
        OSError: the snapshot cannot be written.
    """
    snapshots = Snapshots(folder, CELL, every)
    book = Book(folder, CELL)
    snapshots.written = book.written
    log = SqliteLog(SqliteFile.reader(folder, CELL))
    try:
        recovered = await recover(log, CELL, snapshots, until=await log.end(), counted=book.follow)
        head = recovered.core.head
        if not snapshots.due(head.number):
            return None
        return snapshots.write(recovered.core.state, head, recovered.head_position, prove=True)
    finally:
        await log.close()


def main(folder: str, every: int) -> int:
    """The process; its exit status."""
    os.nice(NICE)
    with contextlib.suppress(OSError):  # Linux only
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="muster: %(message)s")
    try:
        asyncio.run(follow(Path(folder), every))
    except (OperatingError, OSError) as error:
        logger.warning("no snapshot is written: %s", error)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
