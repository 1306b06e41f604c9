"""The world: two or three schedulers, two gateways, a handful of nodes and their agents, users, operators and telemetry.

`World(seed).play()` lets everything go wrong for some minutes of virtual time (`trouble`), then ends all faults and demands
progress: every job that was accepted and is feasible must come to its end, and decisions must stop. What held and what did
not is said by `checks`. One seed is one history.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from muster.cluster.evolve import apply
from muster.cluster.jobs import TERMINAL
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.codec import encode_entry, open_envelope
from muster.events.decisions import JobsForgotten
from muster.events.nodes import Device, DeviceHealthChanged, NodeSpec
from muster.events.operations import NodeUncordoned, Policy, PolicySet
from muster.events.record import Envelope
from muster.log.admit import Admitted, Halt, admit, genesis
from muster.log.memory import Faults
from muster.scheduler.loop import Settings
from muster.scheduler.messages import GPU_HEALTH, OPERATIONS
from muster.simulator.world import checks, jobs
from muster.simulator.world.bus import Broker, Topics
from muster.simulator.world.client import Client, Errand
from muster.simulator.world.gateway import CELL, Gateway
from muster.simulator.world.network import FAIR, Network, Weather
from muster.simulator.world.node import Agent, Machine, Run
from muster.simulator.world.process import MILLION, HostClock, Process, Timeline
from muster.simulator.world.scheduler import SchedulerHost
from muster.simulator.world.trouble import Trouble

POLICY = Policy(
    beat_us=3 * MILLION,
    silent_after_us=12 * MILLION,
    lease_us=60 * MILLION,
    margin_us=6 * MILLION,
    ready_timeout_us=40 * MILLION,
    kill_margin_us=3 * MILLION,
    nomination_ttl_us=60 * MILLION,
    backoff_us=4 * MILLION,
    backoff_max_us=16 * MILLION,
    flap_limit=3,
    flap_window_us=120 * MILLION,
    quarantine_us=40 * MILLION,
)
FAULTS = ("fault: ", "appends ", "answers to appends lost", "messages lost", "messages doubled", "messages late")
"""With these begin the counts of what went wrong on purpose."""
SETTLE_US = 3000 * MILLION
"""So long after the last fault everything must be over."""
STUCK_US = 180 * MILLION
"""So long without a task that begins or ends is no progress: longer than any task runs and any timer of the policy."""
RENEW_US = 80 * MILLION
"""So often in that time nodes that are blamed for failed starts are replaced by new ones."""
QUIET_US = 45 * MILLION
TURN_US = 2 * MILLION


class Outcome(msgspec.Struct, kw_only=True):
    """What came of one seed."""

    seed: int
    problems: list[str]
    """What did not hold, one sentence each."""
    counts: dict[str, int]
    """What happened, and what went wrong on purpose."""
    faults: int
    steps: int
    cycles: int
    terms: int
    virtual_s: int
    head: str
    """Digest of the last admitted record: equal histories have equal ones."""

    @property
    def line(self) -> str:
        """One line for a person."""
        verdict = "FAILS" if self.problems else "holds"
        return (
            f"seed {self.seed}: {verdict}; {self.virtual_s} s, {self.steps} steps, {self.faults} faults, "
            f"{self.cycles} cycles, {self.terms} terms, {self.counts.get('runs', 0)} runs"
        )


class Ended(msgspec.Struct, frozen=True):
    """An instance as the log has it."""

    job: str
    index: int
    phase: str
    reason: str
    attempts: int


class View:
    """The fold of what is admitted, and the records themselves."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.head = genesis(CELL)
        self.state = State(CELL)
        self.admitted: list[tuple[Envelope, bytes]] = []
        self.landed_us: list[int] = []
        """When each of them landed."""
        self.halt = ""
        self.forgotten: dict[str, list[Ended]] = {}
        """What became of the instances of jobs that have left the state."""
        self._read = 0

    def follow(self) -> State:
        """Fold what has landed."""
        records = self.broker.records
        while self._read < len(records) and not self.halt:
            data = records[self._read]
            self._read += 1
            verdict = admit(self.head, data)
            if isinstance(verdict, Halt):
                self.halt = verdict.reason
            elif isinstance(verdict, Admitted):
                self.head = verdict.head
                self.admitted.append((verdict.envelope, data))
                self.landed_us.append(self.broker.landed_us[self._read - 1])
                cycle = open_envelope(verdict.envelope)
                for event in cycle.decisions:
                    if isinstance(event, JobsForgotten):
                        for job in event.jobs:
                            self.forgotten[job] = self.instances(job)
                apply(self.state, cycle)
        return self.state

    def instances(self, job: str) -> list[Ended]:
        """What is known of the instances of a job, which may be over; empty where nobody ever knew it."""
        known = self.state.jobs.get(job)
        if known is None:
            return self.forgotten.get(job, [])
        return [Ended(job, each.index, each.phase, each.reason, each.attempts) for each in known.instances]


class World:
    """All parties of one seed."""

    def __init__(self, seed: int, folder: Path, focus: Sequence[str] = ()) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.timeline = Timeline()
        self.network = Network(self.timeline, random, self.counts)
        self.topics = Topics(self.timeline)
        self.broker = Broker(self.timeline, random.getrandbits(32), _log_faults(random))
        self.view = View(self.broker)
        self.chaos_us = (260 if focus else random.randint(90, 200)) * MILLION
        self.processes: list[Process] = []
        self.runs: list[Run] = []
        self.gpus = random.randint(2, 4)
        nodes = random.randint(3, 5)
        until_us = self.chaos_us - 10 * MILLION
        plans, errands = jobs.draw(random, random.randint(10, 18), nodes, self.gpus, until_us, *((60, 40) if focus else (20, 17)))
        self.plans = {plan.job: plan for plan in plans}
        self.gateways = [self._gateway(f"gateway{number}") for number in (1, 2)]
        self.schedulers = [self._scheduler(f"scheduler{number}", folder) for number in range(1, random.choice((3, 4)))]
        self.agents = [self._agent(f"agent{number}", f"n{number}") for number in range(1, nodes + 1)]
        self.users = self._client("user1")
        self.operators = self._client("operator1")
        self.telemetry = self._client("telemetry1")
        for errand in errands:
            self.users.add(errand)
        self.operate(PolicySet(policy=POLICY), 0)
        self.trouble = Trouble(self, focus)

    # Parties

    def _process(self, name: str) -> Process:
        random = self.random
        clock = HostClock(self.timeline, random.randint(-5000, 5000), random.randint(1, 10**6) * MILLION)
        process = Process(self.timeline, random, self.counts, name, clock)
        process.on_end = lambda how: self.timeline.after(random.randint(100_000, 3 * MILLION), process.start)
        self.processes.append(process)
        return process

    def _gateway(self, name: str) -> Gateway:
        gateway = Gateway(self._process(name), self.network, self.topics, self.broker)
        gateway.process.main = gateway.run
        return gateway

    def _scheduler(self, name: str, folder: Path) -> SchedulerHost:
        process = self._process(name)
        own = folder / name
        own.mkdir()
        host = SchedulerHost(process, self.network, self.topics, self.broker, _settings(name, not self.random.randrange(5)), own)
        process.main = host.run
        again = process.on_end

        def ended(how: str) -> None:
            host.over()
            again(how)

        process.on_end = ended
        return host

    def _agent(self, name: str, node: str) -> Agent:
        process = self._process(name)
        behaviours = {job: plan.behaviour for job, plan in self.plans.items()}
        devices = tuple([Device(uuid=f"gpu{index}") for index in range(self.gpus)])
        spec = NodeSpec(cpu_milli=64_000, memory_mib=64_000, disk_mib=64_000, devices=devices)
        machine = Machine(self.timeline, node, process.clock, spec, POLICY.lease_us, behaviours, self.runs)
        agent = Agent(process, machine, self.network, self.gateways)
        process.main = agent.run
        return agent

    def _client(self, name: str) -> Client:
        client = Client(self._process(name), self.network, self.topics)
        client.process.main = client.run
        return client

    def operate(self, event: Event, after_us: int = 0) -> None:
        """An operator says this."""
        self.operators.add(Errand(due_us=self.timeline.now_us + after_us, topic=OPERATIONS, data=encode_entry(event)))

    def measure(self, event: DeviceHealthChanged, after_us: int = 0) -> None:
        """Telemetry says this."""
        self.telemetry.add(Errand(due_us=self.timeline.now_us + after_us, topic=GPU_HEALTH, data=encode_entry(event)))

    # The play

    def play(self) -> Outcome:
        """Trouble, then calm, then judgement."""
        for process in self.processes:
            self.timeline.after(self.random.randint(0, 2 * MILLION), process.start)
        self.network.weather = _weather(self.random)
        self.trouble.begin(self.chaos_us)
        problems = self._until(self.chaos_us)
        if not problems:
            self.calm()
            problems = self._settle()
        problems += checks.check(self)
        return self._outcome(problems)

    def _until(self, at_us: int) -> list[str]:
        """Let time pass; stop early when a process broke."""
        while self.timeline.now_us < at_us:
            self.timeline.run(min(at_us, self.timeline.now_us + TURN_US))
            self.view.follow()
            broken = self.broken()
            if broken:
                return broken
        return []

    def broken(self) -> list[str]:
        """What must never happen while anything runs."""
        found = [f"{process.name} broke: {text}" for process in self.processes for text in process.broken]
        if self.view.halt:
            found.append(f"the log halts: {self.view.halt}")
        return found

    def calm(self) -> None:
        """No more faults: what was cut, stopped, failed or drained is as it should be."""
        self.trouble.over = True
        self.network.weather = FAIR
        self.network.mend_all()
        self.topics.unreadable.clear()
        self.broker.settle()
        for host in self.schedulers:
            if host.settings.takeover_after_us < _settings("").takeover_after_us:
                host.settings = _settings(host.process.name)
                host.process.kill()
        for process in self.processes:
            process.kill_in = process.stop_in = 0
            process.resume()
            process.start()
        for agent in self.agents:
            machine = agent.machine
            machine.health = {}
            self.operate(NodeUncordoned(node=machine.name))
            for uuid in machine.uuids():
                if uuid in self.trouble.measured:
                    healthy = DeviceHealthChanged(node=machine.name, uid=machine.uid, device=uuid, health="healthy")
                    self.measure(healthy)
                    self.measure(healthy, 20 * MILLION)  # a late copy of what it said before may still arrive until then
            machine.changed()

    def _settle(self) -> list[str]:
        """Demand progress, and then quiet."""
        began_us = moved_us = renew_us = self.timeline.now_us
        moved = -1
        while self.timeline.now_us < min(began_us + SETTLE_US, moved_us + STUCK_US):
            if self.timeline.now_us >= renew_us:
                self._renew()
                renew_us += RENEW_US
            problems = self._until(self.timeline.now_us + 5 * MILLION)
            if problems:
                return problems
            if not self.left() and self.users.idle and self.operators.idle:
                return self._quiet()
            now = len(self.runs) + sum(run.ended_us is not None for run in self.runs)
            if now != moved:
                moved, moved_us = now, self.timeline.now_us
        late = f"{(self.timeline.now_us - began_us) // MILLION} s after the last fault"
        return [f"no end {late}: {sentence}" for sentence in self.left() or ["errands are left"]]

    def left(self) -> list[str]:
        """Accepted and feasible jobs that are not over."""
        found = []
        for job in self.users.accepted:
            if not self.plans[job].feasible:
                continue
            phases = [instance.phase for instance in self.view.instances(job)]
            if not phases:
                found.append(f"job {job} was accepted, and nobody knows it")
            elif any(phase not in TERMINAL for phase in phases):
                found.append(f"job {job} is {', '.join(phases)}")
        return found

    def _renew(self) -> None:
        """Nodes that waiting jobs avoid are replaced by new machines, so that these jobs are feasible."""
        avoided = {uid: None for job in self.view.state.jobs.values() if job.open for uid in job.avoid}
        for agent in self.agents:
            if agent.machine.uid in avoided:
                self.counts["nodes replaced because they were avoided"] += 1
                agent.process.kill()
                agent.machine.replace()

    def _quiet(self) -> list[str]:
        """With nothing new, decisions stop."""
        for _ in range(4):
            before = len(self.view.admitted)
            problems = self._until(self.timeline.now_us + QUIET_US)
            if problems:
                return problems
            decided = sum(len(envelope.decisions) for envelope, _ in self.view.admitted[before:])
            if not decided:
                return self._together()
        return [f"decisions do not stop: {decided} in the last {QUIET_US // MILLION} s"]

    def _together(self) -> list[str]:
        """Every follower gets to the head, between two beats."""
        for _ in range(200):
            self.timeline.run(self.timeline.now_us + 100_000)
            self.view.follow()
            if not self.behind():
                return []
        return [f"{name} does not get to the head" for name in self.behind()]

    def behind(self) -> list[str]:
        """Who has not read to the head."""
        found = []
        for host in self.schedulers:
            core = host.scheduler.core if host.scheduler is not None else None
            if core is None or core.head != self.view.head or core.pending is not None:
                found.append(host.process.name)
        return found + [gateway.name for gateway in self.gateways if gateway.head != self.view.head]

    def _outcome(self, problems: list[str]) -> Outcome:
        self.counts["runs"] = len(self.runs)
        for fault, count in self.broker.counts.items():
            self.counts[f"appends {fault}" if fault != "behind" else "reads behind the end"] = count
        return Outcome(
            seed=self.seed,
            problems=problems,
            counts=dict(sorted(self.counts.items())),
            faults=sum(count for what, count in self.counts.items() if what.startswith(FAULTS)),
            steps=self.timeline.steps,
            cycles=len(self.view.admitted),
            terms=self.view.head.term,
            virtual_s=self.timeline.now_us // MILLION,
            head=self.view.head.digest,
        )

    def close(self) -> None:
        """End every process."""
        for process in self.processes:
            process.on_end = lambda how: None
            process.kill("closed")
        for host in self.schedulers:
            host.over()


def play(seed: int, keep: Path | None = None, focus: Sequence[str] = ()) -> Outcome:
    """One seed. With `keep`, the log of one that fails is written there; `focus` names kinds of faults to be frequent."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        world = World(seed, Path(folder), focus)
        try:
            outcome = world.play()
            if outcome.problems and keep is not None:
                checks.write_log(world.broker.records, keep / f"seed-{seed}", CELL)
            return outcome
        finally:
            world.close()


def _settings(identity: str, hasty: bool = False) -> Settings:
    """Of one scheduler. The hasty cut in on living leaders."""
    return Settings(
        identity=identity,
        host=identity or "localhost",
        build="world",
        takeover_after_us=600_000 if hasty else 3_000_000,
        takeover_spread_us=400_000 if hasty else 1_000_000,
        append_deadline_us=5_000_000,
        poll_us=500_000,
    )


def _weather(random: Random) -> Weather:
    """From a fine day to a bad one."""
    worst = random.choice((0, 20, 60))
    return Weather(lost=1 + random.randint(0, worst), doubled=random.randint(0, worst), late=random.randint(0, worst))


def _log_faults(random: Random) -> Faults:
    worst = random.choice((1, 20, 60))
    return Faults(
        lost=random.randint(0, worst),
        late=random.randint(0, worst),
        unanswered=random.randint(0, worst),
        doubled=random.randint(0, worst),
        overtaken=random.randint(0, 3 * worst),
        lag_max=random.randint(0, 3),
    )
