"""A snapshot is believed only where it agrees with itself and with the log."""

import gc
import resource
from pathlib import Path

import pytest

from muster.cluster import snapshot
from muster.cluster.check import BrokenInvariant
from muster.cluster.state import State
from muster.events.codec import digest
from muster.log.errors import LogUnreachable
from muster.log.memory import MemoryBroker, MemoryLog
from muster.log.port import Record
from muster.scheduler.core import Core
from muster.scheduler.recovery import recover, recover_whole
from muster.scheduler.snapshots import Snapshots
from tests.simulation.small_world import CELL, job_id, report, spec, submission
from tests.unit.scheduler.driving import JOBS, NODES, Driver


def history(tmp_path: Path) -> tuple[Driver, MemoryLog, Path]:
    """A log of some cycles, and a snapshot in the middle of it."""
    driver = Driver()
    driver.put(NODES, report("n1", spec=spec("n1")))
    driver.turn()
    for number in range(3):
        driver.put(JOBS, submission(job_id(number)))
        driver.turn(after_s=1)
    core = driver.core
    path = Snapshots(tmp_path, CELL).write(core.state, core.head, len(driver.records))
    for number in range(3, 6):
        driver.put(JOBS, submission(job_id(number)))
        driver.turn(after_s=1)
    broker = MemoryBroker()
    broker.records = driver.records
    return driver, MemoryLog(broker), path


async def folded(log: MemoryLog, tmp_path: Path, driver: Driver) -> int:
    """How many cycles recovery folds; the state must be that of the log."""
    recovered = await recover(log, CELL, Snapshots(tmp_path, CELL))
    assert snapshot.digest(recovered.core.state) == snapshot.digest(driver.core.state)
    assert recovered.core.head == driver.core.head
    assert recovered.position == len(driver.records)
    return recovered.folded


async def test_recovery_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    driver, log, _ = history(tmp_path)
    assert await folded(log, tmp_path, driver) == 3


async def test_nothing_is_collected_while_a_snapshot_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, log, _ = history(tmp_path)
    collecting: list[bool] = []
    decode = snapshot.decode

    def watched(data: bytes) -> State:
        collecting.append(gc.isenabled())
        return decode(data)

    monkeypatch.setattr(snapshot, "decode", watched)
    assert await folded(log, tmp_path, driver) == 3
    assert collecting == [False]
    assert gc.isenabled()


async def test_without_a_snapshot_the_whole_log_is_folded(tmp_path: Path) -> None:
    driver, log, path = history(tmp_path)
    path.unlink()
    assert await folded(log, tmp_path, driver) == len(driver.records)


@pytest.mark.parametrize("cut", [0, 1, 64, 65, 200, -1])
async def test_a_torn_snapshot_is_dropped(tmp_path: Path, cut: int) -> None:
    driver, log, path = history(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    assert await folded(log, tmp_path, driver) == len(driver.records)
    assert not path.exists()


async def test_a_snapshot_with_any_bit_altered_is_dropped(tmp_path: Path) -> None:
    driver, log, path = history(tmp_path)
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        altered = bytearray(whole)
        altered[at] ^= 1
        path.write_bytes(bytes(altered))
        assert await folded(log, tmp_path, driver) == len(driver.records), at
        assert not path.exists()


async def test_a_snapshot_ahead_of_the_log_is_dropped(tmp_path: Path) -> None:
    driver, log, path = history(tmp_path)
    later = Driver(driver.core)
    later.put(JOBS, submission(job_id(9)))
    later.turn()
    records = driver.records[:]
    ahead = Snapshots(tmp_path, CELL).write(later.core.state, later.core.head, len(records) + len(later.records))
    core = Core(CELL)
    for data in records:
        core.follow(data)
    recovered = await recover(log, CELL, Snapshots(tmp_path, CELL))
    assert snapshot.digest(recovered.core.state) == snapshot.digest(core.state)
    assert recovered.folded == 3, "the older one is used"
    assert not ahead.exists()
    assert path.exists()


async def test_a_snapshot_of_another_log_is_dropped(tmp_path: Path) -> None:
    driver, _, path = history(tmp_path)
    other = Driver()
    for _ in range(8):
        other.put(JOBS, b"malformed")
        other.turn()
    broker = MemoryBroker()
    broker.records = other.records
    assert await folded(MemoryLog(broker), tmp_path, other) == len(other.records)
    assert not path.exists()
    assert driver.core.head != other.core.head


async def test_a_snapshot_of_another_schema_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, log, path = history(tmp_path)
    monkeypatch.setattr(snapshot, "SCHEMA", snapshot.SCHEMA + 1)
    recovered = await recover(log, CELL, Snapshots(tmp_path, CELL))
    assert recovered.folded == len(driver.records)
    assert not path.exists()


async def test_a_state_that_does_not_have_its_digest_is_dropped(tmp_path: Path) -> None:
    """All digests of the file are right, and yet the state is another than the header says."""
    driver, log, path = history(tmp_path)
    state = driver.core.state
    core = Core(CELL)
    for data in driver.records[:-3]:
        core.follow(data)
    state.number = core.head.number
    assert Snapshots(tmp_path, CELL).write(state, core.head, len(driver.records) - 3) == path
    content = path.read_bytes().partition(b"\n")[2]
    header = content.partition(b"\n")[0]
    honest = snapshot.digest(core.state).encode()
    assert honest not in header
    state.number = driver.core.head.number
    forged = content.replace(snapshot.digest(state).encode(), honest).replace(header[-66:-2], honest)
    path.write_bytes(digest(forged.partition(b"\n")[0]).encode() + b"\n" + forged)
    assert await folded(log, tmp_path, driver) == len(driver.records)


def _forgetful(data: bytes) -> State:
    """Reads a state and loses the last job of it."""
    state = DECODE(data)
    state.jobs.popitem()
    return state


DECODE = snapshot.decode


@pytest.mark.parametrize("prove", [False, True])
async def test_code_that_reads_another_state_drops_the_snapshot_of_code_that_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prove: bool
) -> None:
    driver, log, _ = history(tmp_path)
    path = Snapshots(tmp_path, CELL).write(driver.core.state, driver.core.head, len(driver.records), prove=prove)
    assert await folded(log, tmp_path, driver) == 0
    monkeypatch.setattr(snapshot, "decode", _forgetful)
    monkeypatch.setattr("muster.scheduler.snapshots._code", lambda: "other code")
    assert await folded(log, tmp_path, driver) == len(driver.records)
    assert not path.exists()


def test_code_that_reads_another_state_than_it_wrote_proves_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _, path = history(tmp_path)
    monkeypatch.setattr(snapshot, "decode", _forgetful)
    with pytest.raises(BrokenInvariant, match="has the same snapshot"):
        Snapshots(tmp_path, CELL).write(driver.core.state, driver.core.head, len(driver.records), prove=True)
    assert list(tmp_path.iterdir()) == [path]


async def test_a_state_that_was_proved_is_not_written_again_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, log, _ = history(tmp_path)
    encode, encoded = snapshot.encode, []

    def watched(state: State) -> bytes:
        encoded.append(state)
        return encode(state)

    monkeypatch.setattr(snapshot, "encode", watched)
    for prove, times in ((False, 1), (True, 0)):
        Snapshots(tmp_path, CELL).write(driver.core.state, driver.core.head, len(driver.records), prove=prove)
        encoded.clear()
        assert (await recover(log, CELL, Snapshots(tmp_path, CELL))).folded == 0
        assert len(encoded) == times


def test_only_the_newest_snapshots_are_kept(tmp_path: Path) -> None:
    driver = Driver()
    snapshots = Snapshots(tmp_path, CELL, every=2)
    written = []
    for number in range(5):
        driver.put(JOBS, submission(job_id(number)))
        driver.turn()
        if snapshots.due(driver.core.head.number):
            written.append(snapshots.write(driver.core.state, driver.core.head, len(driver.records)))
    (tmp_path / "main-2-0000000000000009-0123456789abcdef.snapshot").write_bytes(b"of another cell")
    assert len(written) == 3
    left = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("main-2"))
    assert left == sorted(path.name for path in written[1:])
    assert str(driver.core.head.number).zfill(16) in left[1]
    assert driver.core.head.digest[:16] in left[1]


def test_where_there_is_no_room_for_a_snapshot_nothing_is_left_of_it_and_the_older_one_stays(tmp_path: Path) -> None:
    driver, _, path = history(tmp_path)
    core = driver.core
    snapshots = Snapshots(tmp_path, CELL)
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            snapshots.write(core.state, core.head, len(driver.records))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert list(tmp_path.iterdir()) == [path]
    assert snapshots.latest() == core.head.number - 3
    snapshots.write(core.state, core.head, len(driver.records))
    assert snapshots.latest() == core.head.number


def test_what_a_writer_that_was_killed_left_goes_with_the_next_snapshot(tmp_path: Path) -> None:
    driver, _, path = history(tmp_path)
    torn = tmp_path / "main-0000000000000099-0123456789abcdef.partial"
    others = tmp_path / "main-2-0000000000000099-0123456789abcdef.partial"
    for each in (torn, others):
        each.write_bytes(path.read_bytes()[:100])
    newer = Snapshots(tmp_path, CELL).write(driver.core.state, driver.core.head, len(driver.records))
    assert sorted(tmp_path.iterdir()) == sorted([path, newer, others])


async def test_a_log_that_says_nothing_after_a_record_is_not_taken_for_whole(tmp_path: Path) -> None:
    driver, log, _ = history(tmp_path)
    read = log.read

    async def silent(after: int, limit: int = 1000) -> list[Record]:
        return [record for record in await read(after, limit) if record.position < 4]

    assert (await recover_whole(log, CELL)).core.head == driver.core.head
    log.read = silent  # type: ignore[method-assign]
    with pytest.raises(LogUnreachable, match=f"the log has {len(driver.records)} records, and those after the position 3"):
        await recover_whole(log, CELL)
