"""The PostgreSQL server of the tests: a test that stops or kills one finds it as a real one would be after that."""

import os
import subprocess
from pathlib import Path

import asyncpg
import pytest

from tests.support.kafka import docker_brings
from tests.support.postgres import Postgres, Runner, Server, binaries


def test_each_test_has_a_database_of_its_own(postgres: Postgres, database: str) -> None:
    other = postgres.database()
    postgres.execute("create table here (a int)", database)
    assert postgres.fetch("select count(*) from pg_tables where tablename = 'here'", other)[0][0] == 0
    assert postgres.fetch("select current_database()", database)[0][0] in database


async def test_what_was_committed_is_there_after_a_kill_and_a_stop(own_postgres: Runner) -> None:
    server = own_postgres(max_connections="20")
    assert server.fetch("show fsync")[0][0] == "on"
    server.execute("create table kept (a int)")
    connection = await asyncpg.connect(server.dsn)
    for round, end in enumerate((server.kill, server.stop)):
        await connection.execute("insert into kept values ($1)", round)
        end()
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await connection.execute("insert into kept values (9)")
        with pytest.raises(ConnectionRefusedError):
            await asyncpg.connect(server.dsn)
        server.start()
        connection = await asyncpg.connect(server.dsn)
    assert [row[0] for row in await connection.fetch("select a from kept order by a")] == [0, 1]
    await connection.close()


def test_an_engine_that_has_no_image_and_gets_none_stands_in_nobody_s_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "docker"
    engine.write_text('#!/bin/sh\n[ "$1" = version ] && echo 27.0 || exit 1\n')
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert not docker_brings("postgres:none")
    engine.write_text('#!/bin/sh\n[ "$1" = version ] && echo 27.0 || [ "$1" = pull ]\n')
    assert docker_brings("postgres:some")


def test_a_server_leaves_nothing_behind(own_postgres: Runner) -> None:
    if binaries() is None:
        pytest.skip("servers are containers here")
    server = own_postgres()
    if not isinstance(server, Server):
        pytest.skip("servers are containers here")
    server.close()
    assert not server.folder.exists()
    told = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert str(server.folder) not in told
