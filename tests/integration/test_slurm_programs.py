"""The commands and Slurm's programs against a real stack: scheduler, gateway, two agents with eight simulated GPUs each."""

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.cli.main import run as muster
from muster.slurm.__main__ import PROGRAMS
from muster.slurm.__main__ import main as program
from muster.slurm.install import install
from muster.up.places import running

ENDS_S = 180
TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
SCRIPT = """#!/bin/bash
#SBATCH --job-name=Deep_Learning
#SBATCH --gres=gpu:4
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --time=24:00:00
module load cuda/12.1
srun -l bash -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS on $CUDA_VISIBLE_DEVICES'
jid=$(sbatch --parsable --wrap 'echo inner')
echo "inner $jid"
exit 3
"""


class Stack:
    """`muster up`, and programs that speak to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        install(folder / "bin")
        up = [sys.executable, "-m", "muster.cli", "up", "--data", str(folder / "data"), "--port", "0"]
        self.process = subprocess.Popen(
            [*up, "--agents", "2", "--devices", "8xH100-80GB", "--stop-tasks"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + ENDS_S
        while (told := running(folder / "data")) is None or told.pid != self.process.pid:
            assert time.monotonic() < until
            time.sleep(0.1)
        self.environment = {**os.environ, "MUSTER_GATEWAY": told.url, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        while len(self.run("sinfo", "-h", "-N").splitlines()) < 2:
            assert time.monotonic() < until
            time.sleep(0.2)

    def run(self, *command: str, status: int = 0) -> str:
        """What a program prints on standard output. Muster's own run in this process, which spares their start."""
        if command[0] in PROGRAMS:
            return self._called(lambda: program(list(command)), status)
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=ENDS_S, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def muster(self, *arguments: str, status: int = 0) -> str:
        """What `muster` prints."""
        return self._called(lambda: muster(list(arguments)), status)

    def _called(self, call: Callable[[], int], status: int) -> str:
        out = io.TextIOWrapper(io.BytesIO(), write_through=True)
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
            patch.chdir(self.folder)
            for name in ("MUSTER_GATEWAY", "PATH"):
                patch.setenv(name, self.environment[name])
            found = call()
        text = out.buffer.getvalue().decode()
        assert found == status, text
        return str(text)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("stack"))
    yield made
    made.process.terminate()
    made.process.wait(ENDS_S)


def test_a_batch_script_runs_with_its_srun_and_ends_with_its_status(stack: Stack) -> None:
    (stack.folder / "deep.sbatch").write_text(SCRIPT)
    job = stack.run("sbatch", "--parsable", "--wait", "deep.sbatch", status=3).strip()
    text = (stack.folder / f"slurm-{job}.out").read_text()
    lines = sorted(line for line in text.splitlines() if ": rank" in line)
    assert lines == [f"{rank}: rank {rank} of 4 on 0,1,2,3" for rank in range(4)]
    assert "module: cuda/12.1 is not loaded" in text
    inner = text.rpartition("inner ")[2].strip()
    assert stack.muster("job", inner, "--json").startswith("{")
    assert stack.run("squeue", "-h", "-j", job) == ""
    assert stack.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%i %T %e") == f"{job} FAILED 3\n"


def test_a_job_over_both_nodes_is_seen_and_cancelled(stack: Stack) -> None:
    wrapped = "srun bash -c 'sleep 100'"
    job = stack.run("sbatch", "--parsable", "-N2", "--gres=gpu:8", "-J", "wide", "-t", "1:00:00", "--wrap", wrapped).strip()
    until = time.monotonic() + ENDS_S
    while (line := stack.run("squeue", "-h", "-n", "wide", "-o", "%t|%D|%l|%b")) != "R|2|1:00:00|gres/gpu:8\n":
        assert time.monotonic() < until, line
        time.sleep(0.2)
    assert stack.run("sinfo", "-h", "-o", "%t %D") == "alloc 2\n"
    assert len(stack.run("bash", "-c", 'scontrol show hostnames "$(squeue -h -n wide -o %N)"').splitlines()) == 2
    waiting = stack.muster("submit", "--gpus", "1", "--name", "waits", "--", "true").strip()
    assert "GPU" in stack.muster("explain", waiting).upper()
    stack.run("scancel", job)
    assert json.loads(stack.muster("job", job, "--json"))["job"]["state"] in ("stopping", "cancelled")
    stack.muster("cancel", waiting)


def test_submit_follows_and_returns_the_exit_status(stack: Stack) -> None:
    command = "for i in 1 2 3; do echo line $i on $CUDA_VISIBLE_DEVICES; sleep 0.2; done; exit 5"
    followed = stack.muster("submit", "--gpus", "2", "--name", "talks", "--follow", "--", "bash", "-c", command, status=5)
    assert [line.partition(" on")[0] for line in followed.splitlines()[1:]] == ["line 1", "line 2", "line 3"]
    assert stack.muster("logs", "talks") == followed.partition("\n")[2]
    assert "talks" in stack.muster("top", "--once") or "failed" in stack.muster("top", "--once")


def test_what_the_gateway_shows_is_what_the_log_shows(stack: Stack) -> None:
    stack.muster("submit", "--name", "seen", "--wait", "--", "true")
    cycle = json.loads(stack.muster("jobs", "--json"))["cycle"]
    from_gateway = json.loads(stack.muster("jobs", "--at", str(cycle), "--json"))
    assert from_gateway == json.loads(stack.muster("jobs", "--log", "data", "--at", str(cycle), "--json"))
    told = [json.loads(line) for line in stack.muster("log", "--type", "JobSubmitted", "--json").splitlines()]
    assert "seen" in [each["body"]["name"] for each in told]


def test_a_drained_node_takes_nothing_until_it_is_uncordoned(stack: Stack) -> None:
    node = json.loads(stack.muster("nodes", "--json"))["nodes"][0]["node"]
    stack.muster("drain", node)
    assert stack.run("sinfo", "-h", "-n", node, "-o", "%T") == "drained\n"
    stack.muster("uncordon", node)
    assert stack.run("sinfo", "-h", "-n", node, "-o", "%T") == "idle\n"


def test_every_command_of_the_documentation_runs(stack: Stack) -> None:
    node = json.loads(stack.muster("nodes", "--json"))["nodes"][0]["node"]
    assert len(COMMANDS) >= 28
    for line in COMMANDS:
        if line.startswith("muster "):
            stack.muster(*shlex.split(line.replace("vm-0", node))[1:])
        else:
            stack.run("bash", "-c", line)


def test_the_commands_of_the_page_on_constraints_run(stack: Stack) -> None:
    node = json.loads(stack.muster("nodes", "--json"))["nodes"][0]["node"]
    page = (Path(__file__).parents[2] / "docs" / "constraints.md").read_text()
    blocks = [part.partition("```")[0].splitlines() for part in page.split("```bash\n")[1:]]
    assert [len(block) for block in blocks] == [9, 4]
    flags, said = [[stack.muster(*shlex.split(line.replace("vm-0", node))[1:]) for line in lines] for lines in blocks]
    assert "H100" in flags[6]
    assert "place in queue default: 0 before it" in said[1]
    assert f"{node}: does not have 64 GPUs" in said[2]


def test_who_follows_loses_and_doubles_no_line_when_the_scheduler_is_killed(stack: Stack) -> None:
    command = "for i in $(seq 30); do echo line $i; touch at.$i; sleep 0.2; done; exit 6"
    follow = [sys.executable, "-m", "muster.cli", "submit", "--name", "survives", "--follow", "--", "bash", "-c", command]
    pipe = subprocess.PIPE
    with subprocess.Popen(follow, env=stack.environment, cwd=stack.folder, stdout=pipe, stderr=pipe, text=True) as following:
        until = time.monotonic() + ENDS_S
        while not (stack.folder / "at.5").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        told = running(stack.folder / "data")
        assert told is not None
        os.kill(told.scheduler, signal.SIGKILL)
        out, err = following.communicate(timeout=ENDS_S)
    assert out.splitlines()[1:] == [f"line {number}" for number in range(1, 31)]
    assert following.returncode == 6
    assert "the gateway is away; trying again" in err
