"""A small log for the commands to read: two nodes, a job that runs, one that waits, an array."""

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from muster.events.base import Event
from muster.events.codec import encode, encode_entry
from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.events.levels import NodeReport
from muster.events.nodes import Device, NodeSpec
from muster.log.sqlite import SqliteFile
from muster.scheduler.core import Core
from muster.scheduler.messages import JOBS, NODES, Message

RUNS = "018bcfe5-6800-7000-8000-000000000001"
WAITS = "018bcfe5-6800-7000-8000-000000000002"
ARRAY = "018c0000-0000-7000-8000-000000000003"


class Writer:
    """The scheduler of a small log."""

    def __init__(self, folder: Path) -> None:
        self._core = Core("main")
        self._file = SqliteFile.open(folder, "main", writer=True)
        self._keep(self._core.start_term(0, "0" * 32, "here", "test", 0))

    def write(self, at_us: int, messages: Iterable[Message]) -> None:
        """Take these messages and append what follows."""
        for message in messages:
            self._core.offer(message)
        while (data := self._core.cycle(at_us)) is not None:
            self._keep(data)

    def close(self) -> None:
        """Let go of the log."""
        self._file.close()

    def _keep(self, data: bytes) -> None:
        self._file.append(data)
        self._core.read_back(data)


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a log of three cycles. Nobody may write to it."""
    folder = tmp_path_factory.mktemp("log")
    writer = Writer(folder)
    writer.write(1_000_000, NODES_ARRIVE)
    writer.write(2_000_000, JOBS_ARRIVE)
    writer.close()
    return folder


@pytest.fixture
def altered(log: Path, tmp_path: Path) -> Callable[[int, Callable[[bytes], bytes]], Path]:
    """Makes a copy of the log in which one record is another one."""

    def alter(position: int, change: Callable[[bytes], bytes]) -> Path:
        path = tmp_path / "main.sqlite"
        path.write_bytes((log / "main.sqlite").read_bytes())
        connection = sqlite3.connect(path)
        with connection:
            (data,) = connection.execute("SELECT data FROM log WHERE position = ?", (position,)).fetchone()
            changed = change(data)
            assert changed != data
            connection.execute("UPDATE log SET data = ? WHERE position = ?", (changed, position))
        connection.close()
        return tmp_path

    return alter


def _node(offset: int, name: str) -> Message:
    devices = tuple(Device(uuid=f"{name}-{index}", model="H100", memory_mib=81_920) for index in range(8))
    spec = NodeSpec(cpu_milli=64_000, memory_mib=524_288, devices=devices)
    report = NodeReport(node=name, uid=f"uid-{name}", boot="b1", sequence=1, spec=spec)
    return Message(f"{NODES}/0", offset, encode(report), 0, name)


def _job(offset: int, event: Event) -> Message:
    return Message(f"{JOBS}/0", offset, encode_entry(event), 0, "")


def _submitted(job: str, name: str, gpus: int, count: int = 1, array: int | None = None) -> JobSubmitted:
    group = GroupRequest(count=count, min=count, gpus=gpus, cpu_milli=1000)
    return JobSubmitted(job=job, name=name, user="ada", request=JobRequest(groups=(group,), array=array))


NODES_ARRIVE = (_node(0, "n1"), _node(1, "n2"))
JOBS_ARRIVE = (
    _job(0, _submitted(RUNS, "train", 8)),
    _job(1, _submitted(WAITS, "large", 8, count=2)),
    _job(2, _submitted(ARRAY, "sweep", 1, array=3)),
)
