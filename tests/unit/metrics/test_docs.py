"""docs/metrics.md says of every metric what the catalogue says, and the files of infra/ name no other."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from muster.metrics.__main__ import row, tables
from muster.metrics.catalogue import METRICS, PROGRAMS, gauge
from tests.support.dashboard import DASHBOARD, panels, parsed, queries, selectors, unanswered
from tests.support.kafka import unavailable

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"
ALERTS = INFRA / "prometheus" / "alerts.yml"
NONE = gauge("", "", "")
NAME = re.compile(r"\bmuster_[a-z0-9_]+")


def promtool(*words: str) -> "subprocess.CompletedProcess[str]":
    """It, or the test is skipped."""
    if shutil.which("promtool") is None:
        unavailable("prometheus", "promtool is not installed (apt-get install prometheus)")
    return subprocess.run(["promtool", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)


def named(text: str) -> set[str]:
    """Metrics that a text names; the parts of a histogram are the histogram."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) if name not in METRICS else name for name in NAME.findall(text)}


def test_the_page_has_a_row_of_every_metric_as_the_catalogue_has_it_and_no_other() -> None:
    lines = (ROOT / "docs" / "metrics.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| `muster_")]
    assert rows == [row(metric) for metrics in PROGRAMS.values() for metric in metrics], "python -m muster.metrics prints them"
    assert set(tables()) <= set(lines)


@pytest.mark.parametrize("name", ["grafana/dashboard.json", "prometheus/alerts.yml", "prometheus/alerts_test.yml"])
def test_infra_asks_for_declared_metrics_only(name: str) -> None:
    found = named((INFRA / name).read_text())
    assert found, "or this tests nothing"
    assert found <= set(METRICS), found - set(METRICS)


def test_every_metric_of_a_cell_and_its_scheduler_is_on_the_dashboard() -> None:
    shown = named(DASHBOARD.read_text())
    assert set(METRICS) - shown == set(), "nobody would see these"


def test_every_panel_has_a_title_and_a_query_of_one_cell_and_a_place_of_its_own() -> None:
    places = set()
    for _, panel in panels():
        assert panel["title"]
        assert panel["targets"]
        assert all("$cell" in target["expr"] for target in panel["targets"]), panel["title"]
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            assert x < 24
            assert (x, place["y"]) not in places
            places.add((x, place["y"]))
    assert len({panel["id"] for _, panel in panels()}) == len(panels())


def test_a_panel_asks_by_labels_that_the_metric_has() -> None:
    asked = queries(lambda row: True)
    assert len(asked) > 50
    for title, query in asked:
        for name, matchers in selectors(query):
            if name.startswith("muster_"):
                metric = METRICS[re.sub(r"_(bucket|count|sum)$", "", name) if name not in METRICS else name]
                assert {label for label, _, _ in matchers} <= {"cell", *metric.labels}, title
        by = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", query) for label in labels.split(",")}
        known = {
            label for name, _ in selectors(query) for label in METRICS.get(re.sub(r"_(bucket|count|sum)$", "", name), NONE).labels
        }
        assert by <= {"le", "job", "instance", *known}, title


def test_there_is_a_test_of_every_alert_and_prometheus_takes_all_files() -> None:
    alerts = re.findall(r"alert: (\w+)", ALERTS.read_text())
    assert len(alerts) >= 5
    tests = (ALERTS.with_name("alerts_test.yml")).read_text()
    for alert in alerts:
        assert re.search(rf"alertname: {alert}\n\s+exp_alerts", tests), f"nothing is planted for {alert}"
        assert alert in (ROOT / "docs" / "metrics.md").read_text()
    for words in (("check", "rules", str(ALERTS)), ("check", "config", str(ALERTS.with_name("prometheus.yml")))):
        checked = promtool(*words)
        assert checked.returncode == 0, checked.stdout


def test_each_alert_fires_on_what_is_planted_for_it() -> None:
    checked = promtool("test", "rules", str(ALERTS.with_name("alerts_test.yml")))
    assert checked.returncode == 0, checked.stdout


PLANTS = [
    ("MusterNoLeader", "max by (cell) (muster_scheduler_leads) < 1", "max by (cell) (muster_scheduler_leads) < 0"),
    ("MusterNoLeader", "unless count by (cell) (muster_scheduler_leads)", "and count by (cell) (muster_scheduler_leads)"),
    ("MusterNoLeader", "(muster_head_age_seconds) > 60", "(muster_head_age_seconds) > 6000"),
    ("MusterNoLeader", "for: 30s", "for: 0s"),
    ("MusterFollowerBehind", "(muster_follower_lag_seconds) > 30", "(muster_follower_lag_seconds) > 3000"),
    ("MusterFollowerBehind", "(muster_follower_lag_records) > 10000", "(muster_follower_lag_records) > 100000000"),
    ("MusterVoidRecords", 'reason=~"no record|another cell"', 'reason=~".*"'),
    ("MusterVoidRecords", "[10m])) > 0", "[10m])) > 2"),
    ("MusterPendingStuck", '{side="decision"}[15m])) == 0', '{side="decision"}[15m])) > 0'),
    ("MusterPendingStuck", "< 0.95 *", "<= 1 *"),
    ("MusterNodesLost", '{state="lost"}) > 0', '{state="lost"}) > 1'),
    ("MusterLogDisk", "< 1e9", "< 1e3"),
    ("MusterLogDisk", "[1h], 86400) < 0", "[1h], 60) < 0"),
]
"""An alert, what its rule says, and what it must not say."""


def test_a_rule_that_was_harmed_fails_its_test(tmp_path: Path) -> None:
    rules = ALERTS.read_text()
    tests = yaml.safe_load(ALERTS.with_name("alerts_test.yml").read_text())
    files = []
    for number, (alert, sound, harmed) in enumerate(PLANTS):
        assert rules.count(sound) == 1, f"{sound} stands {rules.count(sound)} times in the rules"
        folder = tmp_path / str(number)
        folder.mkdir()
        of_rules = yaml.safe_load(rules.replace(sound, harmed))
        of_rules["groups"][0]["rules"] = [rule for rule in of_rules["groups"][0]["rules"] if rule["alert"] == alert]
        (folder / "alerts.yml").write_text(yaml.safe_dump(of_rules))
        of_alert = [
            {**each, "alert_rule_test": [case for case in each["alert_rule_test"] if case["alertname"] == alert]}
            for each in tests["tests"]
            if any(case["alertname"] == alert for case in each["alert_rule_test"])
        ]
        files.append(folder / "alerts_test.yml")
        files[-1].write_text(yaml.safe_dump({**tests, "tests": of_alert}))
    checked = promtool("test", "rules", *map(str, files))
    failed = re.findall(rf"Unit Testing:  {tmp_path}/([0-9]+)/alerts_test.yml\n  FAILED", checked.stdout)
    assert [PLANTS[number] for number in range(len(PLANTS)) if str(number) not in failed] == []


def test_a_query_that_nobody_can_answer_is_found() -> None:
    page = parsed('muster_nodes{cell="main",state="open"} 2\n')
    asked = [("a", 'sum(muster_nodes{cell="main"})'), ("b", "muster_invented"), ("c", 'muster_nodes{state="gone"}')]
    asked += [("d", 'muster_nodes{state!="open"}'), ("e", 'muster_nodes{state=~"op.*"}')]
    assert [line.split("'")[1] for line in unanswered(asked, [page])] == ["b", "c", "d"]
