"""`make demo` with real processes: the clean run holds, and each plant is found, named, and exit status 1."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.main import run

CHECKS = 12


def demo(folder: Path, plant: str = "") -> subprocess.CompletedProcess[str]:
    """The demo, with its log in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "muster.simulator.demo", str(folder)],
        env={**os.environ, "MUSTER_DEMO_PLANT": plant},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def running(folder: Path) -> list[str]:
    """Command lines of what still runs and names the folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            said = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
        except OSError:
            continue
        if f"{folder}/".encode() in said and int(place.name) != os.getpid():
            found.append((place / "cmdline").read_text())
    return found


def faults(output: str) -> set[str]:
    return set(re.findall(r"^  FAULT   ([a-z-]+):", output, re.MULTILINE))


def test_the_clean_run_holds_and_its_log_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = demo(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert faults(result.stdout) == set()
    assert result.stdout.count("\n  held    ") == CHECKS
    assert "the scheduler was killed with SIGKILL and started again" in result.stdout
    assert running(tmp_path) == []
    for command in ("audit", "verify", "fsck"):
        assert run([command, str(tmp_path)]) == 0
    capsys.readouterr()


def test_a_log_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "main.sqlite").write_bytes(b"somebody's")
    assert demo(tmp_path).returncode == 2
    assert (tmp_path / "main.sqlite").read_bytes() == b"somebody's"


@pytest.mark.parametrize("plant", ["double-start", "lost-job", "altered-log", "no-preempt"])
def test_a_plant_is_found_and_named(tmp_path: Path, plant: str) -> None:
    result = demo(tmp_path, plant)
    assert result.returncode == 1, result.stdout + result.stderr
    assert faults(result.stdout) == {plant}
    assert result.stdout.rstrip().endswith(f"FAILED: {plant}")
    assert running(tmp_path) == []


def test_an_unknown_plant_is_refused(tmp_path: Path) -> None:
    result = demo(tmp_path, "no-such-plant")
    assert result.returncode == 2
    assert "known are double-start" in result.stdout
