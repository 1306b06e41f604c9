"""Where a task's output goes, and how it is read.

Every output is found at `output/JOB/INSTANCE.ATTEMPT.RANK.STREAM` in the agent's data folder: there it is, or there a link
leads to where the job wanted it (`JobRun.output` and `error`, with Slurm's %-patterns). Outputs outlive their task.
"""

import contextlib
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

import msgspec

from muster.agent.protocol import AgentTask
from muster.agent.slots import write_whole
from muster.doors.names import element_index

PATTERN = re.compile(r"%(?P<width>[0-9]{0,2})(?P<sign>[a-zA-Z%])|\\\\")
SWEEP_US: Final = 3_600_000_000
"""Old outputs are looked for so often."""
KEPT_SWEEPS: Final = 7 * 24
"""The output of a job stays until it was found unchanged so often."""
AGES: Final = ".ages"
STREAMS: Final = ("stdout", "stderr")


def expand(path: str, task: AgentTask, node: str) -> str:
    """Replace the patterns that Slurm knows in the name of an output file.

    %j job id, %x job name, %a index in the array, %A id of the array, %N and %n name and number of the node, %t rank,
    %u user, %s step, %J job and step, %% a percent sign; with a width, as in %4a, numbers get leading zeros.
    """
    job = task.run.environment.get("SLURM_JOB_ID", task.job)
    element = str(element_index(task.run.environment, task.instance))
    number = task.ranks.nodes.index(node) if node in task.ranks.nodes else 0
    values = {
        "j": job,
        "J": f"{job}.0",
        "x": task.run.environment.get("SLURM_JOB_NAME", task.name).replace("/", "-"),
        "a": element,
        "A": job,
        "N": node.split(".")[0],
        "n": str(number),
        "t": str(task.rank),
        "u": task.user,
        "s": "0",
        "%": "%",
    }

    def put(match: re.Match[str]) -> str:
        if match["sign"] is None:
            return "\\"
        value = values.get(match["sign"])
        if value is None:
            return match[0]
        return value.zfill(int(match["width"])) if match["width"] and value.isdigit() else value

    return PATTERN.sub(put, path)


def place(root: Path, task: AgentTask, stream: str) -> Path:
    """Where everybody looks for the output."""
    return root / task.job / f"{task.instance}.{task.attempt}.{task.rank}.{stream}"


def prepare(root: Path, task: AgentTask, node: str, directory: Path) -> tuple[str, str]:
    """The files of the two streams, with their folders made and links to them placed. Raises OSError.

    Without `output` each stream has a file of its own; with it, and without `error`, both go there, as with Slurm.
    """
    wanted = {"stdout": task.run.output, "stderr": task.run.error or task.run.output}
    paths = []
    for stream in STREAMS:
        here = place(root, task, stream)
        here.parent.mkdir(parents=True, exist_ok=True)
        path = here
        if wanted[stream]:
            path = directory / expand(wanted[stream], task, node)
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                here.unlink()
            here.symlink_to(path)
        paths.append(str(path))
    return paths[0], paths[1]


def find(root: Path, job: str, instance: int, attempt: int, rank: int, stream: str) -> Path | None:
    """The output of an attempt, or of the newest one (0); None where there is none."""
    if attempt:
        path = root / job / f"{instance}.{attempt}.{rank}.{stream}"
        return path if path.exists() else None
    newest: tuple[int, Path] | None = None
    for path in (root / job).glob(f"{instance}.*.{rank}.{stream}"):
        number = int(path.name.split(".")[1])
        if newest is None or number > newest[0]:
            newest = (number, path)
    return newest[1] if newest is not None and newest[1].exists() else None


class _Ages(msgspec.Struct):
    """What the last sweep found: by job, the mark of its last change, and how many sweeps in a row found it so."""

    boot: str = ""
    at_us: int = 0
    jobs: dict[str, tuple[str, int]] = {}


def drop_old(root: Path, busy: set[str], boot: str, at_us: int, kept_sweeps: int = KEPT_SWEEPS) -> int:
    """Remove outputs that nobody wrote for about a week, of jobs that are not here any more; how many jobs.

    Does nothing within an hour of the last time. The week is counted in these hours, in which an agent was there, and not by
    dates: a clock that was wrong when a file was written, or is wrong now, makes nothing old. `at_us` is `slots.now_us`.
    """
    path = root / AGES
    try:
        ages = msgspec.json.decode(path.read_bytes(), type=_Ages)
    except (OSError, msgspec.DecodeError):
        ages = _Ages()
    if ages.boot == boot and at_us < ages.at_us + SWEEP_US:
        return 0
    jobs: dict[str, tuple[str, int]] = {}
    dropped = 0
    for folder in root.iterdir():
        with contextlib.suppress(OSError):
            if folder.name in busy or not folder.is_dir():
                continue
            mark = _mark(folder)
            before, sweeps = ages.jobs.get(folder.name, ("", 0))
            sweeps = sweeps + 1 if mark == before else 0
            if sweeps >= kept_sweeps:
                shutil.rmtree(folder)
                dropped += 1
            else:
                jobs[folder.name] = (mark, sweeps)
    with contextlib.suppress(OSError):  # on a full disk what is there only gets no older
        write_whole(str(path), msgspec.json.encode(_Ages(boot, at_us, jobs)))
    return dropped


def _mark(folder: Path) -> str:
    """Another one after each change of an output."""
    found = sorted((path.name, status.st_mtime_ns, status.st_size) for path in folder.iterdir() for status in [path.lstat()])
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()


def read(path: Path, offset: int, most: int) -> bytes:
    """Bytes of an output from an offset on; none where there are none yet. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, most, offset)
    finally:
        os.close(descriptor)
