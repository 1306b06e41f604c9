"""Slurm's commands inside of a job on a stack that takes no request without a token: real processes on two nodes."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.gateway.tokens import Tokens
from muster.slurm.install import install
from muster.up.places import running

ENDS_S = 180
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --job-name=outer --output=%x.out
set -e
cp "$MUSTER_CREDENTIALS" copied
stat -c 'mode %a %n' "$MUSTER_CREDENTIALS" "$(dirname "$MUSTER_CREDENTIALS")"
srun -l bash -c 'echo task $SLURM_PROCID'
jid=$(sbatch --parsable --output=inner.out --wrap 'echo from inside as $MUSTER_USER; muster jobs >/dev/null && echo and again')
echo "inner $jid"
squeue --me -h -o '%u %j' | sort -u
scancel "$(sbatch --parsable --wrap 'sleep 100')" && echo cancelled
muster cordon a 2>&1 | tail -1
touch waiting; while [ ! -e go ]; do sleep 0.05; done
"""


class Stack:
    """`muster up --tokens` with two agents, and what ada's commands find in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        install(folder / "bin")
        (folder / "bin" / "muster").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m muster.cli "$@"\n')
        (folder / "bin" / "muster").chmod(0o755)
        up = [sys.executable, "-m", "muster.cli", "up", "--data", str(self.data), "--port", "0", "--tokens", "--stop-tasks"]
        self.process = subprocess.Popen(
            [*up, "--agents", "2", "--devices", "8xH100-80GB"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + ENDS_S
        while (told := running(self.data)) is None or told.pid != self.process.pid:
            assert time.monotonic() < until
            time.sleep(0.1)
        _, self.token = Tokens(self.data).create("submit", user="ada", rate=10_000)
        self.environment = {
            **os.environ,
            "MUSTER_GATEWAY": told.url,
            "MUSTER_TOKEN": self.token,
            "LOGNAME": "ada",
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        }
        while len(self.run("sinfo", "-h", "-N", check=False).splitlines()) < 2:
            assert time.monotonic() < until
            time.sleep(0.2)

    def run(self, *command: str, check: bool = True) -> str:
        """What a program prints on standard output."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=ENDS_S, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait_for(self, name: str) -> None:
        """Until a job has made this file."""
        until = time.monotonic() + ENDS_S
        while not (self.folder / name).exists():
            assert time.monotonic() < until, f"{name} never came; {[path.read_text() for path in self.folder.glob('*.out')]}"
            time.sleep(0.05)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path)
    yield made
    made.process.send_signal(signal.SIGTERM)
    made.process.wait(ENDS_S)


def test_commands_in_a_job_act_for_its_user_and_its_secrets_stand_nowhere(stack: Stack) -> None:
    (stack.folder / "outer.sbatch").write_text(SCRIPT)
    job = stack.run("sbatch", "--parsable", "outer.sbatch").strip()
    stack.wait_for("waiting")
    text = (stack.folder / "outer.out").read_text()
    told = json.loads((stack.folder / "copied").read_bytes())
    secrets = [told["steps"], told["token"].rpartition("_")[2]]
    (stack.folder / "copied").unlink()
    for path in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                data = (path / name).read_bytes()
            except OSError:
                continue
            assert not [secret for secret in secrets if secret.encode() in data], (path, name)
    holders = [
        path
        for path in stack.folder.rglob("*")
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in secrets)
    ]
    assert [path.name for path in holders] == ["credentials", "credentials"]  # of the two tasks, and no log has them
    assert {stat.S_IMODE(path.stat().st_mode) for path in holders} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in holders} == {0o700}
    (stack.folder / "go").touch()
    stack.run("muster", "logs", "--follow", job)
    lines = text.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("mode")] == [["mode", "600"], ["mode", "700"]]
    assert {"0: task 0", "1: task 1"} <= set(lines)
    assert "ada outer" in lines
    assert "cancelled" in lines
    assert "a token with the role submit may not do this" in text
    stack.wait_for("inner.out")
    inner = next(line.split()[1] for line in lines if line.startswith("inner "))
    assert json.loads(stack.run("muster", "job", inner, "--json"))["job"]["user"] == "ada"
    until = time.monotonic() + ENDS_S
    while (said := (stack.folder / "inner.out").read_text()) != "from inside as ada\nand again\n":
        assert time.monotonic() < until, said
        time.sleep(0.1)
