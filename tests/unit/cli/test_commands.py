"""What the commands print, and their exit status: 0 well, 1 found something, 2 makes no sense, 3 cannot be read."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.cli.main import COMMANDS, run
from muster.events.registry import KINDS
from tests.unit.cli.conftest import ARRAY, NODES_ARRIVE, RUNS, WAITS, Writer

Altered = Callable[[int, Callable[[bytes], bytes]], Path]


def out(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    """What a command printed."""
    assert run([str(argument) for argument in arguments]) == status
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> Any:
    """The JSON that a command printed."""
    return json.loads(out(capsys, *arguments, "--json", status=status))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 2) -> str:
    """The one sentence with which a command refused."""
    assert run([str(argument) for argument in arguments]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("muster: ")
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = out(capsys, command, "--help")
    assert f"Usage: muster {command}" in text


def test_help_names_every_command_and_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys)
    assert [command for command in COMMANDS if f" {command} " not in text] == []
    assert "Exit status: 0" in text


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed(capsys, "version")["muster"] == "0.1.0"
    assert out(capsys, "version").startswith("muster 0.1.0, ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("adit",), "'adit'"),
        (("audit",), "LOG"),
        (("audit", ".", "--jsn"), "--jsn"),
        (("log", ".", "--type", "JobBound"), "no entry is of the kind 'JobBound'"),
        (("at", ".", "x", "jobs"), "CYCLE"),
        (("at", ".", "1", "queues"), "'queues'"),
        (("at", ".", "1", "job"), "needs the id or the name"),
        (("at", ".", "1", "jobs", "train"), "takes no further argument"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert says in refused(capsys, *arguments)


@pytest.mark.parametrize("command", ["audit", "verify", "fsck", "log", "at", "explain"])
def test_a_folder_without_a_log_is_status_3(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    more = {"at": ("1", "jobs"), "explain": ("train",)}.get(command, ())
    assert "there is no log" in refused(capsys, command, tmp_path, *more, status=3)


def test_a_file_that_is_no_log_is_status_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "main.sqlite").write_text("something else, and long enough to be no empty database" * 100)
    assert "log" in refused(capsys, "fsck", tmp_path, status=3)


def test_a_good_log_is_audited_verified_and_whole(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    audited = parsed(capsys, "audit", log)
    assert audited["difference"] is None
    assert audited["decisions"] >= 4
    verified = parsed(capsys, "verify", log)
    assert verified["violations"] == []
    assert verified["summary"]["decisions"]["InstanceBound"] == 4
    checked = parsed(capsys, "fsck", log)
    assert checked["halt"] is None
    assert checked["admitted"] == audited["cycles"]
    assert "none differs" in out(capsys, "audit", log)
    assert "every decision was legal" in out(capsys, "verify", log)
    assert "the log is whole" in out(capsys, "fsck", log)


def test_an_altered_record_is_found_by_fsck(capsys: pytest.CaptureFixture[str], altered: Altered) -> None:
    folder = altered(2, lambda data: data.replace(b'"at_us":1000000', b'"at_us":1000001'))
    assert parsed(capsys, "fsck", folder, status=1)["halt"]["number"] == 2
    assert "the log halts at position 3" in out(capsys, "fsck", folder, status=1)


@pytest.mark.parametrize(
    ("command", "more"), [("audit", ()), ("verify", ()), ("log", ()), ("at", ("0", "jobs")), ("explain", ("train",))]
)
def test_where_the_chain_breaks_reading_ends_with_status_3(
    capsys: pytest.CaptureFixture[str], altered: Altered, command: str, more: tuple[str, ...]
) -> None:
    folder = altered(2, lambda data: data.replace(b'"at_us":1000000', b'"at_us":1000001'))
    assert run([command, str(folder), *more]) == 3
    assert "muster: the log halts at position 3, after cycle 2" in capsys.readouterr().err


def test_an_entry_of_a_later_build_asks_for_an_upgrade(capsys: pytest.CaptureFixture[str], altered: Altered) -> None:
    folder = altered(3, lambda data: data.replace(b'["InstanceBound",1,', b'["InstanceBound",9,', 1))
    assert "upgrade this reader" in refused(capsys, "audit", folder, status=3)


def test_a_log_that_says_what_cannot_be_is_status_3(capsys: pytest.CaptureFixture[str], altered: Altered) -> None:
    folder = altered(3, lambda data: data.replace(b"[[0,0,[0,1,2,3,4,5,6,7]]]", b"[[0,7,[0,1,2,3,4,5,6,7]]]", 1))
    assert "the log says what cannot be" in refused(capsys, "at", folder, 3, "jobs", status=3)


def test_a_decision_that_was_not_made_so_is_found_by_audit(capsys: pytest.CaptureFixture[str], altered: Altered) -> None:
    folder = altered(3, lambda data: data.replace(b"[[0,0,[0,1,2,3,4,5,6,7]]]", b"[[0,1,[0,1,2,3,4,5,6,7]]]", 1))
    difference = parsed(capsys, "audit", folder, status=1)["difference"]
    assert difference["number"] == 3
    assert difference["recorded"] != difference["decided"]
    assert "cycle 3" in out(capsys, "audit", folder, status=1)


def test_a_decision_that_is_not_legal_is_found_by_verify(capsys: pytest.CaptureFixture[str], altered: Altered) -> None:
    folder = altered(3, lambda data: data.replace(b"[[0,0,[0,1,2,3,4,5,6,7]]]", b"[[0,0,[0,1,2,3,4,5,6,6]]]", 1))
    violations = parsed(capsys, "verify", folder, status=1)["violations"]
    assert violations[0]["rule"] == "device"
    assert "were not legal" in out(capsys, "verify", folder, status=1)


def test_entries_are_printed_one_a_line(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    lines = out(capsys, "log", log).splitlines()
    assert lines[0] == "1 0.000000 = TermStarted term=1 host=here build=test"
    assert "2 1.000000 < NodeRegistered node=n1 uid=uid-n1 cpu_milli=64000 gpus=8" in lines
    assert f"3 2.000000 < JobSubmitted train ({RUNS}) user=ada queue=default priority=0 task: 1 x 8 GPU" in lines
    assert "3 2.000000 > InstanceBound job=train instance=0 attempt=1 placements=0@0[0,1,2,3,4,5,6,7]".replace(
        " instance=0", ""
    ) in [line.replace(" instance=0", "") for line in lines]


def test_entries_are_chosen_by_cycle_and_kind(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    assert {line.split()[0] for line in out(capsys, "log", log, "--from", 3).splitlines()} == {"3"}
    bound = out(capsys, "log", log, "--type", "InstanceBound").splitlines()
    assert len(bound) == 4
    entries = [
        json.loads(line)
        for line in out(capsys, "log", log, "--type", "JobSubmitted", "--type", "InstanceBound", "--json").splitlines()
    ]
    assert [entry["body"]["job"] for entry in entries if entry["kind"] == "JobSubmitted"] == [RUNS, WAITS, ARRAY]
    assert {entry["side"] for entry in entries if entry["kind"] == "InstanceBound"} == {"decision"}
    assert {entry["kind"] for entry in entries} <= set(KINDS)


def test_follow_prints_what_is_appended_later(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    command = [sys.executable, "-c", "from muster.cli.main import main; main()", "log", str(tmp_path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline().startswith("1 0.000000 = TermStarted")
        writer.write(1_000_000, NODES_ARRIVE)
        assert following.stdout.readline().startswith("2 1.000000 < NodeRegistered node=n1")
        following.kill()
    writer.close()


def test_the_state_stands_at_any_cycle(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    assert parsed(capsys, "at", log, 2, "jobs") == []
    jobs = {row["name"]: row for row in parsed(capsys, "at", log, 3, "jobs")}
    assert jobs["train"]["instances"] == {"starting": 1}
    assert jobs["large"]["instances"] == {"pending": 1}
    assert jobs["sweep"]["instances"] == {"starting": 3}
    nodes = {row["node"]: row for row in parsed(capsys, "at", log, 3, "nodes")}
    assert nodes["n1"]["gpus_milli"] == [1000] * 8
    assert sum(nodes["n2"]["gpus_milli"]) == 3000
    assert [node["gpus_milli"] for node in parsed(capsys, "at", log, 2, "nodes")] == [[0] * 8] * 2
    assert "after cycle 3" in out(capsys, "at", log, 0, "nodes")
    assert "there is no cycle 9" in refused(capsys, "at", log, 9, "jobs")


@pytest.mark.parametrize("text", [RUNS, "train", RUNS[:-1] + "1"])
def test_a_job_is_found_by_id_and_name(capsys: pytest.CaptureFixture[str], log: Path, text: str) -> None:
    job = parsed(capsys, "at", log, 0, "job", text)
    assert job["job"] == RUNS
    assert job["elements"][0]["attempt"]["tasks"][0]["devices"] == list(range(8))
    assert "train" in out(capsys, "at", log, 0, "job", text)


def test_a_job_is_found_by_the_beginning_of_its_id_if_only_one_fits(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    assert parsed(capsys, "at", log, 0, "job", "018c")["name"] == "sweep"
    assert "2 jobs have ids that begin with '018b'" in refused(capsys, "at", log, 0, "job", "018b")
    assert "no job at cycle 3 has 'trains'" in refused(capsys, "at", log, 0, "job", "trains")


def test_eta_says_when_a_job_is_to_start(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    text = out(capsys, "eta", log, "large")
    assert text.startswith(f"large ({WAITS}) after cycle 3: ")
    found = parsed(capsys, "eta", log, "large")
    assert (found["code"], found["phase"]) == ("unknown-end", "pending")
    assert parsed(capsys, "eta", log, "train")["code"] == "started"
    assert "has the instances 0 to 2, not 3" in refused(capsys, "eta", log, "sweep", "--instance", 3)


def test_explain_says_why_a_job_waits(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    text = out(capsys, "explain", log, "large")
    assert text.startswith(f"large ({WAITS}) after cycle 3")
    assert "place in queue default: 0 before it" in text
    assert "2 nodes: " in text
    assert parsed(capsys, "explain", log, "large")["lines"]
    assert "has the instances 0 to 2, not 3" in refused(capsys, "explain", log, "sweep", "--instance", 3)


def test_why_not_says_what_keeps_a_job_off_one_node(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    text = out(capsys, "why-not", log, "large", "n2")
    assert text.startswith(f"large ({WAITS}) on n2 after cycle 3")
    assert "n2: " in text
    assert parsed(capsys, "why-not", log, "large", "n2")["fits"] is False
    assert "there is no node 'n9' at cycle 3" in refused(capsys, "why-not", log, "large", "n9")
    assert "takes a log, a job and a node" in refused(capsys, "why-not", "large")


def test_shipped_policies_are_listed_and_shown_with_what_they_were_tuned_on(capsys: pytest.CaptureFixture[str]) -> None:
    names = [row["name"] for row in parsed(capsys, "policy", "list")]
    assert names[:5] == ["fifo", "fair", "packing", "backfill-easy", "backfill-conservative"]
    shown = parsed(capsys, "policy", "show", "default")
    assert (shown["version"], shown["order"], shown["backfill"]["reservations"]) == (2, "smallest", 1)
    assert "Philly" in shown["tuned_on"]
    assert "Tuned on nothing" in out(capsys, "policy", "show", "default/1")


def test_a_policy_that_is_not_shipped_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there are fifo, fair, packing" in refused(capsys, "policy", "use", "fastest")
