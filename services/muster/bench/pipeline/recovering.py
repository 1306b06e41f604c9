"""A scheduler's start, in a process of its own: from connecting to Kafka until a core stands at the tail of the log."""

import resource
import time
from pathlib import Path

import msgspec

from muster.bench.pipeline.workers import Orders, say, work
from muster.cluster import snapshot
from muster.log.bus import Bus
from muster.log.kafka import KafkaLog
from muster.scheduler.recovery import recover_whole
from muster.scheduler.snapshots import Snapshots


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to recover."""

    bus: str
    config: str = ""
    cell: str
    folder: str
    """Of snapshots; one that is there is used."""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    seconds: float
    cpu_s: float
    folded: int
    """Cycles."""
    number: int
    """Of the head."""
    state: str
    """Digest of the state."""
    memory_mib: float
    """The most that the process ever had."""


async def begin(options: Options, orders: Orders) -> None:
    """The order `recover` begins it; `write` writes a snapshot of what was recovered."""
    say("ready")
    await orders.next()
    used_s, begun = time.process_time(), time.perf_counter()
    log = await KafkaLog.open(Bus.parse(options.bus, options.config or None), writer=True)
    try:
        snapshots = Snapshots(Path(options.folder), options.cell)
        recovered = await recover_whole(log, options.cell, snapshots)
        took_s, spent_s = time.perf_counter() - begun, time.process_time() - used_s
        core = recovered.core
        say(
            Recovery(
                seconds=took_s,
                cpu_s=spent_s,
                folded=recovered.folded,
                number=core.head.number,
                state=snapshot.digest(core.state),
                memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            )
        )
        if await orders.next() == "write":
            say(
                str(snapshots.write(core.state, core.head, recovered.head_position, prove=True))
            )  # as who writes one beside a leader
            await orders.next()
    finally:
        await log.close()


if __name__ == "__main__":
    work(Options, begin)
