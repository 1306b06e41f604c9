"""Rows into PostgreSQL, and the position with them, in one transaction: both or neither.

The position is moved by comparing: `update … where number = OLD and digest = OLD`. It is the first statement, so that of two who
write at once the second waits for the first, finds the position elsewhere, and changes no row. What a commit that was not
answered came to is found out by reading the position again, in another process: see `muster.history.writer`.

A table's rows go in one statement, a column an array.
"""

from typing import Any, Final

import asyncpg
import msgspec

from muster.events.record import GENESIS
from muster.history.fold import Changes
from muster.history.rows import TABLES, Table
from muster.history.schema import HistoryError, checked, said
from muster.log.admit import Head

ROWS_A_STATEMENT: Final = 10_000
COMMAND_S: Final = 300.0
"""So long one statement may take."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The last record whose rows are there."""

    cell: str
    number: int = 0
    digest: str = GENESIS
    term: int = 0
    position: int = 0

    @classmethod
    def of(cls, head: Head, position: int) -> "Position":
        """The position of a head whose record stands there."""
        return cls(cell=head.cell, number=head.number, digest=head.digest, term=head.term, position=position)


class Outrun(HistoryError):
    """Another worker has moved the position: it writes the history, and nothing was written here."""


class Switched(HistoryError):
    """The build that is written here is not the current one any more."""


class Sink:
    """One build, for one cell."""

    def __init__(self, pool: Any, schema: str, cell: str, *, current: bool = True) -> None:
        """`pool` is one of asyncpg's, made in the loop that uses it. `current`: the build must be the one that views show."""
        self._pool = pool
        self._schema = checked(schema)
        self._cell = cell
        self._current = current
        self._statements = {table.name: statement(schema, table) for table in TABLES}

    async def position(self) -> Position:
        """How far the rows go."""
        row = await self._pool.fetchrow(
            f"select number, digest, term, position from {self._schema}.positions where cell = $1", self._cell
        )
        return Position(cell=self._cell, **row) if row is not None else Position(cell=self._cell)

    async def checkpoint(self) -> bytes | None:
        """The fold that was written down last."""
        data: bytes | None = await self._pool.fetchval(f"select data from {self._schema}.checkpoints where cell = $1", self._cell)
        return data

    async def write(self, old: Position, new: Position, changes: Changes, checkpoint: bytes | None = None) -> None:
        """Write these rows and move the position from `old` to `new`; durable when this returns.

        Raises:
            Outrun: the position is not `old`. Nothing was written.
            Switched: another build is current. Nothing was written.
            HistoryError: PostgreSQL did not do it, or did not answer: whether it has is not known.
        """
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                await self._write(connection, old, new, changes, checkpoint)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise HistoryError(f"the history could not be written after cycle {old.number}: {said(error)}") from error

    async def _write(self, connection: Any, old: Position, new: Position, changes: Changes, checkpoint: bytes | None) -> None:
        if self._current:
            shown = "select current from history.builds where schema = $1 for share"
            if not await connection.fetchval(shown, self._schema):
                raise Switched(f"{self._schema} is not the current build of the history any more: start again")
        await self._move(connection, old, new)
        for table in TABLES:
            rows = changes.rows(table.name)
            for first in range(0, len(rows), ROWS_A_STATEMENT):
                columns = zip(*rows[first : first + ROWS_A_STATEMENT], strict=True)
                await connection.execute(self._statements[table.name], *map(list, columns))
        if checkpoint is not None:
            await connection.execute(
                f"insert into {self._schema}.checkpoints (cell, number, data) values ($1, $2, $3) "
                "on conflict (cell) do update set number = excluded.number, data = excluded.data",
                self._cell,
                new.number,
                checkpoint,
            )

    async def _move(self, connection: Any, old: Position, new: Position) -> None:
        if not old.number:
            await connection.execute(
                f"insert into {self._schema}.positions (cell, number, digest, term, position) values ($1, 0, $2, 0, 0) "
                "on conflict (cell) do nothing",
                self._cell,
                GENESIS,
            )
        moved = await connection.fetchval(
            f"update {self._schema}.positions set number = $4, digest = $5, term = $6, position = $7 "
            "where cell = $1 and number = $2 and digest = $3 returning true",
            self._cell,
            old.number,
            old.digest,
            new.number,
            new.digest,
            new.term,
            new.position,
        )
        if not moved:
            raise Outrun(f"another worker has written the history of {self._cell} on from cycle {old.number}")


def statement(schema: str, table: Table) -> str:
    """The statement that writes rows of a table, given as arrays, a column each. A row of a table that grows must be new."""
    columns = ", ".join(table.columns)
    arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(table.types, 1))
    text = f"insert into {schema}.{table.name} ({columns}) select * from unnest({arrays})"
    if table.grows:
        return text
    changed = ", ".join(f"{column} = excluded.{column}" for column in table.columns[table.keys :])
    return f"{text} on conflict ({', '.join(table.key)}) do update set {changed}"
