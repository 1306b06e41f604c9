"""The counts of a cell go on over a start from a snapshot, and begin anew, and say so, where they cannot."""

from pathlib import Path
from typing import Any

import pytest

from muster.log.memory import MemoryBroker, MemoryLog
from muster.measures.book import COUNTS, Book
from muster.metrics import Histogram
from muster.scheduler.recovery import recover
from muster.scheduler.snapshots import SUFFIX, Snapshots
from tests.simulation.small_world import CELL, job_id, report, spec, submission
from tests.unit.scheduler.driving import JOBS, NODES, Driver


def those(folder: Path, suffix: str) -> list[Path]:
    """The files of this kind."""
    return sorted(folder.glob(f"*{suffix}"))


def samples(book: Book) -> dict[tuple[str, tuple[str, ...]], Any]:
    """What is counted."""
    return {
        (name, labels): value.buckets() if isinstance(value, Histogram) else value
        for name, labels, value in book.counts.samples()
    }


class Story:
    """A log with jobs in it."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.jobs = 0
        self.driver.put(NODES, report("n1", spec=spec("n1")))
        self.driver.turn()

    def tell(self, count: int) -> None:
        """So many cycles with a job each."""
        for _ in range(count):
            self.driver.put(JOBS, submission(job_id(self.jobs)))
            self.driver.turn(after_s=1)
            self.jobs += 1

    @property
    def log(self) -> MemoryLog:
        """The log as it is now."""
        broker = MemoryBroker()
        broker.records = list(self.driver.records)
        return MemoryLog(broker)

    async def start(self, folder: Path, write: bool = False) -> Book:
        """A program starts, from the newest snapshot of the folder; `write`: and writes one."""
        snapshots = Snapshots(folder, CELL)
        book = Book(folder, CELL)
        snapshots.written = book.written
        recovered = await recover(self.log, CELL, snapshots, counted=book.follow)
        book.settle(recovered.core)
        if write:
            snapshots.write(recovered.core.state, recovered.core.head, recovered.head_position)
        return book

    async def whole(self, tmp_path: Path) -> Book:
        """One that read everything."""
        (tmp_path / "whole").mkdir(exist_ok=True)
        return await self.start(tmp_path / "whole")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "cell"
    found.mkdir()
    return found


async def test_a_start_from_a_snapshot_counts_on_from_what_was_counted_when_it_was_written(folder: Path, tmp_path: Path) -> None:
    story = Story()
    story.tell(4)
    await story.start(folder, write=True)
    assert samples(await story.start(folder)) == samples(await story.whole(tmp_path)), "nothing came after the snapshot"
    story.tell(3)
    again = await story.start(folder)
    assert samples(again) == samples(await story.whole(tmp_path))
    assert again.counts.since == 0
    assert again.counts.placements > 0


async def test_counts_go_over_many_snapshots_and_lie_beside_those_that_are_kept_alone(folder: Path, tmp_path: Path) -> None:
    story = Story()
    for _ in range(4):
        story.tell(2)
        await story.start(folder, write=True)
    assert samples(await story.start(folder)) == samples(await story.whole(tmp_path))
    kept = {path.with_suffix("").name for path in those(folder, SUFFIX)}
    assert {path.with_suffix("").name for path in those(folder, COUNTS)} == kept
    assert len(kept) == 2


@pytest.mark.parametrize("harm", ["gone", "torn", "turned"])
async def test_a_snapshot_without_its_counts_begins_anew_at_its_cycle(folder: Path, tmp_path: Path, harm: str) -> None:
    story = Story()
    story.tell(4)
    await story.start(folder, write=True)
    number = story.driver.core.head.number
    (path,) = those(folder, COUNTS)
    if harm == "gone":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[:-9] if harm == "torn" else content.replace(b'"placements":', b'"placements":1'))
    story.tell(3)
    found = samples(await story.start(folder))
    assert found["muster_measured_from_cycle", ()] == number
    assert found["muster_log_cycles_total", ()] == 3
    whole = samples(await story.whole(tmp_path))
    assert found["muster_placements_total", ()] <= whole["muster_placements_total", ()]


async def test_counts_without_their_snapshot_are_nobodys(folder: Path, tmp_path: Path) -> None:
    story = Story()
    story.tell(2)
    await story.start(folder, write=True)
    (path,) = those(folder, SUFFIX)
    path.unlink()
    assert samples(await story.start(folder)) == samples(await story.whole(tmp_path))
    story.tell(1)
    await story.start(folder, write=True)
    assert len(those(folder, COUNTS)) == 1, "what belongs to no snapshot was left"


async def test_a_disk_that_is_full_costs_the_counts_and_not_the_snapshot(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    story = Story()
    story.tell(2)
    whole = Path.replace

    def full(self: Path, target: Any) -> Path:
        if COUNTS in self.name:
            raise OSError(28, "No space left on device")
        return whole(self, target)

    monkeypatch.setattr(Path, "replace", full)
    await story.start(folder, write=True)
    assert len(those(folder, SUFFIX)) == 1
    assert not [path for path in those(folder, "") if COUNTS in path.name]
    assert "No space left" in caplog.text
