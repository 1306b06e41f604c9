"""The log on three brokers of which some fail: what was answered stands, in order, and appends go on."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.log.bus import Bus
from muster.log.errors import AppendDoubt
from muster.log.kafka import KafkaLog
from tests.support.kafka import Brokers
from tests.support.topics import administrator, make_log_topic

IN_TIME_S = 90
"""So long a test waits for what must come; what never comes is a failure then."""


class Appender:
    """Appends records as long as it is told, each until it was answered, and keeps what it sent."""

    def __init__(self, log: KafkaLog, size: int = 100) -> None:
        self.log = log
        self.sent: list[bytes] = []
        self._size = size
        self._stopping = False
        self._grown = asyncio.Condition()

    async def run(self) -> None:
        while not self._stopping:
            data = b"%d " % len(self.sent) + os.urandom(self._size)
            self.sent.append(data)
            async with asyncio.timeout(IN_TIME_S):
                while True:
                    with contextlib.suppress(AppendDoubt):
                        await self.log.append(data)
                        break
            async with self._grown:
                self._grown.notify_all()
            await asyncio.sleep(0.01)

    async def more(self, count: int) -> None:
        """Return when so many more were answered."""
        wanted = len(self.sent) + count
        async with asyncio.timeout(IN_TIME_S), self._grown:
            await self._grown.wait_for(lambda: len(self.sent) > wanted)

    def stop(self) -> None:
        self._stopping = True


async def _distinct(log: KafkaLog, count: int) -> list[bytes]:
    """What stands in the log, its copies left out, once there is so much."""
    found: dict[bytes, None] = {}
    position = 0
    async with asyncio.timeout(IN_TIME_S):
        while len(found) < count:
            for record in await log.read(position):
                found[record.data] = None
                position = record.position
            await log.wait(position, 0.1)
    return list(found)


@contextlib.contextmanager
def _small_disk(place: Path, mib: int) -> Iterator[None]:
    """A file system of so many MiB at `place`; skips the test where this user may not mount one."""
    place.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk can be filled here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


async def test_a_rolling_restart_is_no_more_than_a_pause(three_kafka: Brokers) -> None:
    bus, topic = Bus.parse(three_kafka.address), three_kafka.topic("log")
    await make_log_topic(bus, topic, replicas=3)
    log = await KafkaLog.open(bus, topic, writer=True, append_deadline_s=5)
    appender = Appender(log)
    appending = asyncio.create_task(appender.run())
    for node in three_kafka.nodes:
        await appender.more(20)
        await asyncio.to_thread(three_kafka.restart, node.id)
    await appender.more(20)
    appender.stop()
    await appending
    reader = await KafkaLog.open(bus, topic, writer=False)
    assert await _distinct(reader, len(appender.sent)) == appender.sent
    assert await _distinct(log, len(appender.sent)) == appender.sent
    await log.close()
    await reader.close()


async def test_a_full_disk_of_one_of_three_brokers_stops_nobody(brokers: Callable[..., Brokers], tmp_path: Path) -> None:
    with _small_disk(tmp_path / "brokers-0/node-2", 24):
        three = brokers(nodes=3)
        try:
            bus, topic = Bus.parse(three.address), three.topic("log")
            await make_log_topic(bus, topic, replicas=3)
            log = await KafkaLog.open(bus, topic, writer=True, append_deadline_s=5)
            appender = Appender(log, size=1024 * 1024)
            appending = asyncio.create_task(appender.run())
            await appender.more(40)
            appender.stop()
            await appending
            async with administrator(bus) as client:
                in_sync = (await client.describe_topics([topic]))[0]["partitions"][0]["isr"]
            assert sorted(in_sync) == [1, 3]
            reader = await KafkaLog.open(bus, topic, writer=False)
            assert await _distinct(reader, len(appender.sent)) == appender.sent
            await log.close()
            await reader.close()
        finally:
            three.close()
