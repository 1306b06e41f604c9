"""The log on three brokers of which some fail: what was answered stands, in order, and appends go on."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.log.bus import Bus
from muster.log.errors import AppendDoubt, LogUnreachable
from muster.log.kafka import KafkaLog
from muster.log.kafka_reader import KafkaReader
from tests.support.disks import small_disk
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


async def test_a_log_of_which_nobody_leads_is_no_empty_log_to_tools(three_kafka: Brokers) -> None:
    bus, topic = Bus.parse(three_kafka.address), three_kafka.topic("log")
    await make_log_topic(bus, topic, replicas=1)
    log = await KafkaLog.open(bus, topic, writer=True)
    await log.append(b"a record")
    await log.close()

    def read() -> list[bytes]:
        with KafkaReader(three_kafka.address, "main", topic=topic) as reader:
            return [record.data for record in reader.read(0)] + [record.data for record in reader.read(1)]

    assert await asyncio.to_thread(read) == [b"a record"]
    async with administrator(bus) as client:
        leader = (await client.describe_topics([topic]))[0]["partitions"][0]["leader"]
    await asyncio.to_thread(three_kafka.kill, leader)
    try:
        with pytest.raises(LogUnreachable):
            await asyncio.to_thread(read)
    finally:
        await asyncio.to_thread(three_kafka.mend)
    assert await asyncio.to_thread(read) == [b"a record"]


async def test_a_full_disk_of_one_of_three_brokers_stops_nobody(brokers: Callable[..., Brokers], tmp_path: Path) -> None:
    with small_disk(tmp_path / "brokers-0/node-2", 24) as small:
        if small is None:
            pytest.skip("no disk can be filled here: only root can make a small file system")
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
