"""The schema of the history on a real PostgreSQL: what the SQL makes is what the rows are, who may what, and upgrades."""

import ast
import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_type_hints

import asyncpg
import pytest

from muster.history import rows, schema
from muster.history.rows import TABLES, Table
from muster.history.schema import HistoryError, connect, current, migrate, quoted
from tests.support.postgres import Postgres, Runner

Connection = Any


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    """To an empty database, as who may do everything."""
    made = await connect(database)
    yield made
    await made.close()


async def columns(connection: Connection, name: str) -> list[tuple[str, str, bool]]:
    """Name, type and whether it may be null of each column of a table or view."""
    found = await connection.fetch(
        "select attname, format_type(atttypid, null) as kind, not attnotnull as nullable from pg_attribute "
        "where attrelid = $1::text::regclass and attnum > 0 and not attisdropped order by attnum",
        name,
    )
    return [(row["attname"], row["kind"], row["nullable"]) for row in found]


async def test_the_tables_are_made_as_the_rows_are_declared(connection: Connection) -> None:
    build = await migrate(connection)
    for table in TABLES:
        hints = get_type_hints(table.row)
        nullable = [type(None) in getattr(hints[name], "__args__", ()) for name in table.columns]
        declared = list(zip(table.columns, table.types, nullable, strict=True))
        assert await columns(connection, f"{build}.{table.name}") == declared
        key = await connection.fetchval(
            "select array_agg(a.attname order by k.place) from pg_index i "
            "cross join unnest(i.indkey::int[]) with ordinality as k(number, place) "
            "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number "
            "where i.indrelid = $1::text::regclass and i.indisprimary",
            f"{build}.{table.name}",
        )
        assert tuple(key) == table.key


async def test_the_views_show_every_column_and_each_instant_as_a_timestamp(connection: Connection) -> None:
    await migrate(connection)
    for table in TABLES:
        shown = await columns(connection, f"history.{table.name}")
        assert tuple(name for name, _, _ in shown[: len(table.columns)]) == table.columns
        more = {name: kind for name, kind, _ in shown[len(table.columns) :]}
        assert set(more.values()) <= {"timestamp with time zone"}
        instants = [name for name in table.columns if name.endswith("_us") and name not in ("time_limit_us", "gap_us")]
        assert len(more) == len(instants)
    assert [name for name, _, _ in await columns(connection, "history.positions")] == [
        "cell",
        "number",
        "digest",
        "term",
        "position",
    ]


async def test_what_the_rows_say_of_themselves_is_said_in_the_database(connection: Connection) -> None:
    await migrate(connection)
    for table in TABLES:
        about, fields = documented(table)
        view = f"history.{table.name}"
        assert await connection.fetchval("select obj_description($1::text::regclass)", view) == about
        found = await connection.fetch(
            "select attname, col_description(attrelid, attnum) as said from pg_attribute where attrelid = $1::text::regclass "
            "and attnum > 0",
            view,
        )
        assert {row["attname"]: row["said"] for row in found if row["said"]} == fields


def documented(table: Table) -> tuple[str, dict[str, str]]:
    """What `muster.history.rows` says of a table and of its columns, as SQL has it."""
    (node,) = [
        each
        for each in ast.parse(Path(rows.__file__).read_text()).body
        if isinstance(each, ast.ClassDef) and each.name == table.row.__name__
    ]
    fields: dict[str, str] = {}
    last = ""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            last = each.target.id
        elif last and isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            fields[last] = in_sql(str(each.value.value))
    return in_sql(ast.get_docstring(node) or ""), fields


def in_sql(said: str) -> str:
    """As a comment has it."""
    return " ".join(said.split()).replace("`", "").replace("None", "null")


async def test_to_migrate_again_changes_nothing_and_needs_no_right(
    connection: Connection, database: str, postgres: Postgres
) -> None:
    build = await migrate(connection)
    role = f"plain_{secrets.token_hex(4)}"
    await connection.execute(f"create role {quoted(role)} nologin")
    try:
        await connection.execute(f"grant usage on schema history, {build} to {quoted(role)}")
        await connection.execute(f"grant select on all tables in schema history, {build} to {quoted(role)}")
        await connection.execute(f"set role {quoted(role)}")
        assert await migrate(connection) == build
        await connection.execute("reset role")
        assert await connection.fetchval("select count(*) from history.builds") == 1
    finally:
        await connection.execute(f"drop owned by {quoted(role)}")
        await connection.execute(f"drop role {quoted(role)}")


async def test_many_may_migrate_at_once(own_postgres: Runner) -> None:
    server = own_postgres(fsync="off")
    for _ in range(12):  # one in six of these found a schema that it had not seen, where it asked a cache
        database = server.database()
        connections = [await connect(database) for _ in range(5)]
        made = await asyncio.gather(*[migrate(each) for each in connections])
        assert len(dict.fromkeys(made)) == 1
        for each in connections:
            await each.close()


async def test_the_reader_reads_the_views_and_nothing_else(connection: Connection) -> None:
    role = f"reader_{secrets.token_hex(4)}"
    build = await migrate(connection, role)
    try:
        assert not await connection.fetchval("select rolcanlogin from pg_roles where rolname = $1", role)
        await connection.execute(f"set role {quoted(role)}")
        for table in TABLES:
            assert await connection.fetch(f"select * from history.{table.name}") == []
        for statement in (
            f"select * from {build}.jobs",
            "delete from history.jobs",
            "update history.builds set current = false",
            "create table history.mine (x integer)",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        await connection.execute("reset role")
    finally:
        await connection.execute(f"drop owned by {quoted(role)}")
        await connection.execute(f"drop role {quoted(role)}")


async def test_who_may_make_no_schema_is_told_who_does(connection: Connection) -> None:
    role = f"plain_{secrets.token_hex(4)}"
    await connection.execute(f"create role {quoted(role)} nologin")
    try:
        await connection.execute(f"set role {quoted(role)}")
        with pytest.raises(HistoryError, match="whoever may create schemas runs `muster history migrate`"):
            await migrate(connection)
    finally:
        await connection.execute("reset role")
        await connection.execute(f"drop role {quoted(role)}")


async def test_without_the_right_to_make_roles_there_is_a_history_all_the_same(connection: Connection, database: str) -> None:
    role = f"owner_{secrets.token_hex(4)}"
    await connection.execute(f"create role {quoted(role)} nologin")
    try:
        await connection.execute(f"grant create on database {quoted(database.rpartition('/')[2])} to {quoted(role)}")
        await connection.execute(f"set role {quoted(role)}")
        build = await migrate(connection, f"no_such_{secrets.token_hex(4)}")
        assert await current(connection) == build
        await connection.execute("reset role")
    finally:
        await connection.execute(f"drop owned by {quoted(role)} cascade")
        await connection.execute(f"drop role {quoted(role)}")


async def test_a_migration_is_applied_once_and_a_newer_one_is_refused(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await migrate(connection)
    for each in schema._SQL.rglob("*.sql"):
        copy = tmp_path / each.relative_to(schema._SQL)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(each.read_text())
    (tmp_path / "tables/0002_more.sql").write_text("alter table jobs add column more bigint not null default 7;")
    with monkeypatch.context() as patched:
        patched.setattr(schema, "_SQL", tmp_path)
        assert await migrate(connection) == old
        assert await migrate(connection) == old
        assert (await columns(connection, f"{old}.jobs"))[-1][0] == "more"
        applied = await connection.fetch(f"select number, name from {old}.migrations order by number")
        assert [tuple(row) for row in applied] == [(1, "0001_tables.sql"), (2, "0002_more.sql")]
        (tmp_path / "tables/0003_wrong.sql").write_text("create table half (x integer); select no_such_function();")
        with pytest.raises(HistoryError, match="no_such_function"):
            await migrate(connection)
        assert await connection.fetchval("select to_regclass($1)", f"{old}.half") is None
    with pytest.raises(HistoryError, match="has the migration 2, which this program does not know: upgrade it"):
        await migrate(connection)


async def test_a_build_of_another_version_is_to_be_made_anew(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    await migrate(connection)
    monkeypatch.setattr(schema, "VERSION", 2)
    with pytest.raises(HistoryError, match=r"is of version 1, and this program writes version 2: `muster history rebuild`"):
        await migrate(connection)
