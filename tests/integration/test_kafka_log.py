"""The log on a real broker, beyond the contract that every engine keeps: sizes, silence, restarts, cuts, and two writers."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from muster.events.codec import encode_cycle
from muster.events.record import GENESIS, Cycle, TermStarted
from muster.log.admit import Admitted, Halt, Head, admit, genesis
from muster.log.bus import Bus
from muster.log.errors import AppendDoubt, LogClosed, LogDamaged, LogMissing, LogUnreachable, RecordTooLarge
from muster.log.kafka import MESSAGE_MAX_BYTES, KafkaLog
from muster.log.port import RECORD_MAX_BYTES, Record
from tests.support.kafka import Brokers, Kafka
from tests.support.topics import LOG_SETTINGS, administrator, make_log_topic, make_topic

IN_TIME_S = 60
"""So long a test waits for what must come; what never comes is a failure then."""

Open = Callable[..., Coroutine[Any, Any, KafkaLog]]


@asynccontextmanager
async def _handles() -> AsyncIterator[Open]:
    """Opens handles on a log and closes them all."""
    opened: list[KafkaLog] = []

    async def open_log(bus: Bus, topic: str, *, writer: bool = True, append_deadline_s: float = 10) -> KafkaLog:
        opened.append(await KafkaLog.open(bus, topic, writer=writer, append_deadline_s=append_deadline_s))
        return opened[-1]

    try:
        yield open_log
    finally:
        async with asyncio.timeout(IN_TIME_S):
            for log in opened:
                await log.close()


@pytest.fixture
async def open_log() -> AsyncIterator[Open]:
    async with _handles() as handles:
        yield handles


async def _fresh(kafka: Kafka, *, replicas: int = 1) -> tuple[Bus, str]:
    bus, topic = Bus.parse(kafka.address), kafka.topic("log")
    await make_log_topic(bus, topic, replicas=replicas)
    return bus, topic


async def _until(log: KafkaLog, after: int, wanted: Callable[[list[Record]], bool]) -> list[Record]:
    """The records after this position, read until there is what was wanted."""
    found: list[Record] = []
    async with asyncio.timeout(IN_TIME_S):
        while not wanted(found):
            position = found[-1].position if found else after
            records = await log.read(position)
            found.extend(records)
            if not records:
                await log.wait(position, 0.5)
    return found


async def _append_at_last(log: KafkaLog, data: bytes) -> int:
    """Append until it is answered; how often it was not."""
    doubts = 0
    async with asyncio.timeout(IN_TIME_S):
        while True:
            try:
                await log.append(data)
            except AppendDoubt:
                doubts += 1
            else:
                return doubts


async def test_records_of_every_size_come_back_as_they_went_in(kafka: Kafka, open_log: Open) -> None:
    bus, topic = await _fresh(kafka)
    writer, reader = await open_log(bus, topic), await open_log(bus, topic, writer=False)
    sent = [
        b"",
        b"x",
        os.urandom(100_000),
        b"much the same " * 1_000_000,
        os.urandom(RECORD_MAX_BYTES),  # cannot be made smaller
        b"\0" * RECORD_MAX_BYTES,
        b"last",
    ]
    for data in sent:
        await writer.append(data)
    for log in (writer, reader):
        found = await _until(log, 0, lambda found: len(found) >= len(sent))
        assert [record.data for record in found] == sent
        assert [record.position for record in found] == list(range(1, len(sent) + 1))
    with pytest.raises(RecordTooLarge, match=f"the log takes {RECORD_MAX_BYTES}"):
        await writer.append(bytes(RECORD_MAX_BYTES + 1))
    assert await reader.end() == len(sent)


async def test_a_record_that_the_topic_does_not_take_is_refused_with_the_setting_to_change(kafka: Kafka, open_log: Open) -> None:
    bus, topic = Bus.parse(kafka.address), kafka.topic("log")
    await make_topic(bus, topic, {**LOG_SETTINGS, "max.message.bytes": "100000"})
    log = await open_log(bus, topic)
    await log.append(b"small")
    with pytest.raises(RecordTooLarge, match=f"max.message.bytes must be {MESSAGE_MAX_BYTES}"):
        await log.append(os.urandom(200_000))
    assert [record.data for record in await log.read(0)] == [b"small"]


async def test_large_records_are_read_on_from_anywhere(kafka: Kafka, open_log: Open) -> None:
    bus, topic = await _fresh(kafka)
    log = await open_log(bus, topic)
    for number in range(30):
        await log.append(b"%d " % number * (600_000 if number % 3 else 1))
    everything = await _until(log, 0, lambda found: len(found) >= 30)
    for after in (29, 0, 17, 3, 30, 12):
        assert await _until(log, after, lambda found: len(found) >= 30 - after) == everything[after:]  # noqa: B023 - awaited here


async def test_a_topic_or_a_partition_that_is_not_there_is_named(kafka: Kafka) -> None:
    bus, topic = await _fresh(kafka)
    with pytest.raises(LogMissing, match=r"no topic nowhere: `muster bus create` makes it"):
        await KafkaLog.open(bus, "nowhere", writer=False)
    with pytest.raises(LogMissing, match=f"the topic {topic} has no partition 1"):
        await KafkaLog.open(bus, topic, 1, writer=True)


async def test_nobody_is_waited_for_who_is_not_there() -> None:
    with pytest.raises(LogUnreachable, match=r"no broker answers at kafka://127\.0\.0\.1:1: .*Connect call failed"):
        await KafkaLog.open(Bus.parse("kafka://127.0.0.1:1"), writer=True)


async def test_a_reader_cannot_write(kafka: Kafka, open_log: Open) -> None:
    reader = await open_log(*await _fresh(kafka), writer=False)
    with pytest.raises(LogClosed, match="for reading only"):
        await reader.append(b"x")


async def test_a_log_whose_beginning_was_cut_off_is_not_read_past_the_gap(kafka: Kafka, open_log: Open) -> None:
    bus, topic = await _fresh(kafka)
    log = await open_log(bus, topic)
    for number in range(10):
        await log.append(b"%d" % number)
    async with administrator(bus) as client:
        await client.delete_records({TopicPartition(topic, 0): RecordsToDelete(4)})
    reader = await open_log(bus, topic, writer=False)
    with pytest.raises(LogDamaged, match="holds the positions 5 to 10, and what stands after position 0 was to be read"):
        await _until(reader, 0, bool)
    assert [record.position for record in await _until(reader, 4, lambda found: len(found) >= 6)] == [5, 6, 7, 8, 9, 10]


async def test_a_log_that_was_made_anew_is_not_taken_for_the_old_one(kafka: Kafka, open_log: Open) -> None:
    bus, topic = await _fresh(kafka)
    log = await open_log(bus, topic)
    for number in range(10):
        await log.append(b"%d" % number)
    await _until(log, 0, lambda found: len(found) >= 10)
    async with administrator(bus) as client:
        await client.delete_topics([topic])
        async with asyncio.timeout(IN_TIME_S):
            while topic in await client.list_topics():
                pass
    await make_log_topic(bus, topic)
    with pytest.raises(LogDamaged, match="made anew"):
        await _until(log, 10, bool)
    other = await open_log(bus, topic, writer=False)
    with pytest.raises(LogDamaged, match="holds the positions 1 to 0, and what stands after position 10 was to be read"):
        await _until(other, 10, bool)


async def test_an_append_to_a_broker_that_says_nothing_is_a_doubt_and_may_land_later(
    brokers: Callable[..., Brokers], open_log: Open
) -> None:
    broker = brokers()
    bus, topic = await _fresh(broker)
    log = await open_log(bus, topic, append_deadline_s=2)
    await log.append(b"before")
    broker.pause()
    try:
        async with asyncio.timeout(IN_TIME_S):
            with pytest.raises(AppendDoubt, match="was not answered within 2 s"):
                await log.append(b"in doubt")
            await log.close()  # waits for no answer either
            with pytest.raises(LogClosed):
                await log.append(b"late")
            opening = asyncio.create_task(open_log(bus, topic))
            await asyncio.wait([opening], timeout=4)  # longer than one try
            assert not opening.done()
    finally:
        broker.resume()
    after = await opening
    await _append_at_last(after, b"after")
    found = [record.data for record in await _until(after, 0, lambda found: any(record.data == b"after" for record in found))]
    assert found[0] == b"before"
    assert found.count(b"in doubt") <= 1
    assert set(found) <= {b"before", b"in doubt", b"after"}


async def test_a_broker_that_is_away_for_a_while_is_read_on_from_where_it_was(
    brokers: Callable[..., Brokers], open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.log.kafka.ASK_S", 1.0)
    broker = brokers()
    bus, topic = await _fresh(broker)
    writer, reader = await open_log(bus, topic, append_deadline_s=1), await open_log(bus, topic, writer=False)
    for number in range(5):
        await writer.append(b"%d" % number)
    assert len(await _until(reader, 0, lambda found: len(found) >= 5)) == 5
    leaving = [await open_log(bus, topic, writer=writes) for writes in (True, False, True, False)]
    for log in leaving:
        assert len(await _until(log, 0, lambda found: len(found) >= 5)) == 5
    broker.kill()
    async with asyncio.timeout(IN_TIME_S):
        assert await reader.read(5) == []
        await reader.wait(5, 0.2)
        assert await reader.read(5) == []
        with pytest.raises(LogUnreachable, match="could not be asked for"):
            await reader.end()
        with pytest.raises(AppendDoubt):
            await writer.append(b"in doubt")
        for log in leaving:
            await log.close()
    await asyncio.to_thread(broker.restart)
    await _append_at_last(writer, b"after")
    for log in (writer, reader):
        found = await _until(log, 0, lambda found: any(record.data == b"after" for record in found))
        assert [record.data for record in found[:5]] == [b"0", b"1", b"2", b"3", b"4"]
        assert {record.data for record in found[5:]} == {b"in doubt", b"after"}
        assert [record.data for record in found].count(b"in doubt") == 1  # tried again and again, it landed once


async def test_a_handle_whose_reader_died_says_so(kafka: Kafka, open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await open_log(*await _fresh(kafka))
    await log.append(b"one")
    await _until(log, 0, bool)

    def break_down(*_: object) -> None:
        raise KeyError("an oddity")

    monkeypatch.setattr(log._consumer._fetcher, "_get_actions_per_node", break_down)
    with pytest.raises(LogClosed, match="is read no more"):
        await _until(log, 1, bool)


async def test_a_leader_that_says_nothing_is_replaced_and_the_log_goes_on(three_kafka: Brokers, open_log: Open) -> None:
    bus, topic = await _fresh(three_kafka, replicas=3)
    log = await open_log(bus, topic, append_deadline_s=2)
    sent = [b"%d" % number for number in range(10)]
    for data in sent[:5]:
        await _append_at_last(log, data)
    async with administrator(bus) as client:
        leader = (await client.describe_topics([topic]))[0]["partitions"][0]["leader"]
    three_kafka.pause(leader)
    try:
        for data in sent[5:]:
            await _append_at_last(log, data)
        reader = await open_log(bus, topic, writer=False)  # whichever of the three it asks first
        for handle in (log, reader):
            found = await _until(handle, 0, lambda found: any(record.data == sent[-1] for record in found))
            assert list(dict.fromkeys(record.data for record in found)) == sent
    finally:
        three_kafka.resume(leader)
        await asyncio.to_thread(three_kafka.await_all)


async def test_answered_records_outlive_the_death_of_the_logs_leader_and_of_the_quorum(
    three_kafka: Brokers, open_log: Open
) -> None:
    three = three_kafka
    bus, topic = await _fresh(three, replicas=3)
    async with administrator(bus) as client:
        leader = (await client.describe_topics([topic]))[0]["partitions"][0]["leader"]
    log = await open_log(bus, topic, append_deadline_s=2)
    sent = [b"%d" % number for number in range(60)]
    for data in sent[:20]:
        await _append_at_last(log, data)
    await asyncio.to_thread(three.kill, leader)
    for data in sent[20:40]:
        await _append_at_last(log, data)
    second = next(node.id for node in three.nodes if node.id != leader)
    await asyncio.to_thread(three.kill, second)
    with pytest.raises(AppendDoubt):  # one of three has it
        await log.append(b"in doubt")
    await asyncio.to_thread(three.restart, leader, second)
    for data in sent[40:]:
        await _append_at_last(log, data)
    reader = await open_log(bus, topic, writer=False)
    for handle in (log, reader):
        found = await _until(handle, 0, lambda found: any(record.data == sent[-1] for record in found))
        assert list(dict.fromkeys(record.data for record in found)) == [*sent[:40], b"in doubt", *sent[40:]]


@pytest.mark.parametrize("seed", range(4))
async def test_two_writers_at_once_leave_one_history(kafka: Kafka, open_log: Open, seed: int) -> None:
    bus, topic = await _fresh(kafka)
    rngs = [random.Random(f"{seed} {number}") for number in range(2)]
    writers = [_Writer(await open_log(bus, topic), rng) for rng in rngs]
    await asyncio.gather(*(writer.write(40) for writer in writers))
    reader = await open_log(bus, topic, writer=False)
    records = await _until(reader, 0, lambda found: len(found) >= 80)
    head, verdicts = genesis("main"), []
    for record in records:
        verdict = admit(head, record.data)
        assert not isinstance(verdict, Halt), verdict
        head = verdict.head if isinstance(verdict, Admitted) else head
        verdicts.append(isinstance(verdict, Admitted))
    for writer in writers:
        assert await writer.log.end() == len(records)  # from here on it knows that there is so much to read
        await writer.read()
        assert writer.head == head
        assert writer.verdicts == verdicts
    voids = verdicts.count(False)
    print(f"{len(records)} records, {voids} void, {head.term} terms")
    assert 0 < voids < len(records)
    assert {writer.led for writer in writers} == {True}


class _Writer:
    """Appends a cycle where it leads, and where it does not it sometimes starts a term; never sure that it is alone."""

    def __init__(self, log: KafkaLog, rng: random.Random) -> None:
        self.log = log
        self.rng = rng
        self.head = genesis("main")
        self.term = 0
        self.led = False
        self.verdicts: list[bool] = []
        self._position = 0

    async def write(self, count: int) -> None:
        for _ in range(count):
            if self.term == self.head.term != 0 and self.rng.random() < 0.8:
                await self.log.append(_record(self.head, self.term))
            else:
                self.term = self.head.term + 1
                nonce = f"{self.rng.getrandbits(128):032x}"
                await self.log.append(
                    _record(self.head, self.term, TermStarted(nonce=nonce, host="here", build="test", state=GENESIS))
                )
                mine = nonce
                await self.read(mine)
            if self.rng.random() < 0.7:
                await self.read()

    async def read(self, mine: str = "") -> None:
        while records := await self.log.read(self._position):
            for record in records:
                self._position = record.position
                verdict = admit(self.head, record.data)
                assert not isinstance(verdict, Halt), verdict
                self.verdicts.append(isinstance(verdict, Admitted))
                if isinstance(verdict, Admitted):
                    self.head = verdict.head
                    started = verdict.envelope.started
                    if started is not None:
                        self.led = self.led or started.nonce == mine
                        self.term = self.head.term if started.nonce == mine else 0


def _record(head: Head, term: int, started: TermStarted | None = None) -> bytes:
    return encode_cycle(
        Cycle(
            cell="main",
            number=head.number + 1,
            term=term,
            at_us=0,
            started=started,
            inputs=(),
            decisions=(),
            positions={},
            policy="default/1",
            previous=head.digest,
        )
    )
