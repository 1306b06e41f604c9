"""Each measurement of the pipeline happens: what it counts stands in its log, and the log is in order. No time is judged."""

import re
import shlex
from pathlib import Path

import msgspec
import pytest

from muster.bench.pipeline import parts, report, stack
from muster.cli.main import run
from muster.events.codec import decode_cycle
from muster.events.decisions import InstanceBound
from muster.log.sqlite import SqliteFile

TINY = msgspec.structs.replace(
    parts.QUICK,
    nodes=12,
    warm_s=0.5,
    bound_s=1.0,
    lives_s=1.0,
    beside_s=1.0,
    connections=4,
    lives_per_s=20.0,
    lives_run_s=(0.1, 0.3),
    beside_per_s=20.0,
    reads_per_s=30.0,
    idle=3,
    running=2,
)
LIFE = ("JobSubmitted", "InstanceBound", "InstanceStarted", "TaskStarted", "TaskExited", "AttemptEnded")


TEXT = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()


def taken(folder: Path, name: str) -> report.Part:
    (found,) = parts.Bench(TINY, stack.SqliteStack, folder, lambda _: None).run([name])
    return found


@pytest.mark.parametrize("name", list(parts.PARTS))
def test_what_is_counted_happened_and_the_log_is_in_order(tmp_path: Path, name: str) -> None:
    found = taken(tmp_path, name)
    assert [(check.check, check.holds) for check in found.checks] == [("audit", True), ("verify", True)]
    assert all(figure.holds is None for figure in found.figures), "a floor was applied to a small measurement"
    assert found.load.seconds > 0
    assert found.limit
    counts = found.counts
    bound = sum(
        isinstance(event, InstanceBound)
        for record in SqliteFile.reader(tmp_path / name).read(0)
        for event in decode_cycle(record.data).decisions
    )
    assert counts["InstanceBound"] == bound == counts["JobSubmitted"] > 0
    if name in ("lives", "running"):
        assert {counts[kind] for kind in LIFE} == {bound}
    if name == "lives":
        assert counts["answered"] == bound
        assert counts["assignments"] >= bound // TINY.nodes
    if name == "beside":
        assert counts["reads"] > 0
        assert counts["cycles_alone"] > 0
        assert counts["cycles_beside"] > 0
    if name in ("idle", "running"):
        assert bound == {"idle": TINY.idle, "running": TINY.running}[name]


def test_the_command_of_the_documentation_runs_and_its_parts_and_options_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"```bash\n(muster .*)\n```", TEXT)
    assert run(shlex.split(command)[1:]) == 0
    said = capsys.readouterr().out
    assert "job_watch_p50_ms" in said
    assert "limited by" in said
    text, _, _ = TEXT.partition("## The pipeline on Kafka")
    assert re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE) == list(parts.PARTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        run(["bench", "pipeline", "--help"])
        run(["bench", "engine", "--help"])
    known = capsys.readouterr().out
    assert [option for option in re.findall(r"(--[a-z][a-z-]+)", TEXT) if option not in known] == []


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--part", "everything"], "--part 'everything'"),
        (["--log", "paper"], "--log 'paper'"),
        (["--data", "."], "--data ."),
    ],
)
def test_what_makes_no_sense_is_named(capsys: pytest.CaptureFixture[str], words: list[str], wrong: str) -> None:
    assert run(["bench", "pipeline", *words]) == 2
    assert wrong in capsys.readouterr().err
