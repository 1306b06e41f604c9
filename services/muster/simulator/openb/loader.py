"""Reads the files of the openb trace: nodes, pods, and the arrivals and node ranks of the published runs.

Each is a CSV file, plain or compressed with gzip. A fault in one is a `TraceError` that names file, line and column.
Nothing is scheduled here, and no log is known here; `muster.simulator.openb.trace` plays what was read.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path

import msgspec

from muster.events.base import INT_MAX, NAME_PATTERN
from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.events.nodes import Device, NodeRegistered, NodeSpec
from muster.log.errors import OperatingError

WHOLE_MILLI = 1000
MICROS_A_SECOND = 1_000_000
_NAME = re.compile(NAME_PATTERN)


class TraceError(OperatingError):
    """A file of the trace is not what it should be. Its text is one sentence that names file, line and column."""


class Node(msgspec.Struct, frozen=True):
    """A row of a node list."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class Pod(msgspec.Struct, frozen=True):
    """A row of a pod list: one task. `gpu_milli` is set for a share of one GPU, `gpus` for whole ones.

    The times are None in lists that have none; `scheduled_s` is also None for pods that never ran.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...]
    created_s: int | None
    deleted_s: int | None
    scheduled_s: int | None

    @property
    def asked_milli(self) -> int:
        """Thousandths of a GPU in all."""
        return self.gpus * WHOLE_MILLI + self.gpu_milli

    @property
    def duration_us(self) -> int:
        """How long it ran, from where it was scheduled (else created) to where it was deleted; never below zero."""
        begin = self.created_s if self.scheduled_s is None else self.scheduled_s
        return max(0, (self.deleted_s or 0) - (begin or 0)) * MICROS_A_SECOND


def read_nodes(path: Path) -> list[Node]:
    """The nodes in the order of the file.

    Raises:
        TraceError: naming file, line and column.
    """
    nodes = []
    seen: dict[str, int] = {}
    for row in read_table(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        name = row.name("sn")
        row.check(name not in seen, "sn", f"{name} stands already in line {seen.get(name)}")
        seen[name] = row.line
        nodes.append(
            Node(
                name=name,
                cpu_milli=row.integer("cpu_milli"),
                memory_mib=row.integer("memory_mib"),
                gpus=row.integer("gpu", most=64),
                model=row.text("model"),
            )
        )
    if not nodes:
        raise TraceError(f"{path}: line 2: there is no node in this list")
    return nodes


def read_pods(path: Path) -> list[Pod]:
    """The pods in the order of the file.

    Raises:
        TraceError: naming file, line and column.
    """
    pods = [_pod(row) for row in read_table(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))]
    if not pods:
        raise TraceError(f"{path}: line 2: there is no pod in this list")
    return pods


def read_arrivals(path: Path, seed: int, pods: int) -> list[int]:
    """Which pod arrives, in order: the column `seedN` of an arrival file, up to its first blank.

    Raises:
        TraceError: naming file, line and column; an arrival beyond the `pods` pods of the list is one.
    """
    column = f"seed{seed}"
    arrivals: list[int] = []
    ended_line = 0
    for row in read_table(path, (column,)):
        if row.text(column) == "":
            ended_line = ended_line or row.line
            continue
        row.check(not ended_line, column, f"goes on after the blank in line {ended_line}")
        arrivals.append(row.integer(column, most=pods - 1))
    if not arrivals:
        raise TraceError(f"{path}: line 2: column {column}: there is no arrival in this column")
    return arrivals


def read_ranks(path: Path, seed: int, nodes: Sequence[Node]) -> dict[str, int]:
    """The rank of each node among equals (the lowest wins a tie): the column `seedN` of a file of node ties.

    Raises:
        TraceError: naming file, line and column; a node without a rank is one.
    """
    column = f"seed{seed}"
    ranks: dict[str, int] = {}
    lines: dict[int, int] = {}
    for row in read_table(path, ("node", column)):
        rank = row.integer(column)
        row.check(rank not in lines, column, f"{rank} stands already in line {lines.get(rank)}")
        lines[rank] = row.line
        ranks[row.text("node")] = rank
    for node in nodes:
        if node.name not in ranks:
            raise TraceError(f"{path}: column node: {node.name} of the node list is not there")
    return ranks


def check_times(path: Path, pods: Sequence[Pod]) -> None:
    """That every pod has the times it is played by.

    Raises:
        TraceError: one has not, as in the lists that were made for the published protocol alone.
    """
    for line, pod in enumerate(pods, start=2):
        for column, time_s in (("creation_time", pod.created_s), ("deletion_time", pod.deleted_s)):
            if time_s is None:
                raise TraceError(
                    f"{path}: line {line}: column {column}: {pod.name} has no time to be played by; `--protocol fgd` needs none"
                )


def hurried(pods: Sequence[Pod], times: int) -> list[Pod]:
    """The pods created in so many times less time, each running as long as it did, in the order of their creation."""
    found = []
    for pod in pods:
        created_s = (pod.created_s or 0) // times
        scheduled_s = None if pod.scheduled_s is None else created_s
        deleted_s = created_s + pod.duration_us // MICROS_A_SECOND
        found.append(msgspec.structs.replace(pod, created_s=created_s, scheduled_s=scheduled_s, deleted_s=deleted_s))
    return sorted(found, key=lambda pod: (pod.created_s or 0, pod.name))


def node_registered(node: Node, tasks_max: int = 1000) -> NodeRegistered:
    """The input that a node of the trace makes. Its GPUs are named after it; their memory is not in the trace."""
    devices = tuple([Device(uuid=f"{node.name}-gpu-{index}", model=node.model) for index in range(node.gpus)])
    spec = NodeSpec(cpu_milli=node.cpu_milli, memory_mib=node.memory_mib, tasks_max=tasks_max, devices=devices)
    return NodeRegistered(node=node.name, uid=f"{node.name}-uid", boot="boot-1", spec=spec)


def job_submitted(pod: Pod, job: str, submitted_us: int) -> JobSubmitted:
    """The input that a pod of the trace makes, under this id."""
    group = GroupRequest(
        cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib, gpus=pod.gpus, gpu_milli=pod.gpu_milli, gpu_models=pod.models
    )
    request = JobRequest(groups=(group,))
    return JobSubmitted(job=job, name=pod.name, user="openb", submitted_us=submitted_us, request=request)


def job_id(at_us: int, number: int) -> str:
    """A UUIDv7 of this instant; `number` (below 2^62) stands where a real one has random bits.

    Source: RFC 9562, section 5.7.
    """
    value = (at_us // 1000 % 2**48) << 80 | 7 << 76 | 2 << 62 | number % 2**62
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Row:
    """One line of a CSV file, with the words to complain about it."""

    __slots__ = ("_cells", "_path", "line")

    def __init__(self, path: Path, line: int, cells: dict[str, str]) -> None:
        self._path = path
        self.line = line
        self._cells = cells

    def check(self, condition: bool, column: str, message: str) -> None:
        """Complain unless the condition holds."""
        if not condition:
            raise TraceError(f"{self._path}: line {self.line}: column {column}: {message}")

    def has(self, column: str) -> bool:
        """Whether there is a column of this name with something in it."""
        return self._cells.get(column, "") != ""

    def text(self, column: str) -> str:
        """The cell; empty where there is no such column."""
        return self._cells.get(column, "")

    def name(self, column: str) -> str:
        """The cell as a name."""
        text = self._cells[column]
        self.check(_NAME.fullmatch(text) is not None, column, f"{text!r} is no name (small letters, digits, '-' and '.')")
        return text

    def columns(self) -> list[str]:
        """The names of all columns."""
        return list(self._cells)

    def number(self, column: str) -> float:
        """The cell as a decimal number."""
        text = self._cells[column]
        try:
            return float(text)
        except ValueError:
            raise TraceError(f"{self._path}: line {self.line}: column {column}: {text!r} is no number") from None

    def integer(self, column: str, most: int = INT_MAX) -> int:
        """The cell as a number of 0 to `most`."""
        text = self._cells[column]
        self.check(text.isascii() and text.isdigit(), column, f"{text!r} is no number of 0 or more")
        self.check(len(text) < 20 and int(text) <= most, column, f"{text} is more than {most}")
        return int(text)


def _pod(row: Row) -> Pod:
    gpus = row.integer("num_gpu", most=64)
    share_milli = row.integer("gpu_milli", most=WHOLE_MILLI) if gpus or row.has("gpu_milli") else 0
    if gpus == 0:
        share_milli = 0
    else:
        row.check(share_milli > 0, "gpu_milli", "a pod with GPUs asks for more than 0 of each")
        row.check(share_milli == WHOLE_MILLI or gpus == 1, "gpu_milli", f"{share_milli} of {gpus} GPUs; a share is of one GPU")
    shared = 0 < share_milli < WHOLE_MILLI
    times = [row.integer(column) if row.has(column) else None for column in ("creation_time", "deletion_time", "scheduled_time")]
    models = tuple(dict.fromkeys(model for model in row.text("gpu_spec").split("|") if model)) if gpus else ()
    row.check(len(models) <= 16, "gpu_spec", f"names {len(models)} models; at most 16 are taken")
    return Pod(
        name=row.name("name"),
        cpu_milli=row.integer("cpu_milli"),
        memory_mib=row.integer("memory_mib"),
        gpus=0 if shared else gpus,
        gpu_milli=share_milli if shared else 0,
        models=models,
        created_s=times[0],
        deleted_s=times[1],
        scheduled_s=times[2],
    )


def read_table(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The lines after the header, which must have these columns."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, encoding="utf-8", newline="") as text:
                reader = csv.reader(text, strict=True)
                header = next(reader, [])
                for column in columns:
                    if column not in header:
                        raise TraceError(f"{path}: line 1: column {column} is not there (there are: {', '.join(header)[:200]})")
                for cells in reader:
                    if not cells:
                        continue
                    if len(cells) != len(header):
                        raise TraceError(f"{path}: line {reader.line_num}: has {len(cells)} columns, the header {len(header)}")
                    yield Row(path, reader.line_num, dict(zip(header, cells, strict=True)))
    except OSError as error:  # gzip.BadGzipFile is one of these
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, EOFError, csv.Error, zlib.error) as error:
        raise TraceError(f"{path}: is no CSV file: {error}") from None
