"""A service on real processes: replicas come back when killed; it is scaled, rolls, stops at a bad revision, goes back."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.up.places import running as what_runs

READY_S = 60
PAGE = Path(__file__).parents[2] / "docs" / "services.md"


class Site:
    """A stack with two agents."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        python = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{python}:{os.environ['PATH']}"}
        options = ["--port", "0", "--agents", "2", "--devices", "4xH100-80GB"]
        command = [sys.executable, "-m", "muster.cli", "up", "--data", str(folder / "data"), *options]
        self.process = subprocess.Popen(command, env=self.environment)
        until(lambda: (told := what_runs(folder / "data")) is not None and len(told.agents) == 2, "the stack is ready")
        told = what_runs(folder / "data")
        assert told is not None
        self.environment["MUSTER_GATEWAY"] = told.url

    def muster(self, *arguments: str, code: int = 0) -> str:
        """What the command prints."""
        command = [sys.executable, "-m", "muster.cli", *arguments]
        result = subprocess.run(
            command, cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    def shown(self) -> Any:
        """The service as the gateway shows it."""
        return json.loads(self.muster("job", "web", "--json"))

    def stands(self) -> tuple[str, int, list[tuple[int, int]]]:
        """Its phase, its newest revision, and number and revision of each replica that runs."""
        shown = self.shown()
        runs = [(each["instance"], each["revision"]) for each in shown["elements"] if each["state"] == "running"]
        return shown["service"]["phase"], shown["service"]["revision"], runs

    def becomes(self, phase: str, revision: int, runs: list[tuple[int, int]]) -> None:
        until(lambda: self.stands() == (phase, revision, runs), f"{phase}, {revision}, {runs}; it is {self.stands()}")


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for it."""
    end = time.monotonic() + READY_S
    while not true():
        assert time.monotonic() < end, f"it does not become true: {what}"
        time.sleep(0.1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.process.send_signal(signal.SIGTERM)
    site.process.wait(60)


def test_a_service_is_kept_scaled_revised_and_rolled_back(site: Site) -> None:
    """The commands of the page, with the file of the page."""
    (yaml,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^muster (.*)$", block, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["submit", "job", "explain", "scale", "revise", "rollback", "cancel"]
    marked = yaml.replace("exec sleep 3600", "echo $$ >> $MUSTER_INSTANCE.pid; exec sleep 3600")
    (site.work / "web.yaml").write_text(marked)
    (site.work / "web-2.yaml").write_text(marked.replace("sleep 3600", "sleep 7200"))
    (site.work / "bad.yaml").write_text(marked.replace("sleep 3600", "false"))
    site.muster(*commands[0].split())
    site.becomes("kept", 1, [(0, 1), (1, 1), (2, 1)])

    pid = int((site.work / "1.pid").read_text().split()[-1])
    os.kill(pid, signal.SIGKILL)
    until(lambda: len((site.work / "1.pid").read_text().split()) == 2, "the replica that was killed runs again")
    site.becomes("kept", 1, [(0, 1), (1, 1), (2, 1)])
    assert [each["attempts"] for each in site.shown()["elements"]] == [1, 2, 1]

    until(lambda: "service, revision 1: 3 of 3 replicas are up" in site.muster(*commands[1].split()), "all are up")
    assert "3 of 3 replicas are up" in site.muster(*commands[2].split())
    site.muster(*commands[3].split())
    site.becomes("kept", 1, [(0, 1), (1, 1), (2, 1), (3, 1)])

    site.muster(*commands[4].split())
    site.becomes("kept", 2, [(0, 2), (1, 2), (2, 2), (3, 2)])
    site.muster("revise", "web", "bad.yaml")
    until(lambda: site.stands()[0] == "stopped", "the roll stops")
    assert len(site.stands()[2]) == 3
    assert "the roll to revision 3 stopped" in site.muster("explain", "web")
    site.muster(*commands[5].split())
    site.becomes("kept", 4, [(0, 4), (1, 4), (2, 4), (3, 4)])

    assert "no request.service.autoscale" in site.muster("metric", "web", "12.5", code=2)
    site.muster(*commands[6].split())
    until(lambda: site.shown()["job"]["state"] == "cancelled", "it has ended")
