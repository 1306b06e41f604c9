"""The Lublin boards: ten sequences of a batch log in the standard workload format, scored by their average bounded slowdown.

Source: Zhang et al., SC 2020 ("RLScheduler"). 256 processors, here single GPUs of 32 nodes; a job needs all of its processors at
once; nothing is preempted; estimates are exact. The bounded slowdown of a job is max(1, (wait + run) / max(run, 10 s)).
"""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.events.nodes import Device, NodeRegistered, NodeSpec
from muster.events.operations import Policy
from muster.log.sqlite import SqliteFile
from muster.simulator.boards.play import SECOND_US, Played, Player, Submission
from muster.simulator.openb.loader import TraceError, job_id

STARTS = (1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085)
"""The rows at which the published sequences begin."""
LENGTH = 1024
PROCESSORS, GPUS = 256, 8


class Job(msgspec.Struct, frozen=True):
    """A line of a log: seconds and processors."""

    submit_s: int
    run_s: int
    processors: int


def read_swf(path: Path) -> list[Job]:
    """The jobs of a log in the standard workload format, plain or compressed with gzip.

    Raises:
        TraceError: naming file and line.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith(";"):
            continue
        try:
            submit_s, run_s, processors = int(fields[1]), int(fields[3]), int(fields[4])
        except (IndexError, ValueError):
            raise TraceError(f"{path}: line {number}: is no line of 18 numbers") from None
        if submit_s < 0 or not 0 < processors <= PROCESSORS:
            raise TraceError(f"{path}: line {number}: asks for {processors} processors at {submit_s} s; there are {PROCESSORS}")
        found.append(Job(submit_s, max(1, run_s), processors))
    return found


def play_sequence(jobs: Sequence[Job], policy: Policy, file: SqliteFile) -> tuple[float, Played]:
    """The average bounded slowdown of consecutive jobs on an empty cluster whose clock begins with the first."""
    spec = [NodeSpec(cpu_milli=GPUS * 1000, memory_mib=1024, devices=_devices(row)) for row in range(PROCESSORS // GPUS)]
    nodes = [NodeRegistered(node=f"n{row}", uid=f"n{row}-uid", boot="boot-1", spec=each) for row, each in enumerate(spec)]
    player = Player(file, policy, (), nodes)
    came: dict[str, Job] = {}
    submissions = []
    for number, job in enumerate(jobs):
        at_us = (job.submit_s - jobs[0].submit_s) * SECOND_US
        group = GroupRequest(count=job.processors, min=job.processors, gpus=1, cpu_milli=1, memory_mib=1)
        request = JobRequest(groups=(group,), time_limit_us=job.run_s * SECOND_US, preemptible=False)
        name = job_id(at_us, number)
        came[name] = job
        said = JobSubmitted(job=name, name=f"j{number}", user="lublin", submitted_us=at_us, request=request)
        submissions.append(Submission(at_us, said, job.run_s * SECOND_US))
    player.submit(submissions)
    played = player.run()
    total = 0.0
    for name, job in came.items():
        wait_s = played.bound_us[name] / SECOND_US + jobs[0].submit_s - job.submit_s
        total += max(1.0, (wait_s + job.run_s) / max(job.run_s, 10))
    return total / len(jobs), played


def play(jobs: Sequence[Job], policy: Policy, log: Callable[[str], SqliteFile], starts: Sequence[int] = STARTS) -> list[float]:
    """The average bounded slowdown of each sequence."""
    return [play_sequence(jobs[start : start + LENGTH], policy, log(f"s{start}"))[0] for start in starts]


def _devices(row: int) -> tuple[Device, ...]:
    return tuple([Device(uuid=f"n{row}-gpu-{index}", model="processor") for index in range(GPUS)])
