"""A scheduler that was killed after a long life reads little when it starts again: a follower wrote snapshots meanwhile."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx

from muster.cluster import snapshot
from muster.log.sqlite import SqliteFile, SqliteLog
from muster.replay.audit import audit
from muster.scheduler.recovery import recover
from muster.scheduler.snapshots import Snapshots
from muster.up.follower import EXIT_FAILED
from tests.support.gateway import Stack, job, running
from tests.support.up import Up, until, up

EVERY = 40


def cycles(client: httpx.Client, count: int) -> int:
    """Make so many; the number of the last."""
    for _ in range(count):
        assert client.post("/jobs", json=job()).status_code == 202
    return int(client.get("/state").json()["cycle"])


def is_newer(snapshots: Snapshots, cycle: int) -> bool:
    """Whether there is a snapshot after this cycle."""
    return snapshots.latest() > cycle


def is_term(client: httpx.Client, term: int) -> bool:
    """Whether this term has begun."""
    return bool(client.get("/state").json()["term"] == term)


def kill_scheduler(stack: Up) -> None:
    before = stack.schedulers()
    os.kill(before[0].pid, signal.SIGKILL)
    until(lambda: [item for item in stack.schedulers() if item.pid != before[0].pid])


async def test_a_start_after_sigkill_reads_only_what_came_after_the_snapshot(tmp_path: Path) -> None:
    data = tmp_path / "up"
    with up(data, "--no-agent", "--snapshot-every", str(EVERY)) as stack, stack.ready() as client:
        seen = 0
        snapshots = Snapshots(data, "main")
        for life in range(2):
            last = cycles(client, 2 * EVERY)
            until(partial(is_newer, snapshots, seen))
            seen = snapshots.latest()
            assert last - 2 * EVERY < seen <= last
            kill_scheduler(stack)
            until(partial(is_term, client, life + 2))
            found = re.findall(r"read (\d+) cycles; the log stands at cycle (\d+)", stack.said.read_text())
            read, stood = map(int, found[life])
            assert stood >= last
            assert read == stood - seen, "it read more than came after the snapshot"
        assert stack.stop() == 0
    assert audit(data).difference is None
    log = SqliteLog(SqliteFile.reader(data))
    from_log = await recover(log, "main")
    from_snapshot = await recover(log, "main", Snapshots(data, "main"))
    await log.close()
    assert snapshot.digest(from_log.core.state) == snapshot.digest(from_snapshot.core.state)
    assert from_log.core.head == from_snapshot.core.head


def follow(folder: Path, every: int) -> int:
    """A follower as a process; its exit status."""
    command = [sys.executable, "-m", "muster.up.follower", str(folder), str(every)]
    return subprocess.run(command, check=False, timeout=60).returncode


def test_a_follower_beside_a_scheduler_writes_one_when_it_is_due(tmp_path: Path) -> None:
    with running(tmp_path) as stack, stack.client() as client:
        last = cycles(client, 20)
        assert follow(tmp_path, 1) == 0
        assert Snapshots(tmp_path, "main").latest() == last
        cycles(client, 10)
        assert follow(tmp_path, 1000) == 0
        assert Snapshots(tmp_path, "main").latest() == last, "none was due"


def test_snapshots_that_are_torn_or_under_a_wrong_name_are_not_believed_and_another_takes_their_place(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    with stack.client() as client:
        last = cycles(client, 10)
    stack.kill()
    assert follow(tmp_path, 1) == 0
    [whole] = tmp_path.glob("*.snapshot")
    ahead = whole.with_name(f"main-{last + 500:016d}-0123456789abcdef.snapshot")
    ahead.write_bytes(whole.read_bytes())
    whole.write_bytes(whole.read_bytes()[:-100])
    with running(tmp_path) as stack, stack.client() as client:
        assert client.get("/state").json()["term"] == 2
        assert list(tmp_path.glob("*.snapshot")) == []
        assert follow(tmp_path, 1) == 0
        assert len(list(tmp_path.glob("*.snapshot"))) == 1


def test_a_follower_that_cannot_write_leaves_the_scheduler_alone(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert follow(tmp_path / "nothing", 1) == EXIT_FAILED
    with running(tmp_path / "data") as stack, stack.client() as client:
        cycles(client, 5)
        head = client.get("/state").json()
        (tmp_path / "data" / f"main-{head['cycle']:016d}-{head['head'][:16]}.snapshot").mkdir()
        assert follow(tmp_path / "data", 1) == EXIT_FAILED
        cycles(client, 5)
        assert stack.process.poll() is None
