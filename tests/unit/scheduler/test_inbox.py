"""The queue inside the process: what is put is acknowledged when it is durable, and not before."""

import asyncio
from pathlib import Path

import pytest

from muster.log.memory import MemoryBroker, MemoryLog
from muster.log.sqlite import SqliteLog
from muster.replay.audit import audit
from muster.replay.travel import state_at
from muster.scheduler import inbox as module
from muster.scheduler.inbox import QueueInbox
from muster.scheduler.loop import Scheduler, Settings
from muster.scheduler.messages import BufferFull
from muster.scheduler.poison import Deaths
from muster.scheduler.recovery import recover
from muster.scheduler.snapshots import Snapshots
from tests.simulation.small_world import CELL, WALL_US, job_id, leave, submission

JOBS = "muster.jobs/0"
NODES = "muster.nodes/0"
SETTINGS = Settings(takeover_after_us=0, takeover_spread_us=0, beat_us=20_000)


async def test_a_message_is_acknowledged_once_its_cycle_is_read_back() -> None:
    broker = MemoryBroker()
    inbox = QueueInbox()
    scheduler = Scheduler(await recover(MemoryLog(broker), CELL), MemoryLog(broker), inbox, SETTINGS, exit=leave)
    running = asyncio.create_task(scheduler.run())
    first = inbox.put(JOBS, submission("a"), WALL_US, "a")
    async with asyncio.timeout(5):
        await first
    assert scheduler.core.positions == {JOBS: 1}
    assert b'"job":"a"' in broker.records[-1]
    records = len(broker.records)
    again = inbox.put(JOBS, submission("a"), WALL_US, "a")
    async with asyncio.timeout(5):
        await again
    assert len(broker.records) == records, "a repeat is acknowledged without a record"
    scheduler.stop()
    async with asyncio.timeout(5):
        await running


async def test_offsets_go_on_where_the_log_stands_and_what_is_not_durable_is_given_again() -> None:
    inbox = QueueInbox()
    futures = [inbox.put(source, b"", 0) for source in (JOBS, NODES, JOBS)]
    await inbox.seek({JOBS: 10})
    for expected in ((JOBS, 10), (NODES, 0), (JOBS, 11)):
        message = inbox.first()
        assert message is not None
        assert (message.source, message.offset) == expected
        inbox.pop()
    assert inbox.first() is None
    inbox.moved({JOBS: 11})
    assert [future.done() for future in futures] == [True, False, False]
    await inbox.seek({JOBS: 11})
    message = inbox.first()
    assert message is not None
    assert (message.source, message.offset) == (NODES, 0)
    inbox.pop()
    inbox.pop()
    inbox.moved({JOBS: 12, NODES: 1})
    assert [future.done() for future in futures] == [True, True, True]


async def test_waiting_ends_with_a_message_or_with_the_time() -> None:
    inbox = QueueInbox()
    await inbox.wait(0.001)
    waiting = asyncio.create_task(inbox.wait(60))
    await asyncio.sleep(0)
    inbox.put(JOBS, b"", 0)
    async with asyncio.timeout(5):
        await waiting
        await inbox.wait(60)


async def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_MAX", 2)
    inbox = QueueInbox()
    inbox.put(JOBS, b"", 0)
    inbox.put(JOBS, b"", 0)
    with pytest.raises(BufferFull):
        inbox.put(JOBS, b"", 0)


async def test_a_cell_on_one_machine_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """SQLite, the queue, snapshots and the mark of deaths together, as a program without a broker has them."""
    numbers = []
    for run in range(3):
        log = SqliteLog.open(tmp_path, CELL, writer=True)
        snapshots = Snapshots(tmp_path, CELL, every=4)
        recovered = await recover(log, CELL, snapshots)
        numbers.append((recovered.core.head.number, recovered.folded))
        deaths = Deaths(tmp_path / f"{CELL}.deaths", recovered.core.positions)
        inbox = QueueInbox()
        scheduler = Scheduler(recovered, log, inbox, SETTINGS, snapshots=snapshots, deaths=deaths, exit=leave)
        running = asyncio.create_task(scheduler.run())
        async with asyncio.timeout(20):
            for number in range(5):
                job = job_id(10 * run + number)
                await inbox.put(JOBS, submission(job), WALL_US, job)
            scheduler.stop()
            await running
        assert scheduler.core.positions == {JOBS: 5 * (run + 1)}
        assert deaths.deaths == 0
        deaths.close()
        await log.close()
    assert numbers == [(0, 0), (6, 6), (12, 6)], "the third start begins at the snapshot of the second"
    state = state_at(tmp_path)
    assert len(state.jobs) == 15
    assert audit(tmp_path).difference is None
