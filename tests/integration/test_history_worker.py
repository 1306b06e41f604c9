"""Workers that write the history from a real broker to a real PostgreSQL, whatever happens to them: the rows equal the fold."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from muster.history.check import Checked, check, lines
from muster.history.follow import FileSource
from muster.history.rebuild import rebuild
from muster.history.worker import Options
from muster.log.bus import Bus
from muster.log.kafka import KafkaLog
from muster.log.sqlite import SqliteFile
from tests.support.cell import until
from tests.support.history import CELL, Stream, Worker, await_number, number_in, records_of_a_load
from tests.support.kafka import Kafka
from tests.support.postgres import Postgres, Runner

Start = Callable[..., Worker]


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    """A log of some hundred cycles."""
    return records_of_a_load(360)


@pytest.fixture
def stream(kafka: Kafka, records: list[bytes]) -> Stream:
    """A topic, empty at first."""
    return Stream(kafka.address, kafka.topic("muster.log"), records)


@pytest.fixture
def start(tmp_path: Path, stream: Stream) -> Iterator[Start]:
    """Starts workers of the stream."""
    started: list[Worker] = []

    def begin(dsn: str, group: str, instance: str = "") -> Worker:
        options = Options(dsn=dsn, log=stream.address, topic=stream.topic, cell=CELL, group=group, instance=instance)
        started.append(Worker(tmp_path / f"worker-{len(started)}.said", options))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


def assert_right(stream: Stream, dsn: str) -> None:
    """The rows go to the end of the stream and are what it says."""
    found = stream.check(dsn)
    assert found.number == stream.fed
    assert found.right, list(lines(found))


def test_a_worker_that_is_killed_goes_on_where_its_rows_end(
    stream: Stream, start: Start, postgres: Postgres, database: str
) -> None:
    worker = start(database, stream.topic, "one")
    for _ in range(2):
        before = number_in(postgres, database)
        stream.feed(60)
        await_number(postgres, database, before + 1)
        worker.kill()
        stream.feed(30)
        worker.start()
    await_number(postgres, database, stream.fed)
    assert_right(stream, database)
    assert worker.stop() == 0, worker.text


def test_of_two_workers_one_writes_and_the_other_takes_over(
    stream: Stream, start: Start, postgres: Postgres, database: str
) -> None:
    stream.feed(40)
    first, second = start(database, stream.topic), start(database, stream.topic)
    await_number(postgres, database, 40)
    for leaves in (first, second):
        stream.feed(40)
        assert leaves.stop() == 0, leaves.text
        await_number(postgres, database, stream.feed(40))
        leaves.start()
        await_number(postgres, database, stream.feed(20))
    assert_right(stream, database)


def test_a_worker_ends_when_postgres_dies_and_goes_on_when_it_is_there_again(
    stream: Stream, start: Start, own_postgres: Runner
) -> None:
    server = own_postgres()
    dsn = server.database()
    worker = start(dsn, stream.topic, "one")
    await_number(server, dsn, stream.feed(50))
    server.kill()
    stream.feed(50)
    assert worker.ended() == 1
    assert "muster history: the history could not be written after cycle" in worker.text
    assert server.dsn.partition("@")[0].rpartition(":")[2] not in worker.text, "its password"
    worker.start()
    assert worker.ended() == 1
    assert "PostgreSQL cannot be reached" in worker.text
    server.start()
    worker.start()
    await_number(server, dsn, stream.feed(50))
    assert_right(stream, dsn)


def test_what_kafka_says_of_the_offset_is_not_believed(stream: Stream, start: Start, postgres: Postgres, database: str) -> None:
    """A new database, while the group's offset stands at the end; a build made anew while its worker runs."""
    worker = start(database, stream.topic)
    await_number(postgres, database, stream.feed(120))
    until(lambda: asyncio.run(committed(stream)) == stream.fed, say="the group's offset stands at the end")
    assert worker.stop() == 0, worker.text
    another = postgres.database()
    other = start(another, stream.topic)
    await_number(postgres, another, stream.fed)
    assert_right(stream, another)

    old = postgres.fetch("select schema from history.builds where current", another)
    asyncio.run(made_anew(stream, another))
    assert postgres.fetch("select schema from history.builds", another) != old
    stream.feed(30)
    assert other.ended() == 1
    assert "is not the current build of the history any more" in other.text
    other.start()
    await_number(postgres, another, stream.fed)
    assert_right(stream, another)


def test_a_worker_on_a_file_is_killed_and_its_metrics_say_how_far_it_is(
    tmp_path: Path, records: list[bytes], postgres: Postgres, database: str
) -> None:
    with SqliteFile.open(tmp_path / "log", CELL, writer=True) as file:
        file.append_many(records[:50])
        place = f"127.0.0.1:{free_port()}"
        worker = Worker(tmp_path / "said", Options(dsn=database, log=str(tmp_path / "log"), cell=CELL, metrics=place))
        try:
            for at in range(50, 350, 100):
                await_number(postgres, database, at - 40)
                file.append_many(records[at : at + 50])
                worker.kill()
                file.append_many(records[at + 50 : at + 100])
                worker.start()
            await_number(postgres, database, 350)
            page = httpx.get(f"http://{place}/metrics", trust_env=False).text
            assert 'muster_follower_lag_records{cell="bench",follower="history"} 0.0' in page
            assert 'muster_history_cycle{cell="bench"} 350.0' in page
            assert 'muster_history_rows_total{cell="bench",table="placements"}' in page
            assert worker.stop() == 0, worker.text
        finally:
            worker.kill()
        found = asyncio.run(check_file(tmp_path / "log", database))
        assert (found.number, found.right) == (350, True), list(lines(found))


async def check_file(place: Path, dsn: str) -> Checked:
    """Hold the rows against the log in this folder."""
    source = await FileSource.open(place)
    try:
        return await check(source, dsn, source.cell)
    finally:
        await source.close()


def free_port() -> int:
    """A port that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def committed(stream: Stream) -> int:
    """The offset that the group has committed."""
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient

    client = AIOKafkaAdminClient(**Bus.parse(stream.address).client_options())
    await client.start()
    try:
        offsets = await client.list_consumer_group_offsets(stream.topic)
        found = offsets.get(TopicPartition(stream.topic, 0))
        return found.offset if found is not None else -1
    finally:
        await client.close()


async def made_anew(stream: Stream, dsn: str) -> None:
    """Rebuild."""
    log = await KafkaLog.open(Bus.parse(stream.address), stream.topic, writer=False)
    try:
        assert (await rebuild(log, dsn, CELL)).number == stream.fed
    finally:
        await log.close()
