"""The measurements, one after another, each on a stack of its own whose log is judged afterwards.

- `bound`: clients submit as fast as they are answered; counted is what stands bound in the log, as it is seen there. The
  cluster has room for all that could be bound in that time (a job is a twentieth of a GPU), and nothing ends.
- `lives`: clients submit as fast as they are answered, and simulated agents report and poll as real ones do; counted are
  jobs that ended, each having been submitted, bound, started and exited.
- `idle`: one client and one job at a time.
- `running`: the same with a real agent; each job is a process that says when it ran.
- `beside`: the leader's cycles under a steady load of submissions, in turns without and with long polls and reads.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx
import msgspec

from muster.bench.engine import Check, Say
from muster.bench.pipeline import agents, readers, submitters, watcher
from muster.bench.pipeline.follow import Follower
from muster.bench.pipeline.report import Figure, Inside, Load, Part, figure, median, modules, part, percentile, shares
from muster.bench.pipeline.stack import Stack, Start
from muster.bench.pipeline.workers import Worker, cpu_s
from muster.events.codec import decode_cycle
from muster.events.jobs import GroupRequest
from muster.log.errors import OperatingError
from muster.replay.audit import audit
from muster.verify import verify

PATIENCE_S: Final = 60.0
TWENTIETH: Final = GroupRequest(cpu_milli=500, memory_mib=4096, gpu_milli=50)
JOBS_A_NODE: Final = 160
"""Of that kind, on a node with 8 GPUs."""
HALF: Final = GroupRequest(cpu_milli=4000, memory_mib=32_768, gpu_milli=500)
HALVES_A_NODE: Final = 32
"""Of that kind, on a node with 16 GPUs."""
WHOLE: Final = GroupRequest(cpu_milli=8000, memory_mib=65_536, gpus=1)
DATE: Final = ("date", "+%s%N")
"""The process that `running` starts says when it ran: nanoseconds since 1970, by the machine's clock."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured. Floors hold where `full`."""

    full: bool
    nodes: int
    warm_s: float
    """Before what is counted begins."""
    bound_s: float
    lives_s: float
    beside_s: float
    """Each turn."""
    turns: int
    """Without and with, so often."""
    connections: int
    lives_per_s: float
    """0 is as many as are answered."""
    lives_run_s: tuple[float, float]
    beside_per_s: float
    reads_per_s: float
    idle: int
    running: int
    gaps_s: tuple[float, float]
    idle_ms: float = 0.0
    """The floor of the latency of one job; 0 is 8 and two fsyncs."""


FULL: Final = Size(
    full=True,
    nodes=1000,
    warm_s=3.0,
    bound_s=20.0,
    lives_s=60.0,
    beside_s=8.0,
    turns=2,
    connections=64,
    lives_per_s=0.0,
    lives_run_s=(0.5, 1.5),
    beside_per_s=500.0,
    reads_per_s=200.0,
    idle=300,
    running=100,
    gaps_s=(0.02, 0.3),
)
QUICK: Final = msgspec.structs.replace(
    FULL,
    full=False,
    nodes=100,
    warm_s=1.0,
    bound_s=3.0,
    lives_s=5.0,
    beside_s=3.0,
    turns=1,
    lives_per_s=200.0,
    beside_per_s=100.0,
    idle=20,
    running=10,
)


class Failed(OperatingError):
    """What was to be measured did not happen."""


class Bench:
    """Takes the measurements."""

    measures: ClassVar[Mapping[str, Callable[[Any, Stack], Part]]]
    """By name, in their order."""

    def __init__(self, size: Size, start: Start, folder: Path, say: Say, check: bool = True) -> None:
        self.size = size
        self._start = start
        self._folder = folder
        self._say = say
        self._check = check
        self._workers: list[Worker] = []
        """The clients of the present part."""

    def run(self, names: Sequence[str]) -> Iterator[Part]:
        """The named parts, in the order of `measures`."""
        for name, measure in self.measures.items():
            if name in names:
                self._say(f"measuring {name}")
                self._workers = []
                stack = self.stack(name)
                try:
                    found = measure(self, stack)
                finally:
                    stack.stop()
                if self._check:
                    found.checks = list(self._judge(name, stack))
                yield found

    def stack(self, name: str) -> Stack:
        """The stack that a part is measured on."""
        return self._start(self._folder / name)

    def bound(self, stack: Stack) -> Part:
        """Submissions that are bound, a second."""
        size = self.size
        jobs_max = size.nodes * JOBS_A_NODE * 95 // 100
        with ExitStack() as exits:
            self._agents(exits, agents.Options(url=stack.url, nodes=size.nodes, beat_s=10.0, runs=False))
            clients = self.submitters(exits, stack, TWENTIETH, jobs_max=jobs_max)
            follower = Follower(stack.read)
            with self._counting(stack, size.warm_s) as counted:
                clients.tell(str(size.warm_s + size.bound_s))
                time.sleep(size.warm_s)
                begin_s = counted.begin()
                follower.until(lambda _: time.perf_counter() >= begin_s + size.bound_s, size.bound_s + 1)
                end_s = time.perf_counter()
            submitted = clients.hear(submitters.Submitted)
            follower.until(lambda counts: counts["InstanceBound"] >= submitted.jobs, PATIENCE_S)
            if submitted.jobs >= jobs_max:
                end_s = min(end_s, begin_s + submitted.seconds - size.warm_s)
        expect("bound", follower.counts["InstanceBound"], submitted.jobs)
        rate = follower.rate("InstanceBound", begin_s, end_s)
        return part(
            "bound",
            f"{size.connections} connections submit one job after another each, as fast as they are answered; "
            f"{size.nodes} nodes x 8 GPUs hold {size.nodes * JOBS_A_NODE} such jobs",
            [
                figure("submitted_to_bound_per_s", rate, "1/s", 2000, full=size.full),
                figure("answered_p50_ms", submitted.p50_ms, "ms", better="lower"),
                figure("answered_p99_ms", submitted.p99_ms, "ms", better="lower"),
            ],
            counted.load,
            counted.inside,
            {**follower.counts, "answered": submitted.jobs},
        )

    def lives(self, stack: Stack) -> Part:
        """Jobs that came, ran and ended, a second."""
        size = self.size
        with ExitStack() as exits:
            body = self._agents(exits, agents.Options(url=stack.url, nodes=size.nodes, runs_s=size.lives_run_s))
            clients = self.submitters(exits, stack, WHOLE, per_s=size.lives_per_s)
            body.tell("poll")
            body.hear(agents.Counts)
            follower = Follower(stack.read)
            warm_s = size.warm_s + size.lives_run_s[1]
            with self._counting(stack, warm_s) as counted:
                clients.tell(str(warm_s + size.lives_s))
                time.sleep(warm_s)
                begin_s = counted.begin()
                follower.until(lambda _: time.perf_counter() >= begin_s + size.lives_s, size.lives_s + 1)
                end_s = time.perf_counter()
            submitted = clients.hear(submitters.Submitted)
            follower.until(lambda counts: counts["AttemptEnded"] >= submitted.jobs, PATIENCE_S)
            body.tell("rest")
            lived = body.hear(agents.Counts)
        for kind, seen in follower.counts.items():
            expect(kind, seen, submitted.jobs)
        rate = follower.rate("AttemptEnded", begin_s, end_s)
        return part(
            "lives",
            f"{size.connections} connections submit one job after another each; {size.nodes} agents run each for "
            f"{size.lives_run_s[0]:g} to {size.lives_run_s[1]:g} s, and report and poll as real ones do",
            [
                figure("whole_lives_per_s", rate, "1/s", 500, full=size.full),
                figure("submitted_per_s", submitted.jobs / submitted.seconds, "1/s"),
                figure("answered_p50_ms", submitted.p50_ms, "ms", better="lower"),
                figure("answered_p99_ms", submitted.p99_ms, "ms", better="lower"),
            ],
            counted.load,
            counted.inside,
            {
                **follower.counts,
                "answered": submitted.jobs,
                "late": submitted.late,
                "reports": lived.reports,
                "polls": lived.polls,
                "assignments": lived.assignments,
            },
        )

    def idle(self, stack: Stack) -> Part:
        """From before a submission to the client's own watch."""
        size = self.size
        with ExitStack() as exits:
            self._agents(exits, agents.Options(url=stack.url, nodes=10, runs=False))
            watching = self._worker(
                exits,
                watcher.__name__,
                watcher.Options(url=stack.url, group=TWENTIETH, count=size.idle, gaps_s=size.gaps_s, folder=str(stack.folder)),
            )
            follower = Follower(stack.read)
            with self._counting(stack, 0) as counted:
                watching.tell("watch")
                found = watching.hear(watcher.Watched)
            follower.look()
        expect("bound", follower.counts["InstanceBound"], size.idle)
        fsync_ms = median(found.fsync_ms)
        floor_ms = size.idle_ms or 8 + 2 * fsync_ms
        return part(
            "idle",
            f"{size.idle} jobs, one at a time, at random gaps; an fsync of 4 KiB between them",
            [
                figure("job_watch_p50_ms", median(found.job_ms), "ms", floor_ms, better="lower", full=size.full),
                figure("job_watch_p95_ms", percentile(found.job_ms, 95), "ms", better="lower"),
                figure("log_watch_p50_ms", median(found.log_ms), "ms", floor_ms, better="lower", full=size.full),
                figure("log_watch_p95_ms", percentile(found.log_ms, 95), "ms", better="lower"),
                figure("answered_p50_ms", median(found.answered_ms), "ms", better="lower"),
                figure("answered_p95_ms", percentile(found.answered_ms, 95), "ms", better="lower"),
                figure("fsync_p50_ms", fsync_ms, "ms", better="lower"),
                figure("fsync_p95_ms", percentile(found.fsync_ms, 95), "ms", better="lower"),
            ],
            counted.load,
            counted.inside,
            {**follower.counts, "watched": len(found.jobs)},
        )

    def running(self, stack: Stack) -> Part:
        """From the cycle that binds to the process that runs."""
        size = self.size
        with ExitStack() as exits:
            exits.enter_context(_real_agent(stack, "real", "8xH100-80GB"))
            follower = Follower(stack.read)
            _await_node(stack)
            options = watcher.Options(
                url=stack.url,
                group=GroupRequest(cpu_milli=100, memory_mib=16, gpus=1),
                count=size.running,
                gaps_s=(size.gaps_s[0] + 0.1, size.gaps_s[1] + 0.1),
                folder=str(stack.folder),
                command=DATE,
            )
            watching = self._worker(exits, watcher.__name__, options)
            with self._counting(stack, 0) as counted:
                watching.tell("watch")
                found = watching.hear(watcher.Watched)
            follower.until(lambda counts: counts["AttemptEnded"] >= size.running, PATIENCE_S)
            ran_us = _outputs(stack, found.jobs)
        expect("ended", follower.counts["AttemptEnded"], size.running)
        spans_ms = [(ran_us[job] - follower.bound_us[job]) / 1000 for job in found.jobs]
        known_ms = [(follower.started_us[job] - follower.bound_us[job]) / 1000 for job in found.jobs]
        return part(
            "running",
            f"{size.running} jobs at random gaps, each a process under its own supervisor that says when it ran; counted from "
            "the time of the cycle that bound it, before that was durable",
            [
                figure("bound_to_running_p50_ms", median(spans_ms), "ms", 50, better="lower", full=size.full),
                figure("bound_to_running_p95_ms", percentile(spans_ms, 95), "ms", better="lower"),
                figure("bound_to_known_running_p50_ms", median(known_ms), "ms", better="lower"),
                figure("bound_to_known_running_p95_ms", percentile(known_ms, 95), "ms", better="lower"),
            ],
            counted.load,
            counted.inside,
            dict(follower.counts),
        )

    def beside(self, stack: Stack) -> Part:
        """What long polls and reads do to the leader's cycles."""
        size = self.size
        alone: list[int] = []
        beside: list[int] = []
        reads: list[readers.Read] = []
        room_s = size.nodes * HALVES_A_NODE * 0.95 / (2 * size.turns * size.beside_per_s)
        turn_s = min(size.beside_s, room_s - size.warm_s)
        with ExitStack() as exits:
            body = self._agents(exits, agents.Options(url=stack.url, nodes=size.nodes, gpus=HALVES_A_NODE // 2, runs=False))
            clients = self.submitters(exits, stack, HALF, per_s=size.beside_per_s)
            reading = self._worker(
                exits,
                readers.__name__,
                readers.Options(url=stack.url, per_s=size.reads_per_s, connections=8, nodes=size.nodes),
            )
            follower = Follower(stack.read)
            jobs = 0
            with self._counting(stack, 0) as counted:
                for turn in range(2 * size.turns):
                    with_them = turn % 2 == 1
                    body.tell("poll" if with_them else "rest")
                    body.hear(agents.Counts)
                    if with_them:
                        reading.tell(str(size.warm_s + turn_s))
                    clients.tell(str(size.warm_s + turn_s))
                    time.sleep(size.warm_s)
                    stack.inside()
                    time.sleep(turn_s * 0.95)
                    inside = stack.inside()
                    (beside if with_them else alone).extend(inside.cycles_us)
                    counted.add(inside)
                    jobs += clients.hear(submitters.Submitted).jobs
                    if with_them:
                        reads.append(reading.hear(readers.Read))
            follower.until(lambda counts: counts["InstanceBound"] >= jobs, PATIENCE_S)
            body.tell("rest")
            lived = body.hear(agents.Counts)
        expect("bound", follower.counts["InstanceBound"], jobs)
        before, after = percentile(alone, 99) / 1000, percentile(beside, 99) / 1000
        figures: list[Figure] = [
            figure("cycle_p99_rise", after / before - 1 if before else 0.0, "", 0.2, better="lower", full=size.full),
            figure("cycle_p99_ms_alone", before, "ms", better="lower"),
            figure("cycle_p99_ms_beside", after, "ms", better="lower"),
            figure("cycle_p50_ms_alone", median(alone) / 1000, "ms", better="lower"),
            figure("cycle_p50_ms_beside", median(beside) / 1000, "ms", better="lower"),
            figure("reads_per_s", sum(each.reads for each in reads) / max(1e-9, sum(each.seconds for each in reads)), "1/s"),
            figure("read_p99_ms", max((each.p99_ms for each in reads), default=0.0), "ms", better="lower"),
        ]
        return part(
            "beside",
            f"{size.beside_per_s:g} jobs/s are submitted to {size.nodes} nodes, {size.turns} times {turn_s:g} s without "
            f"and with {size.nodes} long polls and {size.reads_per_s:g} reads/s",
            figures,
            counted.load,
            counted.inside,
            {
                **follower.counts,
                "cycles_alone": len(alone),
                "cycles_beside": len(beside),
                "reads": sum(each.reads for each in reads),
                "polls": lived.polls,
                "assignments": lived.assignments,
            },
        )

    def submitters(self, exits: ExitStack, stack: Stack, group: GroupRequest, *, per_s: float = 0.0, jobs_max: int = 0) -> Worker:
        """Clients that submit jobs of this group; they answer with `submitters.Submitted`."""
        options = submitters.Options(
            url=stack.url, connections=self.size.connections, group=group, per_s=per_s, jobs_max=jobs_max
        )
        return self._worker(exits, submitters.__name__, options)

    def _agents(self, exits: ExitStack, options: agents.Options) -> Worker:
        return self._worker(exits, agents.__name__, options)

    def _worker(self, exits: ExitStack, module: str, options: msgspec.Struct) -> Worker:
        worker = exits.enter_context(closing(Worker(module, options)))
        worker.ready()
        self._workers.append(worker)
        return worker

    @contextmanager
    def _counting(self, stack: Stack, warm_s: float) -> Iterator["Counted"]:
        counted = Counted(stack, self._workers)
        if not warm_s:
            counted.begin()
        yield counted
        counted.end()

    def _judge(self, name: str, stack: Stack) -> Iterator[Check]:
        """Audit and verify what the stack wrote."""
        records = entries = 0
        for envelope, _ in stack.admitted():
            records += 1
            entries += len(envelope.inputs) + len(envelope.decisions)
        self._say(f"auditing {name}: {entries:,} entries")
        begun = time.perf_counter()
        difference = audit(stack.admitted).difference
        told = partial(Check, log=name, records=records, entries=entries)
        yield told(
            check="audit",
            holds=difference is None,
            found="" if difference is None else difference.lines()[0],
            took_s=time.perf_counter() - begun,
        )
        self._say(f"verifying {name}")
        begun = time.perf_counter()
        violations = verify(decode_cycle(data) for _, data in stack.admitted())
        yield told(
            check="verify",
            holds=not violations,
            found=str(violations[0]) if violations else "",
            took_s=time.perf_counter() - begun,
        )


PARTS: Final[dict[str, Callable[[Bench, Stack], Part]]] = {
    "bound": Bench.bound,
    "lives": Bench.lives,
    "idle": Bench.idle,
    "running": Bench.running,
    "beside": Bench.beside,
}
Bench.measures = PARTS


class Counted:
    """What is counted inside and around the stack from `begin` to `end`."""

    def __init__(self, stack: Stack, workers: Sequence[Worker]) -> None:
        self._stack = stack
        self._workers = workers
        self._clients_s = 0.0
        self._begun_s = 0.0
        self._machine = (0, 0)
        self._programs: dict[str, float] = {}
        self._more: list[Inside] = []
        self.inside: Inside
        self.load: Load

    def begin(self) -> float:
        """Count from now on; now, by `time.perf_counter`."""
        self._stack.inside()
        self._stack.beside()
        self._programs = {name: cpu_s(pid) for name, pid in self._stack.pids().items()}
        self._machine = machine()
        self._clients_s = sum(each.cpu_s() for each in self._workers)
        self._begun_s = time.perf_counter()
        return self._begun_s

    def add(self, inside: Inside) -> None:
        """Somebody asked in between."""
        self._more.append(inside)

    def end(self) -> None:
        """Count no more."""
        last = self._stack.inside()
        seconds = time.perf_counter() - self._begun_s
        self.inside = _together(self._more) if self._more else last
        busy, whole = (now - then for now, then in zip(machine(), self._machine, strict=True))
        programs = {name: cpu_s(pid) - self._programs[name] for name, pid in self._stack.pids().items()}
        used_s = sum(each.cpu_s for each in (*self._more, last))
        clients_s = sum(each.cpu_s() for each in self._workers) - self._clients_s
        self.load = Load(
            seconds=seconds,
            busy=busy / max(1, whole),
            stack=used_s / seconds,
            clients=clients_s / seconds,
            loadavg=os.getloadavg(),
            programs={name: max(0.0, used_s / seconds) for name, used_s in programs.items()},
            beside={name: shares(modules(each.functions)) for name, each in self._stack.beside().items()},
        )


def _together(parts: Sequence[Inside]) -> Inside:
    phases: dict[str, int] = {}
    functions: dict[str, int] = {}
    for each in parts:
        for name, spent in each.phases_us.items():
            phases[name] = phases.get(name, 0) + spent
        for name, count in each.functions.items():
            functions[name] = functions.get(name, 0) + count
    return Inside(
        cpu_s=sum(each.cpu_s for each in parts),
        memory_mib=max(each.memory_mib for each in parts),
        cycles=sum(each.cycles for each in parts),
        phases_us=phases,
        cycles_us=[],
        functions=functions,
    )


def machine() -> tuple[int, int]:
    """Ticks that the machine's processors were busy, and all of their ticks."""
    try:
        with open("/proc/stat") as text:
            ticks = [int(word) for word in text.readline().split()[1:9]]
    except OSError:
        return 0, 0
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def expect(what: str, seen: int, wanted: int) -> None:
    """Raises `Failed` where a count in the log is not what it must be."""
    if seen != wanted:
        raise Failed(f"{what}: {seen} stand in the log, and {wanted} should")


@contextmanager
def _real_agent(stack: Stack, name: str, devices: str) -> Iterator[None]:
    """`muster agent`, with simulated devices and real processes."""
    command = [sys.executable, "-m", "muster.cli", "agent", "--gateway", stack.url, "--node", name]
    command += ["--data", str(stack.folder / name), "--devices", devices]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _await_node(stack: Stack) -> None:
    limit = time.monotonic() + PATIENCE_S
    with httpx.Client(base_url=stack.url, trust_env=False) as client:
        while not client.get("/v1/nodes").json()["nodes"]:
            if time.monotonic() > limit:
                raise Failed("the agent does not register")
            time.sleep(0.05)


def _outputs(stack: Stack, jobs: Sequence[str]) -> dict[str, int]:
    """What the process of each job said: when it ran, in microseconds since 1970."""
    with httpx.Client(base_url=stack.url, trust_env=False, timeout=PATIENCE_S) as client:
        return {job: int(client.get(f"/v1/jobs/{job}/output").raise_for_status().text) // 1000 for job in jobs}
