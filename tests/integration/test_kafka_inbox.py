"""The inbox on a real broker: what it gives, from where, and what it says when messages are gone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from muster.events.cloudevents import refusal, to_message
from muster.events.codec import decode_input
from muster.events.jobs import JobCancelRequested
from muster.events.operations import NodeCordoned
from muster.log.bus import Bus
from muster.log.errors import OffsetsLost
from muster.scheduler import kafka_inbox
from muster.scheduler.kafka_inbox import InboxStuck, KafkaInbox
from muster.scheduler.messages import BEAT, GPU_HEALTH, JOBS, NODES, OPERATIONS, TOPICS, Message
from tests.simulation.small_world import job_id
from tests.support.kafka import Brokers, bring_jars

PARTITIONS = {JOBS: 2, NODES: 2, GPU_HEALTH: 1, OPERATIONS: 1}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A broker whose topics have the names that they must have."""
    bring_jars()
    with Brokers(tmp_path_factory.mktemp("brokers")) as started:
        asyncio.run(_make_topics(started.bootstrap))
        yield started


class Talk:
    """A producer, and the inboxes of one test."""

    def __init__(self, bootstrap: str) -> None:
        self.bus = Bus.parse(f"kafka://{bootstrap}")
        self.producer: Any
        self.inboxes: list[KafkaInbox] = []

    async def put(self, topic: str, value: bytes | None, key: str, partition: int = 0, headers: Any = ()) -> None:
        """One message, acknowledged."""
        await self.producer.send_and_wait(topic, value, key=key.encode(), partition=partition, headers=list(headers))

    async def cancel(self, number: int, partition: int = 0) -> None:
        """A cancellation, as a CloudEvent."""
        headers, value = to_message(JOBS, JobCancelRequested(job=job_id(number)), "tests", f"event-{number}", 0)
        await self.put(JOBS, value, job_id(number), partition, headers)

    async def inbox(self, identity: str = "a", cell: str = "main") -> KafkaInbox:
        """A started one."""
        made = KafkaInbox(self.bus, cell, identity)
        await made.start()
        self.inboxes.append(made)
        return made

    async def ends(self) -> dict[str, int]:
        """Where every source ends."""
        asker = await self.inbox("asker")
        return {asker._partitions[each]: end for each, end in (await asker._offsets(asker._partitions, begin=False)).items()}


@pytest.fixture
async def bus(broker: Brokers) -> AsyncIterator[Talk]:
    made = Talk(broker.bootstrap)
    made.producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, max_request_size=16 * 1024 * 1024)
    await made.producer.start()
    yield made
    for inbox in made.inboxes:
        await inbox.close()
    await made.producer.stop()


async def _make_topics(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    configuration = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(16 * 1024 * 1024)}
    await admin.create_topics(
        [NewTopic(topic, count, 1, topic_configs=configuration) for topic, count in PARTITIONS.items()], timeout_ms=20_000
    )
    await admin.close()


async def taken(inbox: KafkaInbox, count: int) -> list[Message]:
    """The next so many messages."""
    found: list[Message] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            message = inbox.first()
            if message is None:
                await inbox.wait(1.0)
                continue
            inbox.pop()
            found.append(message)
    return found


async def test_every_message_is_given_once_from_the_positions_on(bus: Talk) -> None:
    positions = await bus.ends()
    for number in range(6):
        await bus.cancel(number, partition=number % 2)
    headers, value = to_message(OPERATIONS, NodeCordoned(node="a"), "tests", "event", 0)
    await bus.put(OPERATIONS, value, "a", headers=headers)
    inbox = await bus.inbox()
    await inbox.seek({**positions, f"{JOBS}/0": positions[f"{JOBS}/0"] + 1})
    messages = await taken(inbox, 6)
    assert inbox.first() is None
    assert messages[0].source == f"{OPERATIONS}/0" or messages[-1].source == f"{OPERATIONS}/0"
    jobs = sorted(message.key for message in messages if message.source.startswith(JOBS))
    assert jobs == [job_id(number) for number in (1, 2, 3, 4, 5)]
    for message in messages:
        assert message.event.startswith("event")
        assert message.appended_us > 1_700_000_000_000_000
        decode_input(message.data)
        assert message.offset >= positions[message.source]


async def test_after_a_seek_the_same_is_given_again_and_nothing_else(bus: Talk) -> None:
    positions = await bus.ends()
    for number in range(10, 15):
        await bus.cancel(number)
    inbox = await bus.inbox()
    await inbox.seek(positions)
    first = await taken(inbox, 3)
    await inbox.seek(positions)
    assert [message.offset for message in await taken(inbox, 5)][:3] == [message.offset for message in first]


async def test_what_is_no_input_is_given_as_a_refusal_and_stops_nothing(bus: Talk) -> None:
    positions = await bus.ends()
    await bus.put(JOBS, None, "tombstone")
    await bus.put(JOBS, b"\xff\x00", "garbage")
    await bus.put(JOBS, b"x" * 3_000_000, "huge")
    await bus.put(NODES, b"{}", "node")
    await bus.cancel(20)
    inbox = await bus.inbox()
    await inbox.seek(positions)
    messages = {message.key: message for message in await taken(inbox, 5)}
    for key in ("tombstone", "garbage", "huge", "node"):
        refused = refusal(messages[key].data)
        assert refused is not None
        assert refused.reason
    assert len(messages["huge"].data) < 1000
    decode_input(messages[job_id(20)].data)


async def test_catching_up_has_every_report_that_stood_there_before(bus: Talk) -> None:
    positions = await bus.ends()
    inbox = await bus.inbox()
    await inbox.seek(positions)
    for number in range(50):
        await bus.put(NODES, b"{}", f"n{number}", partition=number % 2)
    assert await inbox.catch_up() == frozenset()
    found = 0
    while inbox.first() is not None:
        inbox.pop()
        found += 1
    assert found == 50


async def test_partitions_that_cannot_be_read_are_named(bus: Talk, broker: Brokers) -> None:
    inbox = await bus.inbox()
    await inbox.seek(await bus.ends())
    broker.pause()
    try:
        assert await inbox.catch_up() == {f"{NODES}/0", f"{NODES}/1"}
    finally:
        broker.resume()
    async with asyncio.timeout(30):
        while await inbox.catch_up():
            await inbox.wait(0.1)


async def test_a_follower_counts_the_beats_of_its_cells_leader_alone(bus: Talk) -> None:
    leader, follower, stranger = await bus.inbox("a"), await bus.inbox("b"), await bus.inbox("c", cell="other")
    assert [each.beats() for each in (leader, follower, stranger)] == [0, 0, 0]
    await asyncio.sleep(1.0)  # beats are counted from when a follower has begun to read
    positions = await bus.ends()
    await leader.seek(positions)
    async with asyncio.timeout(20):
        while not follower.beats():
            await leader.beat()
            await asyncio.sleep(0.1)
    assert stranger.beats() == 0
    (message,) = await taken(leader, 1)
    assert message.data == BEAT
    assert leader.beats() == 0


async def test_a_leader_that_follows_again_counts_beats(bus: Talk) -> None:
    one, other = await bus.inbox("a"), await bus.inbox("b")
    await one.seek(await bus.ends())
    await other.seek(await bus.ends())
    before = one.beats()
    async with asyncio.timeout(20):
        while one.beats() == before:
            await other.beat()
            await asyncio.sleep(0.1)


async def test_a_long_queue_of_jobs_holds_back_no_report(bus: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_inbox, "QUEUE_MAX", 40)
    monkeypatch.setattr(kafka_inbox, "FETCH_MAX", 20)
    monkeypatch.setattr(kafka_inbox, "JOBS_OUT_MAX", 10)
    positions = await bus.ends()
    for number in range(200):
        await bus.cancel(number, partition=number % 2)
    inbox = await bus.inbox()
    await inbox.seek(positions)
    jobs = await taken(inbox, 10)
    assert inbox.first() is None, "no more are handed on than may be out"
    await bus.put(NODES, b"{}", "n1")
    assert await inbox.catch_up() == frozenset()
    assert [message.key for message in await taken(inbox, 1)] == ["n1"]
    position = dict(positions)
    while len(jobs) < 200:
        for message in jobs:
            position[message.source] = message.offset + 1
        inbox.moved(position)
        jobs += await taken(inbox, 10)
    assert sorted(message.key for message in jobs) == sorted(job_id(number) for number in range(200))


async def test_what_is_gone_before_it_was_read_is_named_at_the_start(bus: Talk, broker: Brokers) -> None:
    for number in range(5):
        await bus.cancel(number)
    ends = await bus.ends()
    end = ends[f"{JOBS}/0"]
    await _delete_before(broker, end - 1)
    inbox = await bus.inbox()
    with pytest.raises(OffsetsLost, match=rf"{JOBS}/0 begins at {end - 1}: offsets {end - 3} to {end - 2} were not read"):
        await inbox.seek({**ends, f"{JOBS}/0": end - 3})
    with pytest.raises(OffsetsLost, match=rf"{JOBS}/1 ends at {ends[f'{JOBS}/1']}"):
        await inbox.check({**ends, f"{JOBS}/1": ends[f"{JOBS}/1"] + 1})
    with pytest.raises(OffsetsLost, match=rf"{JOBS}/7 is gone"):
        await inbox.check({**ends, f"{JOBS}/7": 1})
    await inbox.check(ends)


async def test_what_goes_while_it_waits_to_be_read_ends_the_reading(bus: Talk, broker: Brokers) -> None:
    ends = await bus.ends()
    inbox = await bus.inbox()
    await inbox.seek(ends)
    await asyncio.sleep(0.5)
    await inbox._stop_reading()
    for number in range(5):
        await bus.cancel(number)
    await _delete_before(broker, ends[f"{JOBS}/0"] + 3)
    inbox._task = asyncio.create_task(inbox._read())
    with pytest.raises(OffsetsLost, match=rf"{JOBS}/0"):
        await taken(inbox, 5)


async def test_a_client_that_has_stopped_reading_is_noticed(bus: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_inbox, "WATCH_S", 0.2)
    inbox = await bus.inbox()
    await inbox.seek(await bus.ends())
    await bus.cancel(1)
    await taken(inbox, 1)
    await asyncio.sleep(1.0)
    assert inbox.first() is None, "nothing to read is no sign of anything"
    assert inbox._task is not None
    inbox._task.cancel()
    await bus.cancel(2)
    with pytest.raises(InboxStuck, match=rf"the broker has messages of {JOBS}/0"):
        await taken(inbox, 1)


async def _delete_before(broker: Brokers, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.delete_records({TopicPartition(JOBS, 0): RecordsToDelete(before_offset=offset)})
    await admin.close()


def test_all_topics_of_inputs_are_read() -> None:
    assert set(PARTITIONS) == set(TOPICS)
