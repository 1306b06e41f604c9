"""A snapshot of a cell on Kafka: written beside, believed by the next start, and by who looks back."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from muster.events.codec import encode_entry
from muster.events.operations import NodeCordoned
from muster.log.bus import Bus
from muster.log.kafka import KafkaLog
from muster.log.topics import create
from muster.scheduler.core import Core
from muster.scheduler.messages import OPERATIONS, Message
from muster.scheduler.recovery import Recovered, recover
from muster.scheduler.snapshots import Snapshots
from muster.up.bus_snapshot import Options
from tests.support.kafka import Brokers


async def _write_log(bus: Bus) -> None:
    """A term and ten cycles."""
    log = await KafkaLog.open(bus, writer=True)
    core = Core("main")
    data = core.start_term(1_000_000, "0" * 32, "host", "build", 0)
    for number in range(11):
        await log.append(data)
        core.read_back(data)
        core.offer(Message(f"{OPERATIONS}/0", number, encode_entry(NodeCordoned(node="nobody")), 1_000_000))
        data = core.cycle(1_000_000 + number) or b""
    await log.close()


async def _recover(bus: Bus, folder: Path) -> Recovered:
    log = await KafkaLog.open(bus, writer=False)
    try:
        return await recover(log, "main", Snapshots(folder, "main"))
    finally:
        await log.close()


def test_what_is_written_beside_is_where_the_next_start_begins(tmp_path: Path, brokers: Callable[..., Brokers]) -> None:
    bus = Bus.parse(brokers().address)
    asyncio.run(create(bus))
    asyncio.run(_write_log(bus))
    folder = tmp_path / "data"
    folder.mkdir()
    told = msgspec.json.encode(Options(bus=bus.address, folder=str(folder), cell="main", snapshot_every=5)).decode()
    for _ in range(2):  # the second one finds that none is due
        done = subprocess.run([sys.executable, "-m", "muster.up.bus_snapshot", told], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    [written] = folder.glob("*.snapshot")
    recovered = asyncio.run(_recover(bus, folder))
    assert (recovered.core.head.number, recovered.folded) == (11, 0)
    written.write_bytes(written.read_bytes()[:-1])
    assert asyncio.run(_recover(bus, folder)).folded == 11
