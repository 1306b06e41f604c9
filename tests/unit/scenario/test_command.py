# ruff: noqa: E501 (the sentence under test stands on one line)
"""`muster scenario`: one line a file, exit statuses, JSON, traces."""

import json
from pathlib import Path

import pytest

from muster.cli.main import run

GOOD = """name: one job runs
cluster: {nodes: [{name: n1, gpus: 1}]}
steps:
  - {at: 0, submit: [{name: a, gpus: 1}, {name: b, gpus: 1}]}
  - {at: 1, expect: {running_exactly: [a], pending: b}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "wrong.yaml").write_text(GOOD.replace("pending: b", "pending: a").replace("one job", "another"))
    (tmp_path / "unknown.yaml").write_text(GOOD.replace("gpus: 1}, {", "gpuss: 1}, {"))
    return tmp_path


def test_a_line_a_file_and_status_0_when_all_pass(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", "run", str(folder / "good.yaml")]) == 0
    assert capsys.readouterr().out == "pass one job runs\n"


def test_status_1_when_one_fails_and_the_others_are_played(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", "run", str(folder)]) == 1
    good, unknown, wrong = capsys.readouterr().out.splitlines()
    assert good == "pass one job runs"
    assert unknown.startswith(
        f"FAIL unknown: {folder / 'unknown.yaml'}:4: steps[0].submit[0].gpuss is unknown: a job knows name, queue, user, priority, "
    )
    assert wrong == "FAIL another runs: step 2 at 1 s (line 5), expected pending: a, actual a is running"


def test_json_is_one_document_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", "run", "--json", str(folder / "wrong.yaml"), str(folder / "good.yaml")]) == 1
    wrong, good = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (wrong["passed"], wrong["expected"], wrong["actual"]) == (False, "pending: a", "a is running")
    assert (good["passed"], good["name"], good["decisions"]) == (True, "one job runs", 3)


def test_a_trace_has_every_entry(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", "run", "--trace", str(folder / "good.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[4:6] for line in lines if " decision " in line] == [
        ["decision", "InstanceBound"],
        ["decision", "ShapeDeferred"],
        ["decision", "InstanceStarted"],
    ]


def test_mutate_says_what_was_noticed_and_what_was_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", "mutate", str(folder / "good.yaml")]) == 0
    line = capsys.readouterr().out
    assert line.startswith("pass one job runs: noticed no-holdings; unnoticed fifo, ")


def test_a_scene_that_notices_nothing_fails_in_mutate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "good.yaml").write_text(GOOD.replace("{running_exactly: [a], pending: b}", "{bound_count: {at_least: 0}}"))
    assert run(["scenario", "mutate", str(folder / "good.yaml")]) == 1
    assert capsys.readouterr().out.startswith("FAIL one job runs: noticed none; unnoticed ")


def test_a_file_that_is_not_there_is_a_mistake_of_the_call(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", "run", str(folder / "missing.yaml")]) == 2
    assert "missing.yaml is not there" in capsys.readouterr().err
