"""What the processes of the jobs wrote down themselves: when each began and ended, and what it printed at its end.

This is made by looking at what ran, not at the log and not at what agents say.
"""

import json
import re
from pathlib import Path

import msgspec

from muster.simulator.demo.scene import Work

LINE = re.compile(r"rank (\d+) of (\d+) on (\S+), devices (\S+), attempt (\d+): loss (\S+) at first, (\S+) after \d+ steps")


class Ran(msgspec.Struct):
    """One process that ran. Times are of one clock that all share, in nanoseconds."""

    job: str
    instance: int
    attempt: int
    rank: int
    node: str
    pid: int
    started_ns: int
    refused: bool = False
    """Another process had its place, and it left."""
    ended_ns: int | None = None
    code: int | None = None


class Trained(msgspec.Struct, frozen=True):
    """What a rank printed at its end."""

    rank: int
    world: int
    node: str
    devices: tuple[str, ...]
    attempt: int
    first: float
    last: float


def read_diaries(work: Path) -> list[Ran]:
    """Every process that ran, in the order in which they began."""
    found: dict[int, Ran] = {}
    lines = [json.loads(line) for path in (work / "processes").glob("*.jsonl") for line in path.read_text().splitlines()]
    others: list[Ran] = []
    for line in sorted(lines, key=lambda line: int(line["at_ns"])):
        what, at_ns, code = line.pop("what"), line.pop("at_ns"), line.pop("code", None)
        line.pop("name")
        if what == "end":
            found[line["pid"]].ended_ns, found[line["pid"]].code = at_ns, code
            continue
        ran = Ran(**line, started_ns=at_ns, refused=what == "twice")
        if ran.refused:
            others.append(ran)
        elif ran.pid in found:
            others.append(found.pop(ran.pid))
            found[ran.pid] = ran
        else:
            found[ran.pid] = ran
    return sorted([*found.values(), *others], key=lambda ran: ran.started_ns)


def read_outputs(folder: Path, work: Path, job: str, about: Work) -> list[Trained]:
    """What the ranks of a job printed at their end, by rank."""
    paths = work.glob(about.output) if about.output else folder.glob(f"*/output/{job}/*.stdout")
    text = "".join(path.read_text() for path in paths)
    return sorted(
        (
            Trained(int(rank), int(world), node, tuple(devices.split(",")), int(attempt), float(first), float(last))
            for rank, world, node, devices, attempt, first, last in LINE.findall(text)
        ),
        key=lambda trained: trained.rank,
    )
