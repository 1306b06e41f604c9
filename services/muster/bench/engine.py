"""`muster bench engine`: the figures of the core, each beside its floor.

The clusters and jobs are those of `muster.bench.mix`: nodes of 8 GPUs, three models, 5 % cordoned, 70 % of the GPUs
held; each job's life is its real entries. A figure is the median of five. The records of every cell are kept, and audit
and verify judge them at the end: a figure of a log that is not in order is no figure.
"""

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np

from muster.bench.cell import INPUTS_A_CYCLE, Cell, Load, Timer, Unexpected, bound_in
from muster.bench.memory import measured_mib
from muster.bench.mix import CORDONED_EVERY, GPUS_A_NODE
from muster.cluster import snapshot
from muster.engine.explain import explain
from muster.engine.place import Placer
from muster.events.codec import decode_cycle, decode_envelope
from muster.events.decisions import AttemptEnded
from muster.events.jobs import GroupRequest
from muster.events.nodes import TaskExited
from muster.events.record import Envelope
from muster.log.admit import Admitted
from muster.replay.audit import audit
from muster.scheduler.core import Core
from muster.scheduler.memory import growing, settle
from muster.verify import verify

SEED = 1
SAMPLES = 5
FULL_PERCENT = 70
GANG_TASKS = (500, 1000, 2000, 4000)
SCHEMA = 1

Say = Callable[[str], None]


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How large the figures are taken. Floors hold for `FULL` alone."""

    nodes: int
    small_nodes: int
    window: int
    """Placements in one sample."""
    gang_tasks: tuple[int, ...]
    pending: int
    shapes: int
    entries: int
    """What recovery reads at least."""


FULL = Size(nodes=10_000, small_nodes=1000, window=10_000, gang_tasks=GANG_TASKS, pending=100_000, shapes=500, entries=1_000_000)
QUICK = Size(nodes=500, small_nodes=100, window=500, gang_tasks=(50, 100, 200, 400), pending=5000, shapes=500, entries=20_000)


class Figure(msgspec.Struct, kw_only=True):
    """One figure. `floor` is the worst allowed value, None where there is none; `holds` is None where it does not apply."""

    name: str
    value: float
    unit: str
    better: str
    floor: float | None
    holds: bool | None
    samples: list[float]
    limit: str
    """What the figure is limited by."""


class Check(msgspec.Struct, kw_only=True):
    """A judgement on the log of one cell."""

    log: str
    check: str
    records: int
    entries: int
    holds: bool
    found: str
    took_s: float


class Results(msgspec.Struct, kw_only=True):
    """Everything that was measured."""

    bench: str = "engine"
    schema: int = SCHEMA
    quick: bool
    seed: int = SEED
    python: str
    numpy: str
    machine: str
    clock: str
    """`wall`, or `cpu`: the time of this thread on a processor, where others use the machine too."""
    figures: list[Figure]
    checks: list[Check]
    holds: bool = True


class Bench:
    """Takes the figures one after another; every cell's log is kept for the checks."""

    def __init__(self, size: Size, say: Say, clock: Timer, on_cycle: Callable[[bool], None] | None = None) -> None:
        self.size = size
        self.figures: list[Figure] = []
        self.logs: list[tuple[str, Cell]] = []
        self.say = say
        self.clock = clock
        self._on_cycle = on_cycle

    def run(self) -> None:
        """All figures, then the checks' logs stand in `logs`."""
        size = self.size
        self.placements(size.small_nodes)
        cell, load = self.placements(size.nodes)
        self.gangs(cell)
        self.never_fits(cell)
        self.say(f"running on to {size.entries:,} entries")
        while cell.entries < size.entries:
            load.step()
        self.recovery(cell)
        self.pending(size.nodes)
        self.memory("nodes", size.nodes, "Python objects of nodes and their devices")
        self.memory("pending", size.pending, "Python objects of the jobs and what they ask for")

    def placements(self, node_count: int) -> tuple[Cell, Load]:
        """Placements a second while jobs come and end, on a cluster kept at 70 %."""
        self.say(f"filling {node_count:,} nodes to {FULL_PERCENT} %")
        cell = self.cell(f"placements-{node_count}")
        cell.register(node_count)
        load = Load(cell, node_count, FULL_PERCENT)
        load.fill()
        for _ in range(10):
            load.step()
        settle()
        self.say(f"placing on {node_count:,} nodes")
        cell.on_cycle = self._on_cycle
        rates = []
        for _ in range(SAMPLES):
            spent_s, placed = 0.0, 0
            while placed < self.size.window:
                took_s, bound = load.step()
                spent_s += took_s
                placed += bound
            rates.append(placed / spent_s)
        cell.on_cycle = None
        self.add(
            f"placements_per_s_{node_count}_nodes",
            rates,
            "1/s",
            20_000,
            "folding six entries a job and finding its place (three quarters), recording and encoding them (a fifth)",
            higher=True,
        )
        return cell, load

    def gangs(self, cell: Cell) -> None:
        """A gang of n tasks with one GPU each, in a cycle of its own."""
        medians = []
        for tasks in self.size.gang_tasks:
            self.say(f"placing gangs of {tasks:,} tasks")
            times = []
            for _ in range(SAMPLES):
                cell.drain()
                job = cell.submit(GroupRequest(count=tasks, min=tasks, cpu_milli=1000, memory_mib=4096, gpus=1)).job
                took_s, decisions = cell.cycle()
                if [len(event.placements) for event in bound_in(decisions) if event.job == job] != [tasks]:
                    raise Unexpected(f"a gang of {tasks} tasks was not bound in its cycle")
                times.append(took_s * 1000)
                cell.cancel(job)
            medians.append(statistics.median(times))
            floor = 25.0 if tasks == 2000 else None
            self.add(f"gang_ms_{tasks}_tasks", times, "ms", floor, "one placement and one held task after another")
        exponent = slope([math.log(tasks) for tasks in self.size.gang_tasks], [math.log(median) for median in medians])
        self.add("gang_exponent", [exponent], "", 1.1, "grows with the tasks alone, if it is 1")

    def never_fits(self, cell: Cell) -> None:
        """Saying that a job can never fit, the first time for each shape."""
        cell.drain()
        placer = Placer(cell.core.state)
        times: dict[str, list[float]] = {"never_fits_ms": [], "never_fits_cold_ms": []}
        for number in range(SAMPLES):
            job = cell.submit(GroupRequest(cpu_milli=1000 + number, memory_mib=1024, gpus=GPUS_A_NODE + 1)).job
            cell.drain()
            for name, kept in (("never_fits_ms", placer), ("never_fits_cold_ms", None)):
                begun = self.clock()
                explained = explain(cell.core.state, job, 0, kept)
                times[name].append((self.clock() - begun) * 1000)
                if not explained.never:
                    raise Unexpected("it is not said that a job which asks for 9 GPUs of a node can never fit")
            cell.cancel(job)
        self.add("never_fits_ms", times["never_fits_ms"], "ms", 5.0, "the filters, once over every node for a new shape")
        self.add("never_fits_cold_ms", times["never_fits_cold_ms"], "ms", None, "the same, and the index of nodes made anew")

    def recovery(self, cell: Cell) -> None:
        """Folding the whole log without a snapshot; the state's digest must be the same."""
        self.say(f"recovering {cell.entries:,} entries")
        expected = snapshot.digest(cell.core.state)
        times = []
        for _ in range(SAMPLES):
            core = Core("bench")
            with growing():
                begun = self.clock()
                for data in cell.records:
                    if not isinstance(core.follow(data), Admitted):
                        raise Unexpected(f"the record after cycle {core.head.number} is not admitted")
                times.append(self.clock() - begun)
            if snapshot.digest(core.state) != expected:
                raise Unexpected("the recovered state has another digest than the one that was lived")
        scaled = [took_s * self.size.entries / cell.entries for took_s in times]
        self.add(f"recovery_s_{self.size.entries}_entries", scaled, "s", 6.0, "decoding entries, then folding them")

    def pending(self, node_count: int) -> None:
        """A cycle in which one GPU becomes free while very many jobs of many shapes wait."""
        size = self.size
        self.say(f"filling {node_count:,} nodes to the last GPU")
        cell = self.cell(f"pending-{size.pending}")
        cell.register(node_count)
        usable = node_count - node_count // CORDONED_EVERY
        for begin in range(0, usable - 1, 500):
            tasks = min(500, usable - 1 - begin)
            cell.submit(GroupRequest(count=tasks, min=tasks, cpu_milli=8000, gpus=GPUS_A_NODE))
        for _ in range(GPUS_A_NODE):
            cell.submit(GroupRequest(cpu_milli=1000, gpus=1))
        bound = bound_in(cell.drain())
        if sum(len(event.placements) for event in bound) != usable - 1 + GPUS_A_NODE:
            raise Unexpected("the cluster is not full")
        cell.run_tasks(bound)
        singles = [(event.job, event.attempt) for event in bound if len(event.placements) == 1][-GPUS_A_NODE:]
        self.say(f"queueing {size.pending:,} jobs of {size.shapes} shapes")
        for number in range(size.pending):
            kind = number % size.shapes
            gpus = (1, 1, 2, 1, 4, 1, 8)[kind % 7]
            cell.submit(GroupRequest(cpu_milli=1000 + 10 * kind, memory_mib=1024, gpus=gpus))
            if len(cell.outbox) == INPUTS_A_CYCLE:
                cell.cycle()
        cell.drain()
        settle()
        times = []
        for job, attempt in singles[:SAMPLES]:
            cell.tell(TaskExited(job=job, instance=0, attempt=attempt, rank=0))
            took_s, decisions = cell.cycle()
            ended = [event for event in decisions if isinstance(event, AttemptEnded)]
            if len(ended) != 1 or len(bound_in(decisions)) != 1:
                raise Unexpected("one freed GPU did not end one job and start another")
            times.append(took_s * 1000)
        self.add(f"freed_gpu_ms_{size.pending}_pending", times, "ms", 20.0, "one try for each shape that waits")

    def memory(self, what: str, count: int, limit: str) -> None:
        """What so many nodes or pending jobs take, in a process of its own."""
        self.say(f"measuring the memory of {count:,} {what}")
        self.add(f"memory_mib_{count}_{what}", [measured_mib(what, count)], "MiB", None, limit)

    def cell(self, name: str) -> Cell:
        cell = Cell(SEED, clock=self.clock)
        self.logs.append((name, cell))
        return cell

    def add(self, name: str, samples: Sequence[float], unit: str, floor: float | None, limit: str, higher: bool = False) -> None:
        value = statistics.median(samples)
        full = self.size is FULL
        holds = None if floor is None or not full else value >= floor if higher else value <= floor
        better = "higher" if higher else "lower"
        self.figures.append(
            Figure(
                name=name,
                value=value,
                unit=unit,
                better=better,
                floor=floor,
                holds=holds,
                samples=list(samples),
                limit=limit,
            )
        )


def checks(logs: Sequence[tuple[str, Cell]], say: Say) -> Iterator[Check]:
    """Audit and verify each cell's log."""
    for name, cell in logs:
        say(f"auditing {name}")
        begun = time.perf_counter()
        difference = audit(partial(_envelopes, cell.records)).difference
        yield Check(
            log=name,
            check="audit",
            records=len(cell.records),
            entries=cell.entries,
            holds=difference is None,
            found="" if difference is None else difference.lines()[0],
            took_s=time.perf_counter() - begun,
        )
        say(f"verifying {name}")
        begun = time.perf_counter()
        violations = verify(decode_cycle(data) for data in cell.records)
        yield Check(
            log=name,
            check="verify",
            records=len(cell.records),
            entries=cell.entries,
            holds=not violations,
            found=str(violations[0]) if violations else "",
            took_s=time.perf_counter() - begun,
        )


def _envelopes(records: Sequence[bytes]) -> Iterator[tuple[Envelope, bytes]]:
    for data in records:
        yield decode_envelope(data), data


def results(bench: Bench, judged: Sequence[Check]) -> Results:
    """What was measured, for the output."""
    return Results(
        quick=bench.size is not FULL,
        python=platform.python_version(),
        numpy=np.__version__,
        clock="cpu" if bench.clock is time.thread_time else "wall",
        machine=f"{platform.machine()}, {os.cpu_count()} processors",
        figures=bench.figures,
        checks=list(judged),
        holds=all(check.holds for check in judged) and all(figure.holds is not False for figure in bench.figures),
    )


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the line through these points with the least squares."""
    return statistics.linear_regression(x, y).slope
