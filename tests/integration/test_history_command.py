"""`muster history` answers the same from PostgreSQL as from the log, and what writes and checks the tables does what it says."""

import asyncio
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import asyncpg
import pytest

from muster.cli.history_database import Database
from muster.cli.history_folded import Folded
from muster.cli.history_query import BY, EACH, JSON_FIELDS, Each, Head, Query, columns, order
from muster.cli.history_query import hours as hours_of
from muster.cli.main import run
from muster.history.fold import Store
from muster.history.follow import FileSource
from muster.history.rebuild import rebuild
from muster.history.schema import migrate
from muster.history.sink import Position, Sink
from muster.log.sqlite import SqliteFile
from tests.golden.recorded import LOGS, read
from tests.integration.test_docs import ROOT, commands
from tests.support.cell import until
from tests.support.histories import CELL, made_up
from tests.support.postgres import Postgres, Runner

OWN_ORDER = "template template0 encoding 'UTF8' locale_provider icu icu_locale 'en-US'"
"""A database whose own order of text is not that of code points, as most are."""
SEEDS = (1, 2)
LOG = "story-8"
TEXT = (ROOT / "docs/history.md").read_text()
ENDS_S = 60


@pytest.fixture(scope="module")
def made(postgres: Postgres) -> list[tuple[Store, Head, str]]:
    """Histories made up, each in a database too."""
    found = []
    for seed in SEEDS:
        store, head = made_up(seed)
        dsn = ordered(postgres, "made")
        asyncio.run(_write(dsn, store, head))
        found.append((store, head, dsn))
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recorded log, of a day with preemptions, failures and an array."""
    folder = tmp_path_factory.mktemp("log")
    file = SqliteFile.open(folder, CELL, writer=True)
    for record in read(LOGS, LOG):
        file.append(record)
    file.close()
    return folder


@pytest.fixture(scope="module")
def written(postgres: Postgres, log: Path) -> str:
    """The DSN of that log's history."""
    dsn = ordered(postgres, "written")
    asyncio.run(_rebuild(dsn, log))
    return dsn


async def _rebuild(dsn: str, log: Path) -> None:
    source = await FileSource.open(log)
    try:
        await rebuild(source, dsn, CELL)
    finally:
        await source.close()


def ordered(postgres: Postgres, name: str) -> str:
    """A database with an order of its own, where the server can have one."""
    try:
        return postgres.database(name, OWN_ORDER)
    except (asyncpg.FeatureNotSupportedError, asyncpg.PostgresSyntaxError):
        return postgres.database(name)


async def _write(dsn: str, store: Store, head: Head) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        build = await migrate(connection)
    finally:
        await connection.close()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        new = Position(cell=CELL, number=head.cycle, digest="00" * 32, term=1, position=head.cycle)
        await Sink(pool, build, CELL).write(Position(cell=CELL), new, store)


class Said(NamedTuple):
    """What a command said, and its exit status."""

    status: int
    out: str
    err: str


class Command(Protocol):
    """Runs `muster history WORDS` in this process, with this DSN in its environment."""

    def __call__(self, dsn: str, *words: str) -> Said: ...


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    def called(dsn: str, *words: str) -> Said:
        monkeypatch.setenv("MUSTER_HISTORY_DSN", dsn)
        capsys.readouterr()
        status = run(["history", *words])
        return Said(status, *capsys.readouterr())

    return called


def questions(chance: random.Random, each: Each, source: Folded) -> Iterator[Query]:
    """What somebody may ask of the lines: every column as the order, and filters that let something through."""
    fields = tuple(column.field for column in columns(each))
    for column in columns(each):
        if column.field not in (*JSON_FIELDS, "nodes"):
            sort = order(each, chance.choice(("", "-")) + column.name)
            yield Query(each=each, fields=fields, sort=sort, limit=chance.choice((0, 1, 7)))
    lines = source.lines(Query(each=each, fields=fields))
    for _ in range(20):
        line = chance.choice(lines)
        known = [line["entered_us"], line["bound_us"], line["ended_us"], source.head().at_us]
        instants = [at_us for at_us in known if at_us is not None]
        told: dict[str, Any] = {
            "users": (line["user"], "zoe"),
            "queues": (line["queue"],),
            "states": (line["state"],),
            "names": (line["name"],),
            "nodes": tuple(line["nodes"][:2]),
            "jobs": chance.choice(((line["job"],), (line["job"][:5], line["job"]), (line["job"][:8],))),
            "since_us": chance.choice(instants) + chance.choice((-1, 0, 1)),
            "until_us": chance.choice(instants) + chance.choice((-1, 0, 1)),
        }
        told = {name: value for name, value in told.items() if chance.random() < 0.3}
        sort = order(each, chance.choice(("", "-gpu_hours", "name,-entered", "user,queue")))
        yield Query(each=each, fields=fields, sort=sort, limit=chance.choice((0, 3)), **told)


def differences(source: Folded, database: Database, seed: int) -> Iterator[str | None]:
    """Asks both; for each question what it was if the answers differ, else None."""
    chance = random.Random(seed)
    for each in EACH:
        for query in questions(chance, each, source):
            yield None if source.lines(query) == database.lines(query) else str(query)
            if each == "job" and len(query.sort) == 1:
                by = tuple(chance.sample(BY, chance.choice((1, 1, 2, 3))))
                sides = [sorted(one.sums(query, by), key=lambda sum: tuple(sum.by.values())) for one in (source, database)]
                yield None if sides[0] == sides[1] else f"{by} {query}"


# Two sources


@pytest.mark.parametrize("index", range(len(SEEDS)))
def test_postgresql_and_the_fold_answer_every_question_alike(made: list[tuple[Store, Head, str]], index: int) -> None:
    store, head, dsn = made[index]
    source = Folded(store, head)
    with Database(dsn, None) as database:
        assert database.head() == head
        answers = list(differences(source, database, index))
    assert [question for question in answers if question] == []
    assert len(answers) > 180


@pytest.mark.parametrize(
    "plant",
    [
        "update {s}.placements set released_us = released_us + 1 where (job, rank, placed_us) in "
        "(select job, rank, placed_us from {s}.placements where released_us > placed_us and gpu_milli > 0 limit 1)",
        "update {s}.jobs set user_name = 'a.da' where job in (select job from {s}.jobs where user_name = 'a-da' limit 1)",
        "update {s}.attempts set started_us = started_us - 1 where (job, instance, attempt) in "
        "(select job, instance, attempt from {s}.attempts where started_us is not null limit 1)",
        "delete from {s}.instances where (job, instance) in (select job, instance from {s}.instances limit 1)",
    ],
)
def test_a_row_that_is_planted_is_noticed(postgres: Postgres, made: list[tuple[Store, Head, str]], plant: str) -> None:
    store, head, _ = made[0]
    dsn = ordered(postgres, "planted")
    asyncio.run(_write(dsn, store, head))
    (row,) = postgres.fetch("select schema from history.builds where current", dsn)
    postgres.execute(plant.format(s=row["schema"]), dsn)
    with Database(dsn, CELL) as database:
        assert any(differences(Folded(store, head), database, 0))


def test_the_command_prints_the_same_from_both(command: Command, written: str, log: Path) -> None:
    for words in (
        ["--json"],
        ["--each", "attempt", "--sort", "-ran", "--limit", "5"],
        ["--by", "user,model,day"],
        ["--since", "12h", "--until", "1h", "--by", "queue", "--json"],
        ["--state", "failed,cancelled", "--format", "job,reason,code,nodes"],
    ):
        from_rows, from_log = command(written, *words), command("", *words, "--log", str(log))
        assert from_rows.status == from_log.status == 0, from_rows.err + from_log.err
        assert from_rows.out == from_log.out
        assert from_rows.err == from_log.err
        assert len(from_rows.out) > 100


# The tables


def test_a_rebuild_and_a_check_agree_and_a_planted_row_is_named(
    command: Command, written: str, log: Path, postgres: Postgres
) -> None:
    done = command(written, "check", "--log", str(log))
    assert done.status == 0, done.out + done.err
    assert "every row is as the log says" in done.out
    (row,) = postgres.fetch("select schema from history.builds where current", written)
    (job,) = postgres.fetch("select job from history.jobs order by job limit 1", written)
    postgres.execute(f"update {row['schema']}.jobs set priority = priority + 1 where job = '{job['job']}'", written)
    done = command(written, "check", "--log", str(log), "--json")
    assert done.status == 1, done.err
    (wrong,) = [table for table in json.loads(done.out)["tables"] if table["differing"]]
    assert wrong["table"] == "jobs"
    assert wrong["differences"][0]["key"]["job"] == job["job"]
    done = command(written, "rebuild", "--log", str(log))
    assert done.status == 0, done.err
    assert f"dropped {row['schema']}" in done.out
    assert command(written, "check", "--log", str(log)).status == 0


def test_who_may_read_may_do_nothing_else(command: Command, written: str, postgres: Postgres) -> None:
    who = f"analyst_{random.SystemRandom().randrange(16**8):08x}"
    postgres.execute(f"create role {who} login password 'analyst' in role muster_history_reader", written)
    try:
        dsn = written.replace(written.split("//")[1].split("@")[0], f"{who}:analyst", 1)
        done = command(dsn, "--by", "user", "--json")
        assert done.status == 0, done.err
        assert json.loads(done.out)["sums"]
        for statement in ("delete from history.jobs", "create table history.mine (a int)", "create schema mine"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                postgres.execute(statement, dsn)
    finally:
        postgres.execute(f"drop role {who}", written)


def test_what_people_say_is_no_sql(command: Command, written: str, postgres: Postgres) -> None:
    said = "x'); drop schema history cascade; --"
    for option in ("--user", "--queue", "--name", "--node", "--job"):
        done = command(written, option, said, "--json")
        assert done.status == 0, done.err
        assert json.loads(done.out)["lines"] == []
    done = command(written, "--cell", said)
    assert done.status == 3
    assert "there is no history of the cell" in done.err
    assert postgres.fetch("select count(*) from history.jobs", written)[0][0] > 0


def test_nothing_is_changed_by_who_asks(written: str) -> None:
    with Database(written, None) as database, pytest.raises(Exception, match="read-only transaction"):
        database._do(database._fetch("delete from history.builds", []))


# What goes wrong


def test_a_server_that_is_away_is_named_without_its_password(command: Command, own_postgres: Runner, log: Path) -> None:
    server = own_postgres()
    password = server.dsn.split(":")[2].split("@")[0]
    wrong = server.dsn.replace(password, f"{password}x")
    said = command(wrong).err
    assert "password authentication failed" in said
    empty = command(server.dsn)
    assert empty.status == 3
    assert "`muster history migrate` makes its tables" in empty.err
    server.stop()
    for words in ([], ["check", "--log", str(log)], ["rebuild", "--log", str(log)], ["migrate"]):
        done = command(server.dsn, *words)
        assert done.status == 3, (words, done)
        assert done.out == ""
        said += done.err
        assert len(done.err.strip().splitlines()) == 1, done.err
    assert password not in said


def test_a_worker_writes_what_a_log_says_and_shows_no_secret(command: Command, postgres: Postgres, log: Path) -> None:
    dsn = postgres.database("worker")
    password = dsn.split(":")[2].split("@")[0]
    environment = {**os.environ, "MUSTER_HISTORY_DSN": dsn}
    told = [sys.executable, "-m", "muster.cli", "history", "worker", "--log", str(log)]
    with subprocess.Popen(told, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            until(lambda: _number(postgres, dsn) >= 150, ENDS_S)
            shown = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
            assert "history worker" in shown
            assert password not in shown
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=ENDS_S)
    assert process.returncode == 0, said
    environment["MUSTER_HISTORY_DSN"] = dsn.replace(password, f"{password}x")
    refused = subprocess.run(told, env=environment, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert refused.returncode == 1
    assert "password authentication failed" in refused.stderr
    assert password not in said + refused.stdout + refused.stderr
    assert command(dsn, "check", "--log", str(log)).status == 0


def test_several_cells_are_told_apart(command: Command, postgres: Postgres, made: list[tuple[Store, Head, str]]) -> None:
    store, head, _ = made[0]
    dsn = postgres.database("cells")
    asyncio.run(_write(dsn, store, head))
    (row,) = postgres.fetch("select schema from history.builds where current", dsn)
    postgres.execute(
        f"insert into {row['schema']}.cycles select 'other', number, term, at_us, policy, inputs, decisions, digest, position, "
        f"size_bytes from {row['schema']}.cycles",
        dsn,
    )
    done = command(dsn)
    assert done.status == 2
    assert "has the history of several cells, main, other: --cell says whose" in done.err
    assert json.loads(command(dsn, "--cell", "other", "--json").out)["lines"] == []
    assert json.loads(command(dsn, "--cell", "main", "--json").out)["lines"]


# The page


def test_the_commands_of_the_page_run(command: Command, written: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads "history.md"."""
    lines = commands("docs/history.md")
    told = [line.replace("build/demo", str(log)) for line in lines if line != "muster history worker"]
    assert len(lines) == len(told) + 1  # a test of its own runs the worker
    assert len(told) > 8
    monkeypatch.setenv("MUSTER_BUS", str(log))
    for line in told:
        words = shlex.split(line)
        assert words[:2] == ["muster", "history"]
        done = command(written, *words[2:])
        assert done.status == 0, (line, done.err)
        assert done.out


def test_every_flag_of_the_page_is_one_and_every_one_is_on_the_page(command: Command) -> None:
    flags = set(re.findall(r"--[a-z-]+", command("", "--help").out))
    said = set(re.findall(r"`(--[a-z]+)", TEXT)) | {"--help"}
    assert flags - said == set()
    assert said - flags == {"--reader"}


def test_the_page_has_every_column_of_every_table(written: str, postgres: Postgres) -> None:
    shown = {}
    for table, text in re.findall(r"^### (\w+)\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE):
        shown[table] = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE))
    kinds: dict[str, dict[str, str]] = {}
    for row in postgres.fetch(
        "select table_name, column_name, data_type from information_schema.columns where table_schema = 'history' "
        "and table_name not in ('migrations', 'builds') order by ordinal_position",
        written,
    ):
        kinds.setdefault(row["table_name"], {})[row["column_name"]] = row["data_type"]
    for table, columns_of in kinds.items():
        stamps = {name for name, kind in columns_of.items() if kind == "timestamp with time zone"}
        instants = {"at_us" if name == "happened_at" else f"{name.removesuffix('_at')}_us" for name in stamps}
        assert instants <= set(columns_of)
        assert {name: kind for name, kind in columns_of.items() if name not in stamps} == shown[table], table
    assert set(kinds) == set(shown)


def test_the_queries_of_the_page_run(written: str, postgres: Postgres) -> None:
    queries = re.findall(r"^```sql\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert len(queries) > 8
    analyst = f"analyst_{random.SystemRandom().randrange(16**8):08x}"
    try:
        for query in queries:
            if query.startswith("create role"):
                postgres.execute(query.replace("analyst", analyst), written)
            else:
                assert postgres.fetch(query.rstrip().rstrip(";"), written) is not None
    finally:
        postgres.execute(f"drop role if exists {analyst}", written)
    (hours,) = [query for query in queries if "gpu_hours" in query]
    everything = re.sub(r"\(extract.*?::bigint", "0::bigint", hours).rstrip().rstrip(";")
    found = {(row["user_name"], row["gpu_model"]): row["gpu_hours"] for row in postgres.fetch(everything, written)}
    with Database(written, None) as database:
        for one in database.sums(Query(), ("user", "model")):
            assert f"{found[one.by['user'], one.by['model']]:.3f}" == hours_of(one.gpu_ns)


def _number(postgres: Postgres, dsn: str) -> int:
    if postgres.fetch("select to_regclass('history.positions') as found", dsn)[0]["found"] is None:
        return 0
    return int(postgres.fetch("select coalesce(max(number), 0) from history.positions", dsn)[0][0])
