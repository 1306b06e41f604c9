"""Where the rows stand in PostgreSQL: builds of the history, each in a schema of its own, and the views that show one of them.

    history                 what people query: views of the current build, and which builds there are
    history_v1_1, …         a build: its tables, the position up to which it goes, its checkpoint

The tables are made by plain SQL (`sql/`), numbered, each file applied once, in one transaction with the note that it was. A build
is never changed into one of another version of the rows: another is made beside it from the log, and the views are switched in
one transaction (`muster.history.rebuild`). Whoever writes holds the note of the current build while it does, so that nobody
switches in the middle.
"""

import re
from pathlib import Path
from typing import Any, Final

import asyncpg

from muster.log.errors import OperatingError

VERSION: Final = 1
"""Of the rows: goes up when the same log gives other rows, or other tables. A build of another version is rebuilt."""
READER: Final = "muster_history_reader"
"""A role that may read the views and nothing else. It cannot log in: it is granted to those who may."""
CONNECT_S: Final = 30.0
CLOSE_S: Final = 10.0
DROP_S: Final = 5

Connection = Any
"""One of asyncpg's, from a pool or not."""

_SQL: Final = Path(__file__).with_name("sql")
_LOCK: Final = 0x4D75_7374_4D69_6772
"""Who migrates or switches holds it, until its transaction ends."""
_NAME: Final = re.compile(r"history_v[0-9]+_[0-9]+")


class HistoryError(OperatingError):
    """The history in PostgreSQL is not as it must be."""


async def connect(dsn: str, application: str = "muster-history") -> Connection:
    """One connection.

    Raises:
        HistoryError: nobody answers there, or we are not let in.
    """
    try:
        return await asyncpg.connect(dsn, timeout=CONNECT_S, server_settings={"application_name": application})
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise HistoryError(f"PostgreSQL cannot be reached: {said(error)}") from error


async def hang_up(connection: Connection) -> None:
    """Close a connection, or cut it off where the server does not take leave."""
    try:
        await connection.close(timeout=CLOSE_S)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def said(error: BaseException) -> str:
    """What an error of PostgreSQL says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


async def migrate(connection: Connection, reader: str | None = READER) -> str:
    """Make the history's schemas, or bring them to this build's; the name of the current build.

    Where nothing is to be done nothing is changed, and no right to change anything is needed. `reader` is the role that may read:
    it is made if we may make roles; without it the views are readable for whom they are granted to.

    Raises:
        HistoryError: we may not make schemas here, or they are newer than this program.
    """
    try:
        found = await _ready(connection)
        if found is not None:
            return found
        async with connection.transaction(isolation="read_committed"):
            await _lock(connection)
            await _make_catalog(connection)
            found = await current(connection)
            if found is None:
                found = await _make_build(connection)
                await connection.execute("update history.builds set current = true where schema = $1", found)
            await _apply(connection, "tables", found)
            await show(connection, found, reader)
        return found
    except asyncpg.InsufficientPrivilegeError as error:
        raise HistoryError(
            f"the schemas of the history are missing or old, and this user may not make them: {said(error)}; "
            "whoever may create schemas runs `muster history migrate`"
        ) from error
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise HistoryError(f"the schemas of the history could not be made: {said(error)}") from error


async def current(connection: Connection) -> str | None:
    """The build that the views show; None where there is none yet.

    Raises:
        HistoryError: it is of another version than this program writes.
    """
    row = await connection.fetchrow("select schema, version from history.builds where current")
    if row is None:
        return None
    if row["version"] != VERSION:
        raise HistoryError(
            f"the history in {row['schema']} is of version {row['version']}, and this program writes version {VERSION}: "
            "`muster history rebuild` makes it anew"
        )
    return checked(row["schema"])


async def make_build(connection: Connection) -> str:
    """Another build, empty, which no view shows; the name of its schema."""
    async with connection.transaction(isolation="read_committed"):
        await _lock(connection)
        await _make_catalog(connection)
        found = await _make_build(connection)
        await _apply(connection, "tables", found)
    return found


async def switch(connection: Connection, schema: str, reader: str | None = READER) -> None:
    """Show this build from now on. To be called in a transaction.

    Who writes the build that was current until now is told that it is not any more. Whoever just queries it is waited for, and
    only then, and shortly, whoever writes.
    """
    await _lock(connection)
    await show(connection, schema, reader)
    await connection.execute("update history.builds set current = false where current")
    await connection.execute("update history.builds set current = true where schema = $1", checked(schema))


async def drop_others(connection: Connection) -> list[str]:
    """Drop every build that is not current; their names. One that somebody goes on to read is left for the next time."""
    dropped = []
    for row in await connection.fetch("select schema from history.builds where not current order by schema"):
        schema = checked(row["schema"])
        try:
            async with connection.transaction():
                await connection.execute(f"set local lock_timeout = '{DROP_S}s'")
                await connection.execute(f"drop schema if exists {schema} cascade")
                await connection.execute("delete from history.builds where schema = $1", schema)
        except asyncpg.LockNotAvailableError:
            continue
        dropped.append(schema)
    return dropped


async def show(connection: Connection, schema: str, reader: str | None) -> None:
    """Have the views show this build, and the role read them. To be called in a transaction."""
    await connection.execute(f"set local search_path to {checked(schema)}")
    await connection.execute((_SQL / "views.sql").read_text())
    if reader is not None and await _make_reader(connection, reader):
        name = quoted(reader)
        await connection.execute(f"grant usage on schema history to {name}")
        await connection.execute(f"grant select on all tables in schema history to {name}")


async def there(connection: Connection, name: str) -> bool:
    """Whether the schema `history` has a table or view of this name.

    `to_regclass` would say so too, but from a cache: within a transaction it may not have heard of what another one committed.
    """
    found: bool = await connection.fetchval(
        "select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = 'history' and c.relname = $1)",
        name,
    )
    return found


def checked(schema: str) -> str:
    """The name of a build, which may stand in a statement as it is."""
    if not _NAME.fullmatch(schema):
        raise HistoryError(f"{schema[:64]!r} is no build of the history: it must read history_vVERSION_NUMBER")
    return schema


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


async def _ready(connection: Connection) -> str | None:
    """The current build, if there is nothing to do."""
    if not await there(connection, "builds"):
        return None
    if await _missing(connection, "catalog", "history"):
        return None
    found = await current(connection)
    if found is None or await _missing(connection, "tables", found):
        return None
    return found


async def _lock(connection: Connection) -> None:
    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)


async def _make_catalog(connection: Connection) -> None:
    if not await there(connection, "migrations"):
        first, *_ = _files("catalog")
        await connection.execute(first[1].read_text())
        await _note(connection, "history", first)
    await _apply(connection, "catalog", "history")


async def _make_build(connection: Connection) -> str:
    names = [row["schema"] for row in await connection.fetch("select schema from history.builds")]
    number = 1 + max([int(name.rpartition("_")[2]) for name in names], default=0)
    schema = checked(f"history_v{VERSION}_{number}")
    await connection.execute("insert into history.builds (schema, version) values ($1, $2)", schema, VERSION)
    await connection.execute(f"create schema {schema}")
    await connection.execute(f"comment on schema {schema} is 'A build of the history of Muster: the views in history show it.'")
    await connection.execute(f"set local search_path to {schema}")
    first, *_ = _files("tables")
    await connection.execute(first[1].read_text())
    await _note(connection, schema, first)
    return schema


async def _apply(connection: Connection, sort: str, schema: str) -> None:
    """Apply the files that were not yet, in their order."""
    await connection.execute(f"set local search_path to {schema}")
    for number, path in await _missing(connection, sort, schema):
        await connection.execute(path.read_text())
        await _note(connection, schema, (number, path))


async def _note(connection: Connection, schema: str, file: tuple[int, Path]) -> None:
    await connection.execute(f"insert into {schema}.migrations (number, name) values ($1, $2)", file[0], file[1].name)


async def _missing(connection: Connection, sort: str, schema: str) -> list[tuple[int, Path]]:
    """The files that were not applied to this schema.

    Raises:
        HistoryError: some were that this program does not have.
    """
    done = {row["number"] for row in await connection.fetch(f"select number from {schema}.migrations")}
    files = _files(sort)
    if newer := sorted(done - {number for number, _ in files}):
        raise HistoryError(f"the schema {schema} has the migration {newer[-1]}, which this program does not know: upgrade it")
    return [(number, path) for number, path in files if number not in done]


def _files(sort: str) -> list[tuple[int, Path]]:
    """The numbered files of one sort, in order."""
    return sorted((int(path.name.partition("_")[0]), path) for path in (_SQL / sort).glob("[0-9]*.sql"))


async def _make_reader(connection: Connection, reader: str) -> bool:
    """Whether the role is there now."""
    if await connection.fetchval("select true from pg_roles where rolname = $1", reader):
        return True
    try:
        async with connection.transaction():  # a savepoint: what is refused here takes nothing else with it
            await connection.execute(f"create role {quoted(reader)} nologin")
    except (asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
        return True
    except asyncpg.InsufficientPrivilegeError:
        return False
    return True
