"""`muster history` says what the rows say: which lines, in which order, and whose GPU time, to the nanosecond."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.cli import history_query as words
from muster.cli.history_dsn import find_dsn, place
from muster.cli.history_folded import KEYS, SUMS, Folded
from muster.cli.history_query import Head, Query
from muster.cli.history_tables import GROUP, READER
from muster.cli.main import run
from muster.cli.output import Failure
from muster.history import schema, worker
from muster.history.fold import Changes, Store
from muster.history.rows import AttemptRow, InstanceRow, JobRow, Json, PlacementRow
from tests.support.histories import DAY_US, made_up
from tests.unit.cli.conftest import ARRAY, RUNS, WAITS

NOON_US = 1_796_040_000_000_000
"""2026-11-30T12:00:00Z"""
HOUR_NS = words.HOUR_NS
SECRET = "s3cret"


@pytest.fixture(autouse=True)
def nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No environment of whoever runs the tests says where a history is."""
    for name in ("MUSTER_HISTORY_DSN", "MUSTER_HISTORY_DSN_FILE", "MUSTER_BUS", "PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("told", "at_us"),
    [
        ("now", NOON_US),
        ("today", NOON_US - DAY_US // 2),
        ("yesterday", NOON_US - 3 * DAY_US // 2),
        ("90m", NOON_US - 5_400_000_000),
        ("1d12h", NOON_US - 3 * DAY_US // 2),
        ("-2w", NOON_US - 14 * DAY_US),
        ("30s ago", NOON_US - 30_000_000),
        ("2026-11-30", NOON_US - DAY_US // 2),
        ("2026-11-30T12:00:00Z", NOON_US),
        ("2026-11-30T13:00:00+01:00", NOON_US),
        ("2026-11-30 12:00:00.000001", NOON_US + 1),
        ("1796040000", NOON_US),
        ("1796040000.5", NOON_US + 500_000),
        ("0.000001", 1),
        ("5", 5_000_000),
        ("1950-01-01", 0),
    ],
)
def test_an_instant_is_read(told: str, at_us: int) -> None:
    assert words.moment(told, NOON_US) == at_us


@pytest.mark.parametrize("told", ["", "tomorrow", "2026-13-01", "5x", "1h30", "2026-11-30T25:00", "1" * 13, "--", "\uff11d"])
def test_what_is_no_instant_is_refused_in_one_sentence(told: str) -> None:
    with pytest.raises(Failure, match="is no instant"):
        words.moment(told, NOON_US)


def test_a_span_before_the_beginning_is_the_beginning() -> None:
    assert words.moment("999999999w", NOON_US) == 0


@pytest.mark.parametrize(
    ("show", "value", "shown"),
    [
        (words.span, 0, "00:00:00"),
        (words.span, 3_661_999_999, "01:01:01"),
        (words.span, 2 * DAY_US + 1_000_000, "2-00:00:01"),
        (words.span, None, ""),
        (words.hours, HOUR_NS, "1.000"),
        (words.hours, HOUR_NS // 2000, "0.000"),
        (words.hours, HOUR_NS // 2000 + 1, "0.001"),
        (words.hours, 10**30, "277777777777777777.778"),
        (words.milli, 8000, "8"),
        (words.milli, 250, "0.25"),
        (words.when, NOON_US + 5, "2026-11-30T12:00:00Z"),
        (words.when, 2_500_000, "2.500000"),
        (words.when, None, ""),
        (words.pairs, {"a": "1", "b": ""}, "a=1,b="),
        (words.words, ["sh", "-c", "echo"], "sh -c echo"),
        (words.printable, "a\x1b[2J\nü", "a?[2J?ü"),
        (words.flag, False, "no"),
    ],
)
def test_values_are_shown(show: Callable[[Any], str], value: Any, shown: str) -> None:
    assert show(value) == shown


def test_each_column_is_taken_from_what_there_is() -> None:
    rows: dict[str, Any] = {"j": JobRow, "i": InstanceRow, "a": AttemptRow}
    for column in words.COLUMNS:
        for origin in column.origin.values():
            letter, _, name = origin.rpartition(".")
            assert name in rows[letter]._fields if letter else origin in SUMS
    names = [name for column in words.COLUMNS for name in {column.name, column.field}]
    assert len(set(names)) == len(names)
    for each in words.EACH:
        assert words.chosen(each, "")
        assert words.order(each, "")
        assert len(KEYS[each]) == words.EACH.index(each) + 1


def test_defaults_are_those_of_what_they_are_for() -> None:
    assert READER == schema.READER
    assert GROUP == worker.GROUP


# Lines


def test_jobs_are_listed_with_the_newest_first(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    assert run(["history", "--log", str(log), "--format", "job,name,state,instances,gpus,nodes"]) == 0
    printed = capsys.readouterr()
    head, *lines = printed.out.splitlines()
    assert head.split() == ["JOB", "NAME", "STATE", "INSTANCES", "GPUS", "NODES"]
    assert [line.split()[0] for line in lines] == sorted([RUNS, WAITS, ARRAY])
    assert printed.err.startswith("up to cycle 3 of main, at 2.000000")


@pytest.mark.parametrize(
    ("filters", "jobs"),
    [
        (["--job", RUNS], [RUNS]),
        (["--job", "018bcfe5"], [RUNS, WAITS]),
        (["--job", f"{RUNS},{WAITS[:35]}"], [RUNS, WAITS]),
        (["--job", f"{RUNS}0"], []),
        (["--state", "running"], None),
        (["--user", "nobody"], []),
        (["--node", "nowhere"], []),
        (["--until", "2"], []),
        (["--since", "2"], [RUNS, WAITS, ARRAY]),
        (["--since", "now"], [RUNS, WAITS, ARRAY]),
    ],
)
def test_filters_choose(capsys: pytest.CaptureFixture[str], log: Path, filters: list[str], jobs: list[str] | None) -> None:
    assert run(["history", "--log", str(log), "--json", *filters]) == 0
    told = json.loads(capsys.readouterr().out)
    found = [line["job"] for line in told["lines"]]
    if jobs is None:
        assert found
        assert {line["state"] for line in told["lines"]} == {"running"}
    else:
        assert found == sorted(jobs)
    assert told["more"] is False
    assert told["each"] == "job"
    assert told["cell"] == "main"


def test_json_has_every_column_and_no_unit_is_lost(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    for each in words.EACH:
        assert run(["history", "--log", str(log), "--json", "--each", each]) == 0
        lines = json.loads(capsys.readouterr().out)["lines"]
        assert [column.field for column in words.columns(each)] == list(lines[0])
        assert isinstance(lines[0]["command"], list)
        assert isinstance(lines[0]["labels"], dict)


def test_a_limit_says_that_there_is_more(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    assert run(["history", "--log", str(log), "--limit", "1", "--sort", "job"]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert "there is more" in printed.err
    assert run(["history", "--log", str(log), "--limit", "3", "--sort", "job", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["lines"]) == 3
    assert not told["more"]


def test_help_lists_the_columns_of_each_level(capsys: pytest.CaptureFixture[str]) -> None:
    for each in words.EACH:
        assert run(["history", "--each", each, "--format", "help"]) == 0
        out = capsys.readouterr().out
        assert all(column.what in out for column in words.columns(each))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--format", "jobb"], "there is no column 'jobb' of jobs"),
        (["--format", "attempt"], "there is no column 'attempt' of jobs"),
        (["--sort", "labels"], "it is a list"),
        (["--sort", "nodes"], "it is a list"),
        (["--state", "requeued"], "no job is in the state 'requeued'; there are pending"),
        (["--by", "colour"], "nothing can be summed by 'colour': user"),
        (["--by", "user,user"], "names something twice"),
        (["--by", "user", "--each", "attempt"], "it goes with neither --each nor --format"),
        (["--by", "user", "--sort", "name"], "sums cannot be sorted by 'name': user"),
        (["--since", "then"], "'then' is no instant"),
        (["--since", "now", "--until", "1h"], "--since now is not before --until 1h"),
        (["--user", ","], "--user is empty"),
        (["--user", "a\0b"], "has a character that no name has"),
        (["--user", ",".join(f"u{number}" for number in range(1001))], "--user has 1001 values; it takes 1000"),
        (["--dsn", "postgresql://somewhere/db"], "one of them is enough"),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], log: Path, arguments: list[str], sentence: str
) -> None:
    assert run(["history", "--log", str(log), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("muster: ")
    assert sentence in line


def test_every_sort_is_total_and_has_the_unknown_last() -> None:
    store, head = made_up(3)
    source = Folded(store, head)
    for each in words.EACH:
        keys = ("job", "instance", "attempt")[: words.EACH.index(each) + 1]
        for column in words.columns(each):
            if column.field in (*words.JSON_FIELDS, "nodes"):
                continue
            for sign, backwards in (("", False), ("-", True)):
                query = Query(each=each, sort=words.order(each, sign + column.name), fields=(*keys, column.field))
                lines = source.lines(query)
                assert lines == source.lines(msgspec.structs.replace(query, limit=0))
                values = [line[column.field] for line in lines]
                known = [value for value in values if value is not None]
                assert values[: len(known)] == known
                assert known == sorted(known, reverse=backwards)
                for one, other in itertools.pairwise(lines):
                    if one[column.field] == other[column.field]:
                        assert [one[key] for key in keys] < [other[key] for key in keys]
                assert source.lines(msgspec.structs.replace(query, limit=5)) == lines[:6]


# Sums


def placed(placed_us: int, released_us: int | None, milli: int = 1000, **changes: Any) -> PlacementRow:
    row = PlacementRow("main", "j", 0, 1, 0, placed_us, "task", "n1", "u", "exited", 0, 500, 1, milli, "H100", Json("[]"), 0, 0)
    return row._replace(placed_us=placed_us, released_us=released_us, **changes)


def of(*placements: PlacementRow, present_us: int = NOON_US) -> Folded:
    """A history of one job with these placements."""
    store, _ = made_up(1, jobs=1)
    (job,) = store.rows("jobs")
    (instance,) = store.rows("instances")
    changes = Changes()
    changes.add("jobs", job._replace(job="j", user_name="ada", queue="research", name="train", state="finished"))  # type: ignore[call-arg]
    changes.add("instances", instance._replace(job="j"))  # type: ignore[call-arg]
    for row in placements:
        changes.add("placements", row)
    kept = Store()
    kept.take(changes)
    return Folded(kept, Head("main", 9, present_us))


def sums(source: Folded, *by: str, **query: Any) -> dict[tuple[str, ...], int]:
    return {tuple(each.by.values()): each.gpu_ns for each in source.sums(Query(**query), by)}


def test_an_attempt_counts_for_each_day_that_it_ran_in_utc() -> None:
    midnight_us = NOON_US + DAY_US // 2
    source = of(placed(midnight_us - 1, midnight_us + DAY_US + 2), present_us=midnight_us + 3 * DAY_US)
    assert sums(source, "day") == {("2026-11-30",): 1000, ("2026-12-01",): 1000 * DAY_US, ("2026-12-02",): 2000}
    source = of(placed(midnight_us - DAY_US, midnight_us), present_us=midnight_us)
    assert sums(source, "day") == {("2026-11-30",): 1000 * DAY_US}


def test_what_still_runs_counts_until_the_newest_cycle() -> None:
    assert sums(of(placed(NOON_US - 7, None)), "user") == {("ada",): 7000}
    assert sums(of(placed(NOON_US, None)), "user") == {}


def test_shares_of_devices_and_replaced_members_count_for_what_they_held() -> None:
    source = of(placed(10, 20, 250), placed(20, 50, 250, node="n2"), placed(10, 50, 1, rank=1, gpu_model="A100"))
    assert sums(source, "model") == {("H100",): 250 * 40, ("A100",): 40}
    assert sums(source, "node") == {("n1",): 250 * 10 + 40, ("n2",): 250 * 30}
    assert sums(source, "node", nodes=("n2",)) == {("n2",): 250 * 30}
    (whole,) = source.sums(Query(), ("job",))
    assert (whole.jobs, whole.attempts, whole.gpu_ns, whole.cpu_ns) == (1, 1, 250 * 40 + 40, 500 * 80)


@pytest.mark.parametrize(
    ("since_us", "until_us", "held_us"),
    [(None, None, 40), (10, 50, 40), (0, 11, 1), (49, 100, 1), (20, 30, 10), (50, 60, 0), (0, 10, 0), (30, None, 20)],
)
def test_only_the_time_within_the_range_counts(since_us: int | None, until_us: int | None, held_us: int) -> None:
    found = sums(of(placed(10, 50)), "user", "queue", since_us=since_us, until_us=until_us)
    assert found == ({("ada", "research"): 1000 * held_us} if held_us else {})


def test_a_thousand_devices_for_a_century_are_counted_to_the_nanosecond() -> None:
    century_us = 36_525 * DAY_US
    assert sums(of(placed(1, century_us, 64_000_001), present_us=century_us), "user") == {("ada",): 64_000_001 * (century_us - 1)}


def test_a_year_of_a_large_cluster_is_a_number_in_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    source = of(placed(0, NOON_US, 80_000_000))
    monkeypatch.setattr(Folded, "of", lambda log, cell: source)
    for words_said in (["--by", "user"], ["--format", "gpu_hours"]):
        assert run(["history", "--log", str(log), "--json", *words_said]) == 0
        told = json.loads(capsys.readouterr().out)
        (line,) = told.get("sums") or told["lines"]
        assert line["gpu_ns"] == 80_000_000 * NOON_US > 2**64


@pytest.mark.parametrize("seed", range(4))
def test_days_ranges_and_whole_time_add_up(seed: int) -> None:
    store, head = made_up(seed)
    source = Folded(store, head)
    whole = sum(sums(source, "user").values())
    assert whole == sum(line["gpu_ns"] for line in source.lines(Query(fields=("gpu_ns",), each="attempt")))
    for by in (("day",), ("model", "day"), ("node",), ("job",), ("name", "queue")):
        assert sum(sums(source, *by).values()) == whole
    middle_us = head.at_us - 3 * DAY_US
    assert sum(sums(source, "day", until_us=middle_us).values()) + sum(sums(source, "day", since_us=middle_us).values()) == whole


def test_sums_are_shown_with_their_part_of_all(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    assert run(["history", "--log", str(log), "--by", "user,model", "--sort", "-gpu_hours"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].split("  ")[0] == "USER"
    assert "GPU hours and" in printed.err
    assert run(["history", "--log", str(log), "--by", "day", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["by"] == ["day"]
    assert told["since_us"] is None


# Where it is


def test_a_password_on_the_command_line_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    for dsn in (f"postgresql://u:{SECRET}@h/db", f"postgresql://u@h/db?password={SECRET}", f"postgres://:{SECRET}@h"):
        assert run(["history", "--dsn", dsn]) == 2
        printed = capsys.readouterr()
        assert "`ps` shows" in printed.err
        assert SECRET not in printed.err + printed.out


@pytest.mark.parametrize(
    "dsn",
    [
        f"mysql://u:{SECRET}@h/db",
        f"postgresql://u:{SECRET}/x@h:port/db",
        f"postgresql://u:pass@h:{SECRET}/db",
        f"host=h password={SECRET}",
        f"postgresql://[u:{SECRET}@h/db",
        f"postgresql://u:{SECRET}@h:0/db",
    ],
)
def test_a_wrong_dsn_is_not_repeated(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    monkeypatch.setenv("MUSTER_HISTORY_DSN", dsn)
    assert run(["history"]) == 2
    printed = capsys.readouterr()
    assert "MUSTER_HISTORY_DSN is no DSN such as postgresql://" in printed.err
    assert SECRET not in printed.err + printed.out


def test_a_dsn_is_read_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "dsn"
    path.write_text(f"postgresql://u:{SECRET}@h:5433/db\n")
    monkeypatch.setenv("MUSTER_HISTORY_DSN_FILE", str(path))
    assert find_dsn("") == f"postgresql://u:{SECRET}@h:5433/db"
    assert find_dsn("postgresql:///other") == "postgresql:///other"
    path.unlink()
    with pytest.raises(Failure, match=r"the DSN cannot be read from .*: No such file"):
        find_dsn("")


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        (f"postgresql://u:{SECRET}@db.example:5433/muster", "db.example:5433/muster"),
        (f"postgresql:///muster?host=/run/postgresql&password={SECRET}", "/run/postgresql:5432/muster"),
        ("postgresql://", "localhost:5432"),
    ],
)
def test_a_database_is_named_without_its_secrets(dsn: str, shown: str) -> None:
    assert place(dsn) == shown


def test_without_a_history_it_is_said_what_would_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history"]) == 2
    assert "which log? --log or MUSTER_BUS names one" in capsys.readouterr().err
    for command in ("worker", "migrate", "rebuild", "check"):
        assert run(["history", command]) == 2
        assert "which PostgreSQL? --dsn, MUSTER_HISTORY_DSN" in capsys.readouterr().err


def test_without_the_driver_it_is_said_what_brings_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "asyncpg" else object())
    monkeypatch.setenv("MUSTER_HISTORY_DSN", "postgresql:///muster")
    assert run(["history"]) == 2
    assert "pip install 'muster-scheduler[history]'" in capsys.readouterr().err
