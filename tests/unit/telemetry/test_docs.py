"""docs/telemetry.md says what is so: its rules, classes, metrics of the exporter and options are there, and its example runs."""

import re
from pathlib import Path

import pytest

from muster.cli.main import run
from muster.telemetry.dcgm import COUNTED_XIDS, FIELDS, FLAGS, LAST_XID, REASONS
from muster.telemetry.rules import FILE, load, usual

TEXT = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()


def test_its_rules_are_those_that_come_with_muster() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (\w+) of `(\w+)` is (\d+) or more, in (\d+) s \| (\w+) \| (\w*) ?\| ?(.*?) ?\|$", TEXT, re.M
    )
    assert rows == [
        (
            rule.name,
            rule.measure,
            rule.signal,
            str(rule.at_least),
            str(rule.window_s),
            rule.health,
            "yes" if rule.at_once else "",
            f"{rule.recovers_after * rule.window_s} s" if rule.recovers_after else "",
        )
        for rule in usual().rule
    ]
    assert f"{usual().late_s} s" in TEXT
    assert f"{usual().reach_s() // 60} minutes" in TEXT


def test_its_classes_of_xids_are_those_of_the_file() -> None:
    rows = re.findall(r"^\| `([a-z]+)` \| ([A-Z].*?) \| (failed|degraded|healthy) \|$", TEXT, re.M)
    assert rows == [(name, kind.action, kind.health) for name, kind in usual().xid.items()]


def test_its_metrics_are_those_that_the_bridge_reads() -> None:
    assert set(re.findall(r"`(DCGM_\w+)`", TEXT)) == {*FIELDS, *FLAGS, *REASONS, LAST_XID, COUNTED_XIDS}
    for field, _ in FIELDS.values():
        assert f"`{field}`" in TEXT


def test_its_options_are_the_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for words in (["telemetry", name] for name in ("worker", "bridge", "rules", "replay")):
        run([*words, "--help"])
    for words in (["agent"], ["agent", "xid"], ["agent", "feign"], ["log"]):
        run([*words, "--help"])
    known = capsys.readouterr().out
    for option in re.findall(r"`?(--[a-z][a-z-]+)", TEXT):
        assert option in known, option


def test_its_example_leads_to_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```json\n(.*?)```", TEXT, re.S)
    (tmp_path / "samples.jsonl").write_text(block)
    (said,) = re.findall(r"\$ muster telemetry replay samples.jsonl\n(.*?)```", TEXT, re.S)
    monkeypatch.chdir(tmp_path)
    assert run(["telemetry", "replay", "samples.jsonl"]) == 0
    assert capsys.readouterr().out == said


def test_its_rule_of_ones_own_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.S)
    text = FILE.read_text()
    (tmp_path / "mine.toml").write_text(text.replace("[xid.reset]", block + "\n[xid.reset]", 1))
    assert [rule.name for rule in load(tmp_path / "mine.toml").rule][-1] == "row-remap-pending"
