"""srun inside of a job, as real processes: what `batch` and `stepd` do on two nodes, without a scheduler around them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from muster.agent.credentials import Credentials
from muster.slurm.batch import with_path
from muster.slurm.say import Refused
from muster.slurm.srun import find_parts

PROGRAM = (sys.executable, "-P", "-m", "muster.slurm")
ENDS_S = 120

Job = Callable[[str], "Running"]


class Running:
    """A job on the nodes a0 and a1, two GPUs each: its script and the step daemon of the other node."""

    def __init__(self, script: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        self.folder = folder
        told = Credentials(gateway="", token="", steps="s3cret")
        (folder / "credentials").write_bytes(msgspec.json.encode(told))
        other = msgspec.structs.replace(told, steps="other")
        (folder / "others").write_bytes(msgspec.json.encode(other))
        common = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "MUSTER_JOB_ID": "job",
            "MUSTER_INSTANCE": "0",
            "MUSTER_ATTEMPT": "1",
            "MUSTER_NODES": "a0,a1",
            "MUSTER_RANKS_PER_NODE": "1,1",
            "MUSTER_CREDENTIALS": str(folder / "credentials"),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "SLURM_JOB_ID": "job",
            "SLURM_JOB_NODELIST": "a[0-1]",
            "SLURM_NTASKS": "4",
            "SLURM_NTASKS_PER_NODE": "2",
            "WORLD_SIZE": "2",
            "RANK": "0",
        }
        first = {**common, "MUSTER_RANK": "0", "MUSTER_NODE": "a0", "CUDA_VISIBLE_DEVICES": "0,1"}
        second = {**common, "MUSTER_RANK": "1", "MUSTER_NODE": "a1", "CUDA_VISIBLE_DEVICES": "4,5"}
        self.stepd = subprocess.Popen([*PROGRAM, "stepd"], env=second, cwd=folder, start_new_session=True)
        self.batch = subprocess.Popen(
            [*PROGRAM, "batch", "bash", "-c", script],
            env=first,
            cwd=folder,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, list[str], str]:
        """Exit status, sorted lines of standard output, standard error."""
        out, err = self.batch.communicate(timeout=ENDS_S)
        return self.batch.returncode, sorted(out.splitlines()), err

    def wait_for(self, name: str) -> None:
        """Until the job has made this file."""
        until = time.monotonic() + ENDS_S
        while not (self.folder / name).exists():
            assert time.monotonic() < until, f"{name} never came"
            time.sleep(0.02)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    jobs: list[Running] = []

    def start(script: str) -> Running:
        jobs.append(Running(script, tmp_path))
        return jobs[-1]

    yield start
    for each in jobs:
        for process in (each.batch, each.stepd):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def test_a_step_runs_on_all_nodes_and_each_task_knows_its_place(job: Job) -> None:
    names = ("PROCID", "LOCALID", "NODEID", "NTASKS")
    told = " ".join(f"$SLURM_{name}" for name in names) + " $SLURMD_NODENAME $RANK/$WORLD_SIZE $CUDA_VISIBLE_DEVICES"
    running = job(f"srun -l bash -c 'echo {told}'")
    code, lines, err = running.end()
    assert (code, err) == (0, "")
    assert lines == ["0: 0 0 0 4 a0 0/4 0,1", "1: 1 1 0 4 a0 1/4 0,1", "2: 2 0 1 4 a1 2/4 4,5", "3: 3 1 1 4 a1 3/4 4,5"]
    assert running.stepd.wait(timeout=ENDS_S) == 0


def test_what_scripts_in_the_wild_call_works(job: Job) -> None:
    running = job(
        """set -e
        module load cuda/12.1 2>&1
        nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
        echo "${nodes[@]}"
        srun -N1 -n1 -w "${nodes[1]}" bash -c 'echo on $SLURMD_NODENAME of $SLURM_NNODES'
        srun --ntasks-per-node=1 bash -c 'echo --node_rank=$SLURM_NODEID of $SLURM_NTASKS'
        srun -l --gpus-per-task=1 bash -c 'echo gpu $CUDA_VISIBLE_DEVICES'
        echo input | srun -n3 cat
        srun --export=NONE,A=b -n1 bash -c 'echo $A'
        srun -n4 -o out.%t bash -c 'echo $SLURM_PROCID'
        cat out.3"""
    )
    code, lines, err = running.end()
    assert (code, err) == (0, "")
    expected = ["--node_rank=0 of 2", "--node_rank=1 of 2", "0: gpu 0", "1: gpu 1", "2: gpu 4", "3: gpu 5", "3", "a0 a1", "b"]
    expected += ["input"] * 3 + ["on a1 of 1"]
    expected += ["module: cuda/12.1 is not loaded: there are no modules here, programs come from the PATH"]
    assert lines == sorted(expected)


def test_the_worst_exit_status_wins_on_whatever_node(job: Job) -> None:
    code, _, err = job("srun bash -c 'exit $((SLURM_PROCID * 3))'").end()
    assert code == 9
    assert "srun: error: a1: task 3: exited with code 9" in err
    code, _, err = job("srun -n3 bash -c '[ $SLURM_PROCID != 2 ] || kill -9 $$'").end()
    assert code == 128 + signal.SIGKILL
    assert "a1: task 2: killed by SIGKILL" in err


def test_a_signal_reaches_every_task_and_leaves_it_its_grace(job: Job) -> None:
    task = 'trap "sleep 0.3; echo bye; exit 5" TERM; touch ready.$SLURM_PROCID; for i in {1..600}; do sleep 0.05; done'
    running = job(f"srun -l bash -c '{task}'")
    for number in range(4):
        running.wait_for(f"ready.{number}")
    os.killpg(running.stepd.pid, signal.SIGTERM)
    os.killpg(running.batch.pid, signal.SIGTERM)
    _, lines, _ = running.end()
    assert lines == [f"{number}: bye" for number in range(4)]
    assert running.stepd.wait(timeout=ENDS_S) == 0


def test_when_srun_is_killed_nothing_is_left_on_the_other_node(job: Job) -> None:
    running = job(
        """srun bash -c 'echo $$ > pid.$SLURM_PROCID; sleep 60' & sleep 0.1
        until [ -s pid.2 ] && [ -s pid.3 ]; do sleep 0.05; done; kill -9 $!; touch killed; sleep 60"""
    )
    running.wait_for("killed")
    pids = [int((running.folder / f"pid.{number}").read_text()) for number in (2, 3)]
    until = time.monotonic() + ENDS_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until, "tasks of a dead srun live on"
        time.sleep(0.05)


def test_a_login_shell_finds_srun_although_its_profile_sets_the_path_anew() -> None:
    script = "#!/bin/bash -l\necho $LINENO"
    command = with_path(["/bin/bash", "-l", "-c", script, "slurm_script", "a"])
    done = subprocess.run(
        [*command[:2], "-c", f"PATH=/usr/bin:/bin; {command[3]}; echo $PATH $0 $1", *command[4:]],
        env={"MUSTER_STEP_DIR": "/steps"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2", "/steps/bin:/usr/bin:/bin", "slurm_script", "a"]
    assert with_path(["python", "-c", "print()"]) == ["python", "-c", "print()"]
    assert with_path(["bash", "-c", "#" * 131_060])[2][0] == "#"


def test_who_has_not_the_secret_starts_nothing(job: Job) -> None:
    running = job(
        "for i in {1..100}; do [ -e go ] && break; sleep 0.05; done; env MUSTER_CREDENTIALS=others srun -n1 -N1 -w a1 echo no"
    )
    (running.folder / "go").touch()
    code, lines, err = running.end()
    assert code != 0
    assert lines == []
    assert "a1 has gone" in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("-w b7 true", "the job is not on b7; it is on a0, a1"),
        ("-N3 true", "asks for 3 nodes, and the job has 2"),
        ("--gpus-per-task=2 true", "2 tasks with 2 GPUs each do not fit on a"),
        ("-n x true", "--ntasks must be a whole number from 1, not 'x'"),
        ("--nonsense true", "--nonsense is no option here"),
        ("", "no program was given"),
        ("-n1 ./missing", "no such file"),
    ],
)
def test_what_srun_cannot_do_it_says_in_one_sentence(job: Job, options: str, says: str) -> None:
    code, lines, err = job(f"srun {options}").end()
    assert code != 0
    assert lines == []
    assert says in err
    assert "Traceback" not in err


def test_the_other_nodes_are_waited_for_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_RANKS_PER_NODE", "2,1")
    environment = {"MUSTER_STEP_DIR": str(tmp_path), "MUSTER_RANK": "0", "MUSTER_NODE": "a0"}
    with pytest.raises(Refused, match=r"2 of the 2 other nodes of the job did not come within 0\.1 s"):
        find_parts(environment, 0.1)
    peers = {"3": {"node": "a1", "host": "h", "port": 1}, "1": {"node": "a0", "host": "h", "port": 2}}
    (tmp_path / "peers.json").write_text(json.dumps(peers))
    found, waiting = find_parts(environment, 0.1)
    assert [(part.rank, part.node) for part in found] == [(0, "a0"), (1, "a0"), (3, "a1")]
    assert waiting[3].port == 1
