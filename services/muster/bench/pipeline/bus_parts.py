"""The measurements on Kafka. Clients submit by the bus (`producers`); agents, watches and reads go to the gateway.

- `bound`, `lives`, `idle`: as on one machine (`parts`); `lives` samples the memory of scheduler and gateway too, and jobs that
  are over are kept for a minute, so that what the state holds does not grow.
- `rates`: from before a submission until its client reads the binding in the log, at steady rates.
- `takeover`: the leader is killed under a steady load, again and again; from then until the next binding stands in the log.
- `recovery`: a scheduler's start on a long log that the real core wrote, without and with a snapshot.
"""

import asyncio
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.bench.cell import Cell, Load
from muster.bench.engine import FULL_PERCENT, SEED, Say
from muster.bench.pipeline import agents, parts, producers, recovering, report
from muster.bench.pipeline.bus import Home, KafkaStack
from muster.bench.pipeline.follow import Follower
from muster.bench.pipeline.parts import PATIENCE_S, TWENTIETH, Bench, Failed, Size
from muster.bench.pipeline.report import Figure, Part, figure, median, part, percentile
from muster.bench.pipeline.stack import Stack
from muster.bench.pipeline.workers import Worker
from muster.cluster import snapshot
from muster.events.jobs import GroupRequest
from muster.events.operations import Policy, PolicySet
from muster.log.kafka import KafkaLog
from muster.up.bus_scheduler import SPREAD_US

KEPT_US: Final = 60_000_000
OLD_US: Final = 30_000_000
SAMPLE_S: Final = 1.0
FLAT_S: Final = 300.0
"""Memory is judged where `lives` last so long: by then what is kept is as much as it becomes."""


class BusSize(Size, frozen=True, kw_only=True):
    """How much is measured on Kafka."""

    rates: tuple[float, ...] = (100.0, 1000.0)
    """Jobs a second."""
    rate_s: float = 20.0
    takeovers: int = 5
    takeover_after_s: float = 3.0
    takeover_per_s: float = 50.0
    entries: int = 1_000_000
    recovery_nodes: int = 1000
    recoveries: int = 3


FULL: Final = BusSize(
    **{**msgspec.structs.asdict(parts.FULL), "connections": 512, "lives_s": 600.0, "lives_per_s": 600.0, "idle_ms": 25.0}
)
QUICK: Final = BusSize(
    **{**msgspec.structs.asdict(parts.QUICK), "connections": 64, "idle_ms": 25.0},
    rates=(20.0, 100.0),
    rate_s=3.0,
    takeovers=1,
    takeover_after_s=1.0,
    entries=20_000,
    recovery_nodes=500,
    recoveries=1,
)


class BusBench(Bench):
    """Takes the measurements on a bus."""

    size: BusSize

    def __init__(self, size: BusSize, home: Home, folder: Path, say: Say, check: bool = True) -> None:
        super().__init__(size, lambda folder: KafkaStack(home, folder), folder, say, check)

    def stack(self, name: str) -> Stack:
        """See `Bench`."""
        stack = _bus(super().stack(name))
        if name != "recovery":
            try:
                stack.start(self.size.takeover_after_s)
            except BaseException:
                stack.stop()
                raise
        return stack

    def submitters(self, exits: ExitStack, stack: Stack, group: GroupRequest, *, per_s: float = 0.0, jobs_max: int = 0) -> Worker:
        """See `Bench`."""
        home = _bus(stack).home
        options = producers.Options(
            bus=home.bus.address,
            config=home.config,
            connections=self.size.connections,
            group=group,
            per_s=per_s,
            jobs_max=jobs_max,
        )
        return self._worker(exits, producers.__name__, options)

    def bound(self, stack: Stack) -> Part:
        """See `Bench`."""
        found = super().bound(stack)
        found.what = (
            f"by the bus, {self.size.connections} at a time, each until it is read bound; {self.size.nodes} nodes x 8 GPUs"
        )
        return found

    def lives(self, stack: Stack) -> Part:
        """See `Bench`."""
        size = self.size
        _bus(stack).say(PolicySet(policy=Policy(forget_after_us=KEPT_US, too_old_us=OLD_US), by="bench"))
        with _memory(stack) as samples:
            found = super().lives(stack)
        found.what = (
            f"{size.lives_per_s:g} jobs/s come by the bus (0: as many as are bound, {size.connections} at a time); {size.nodes} "
            f"agents run each for "
            f"{size.lives_run_s[0]:g} to {size.lives_run_s[1]:g} s; jobs that are over are kept for {KEPT_US // 1_000_000} s"
        )
        for name in ("scheduler", "gateway"):
            found.figures.extend(_grown(name, samples[name], size.full and size.lives_s >= FLAT_S))
        return found

    def rates(self, stack: Stack) -> Part:
        """Latency at steady rates."""
        size = self.size
        figures: list[Figure] = []
        jobs = 0
        with ExitStack() as exits:
            self._agents(exits, agents.Options(url=stack.url, nodes=size.nodes, beat_s=10.0, runs=False))
            follower = Follower(stack.read)
            with self._counting(stack, 0) as counted:
                for rate in size.rates:
                    clients = self.submitters(exits, stack, TWENTIETH, per_s=rate)
                    clients.tell(str(size.warm_s))
                    jobs += clients.hear(producers.Submitted).jobs
                    clients.tell(str(size.rate_s))
                    found = clients.hear(producers.Submitted)
                    jobs += found.jobs
                    clients.close()
                    for name in ("p50", "p95", "p99"):
                        value = getattr(found, f"bound_{name}_ms")
                        figures.append(figure(f"bound_{name}_ms_at_{rate:g}_per_s", value, "ms", better="lower"))
                    figures.append(figure(f"submitted_per_s_at_{rate:g}", found.jobs / found.seconds, "1/s"))
            follower.until(lambda counts: counts["InstanceBound"] >= jobs, PATIENCE_S)
        parts.expect("bound", follower.counts["InstanceBound"], jobs)
        rates = " and ".join(f"{rate:g}" for rate in size.rates)
        what = f"{rates} jobs/s, {size.rate_s:g} s each, by the bus; each client reads the log; {size.nodes} nodes report"
        return part("rates", what, figures, counted.load, counted.inside, dict(follower.counts))

    def takeover(self, stack: Stack) -> Part:
        """From SIGKILL of the leader to the next decision."""
        size = self.size
        bus = _bus(stack)
        chance = random.Random(SEED)
        took_s: list[float] = []
        jobs_max = size.takeovers * size.takeover_per_s * (3 * size.takeover_after_s + 4.0)
        with ExitStack() as exits:
            nodes = 10 + int(jobs_max) // parts.JOBS_A_NODE
            self._agents(exits, agents.Options(url=stack.url, nodes=nodes, runs=False))
            clients = self.submitters(exits, stack, TWENTIETH, per_s=size.takeover_per_s)
            follower = Follower(stack.read)
            follower.until(lambda _: follower.term > 0, PATIENCE_S)
            for _ in range(size.takeovers):
                bus.stand_by()
                settled_s = 2 * size.takeover_after_s + chance.random()
                clients.tell(str(settled_s + size.takeover_after_s + 3.0))
                until = time.perf_counter() + settled_s
                follower.until(lambda _, until=until: time.perf_counter() >= until, settled_s + 1)  # type: ignore[misc]
                term = follower.term
                killed = time.perf_counter()
                bus.kill_leader()
                if not follower.until(lambda _, term=term: follower.bound_term > term, PATIENCE_S):  # type: ignore[misc]
                    raise Failed(
                        f"in the place of the leader of term {term} nobody binds: term {follower.term}, {follower.counts}"
                    )
                took_s.append(follower.bound_term_s - killed)
                jobs = clients.hear(producers.Submitted).jobs
                if not jobs:
                    raise Failed("nothing was submitted while nobody led")
                follower.look()
            with self._counting(stack, 0) as counted:
                follower.until(lambda _: False, 1.0)
        floor_s = size.takeover_after_s + 1.0
        found = part(
            "takeover",
            f"{size.takeovers} times: {size.takeover_per_s:g} jobs/s come, another scheduler follows, the leader gets SIGKILL; "
            f"takeover_after is {size.takeover_after_s:g} s",
            [
                figure("takeover_max_s", max(took_s), "s", floor_s, better="lower", full=size.full),
                figure("takeover_median_s", median(took_s), "s", better="lower"),
            ],
            counted.load,
            counted.inside,
            {**follower.counts, "takeovers": len(took_s), "terms": follower.term},
        )
        found.limit = (
            f"a leader is given up after {size.takeover_after_s:g} s without a record or a beat, and up to "
            f"{SPREAD_US / 1e6:g} s later, by which standbys differ; the rest is the start of a term and a cycle"
        )
        return found

    def recovery(self, stack: Stack) -> Part:
        """A start on a long log."""
        size = self.size
        bus = _bus(stack)
        bus.cell = "bench"
        machine = parts.machine()
        begun = time.perf_counter()
        cell, records, written_s = asyncio.run(_write(bus, size, self._say))
        state = snapshot.digest(cell.core.state)
        cold = [self._recover(bus, f"cold-{number}", state) for number in range(size.recoveries)]
        self._recover(bus, "snapshots", state, write=True)
        warm = [self._recover(bus, "snapshots", state) for _ in range(size.recoveries)]
        if any(each.folded for each in warm):
            raise Failed("the snapshot was not used")
        scale = size.entries / cell.entries
        spent_s, took_s = median([each.cpu_s for each in cold]), median([each.seconds for each in cold])
        name = f"recovery_s_{size.entries}_entries"
        busy, whole = (now - then for now, then in zip(parts.machine(), machine, strict=True))
        return Part(
            name="recovery",
            what=f"{cell.entries:,} entries in {records:,} records of a cell with {size.recovery_nodes:,} nodes; from connecting "
            "until the state stands at the tail, in a new process",
            figures=[
                figure(name, scale * took_s, "s", 12.0, better="lower", full=size.full),
                figure(
                    "recovery_s_from_snapshot", median([each.seconds for each in warm]), "s", 2.0, better="lower", full=size.full
                ),
                figure("recovery_memory_mib", median([each.memory_mib for each in cold]), "MiB", better="lower"),
                figure("written_entries_per_s", cell.entries / written_s, "1/s"),
            ],
            limit=f"of {took_s:.1f} s the process used its processor for {spent_s:.1f} s: decoding and folding entries; from a "
            f"snapshot {median([each.cpu_s for each in warm]):.1f} s: decoding it, and the digest of the state",
            load=report.Load(
                seconds=time.perf_counter() - begun, busy=busy / max(1, whole), stack=0.0, clients=0.0, loadavg=os.getloadavg()
            ),
            phases_ms={},
            modules={},
            functions={},
            counts={"records": records, "entries": cell.entries, "jobs": cell.jobs, "folded": cold[0].folded},
        )

    def _recover(self, bus: KafkaStack, folder: str, state: str, *, write: bool = False) -> recovering.Recovery:
        place = bus.folder / folder
        place.mkdir(exist_ok=True)
        options = recovering.Options(bus=bus.home.bus.address, config=bus.home.config, cell=bus.cell, folder=str(place))
        with ExitStack() as exits:
            worker = self._worker(exits, recovering.__name__, options)
            worker.tell("recover")
            found = worker.hear(recovering.Recovery)
            if found.state != state:
                raise Failed("the recovered state has another digest than the one that was lived")
            if write:
                worker.tell("write")
                worker.hear(str)
        return found


PARTS: Final[dict[str, Callable[[Any, Stack], Part]]] = {
    "bound": BusBench.bound,
    "lives": BusBench.lives,
    "idle": BusBench.idle,
    "rates": BusBench.rates,
    "takeover": BusBench.takeover,
    "recovery": BusBench.recovery,
}
BusBench.measures = PARTS


async def _write(bus: KafkaStack, size: BusSize, say: Say) -> tuple[Cell, int, float]:
    """A long log, as the real core makes it under load; the cell, its records, and the seconds that it took."""
    say(f"writing {size.entries:,} entries")
    begun = time.perf_counter()
    log = await KafkaLog.open(bus.home.bus, writer=True)
    count = 0

    async def flush() -> None:
        nonlocal count
        for data in cell.records:
            await log.append(data)
        count += len(cell.records)
        cell.records.clear()

    try:
        cell = Cell(SEED)
        cell.register(size.recovery_nodes)
        load = Load(cell, size.recovery_nodes, FULL_PERCENT)
        while cell.entries < size.entries:
            load.step()
            await flush()
    finally:
        await log.close()
    return cell, count, time.perf_counter() - begun


@contextmanager
def _memory(stack: Stack) -> Iterator[dict[str, list[float]]]:
    """What the programs hold in memory, in MiB, each second."""
    samples: dict[str, list[float]] = {"scheduler": [], "gateway": []}
    pids = stack.pids()
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            for name, held in samples.items():
                try:
                    with open(f"/proc/{pids[name]}/statm") as text:
                        held.append(int(text.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
                except OSError:
                    return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _grown(name: str, held: Sequence[float], judged: bool) -> list[Figure]:
    """How a program's memory was in the second quarter and in the last, and by what share it grew between."""
    quarter = max(1, len(held) // 4)
    before = statistics.fmean(held[quarter : 2 * quarter] or held or [0.0])
    after = statistics.fmean(held[-quarter:] or [0.0])
    return [
        figure(f"{name}_memory_mib", after, "MiB", better="lower"),
        figure(f"{name}_memory_rise", after / before - 1 if before else 0.0, "", 0.05, better="lower", full=judged),
        figure(f"{name}_memory_p95_mib", percentile(held, 95), "MiB", better="lower"),
    ]


def _bus(stack: Stack) -> KafkaStack:
    assert isinstance(stack, KafkaStack)
    return stack
