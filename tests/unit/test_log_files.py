"""SQLite log files: who may write, who may read, what fsck and the tools' reader find."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.events.codec import encode_cycle
from muster.events.record import GENESIS, Cycle, TermStarted
from muster.log.admit import LATE_START, NO_RECORD, REPLACED, TWICE, Admitted, Head, admit, genesis
from muster.log.errors import AppendDoubt, LogClosed, LogDamaged, LogFull, LogHalted, LogLocked, LogMissing
from muster.log.fsck import fsck
from muster.log.memory import Faults, MemoryBroker, MemoryLog
from muster.log.reader import read_admitted, read_records
from muster.log.sqlite import SqliteFile, SqliteLog

HOLDER = """
import sys, time
from muster.log.sqlite import SqliteFile
file = SqliteFile.open(sys.argv[1], writer=True)
file.append(b"held")
print("held", flush=True)
time.sleep(60)
"""


class Chain:
    """Makes records that follow each other."""

    def __init__(self) -> None:
        self.head: Head = genesis("main")
        self.records: list[bytes] = []

    def make(self, *, started: bool = False, term: int | None = None, **alter: int | str) -> bytes:
        term = term if term is not None else self.head.term + 1 if started else self.head.term
        fields: dict[str, object] = {
            "cell": "main",
            "number": self.head.number + 1,
            "term": term,
            "at_us": self.head.number * 10,
            "started": TermStarted(nonce="0" * 32, host=f"host-{term}", build="test", state=GENESIS) if started else None,
            "inputs": (),
            "decisions": (),
            "positions": {},
            "policy": "default/1",
            "previous": self.head.digest,
            **alter,
        }
        return encode_cycle(Cycle(**fields))  # type: ignore[arg-type]

    def add(self, *, started: bool = False) -> bytes:
        data = self.make(started=started)
        verdict = admit(self.head, data)
        assert isinstance(verdict, Admitted)
        self.head = verdict.head
        self.records.append(data)
        return data


@pytest.fixture
def chain() -> Chain:
    """Two terms, six records."""
    chain = Chain()
    for started in (True, False, False, True, False, False):
        chain.add(started=started)
    return chain


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteFile]:
    with SqliteFile.open(tmp_path, writer=True) as file:
        yield file


def test_a_second_writer_is_refused_by_name_and_may_write_when_the_first_is_gone(tmp_path: Path) -> None:
    first = SqliteFile.open(tmp_path, writer=True)
    with pytest.raises(LogLocked, match=str(tmp_path)):
        SqliteFile.open(tmp_path, writer=True)
    with pytest.raises(LogLocked):
        SqliteFile.open(tmp_path, "other", writer=True)
    first.close()
    with SqliteFile.open(tmp_path, writer=True) as second:
        assert second.append(b"mine") == 1


def test_a_writer_that_is_killed_leaves_its_records_and_lets_go_of_the_folder(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LogLocked):
            SqliteFile.open(tmp_path, writer=True)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with SqliteFile.open(tmp_path, writer=True) as file:
        assert [record.data for record in file.read(0)] == [b"held"]
        assert file.append(b"next") == 2


def test_a_reader_sees_new_records_needs_no_lock_and_cannot_write(tmp_path: Path, file: SqliteFile) -> None:
    with SqliteFile.reader(tmp_path) as reader:
        assert reader.end() == 0
        file.append(b"one")
        assert [record.data for record in reader.read(0)] == [b"one"]
        file.append_many([b"two", b"three"])
        assert reader.end() == 3
        with pytest.raises(LogClosed, match="reading only"):
            reader.append(b"no")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._connection.execute("DELETE FROM log")


def test_a_log_in_a_folder_that_may_not_be_written_can_be_read(chain: Chain) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with SqliteFile.open(folder, writer=True) as file:
            file.append_many(chain.records)
        (folder / "main.sqlite").chmod(0o444)
        folder.chmod(0o555)
        if os.getuid() == 0:
            os.seteuid(65534)
        try:
            assert not os.access(folder, os.W_OK, effective_ids=True)
            assert fsck(folder).admitted == 6
        finally:
            os.seteuid(os.getuid())
            folder.chmod(0o755)


def test_a_file_is_a_wal_that_is_synced_at_each_commit(file: SqliteFile) -> None:
    assert file._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert file._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    with pytest.raises(sqlite3.IntegrityError):
        file._connection.execute("INSERT INTO log (data) VALUES ('text')")


def test_many_appends_are_all_in_the_log_or_none(file: SqliteFile) -> None:
    file._connection.execute("PRAGMA max_page_count=20")
    with pytest.raises(LogFull, match=r"main\.sqlite"):
        file.append_many([b"small", b"x" * 1_000_000])
    assert file.read(0) == []
    assert file.append(b"still") == 1


def test_an_append_that_fails_for_another_reason_is_in_doubt(file: SqliteFile) -> None:
    file._connection.execute("DROP TABLE log")
    with pytest.raises(AppendDoubt):
        file.append(b"where to")


def test_what_is_no_log_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LogMissing):
        SqliteFile.reader(tmp_path)
    (tmp_path / "main.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(LogDamaged, match=r"main\.sqlite"):
        SqliteFile.reader(tmp_path)
    with pytest.raises(LogDamaged, match=r"main\.sqlite"):
        SqliteFile.open(tmp_path, writer=True)
    other = tmp_path / "other"
    other.mkdir()
    connection = sqlite3.connect(other / "main.sqlite")
    connection.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, data BLOB)")
    connection.close()
    with pytest.raises(LogDamaged, match="no log"):
        SqliteFile.reader(other)
    with pytest.raises(LogDamaged, match="no log"):
        SqliteFile.open(other, writer=True)
    with pytest.raises(LogMissing, match="name"):
        SqliteFile.open(other, "../elsewhere", writer=True)


def test_a_log_of_a_later_format_asks_to_be_upgraded(tmp_path: Path) -> None:
    with SqliteFile.open(tmp_path, writer=True) as file:
        file._connection.execute("PRAGMA user_version=2")
    with pytest.raises(LogDamaged, match="upgrade"):
        SqliteFile.reader(tmp_path)


def test_a_folder_of_several_cells_wants_one_named(tmp_path: Path) -> None:
    for cell in ("a", "b"):
        with SqliteFile.open(tmp_path, cell, writer=True) as file:
            file.append(cell.encode())
    with pytest.raises(LogMissing, match="a, b"):
        SqliteFile.reader(tmp_path)
    assert [record.data for record in read_records(tmp_path, "b")] == [b"b"]
    assert [record.data for record in read_records(tmp_path / "a.sqlite")] == [b"a"]


def test_tools_read_the_admitted_records_and_stop_at_a_halt(tmp_path: Path, file: SqliteFile, chain: Chain) -> None:
    copy, late = chain.records[-1], chain.records[2]
    file.append_many([b"noise", *chain.records, copy, late])
    assert [data for _, data in read_admitted(tmp_path)] == chain.records
    assert [envelope.number for envelope, _ in read_admitted(tmp_path)] == [1, 2, 3, 4, 5, 6]
    file.append(chain.make(number=9))
    file.append(chain.make())
    reading = read_admitted(tmp_path)
    assert [next(reading)[1] for _ in chain.records] == chain.records
    with pytest.raises(LogHalted, match=r"position 10, after cycle 6: .*7 would be right") as halted:
        next(reading)
    assert halted.value.position == 10


def test_fsck_counts_terms_and_voids_and_locates_a_halt(tmp_path: Path, file: SqliteFile, chain: Chain) -> None:
    file.append_many([b"noise", *chain.records[:4], chain.records[0], chain.records[2], *chain.records[4:], chain.records[-1]])
    found = fsck(tmp_path)
    assert (found.records, found.admitted, found.halt, found.unread) == (10, 6, None, 0)
    assert found.voids == {NO_RECORD: 1, LATE_START: 1, REPLACED: 1, TWICE: 1}
    assert found.void_positions == ((1, NO_RECORD), (6, LATE_START), (7, REPLACED), (10, TWICE))
    assert [(term.term, term.host, term.first, term.last) for term in found.terms] == [(1, "host-1", 1, 3), (2, "host-2", 4, 6)]
    assert found.head == chain.head

    file.append_many([chain.make(previous=GENESIS), chain.make(), b""])
    found = fsck(tmp_path)
    assert found.halt is not None
    assert (found.halt.position, found.halt.number, found.unread, found.admitted) == (11, 6, 3, 6)


def test_an_altered_cut_or_exchanged_record_is_found(tmp_path: Path, chain: Chain) -> None:
    while chain.head.number < 12:
        chain.add()
    for number, plant in enumerate(
        (
            [*chain.records[:7], chain.records[7].replace(b'"at_us":', b'"at_us":9'), *chain.records[8:]],
            [*chain.records[:7], *chain.records[8:]],
            [*chain.records[:7], chain.records[8], chain.records[7], *chain.records[9:]],
        )
    ):
        folder = tmp_path / str(number)
        with SqliteFile.open(folder, writer=True) as file:
            file.append_many(plant)
        halt = fsck(folder).halt
        assert halt is not None
        assert halt.position == (9 if number == 0 else 8)


async def test_the_loop_goes_on_while_an_append_is_being_written(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, writer=True)
    turns = 0
    task = asyncio.create_task(log.append(b"x" * 8_000_000))
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    await task
    await log.close()
    assert turns > 3


async def test_one_seed_gives_one_history_and_every_fault_happens() -> None:
    histories = []
    for _ in range(2):
        broker = MemoryBroker(seed=3, faults=Faults(lost=50, late=100, unanswered=100, doubled=100, overtaken=100, lag_max=2))
        logs = [MemoryLog(broker), MemoryLog(broker)]
        answers: list[object] = []
        for number in range(200):
            answers += await asyncio.gather(
                *(log.append(b"%d.%d" % (number, which)) for which, log in enumerate(logs)), return_exceptions=True
            )
            await logs[0].read(0)
        assert all(broker.counts.values()), broker.counts
        histories.append((broker.records, [str(answer) for answer in answers]))
        order = [tuple(map(int, data.split(b"."))) for data in broker.records]
        assert order != sorted(order)
        broker.settle()
        before = len(broker.records)
        assert await logs[0].end() == before
    assert histories[0] == histories[1]


async def test_a_full_memory_log_says_so() -> None:
    log = MemoryLog(MemoryBroker(capacity=1))
    await log.append(b"one")
    with pytest.raises(LogFull):
        await log.append(b"two")
