"""The log on one machine: one SQLite file a cell, `FOLDER/CELL.sqlite`, one writer, any number of readers.

The writer holds an exclusive `flock` on the folder for its life; the kernel lets go of it when the process ends, however
it ends. Readers take no lock and see a record as soon as its append has returned. A record is one row and one transaction,
in WAL mode with `synchronous=FULL`: it is on the disk when the append returns.

`SqliteFile` is synchronous, for tools and for writers in virtual time. `SqliteLog` is the same as a `muster.log.port.Log`:
its SQLite calls run in one thread of its own, so that no fsync stops the loop.
"""

import asyncio
import fcntl
import os
import re
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from muster.events.base import NAME_PATTERN
from muster.log.errors import AppendDoubt, LogClosed, LogDamaged, LogFull, LogLocked, LogMissing, RecordTooLarge
from muster.log.port import READ_MAX_BYTES, RECORD_MAX_BYTES, Record

APPLICATION_ID = 0x4D535452
"""`MSTR`: in the file's header, where `file` and SQLite look for it."""
FORMAT = 1
"""The version of the table, as SQLite's `user_version`."""

SUFFIX = ".sqlite"
_INSERT = "INSERT INTO log (data) VALUES (?)"
_SELECT = "SELECT position, data FROM log WHERE position > ? ORDER BY position LIMIT ?"

POLL_S = (0.001, 0.02)
"""A waiting reader looks again after the first, then after twice as long each time, up to the second."""


def log_path(place: str | Path, cell: str | None = None) -> Path:
    """The log file that `place` names: the file itself, or the one of this cell in a folder; without a cell, the only one.

    Raises:
        LogMissing: there is none, or there are several and no cell was named.
    """
    place = Path(place)
    if place.is_file():
        return place
    if cell is not None:
        path = place / f"{cell}{SUFFIX}"
        if not path.is_file():
            raise LogMissing(f"there is no log of the cell {cell!r} in {place}")
        return path
    paths = sorted(place.glob(f"*{SUFFIX}"))
    if not paths:
        raise LogMissing(f"there is no log in {place}: a log is a file CELL{SUFFIX}")
    if len(paths) > 1:
        raise LogMissing(f"{place} holds the logs of several cells; name one of {', '.join(path.stem for path in paths)}")
    return paths[0]


class SqliteFile:
    """A log file, synchronously. Made by `open` (a folder and a cell) or `reader` (whatever a person named)."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int | None) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        self._closed = False

    @classmethod
    def open(cls, folder: str | Path, cell: str = "main", *, writer: bool) -> Self:
        """Open the cell's log in `folder`. A writer makes both where they are missing.

        Raises:
            LogLocked: another writer holds the folder.
            LogMissing: a reader finds no log.
            LogDamaged: the file is no log, or its format is not this build's.
        """
        if not re.fullmatch(NAME_PATTERN, cell):
            raise LogMissing(f"{cell[:64]!r} is no name of a cell")
        folder = Path(folder)
        if not writer:
            return cls.reader(folder, cell)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{cell}{SUFFIX}"
        lock = _lock_folder(folder)
        try:
            connection = _connect(path, "rwc")
            try:
                _prepare(connection, path)
                os.fsync(lock)  # the file's name is durable too
            except BaseException:
                connection.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        return cls(path, connection, lock)

    @classmethod
    def reader(cls, place: str | Path, cell: str | None = None) -> Self:
        """Open the log that `place` names (see `log_path`) for reading; takes no lock.

        Raises:
            LogMissing: there is none.
            LogDamaged: the file is no log, or its format is not this build's.
        """
        path = log_path(place, cell)
        return cls(path, _connect_reader(path), None)

    @property
    def cell(self) -> str:
        """Whose log it is."""
        return self.path.stem

    def append(self, data: bytes) -> int:
        """Add a record, durable when this returns; its position.

        Raises:
            See `muster.log.port.Log.append`.
        """
        self._check_writer(data)
        try:
            return self._connection.execute(_INSERT, (data,)).lastrowid or 0
        except sqlite3.Error as error:
            self._failed(error)

    def append_many(self, records: Sequence[bytes]) -> None:
        """Add these records in one transaction: all are durable when this returns, or none is in the log.

        Raises:
            See `muster.log.port.Log.append`.
        """
        for data in records:
            self._check_writer(data)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(_INSERT, ((data,) for data in records))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._failed(error)

    def read(self, after: int, limit: int = 1000) -> list[Record]:
        """See `muster.log.port.Log.read`."""
        self._check()
        found: list[Record] = []
        size = 0
        rows = self._connection.execute(
            "SELECT position, data FROM log WHERE position > ? ORDER BY position LIMIT ?", (after, limit)
        )
        try:
            for position, data in rows:
                found.append(Record(position, data))
                size += len(data)
                if size >= READ_MAX_BYTES:
                    break
        except sqlite3.DatabaseError as error:
            raise LogDamaged(
                f"{self.path} cannot be read after position {found[-1].position if found else after}: {error}"
            ) from error
        finally:
            rows.close()
        return found

    def end(self) -> int:
        """See `muster.log.port.Log.end`."""
        self._check()
        position: int | None = self._connection.execute("SELECT max(position) FROM log").fetchone()[0]
        return position or 0

    def close(self) -> None:
        """Close the file and let go of the folder. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._connection.close()
        if self._lock is not None:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"{self.path} was closed")

    def _check_writer(self, data: bytes) -> None:
        self._check()
        if self._lock is None:
            raise LogClosed(f"{self.path} was opened for reading only")
        if len(data) > RECORD_MAX_BYTES:
            raise RecordTooLarge(f"the record has {len(data)} bytes; the log takes {RECORD_MAX_BYTES}")

    def _failed(self, error: sqlite3.Error) -> NoReturn:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            raise LogFull(f"there is no room for the record in {self.path}") from error
        raise AppendDoubt(f"the append to {self.path} was not answered: {error}") from error


class SqliteLog:
    """A log file as a `muster.log.port.Log`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="muster-log")
        self._closed = False
        self._ahead: list[Record] = []
        """What was appended last, as the file gave it back: whoever appends reads it next."""

    @classmethod
    def open(cls, folder: str | Path, cell: str = "main", *, writer: bool) -> Self:
        """See `SqliteFile.open`."""
        return cls(SqliteFile.open(folder, cell, writer=writer))

    @property
    def path(self) -> Path:
        """The log file."""
        return self._file.path

    async def append(self, data: bytes) -> None:
        """See `muster.log.port.Log`."""
        self._check()
        self._ahead = await asyncio.get_running_loop().run_in_executor(self._thread, self._append, data)

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        """See `muster.log.port.Log`."""
        self._check()
        ahead, self._ahead = self._ahead, []
        if ahead and ahead[0].position == after + 1:
            return ahead
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._file.read, after, limit)

    async def end(self) -> int:
        """See `muster.log.port.Log`."""
        self._check()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._file.end)

    async def wait(self, after: int, timeout_s: float) -> None:
        """See `muster.log.port.Log`. SQLite tells nobody that a row came: this looks again and again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        pause, longest = POLL_S
        while await self.end() <= after:
            left = deadline - loop.time()
            if left <= 0:
                return
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, longest)

    async def close(self) -> None:
        """See `muster.log.port.Log`. Waits for an append in flight."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._file.close)
        self._thread.shutdown()

    def _append(self, data: bytes) -> list[Record]:
        """Append a record and read it again, in one turn of the thread."""
        position = self._file.append(data)
        try:
            return self._file.read(position - 1, 1)
        except LogDamaged:
            return []  # it is appended; who reads it is told

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"{self._file.path} was closed")


def _lock_folder(folder: Path) -> int:
    """A descriptor of the folder that holds its exclusive lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LogLocked(f"another scheduler holds the folder {folder}; stop it first, or use another folder") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection in autocommit; any one thread at a time may use it."""
    try:
        return sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=10
        )
    except sqlite3.Error as error:
        raise LogDamaged(f"{path} cannot be opened: {error}") from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the table in a new file; set what the writer needs."""
    try:
        if connection.execute("PRAGMA schema_version").fetchone()[0] == 0:
            connection.execute("PRAGMA page_size=8192")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT")
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.execute("COMMIT")
        _check_format(connection, path)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error as error:
        raise LogDamaged(f"{path} cannot be opened as a log: {error}") from error


def _connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that never writes a record.

    A reader of a WAL needs the shared-memory file beside it, so it opens the file as a writer would where it may. In a
    folder that it may not write to, it reads as SQLite can; and a file without a WAL, which nobody writes, as it stands.
    """
    modes = ["rw", "ro"]
    wal = path.with_name(path.name + "-wal")
    if not wal.exists() or wal.stat().st_size == 0:
        modes.append("ro&immutable=1")
    trouble: sqlite3.Error | None = None
    for mode in modes:
        connection = _connect(path, mode)
        try:
            connection.execute("PRAGMA query_only=1")
            _check_format(connection, path)
            connection.execute("SELECT max(position) FROM log").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            trouble = error
        except sqlite3.DatabaseError as error:
            connection.close()
            raise LogDamaged(f"{path} cannot be read as a log: {error}") from error
        except LogDamaged:
            connection.close()
            raise
    raise LogDamaged(f"{path} cannot be read as a log: {trouble}") from trouble


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise LogDamaged(f"{path} is an SQLite file, but no log")
    if version != FORMAT:
        raise LogDamaged(f"{path} has format {version}; this build reads format {FORMAT}: upgrade this reader")
