"""The example files of a Slurm and a Kubernetes user, as they are, and a gang of 12 tasks, on a real stack with two agents."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster.simulator.demo
from muster.cli.main import run
from muster.up.places import running as what_runs

WORKLOAD = Path(muster.simulator.demo.__file__).parent / "workload"
READY_S = 60


class Site:
    """A stack with two agents, and a folder from which people submit."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        shutil.copytree(WORKLOAD, self.work, ignore=shutil.ignore_patterns("__*"))
        python = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{python}:{os.environ['PATH']}"}
        options = ["--port", "0", "--agents", "2", "--devices", "8xH100-80GB", "--queue", "gpu"]
        command = [sys.executable, "-m", "muster.cli", "up", "--data", str(folder / "data"), *options]
        self.process = subprocess.Popen(command, env=self.environment)
        end = time.monotonic() + READY_S
        while (told := what_runs(folder / "data")) is None or len(told.agents) < 2:
            assert time.monotonic() < end, "the stack is not ready"
            time.sleep(0.05)
        self.environment["MUSTER_GATEWAY"] = told.url

    def muster(self, *arguments: str) -> str:
        """What the command prints; it must succeed."""
        command = [sys.executable, "-m", "muster.cli", *arguments]
        result = subprocess.run(
            command, cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def submit(self, file: str, *options: str) -> str:
        """Submit it as it is, and wait until it is finished; its id."""
        return str(json.loads(self.muster("submit", "--wait", "--json", *options, file))["jobs"][0]["job"])

    def ran(self, job: str) -> list[dict[str, Any]]:
        """What the job's processes wrote down."""
        return [json.loads(line) for line in (self.work / "processes" / f"{job}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(60) == 0


def trained(text: str) -> list[tuple[str, ...]]:
    """Rank, world size, node, devices, loss at first and at last, of each rank that came to its end."""
    line = r"rank (\d+) of (\d+) on (\S+), devices (\S+), attempt 1: loss (\S+) at first, (\S+) after \d+ steps"
    return sorted(re.findall(line, text), key=lambda found: int(found[0]))


def test_a_slurm_script_runs_as_it_is_with_four_ranks_on_four_gpus(site: Site) -> None:
    job = site.submit("deep_learning.sbatch")
    (output,) = site.work.glob("slurm-*.out")
    text = output.read_text()
    assert "module: cuda/12.1 is not loaded" in text
    ranks = trained(text)
    assert [rank[:2] for rank in ranks] == [(str(number), "4") for number in range(4)], text
    (devices,) = {rank[3] for rank in ranks}
    assert len(devices.split(",")) == 4, "with --gres every task of a node sees all GPUs of the job there"
    assert len({rank[4:] for rank in ranks}) == 1, "the ranks do not agree on the loss"
    assert [line["what"] for line in site.ran(job)] == ["start"] * 4 + ["end"] * 4


def test_a_pod_runs_as_it_is_what_stands_for_its_image_in_images_toml(site: Site) -> None:
    job = site.submit("gpu-training-pod.yaml")
    ((rank, world, _, devices, first, last),) = trained(site.muster("logs", job))
    assert (rank, world, len(devices.split(","))) == ("0", "1", 2)
    assert float(last) < float(first) / 100


def test_a_gang_of_twelve_trains_over_both_nodes_and_agrees_on_the_loss(site: Site) -> None:
    job = site.submit("gang.yaml", "--directory", str(site.work))
    ranks = trained("".join(path.read_text() for path in site.work.glob("gang-*.out")))
    assert [rank[:2] for rank in ranks] == [(str(number), "12") for number in range(12)]
    assert len({rank[2] for rank in ranks}) == 2, "not over both nodes"
    assert len({rank[2:4] for rank in ranks}) == 12, "two ranks have the same device"
    assert len({rank[4:] for rank in ranks}) == 1, "the ranks do not agree on the loss"
    assert all(float(last) < float(first) / 100 for *_, first, last in ranks)
    assert sorted(line["rank"] for line in site.ran(job) if line["what"] == "start") == list(range(12))


def test_a_queue_with_a_name_that_no_job_can_say_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--queue", "No Good"]) == 2
    assert "the name of a queue" in capsys.readouterr().err
