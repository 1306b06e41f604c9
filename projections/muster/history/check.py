"""Whether the rows in PostgreSQL are those that the log says, row by row.

Both sides are read in the order of their keys, each row is encoded in the one canonical way, and the digest of a table is that of
its rows one after the other: two digests are equal where every row is. Where a row differs, both sides of it are named.

PostgreSQL is read in one transaction, at one moment: the position in it says up to which cycle the log is folded. Whoever writes
goes on meanwhile. Tables that only grow are compared while the log is folded; the rows of the others are kept in memory here.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import asyncpg
import msgspec

from muster.events.codec import encode
from muster.history.fold import Changes, Store
from muster.history.rebuild import LogSource, Progress, Tell
from muster.history.rows import TABLES, Table
from muster.history.schema import HistoryError, connect, current, hang_up, said, there
from muster.history.writer import READ_AT_ONCE, Follower

NAMED: Final = 5
"""So many differences of a table are named."""
FETCH: Final = 1000

Row = tuple[Any, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One row that is not as the log says."""

    key: dict[str, Any]
    right: dict[str, Any] | None
    """As the log says, the columns that differ alone; None: the log knows no such row."""
    found: dict[str, Any] | None
    """As it stands in PostgreSQL; None: it is missing."""

    def __str__(self) -> str:
        """In one line."""
        key = ", ".join(f"{name} {value}" for name, value in self.key.items())
        if self.right is None:
            return f"{key}: the log has no such row"
        if self.found is None:
            return f"{key}: the row is missing"
        said = "; ".join(f"{name} is {self.found[name]!r}, {value!r} would be right" for name, value in self.right.items())
        return f"{key}: {said}"


class Compared(msgspec.Struct, kw_only=True):
    """One table, on both sides."""

    table: str
    right_rows: int = 0
    """As the log says."""
    found_rows: int = 0
    """In PostgreSQL."""
    right_digest: str = ""
    found_digest: str = ""
    differing: int = 0
    """How many rows differ, are missing, or should not be there."""
    differences: list[Difference] = []
    """The first of these."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a check came to."""

    cell: str
    schema: str
    number: int
    """Up to which cycle."""
    tables: tuple[Compared, ...]

    @property
    def right(self) -> bool:
        """Whether every row is as the log says."""
        return all(table.right_digest == table.found_digest for table in self.tables)


async def check(source: LogSource, dsn: str, cell: str, *, tell: Tell = lambda progress: None) -> Checked:
    """Compare the rows of the current build with the log.

    Args:
        source: the log of `cell`.
        dsn: of the database; a user who may read is enough.
        cell: whose log it is.
        tell: told now and then how far it is.

    Raises:
        HistoryError: there is no history, it is of another log, or PostgreSQL does not answer.
        LogError: the log cannot be read.
    """
    connection = await connect(dsn, "muster-history-check")
    try:
        if not await there(connection, "builds"):
            raise HistoryError("there is no history in this database: `muster history worker` makes it")
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            schema = await current(connection)
            if schema is None:
                raise HistoryError("there is no history in this database: `muster history worker` makes it")
            return await _compare(source, connection, schema, cell, tell)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise HistoryError(f"the history could not be read: {said(error)}") from error
    finally:
        await hang_up(connection)


class _Side:
    """One side of a table: its digest so far."""

    def __init__(self) -> None:
        self.rows = 0
        self._hash = hashlib.blake2b(digest_size=32)

    def add(self, row: Row) -> None:
        self.rows += 1
        self._hash.update(encode(row))
        self._hash.update(b"\n")

    def digest(self) -> str:
        return self._hash.hexdigest()


class _Comparison:
    """A table whose two sides come row by row, each in the order of its keys."""

    def __init__(self, table: Table, found: AsyncIterator[Row]) -> None:
        self.table = table
        self.compared = Compared(table=table.name, differences=[])
        self._found = found
        self._right, self._left = _Side(), _Side()
        self._next: Row | None = None
        self._ended = False

    async def take(self, right: Row) -> None:
        """The next row as it must be."""
        self._right.add(right)
        key = right[: self.table.keys]
        while (found := await self._peek()) is not None and found[: self.table.keys] < key:
            self._next = None
            self._differ(found[: self.table.keys], None, found)
        if found is None or found[: self.table.keys] != key:
            self._differ(key, right, None)
            return
        self._next = None
        if found != right:
            self._differ(key, right, found)

    async def end(self) -> Compared:
        """There are no more as they must be."""
        while (found := await self._peek()) is not None:
            self._next = None
            self._differ(found[: self.table.keys], None, found)
        compared = self.compared
        compared.right_rows, compared.found_rows = self._right.rows, self._left.rows
        compared.right_digest, compared.found_digest = self._right.digest(), self._left.digest()
        return compared

    async def _peek(self) -> Row | None:
        """The next row that is there."""
        if self._next is None and not self._ended:
            self._next = await anext(self._found, None)
            self._ended = self._next is None
            if self._next is not None:
                self._left.add(self._next)
        return self._next

    def _differ(self, key: Row, right: Row | None, found: Row | None) -> None:
        compared = self.compared
        compared.differing += 1
        if len(compared.differences) >= NAMED:
            return
        names = self.table.columns
        wrong = [
            index
            for index in range(self.table.keys, len(names))
            if right is None or found is None or right[index] != found[index]
        ]
        compared.differences.append(
            Difference(
                key=dict(zip(names, key, strict=False)),
                right=None if right is None else {names[index]: right[index] for index in wrong},
                found=None if found is None else {names[index]: found[index] for index in wrong},
            )
        )


async def _compare(source: LogSource, connection: Any, schema: str, cell: str, tell: Tell) -> Checked:
    at = await connection.fetchrow(f"select number, digest, position from {schema}.positions where cell = $1", cell)
    if at is None:
        raise HistoryError(f"there is no history of the cell {cell!r} in this database")
    number = int(at["number"])
    grows = {table.name: _Comparison(table, _rows(connection, schema, table, cell)) for table in TABLES if table.grows}
    store = Store(table.name for table in TABLES if not table.grows)
    follower = Follower(cell)
    entries = rows = 0
    while follower.head.number < number:
        records = await source.read(follower.seen, READ_AT_ONCE)
        if not records:
            raise HistoryError(f"the history goes to cycle {number}, and the log ends after cycle {follower.head.number}")
        for record in records:
            taken = follower.take(record)
            if taken is None:
                continue
            entries += len(taken[0].inputs) + len(taken[0].decisions)
            rows += await _take(grows, store, taken[1])
            if follower.head.number == number:
                break
        end = int(at["position"])
        tell(Progress(position=follower.position, end=end, number=follower.head.number, entries=entries, rows=rows))
    if follower.head.digest != at["digest"]:
        raise HistoryError(f"the history goes to cycle {number} of another log: its digest there is {at['digest'][:16]}…")
    tables = []
    for table in TABLES:
        comparison = grows.get(table.name) or _Comparison(table, _rows(connection, schema, table, cell))
        if not table.grows:
            for row in store.in_order(table.name):
                await comparison.take(row)
        tables.append(await comparison.end())
    return Checked(cell=cell, schema=schema, number=number, tables=tuple(tables))


async def _take(grows: dict[str, _Comparison], store: Store, changes: Changes) -> int:
    """What a cycle changed: compared at once where the table only grows, kept else."""
    store.take(changes)
    for name, comparison in grows.items():
        for row in changes.rows(name):
            await comparison.take(row)
    return len(changes)


async def _rows(connection: Any, schema: str, table: Table, cell: str) -> AsyncIterator[Row]:
    """The rows of a table in the order of their keys, as the fold makes them."""
    columns = ", ".join(table.columns)
    text = f"select {columns} from {schema}.{table.name} where cell = $1 order by {', '.join(table.key)}"
    json = [index for index, kind in enumerate(table.types) if kind == "jsonb"]
    async for record in connection.cursor(text, cell, prefetch=FETCH):
        yield _canonical(tuple(record), json) if json else tuple(record)


def _canonical(row: Row, json: list[int]) -> Row:
    """PostgreSQL writes JSON in its own way."""
    values = list(row)
    for index in json:
        values[index] = encode(msgspec.json.decode(values[index])).decode()
    return tuple(values)


def lines(checked: Checked) -> Iterator[str]:
    """What a check came to, for a person."""
    for table in checked.tables:
        if table.right_digest == table.found_digest:
            yield f"{table.table}: {table.found_rows} rows, {table.found_digest[:16]}"
        else:
            yield f"{table.table}: {table.differing} of {table.right_rows} rows differ"
            for difference in table.differences:
                yield f"  {difference}"
