"""The systemd units start commands that there are, with flags that there are, and let them do no more than they need."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from muster.cli.main import app
from tests.support.units import FOLDER, PROGRAM, Unit, units

DOCS = (Path(__file__).parents[3] / "docs/cluster.md").read_text()
UNITS = units()
AGENT = "muster-agent"
"""It runs other people's commands, and is not fenced in."""
SPECIFIERS = {"%S": "/var/lib", "%d": "/run/credentials", "%H": "host-1"}
SAID = {
    "/etc/muster/muster.env": "MUSTER_BUS=kafka://10.0.0.1:9092",
    "/etc/muster/agent.env": "MUSTER_AGENT_GATEWAY=http://10.0.0.1:8470\nMUSTER_AGENT_OPTIONS=--label rack=r7 --node gpu-17",
    "/etc/muster/scheduler.env": "MUSTER_SCHEDULER_OPTIONS=--takeover-after 5\nMUSTER_SCHEDULER_METRICS=0.0.0.0:9464",
}
EXPOSURE_MAX = 15
"""Tenths, as `systemd-analyze security` counts them from 0 to 100."""
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")


def parsed(words: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command line makes of these words, without doing it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    command: Any = typer.main.get_command(app)
    context = None
    while words and hasattr(command, "get_command"):
        inner = command.get_command(context or command.make_context("muster", ["version"]), words[0])
        if inner is None:
            break
        command, words = inner, words[1:]
    found: dict[str, Any] = command.make_context(command.name, words).params
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_there_is(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ({}, SAID):
        environment = unit.environment({"/etc/muster/muster.env": SAID["/etc/muster/muster.env"], **said})
        if unit.name == AGENT and not said:
            environment["MUSTER_AGENT_GATEWAY"] = "http://10.0.0.1:8470"
        words = unit.command(environment, SPECIFIERS)
        assert parsed(words, environment, monkeypatch)
        with pytest.raises(Exception, match="No such option"):
            parsed([*words, "--frobnicate"], environment, monkeypatch)


def test_what_is_said_in_the_files_reaches_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {unit.name: unit for unit in UNITS}
    for name, expected in (
        ("muster-scheduler", {"takeover_after": 5.0, "metrics": "0.0.0.0:9464", "bus": "kafka://10.0.0.1:9092"}),
        ("muster-agent", {"label": ["rack=r7"], "node": "gpu-17", "gateway": ["http://10.0.0.1:8470"], "metrics": ""}),
        ("muster-gateway", {"host": "127.0.0.1", "port": 8470, "keys": Path("/var/lib/muster/keys")}),
        ("muster-telemetry", {"instance": "host-1"}),
    ):
        environment = by_name[name].environment(SAID)
        found = parsed(by_name[name].command(environment, SPECIFIERS), environment, monkeypatch)
        assert {key: list(found[key]) if isinstance(found[key], tuple) else found[key] for key in expected} == expected


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_file_that_a_unit_names_is_explained(unit: Unit) -> None:
    assert unit.files
    for path in (*unit.files, *unit.credentials.values()):
        assert f"`{path}`" in DOCS
    for name in (*unit.defaults, *(name for name in unit.environment(SAID) if name.startswith("MUSTER_"))):
        if not name.endswith("_FILE"):
            assert name in DOCS
    assert unit.name in DOCS


def test_no_secret_stands_in_an_environment_or_a_command() -> None:
    for unit in UNITS:
        assert not any(word in unit.text for word in ("MUSTER_TOKEN=", "MUSTER_HISTORY_DSN=", "PGPASSWORD"))
    assert {name for unit in UNITS for name in unit.credentials} == {"history-dsn", "token"}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, of a program that is there."""
    for path in FOLDER.glob("*.service"):
        (tmp_path / path.name).write_text(path.read_text().replace(PROGRAM, sys.executable))
    return tmp_path


def verify(folder: Path) -> str:
    told = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(folder.glob("*.service")))]
    done = subprocess.run(told, capture_output=True, text=True, check=False)
    # What it says of the machine's own units is not about these.
    return "\n".join(line for line in done.stderr.splitlines() if "muster-" in line)


@analyze
def test_systemd_finds_nothing_wrong_with_them(installed: Path) -> None:
    assert verify(installed) == ""


@analyze
@pytest.mark.parametrize(
    ("good", "planted"),
    [
        ("ProtectSystem=strict", "ProtectSystem=stricter"),
        ("KillMode=mixed", "KilMode=mixed"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@system-servic"),
    ],
)
def test_systemd_finds_what_is_planted(installed: Path, good: str, planted: str) -> None:
    path = installed / "muster-scheduler.service"
    path.write_text(path.read_text().replace(good, planted))
    assert "muster-scheduler.service" in verify(installed)


@analyze
@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.name != AGENT], ids=lambda unit: unit.name)
def test_what_holds_the_cluster_is_fenced_in(unit: Unit, installed: Path) -> None:
    told = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager"]
    path = installed / f"{unit.name}.service"
    done = subprocess.run([*told, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    path.write_text(path.read_text().replace("NoNewPrivileges=yes", "").replace("ProtectSystem=strict", ""))
    assert subprocess.run([*told, str(path)], capture_output=True, check=False).returncode != 0


def test_an_agent_leaves_its_tasks_alone() -> None:
    (agent,) = [unit for unit in UNITS if unit.name == AGENT]
    assert agent.settings["KillMode"] == ["process"]
    assert agent.settings["OOMPolicy"] == ["continue"]
    assert "Delegate" in agent.settings
    for name in ("PrivateTmp", "NoNewPrivileges", "ProtectSystem", "PrivateDevices", "RestrictNamespaces"):
        assert name not in agent.settings
