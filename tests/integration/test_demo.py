"""`make demo` with real processes: the clean run holds, and each plant is found, named, and exit status 1."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.cli.main import run
from muster.log.reader import read_admitted

CHECKS = 12
PLANTS = ("", "double-start", "lost-job", "altered-log", "no-preempt")
AT_ONCE = 2
"""They wait more than they compute, but a machine may have two cores only."""

Result = subprocess.CompletedProcess[str]
Played = dict[str, tuple[Path, Future[Result]]]


def demo(folder: Path, plant: str = "") -> Result:
    """The demo, with its log in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "muster.simulator.demo", str(folder)],
        env={**os.environ, "MUSTER_DEMO_PLANT": plant},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """By plant the folder of a demo, and what became of it."""
    folders = {plant: tmp_path_factory.mktemp(plant or "clean") for plant in PLANTS}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {plant: (folder, pool.submit(demo, folder, plant)) for plant, folder in folders.items()}
        pool.shutdown(cancel_futures=True)


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


def test_the_clean_run_holds_and_its_log_can_be_read(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    folder, future = played[""]
    result = future.result()
    assert result.returncode == 0, result.stdout + result.stderr
    assert faults(result.stdout) == set()
    assert result.stdout.count("\n  held    ") == CHECKS
    assert "the scheduler was killed with SIGKILL and started again" in result.stdout
    assert running(folder) == []
    for command in ("audit", "verify", "fsck"):
        assert run([command, str(folder)]) == 0
    capsys.readouterr()


def test_what_the_readme_asks_of_a_demo_is_answered(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    folder, future = played[""]
    assert future.result().returncode == 0
    last = str(max(envelope.number for envelope, _ in read_admitted(folder)))
    lines = re.findall(r"^\$ (muster \w+ build/demo.*)$", (Path(__file__).parents[2] / "README.md").read_text(), re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        words = [str(folder) if word == "build/demo" else word for word in shlex.split(line.partition("|")[0])]
        words = [last if word.isdigit() and words[place - 1] != "--from" else word for place, word in enumerate(words)]
        assert run(words[1:]) == 0, line
        assert capsys.readouterr().out


def test_a_log_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "main.sqlite").write_bytes(b"somebody's")
    assert demo(tmp_path).returncode == 2
    assert (tmp_path / "main.sqlite").read_bytes() == b"somebody's"


@pytest.mark.parametrize("plant", PLANTS[1:])
def test_a_plant_is_found_and_named(played: Played, plant: str) -> None:
    folder, future = played[plant]
    result = future.result()
    assert result.returncode == 1, result.stdout + result.stderr
    assert faults(result.stdout) == {plant}
    assert result.stdout.rstrip().endswith(f"FAILED: {plant}")
    assert running(folder) == []


def test_a_demo_that_is_told_to_stop_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "muster.simulator.demo", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("gang attempt 1 starts" in line for line in process.stdout), "it ended before"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert running(tmp_path) == []


def test_an_unknown_plant_is_refused(tmp_path: Path) -> None:
    result = demo(tmp_path, "no-such-plant")
    assert result.returncode == 2
    assert "known are double-start" in result.stdout
