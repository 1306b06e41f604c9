"""Plays the scene, in real time and with real processes: it submits as people do, kills, breaks, and watches the log.

This process follows the log like any gateway: what it shows it has read from the log, admitted and folded. It judges nothing;
it gathers what `checks` looks at.
"""

import json
import shutil
import sqlite3
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from muster.cluster.evolve import apply
from muster.cluster.jobs import Instance
from muster.cluster.state import State
from muster.events.codec import open_envelope
from muster.events.decisions import AttemptEnded, InstancePreempted, InstanceStarted, NodeLost, NodeSilent
from muster.events.jobs import JobSubmitted
from muster.events.nodes import DeviceHealthChanged, NodeRegistered
from muster.events.record import Cycle
from muster.log.admit import Admitted, admit, genesis
from muster.log.sqlite import SqliteFile
from muster.simulator.demo.checks import Evidence
from muster.simulator.demo.diaries import Ran, read_diaries, read_outputs
from muster.simulator.demo.processes import Processes, Stuck, alive
from muster.simulator.demo.scene import GANG, NODES, POD, SCRIPT, URGENT, WORK, Work
from muster.simulator.demo.table import Screen

CELL = "main"
WORKLOAD = Path(__file__).parent / "workload"
TRAINER = "muster.simulator.demo.workload.train"
PATIENCE_S = 60.0
NO_PREEMPT_S = 5.0
"""With preemption off, so long is waited for what cannot come."""
LOOK_S = 0.05
DOUBLED_RANK = 3


class Play:
    """One performance."""

    def __init__(self, folder: Path, screen: Screen, plant: str = "") -> None:
        self.folder = folder
        self.work = folder / "work"
        self.screen = screen
        self.plant = plant
        self.state = State(CELL)
        self.accepted: dict[str, str] = {}
        """What producers remember: name by id of each job whose submission was acknowledged."""
        self.processes = Processes(folder, self.work)
        self._log: SqliteFile | None = None
        self._head = genesis(CELL)
        self._position = 0
        self._begun = time.monotonic()

    def run(self) -> Evidence:
        """Play everything; whatever happens, nothing of it runs afterwards.

        Raises:
            Stuck: something that must happen did not.
        """
        try:
            return self._play()
        finally:
            self.processes.end_all()
            if self._log is not None:
                self._log.close()

    def _play(self) -> Evidence:
        shutil.copytree(WORKLOAD, self.work, ignore=shutil.ignore_patterns("__*"))
        for work in WORK:
            if work.hold:
                (self.work / work.hold).touch()
        self._begin()
        self._hand_in()
        killed = self._kill_scheduler()
        (self.work / URGENT.hold).unlink()
        self._until("the gang does not come back", lambda: self._runs(GANG))
        if self.plant == "double-start":
            self._start_twin()
        kept = self._kill_agent(NODES[1])
        self._break_device()
        (self.work / GANG.hold).unlink()
        self._until("not every job ends", lambda: all(job.over_us for job in self.state.jobs.values()))
        self._look()
        statuses = self.processes.stop()
        left = self.processes.left()
        self.say("everything has ended, and scheduler and agents are told to stop")
        if self.plant == "altered-log":
            alter(self.folder)
        ids = {name: id for id, name in self.accepted.items()}
        return Evidence(
            folder=self.folder,
            accepted=self.accepted,
            ran=read_diaries(self.work),
            trained={work.name: read_outputs(self.folder, self.work, ids[work.name], work) for work in WORK},
            killed=killed,
            recovered=self._recovered,
            agent_killed=self._agent_status,
            kept=kept,
            statuses=statuses,
            left=left,
        )

    def _begin(self) -> None:
        self.processes.start_up()
        self.screen.leader = "leads"
        self.say(f"scheduler and gateway run at {self.processes.url}")
        for node in NODES:
            self.processes.start_agent(node)
        self._log = SqliteFile.open(self.folder, CELL, writer=False)
        self._until("the agents are not heard", lambda: len(self.state.nodes) == len(NODES))
        if self.plant == "no-preempt":
            policy = msgspec.structs.replace(self.state.policy, preemption=False)
            request = urllib.request.Request(
                f"{self.processes.url}/v1/policy",
                data=msgspec.json.encode(policy),
                method="PUT",
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30):
                self.say("preemption is off")

    def _hand_in(self) -> None:
        """The two example files as they are, the gang, and then what is more urgent than the gang."""
        if self.plant == "lost-job":
            self.accepted[str(uuid.uuid4())] = POD.name
            self._submit(SCRIPT)
        else:
            self._submit(POD, SCRIPT)
        self._submit(GANG)
        self._until("the gang does not run", lambda: self._runs(GANG))
        self._submit(URGENT)
        if self.plant == "no-preempt":
            self._wait(lambda: self._runs(URGENT), NO_PREEMPT_S)
        else:
            self._until("urgent does not run", lambda: self._runs(URGENT))

    def _submit(self, *works: Work) -> None:
        """As people do: `muster submit FILE`."""
        own = ["--directory", str(self.work)] if works[0] in (GANG, URGENT) else []
        told = json.loads(self.processes.muster("submit", "--json", *own, *(work.file for work in works)))
        for job in told["jobs"]:
            self.accepted[job["job"]] = job["name"]
            self.say(f"{job['name']} is submitted")
        self._look()

    def _kill_scheduler(self) -> int:
        """SIGKILL while work runs and waits; then the same command again."""
        self._look()
        self.screen.leader = "killed"
        self.say("the scheduler and the gateway are killed with SIGKILL in the middle of their work", "bold")
        status = self.processes.kill_up()
        self._wait(lambda: False, 0.5)
        gone = self._wait(lambda: not alive(self.processes.scheduler), PATIENCE_S)
        self._recovered = self.state.number
        self.processes.start_up()
        self._until("no new term begins", lambda: self.state.term == 2)
        self.screen.leader = f"leads, after reading {self._recovered} cycles"
        self.say("it is started again, and has read its log", "bold")
        return status if gone else 0

    def _kill_agent(self, node: str) -> list[tuple[Ran, bool]]:
        """SIGKILL for an agent under a running gang, and a new one; which processes ran on its node, and run on still."""
        before = [ran for ran in read_diaries(self.work) if ran.node == node and ran.ended_ns is None and alive(ran.pid)]
        starts = self.processes.agent_starts(node)
        self.say(f"the agent of {node} is killed with SIGKILL; {len(before)} tasks run there", "bold")
        self._agent_status = self.processes.kill_agent(node)
        self._wait(lambda: False, 0.5)
        self.processes.start_agent(node)
        self._until("the new agent does not start", lambda: self.processes.agent_starts(node) > starts)
        self._wait(lambda: False, 0.5)
        self.say("it is started again, and has found them", "bold")
        return [(ran, alive(ran.pid)) for ran in before]

    def _break_device(self) -> None:
        """A device of the gang's first task fails; the gang must run again, without it."""
        attempt = self._instance(GANG).attempt
        assert attempt is not None
        task = attempt.tasks[0]
        uuid_of = task.node.devices[task.devices[0]].uuid
        self.say(f"GPU {task.devices[0]} of {task.node.name} breaks", "bold")
        self.processes.muster("agent", "break", uuid_of, "--data", str(self.folder / task.node.name))
        self._until("the gang does not run again", lambda: self._runs(GANG) and self._instance(GANG).attempts > attempt.number)

    def _start_twin(self) -> None:
        """A plant: a second process for a task that runs."""
        instance = self._instance(GANG)
        names = {
            "MUSTER_JOB_ID": instance.job.id,
            "MUSTER_JOB_NAME": GANG.name,
            "MUSTER_ATTEMPT": str(instance.attempts),
            "MUSTER_NODE": NODES[0],
            "RANK": str(DOUBLED_RANK),
            "WORLD_SIZE": str(GANG.ranks),
        }
        self.processes.run([sys.executable, "-m", TRAINER, "--config", "config.yaml"], names)

    def _instance(self, work: Work) -> Instance:
        return next(job for job in self.state.jobs.values() if job.name == work.name).instances[0]

    def _runs(self, work: Work) -> bool:
        """Whether it runs by the log, and each of its processes has begun."""
        for job in self.state.jobs.values():
            instance = job.instances[0]
            if job.name == work.name and instance.phase == "running":
                begun = [ran for ran in read_diaries(self.work) if ran.job == job.id and ran.attempt == instance.attempts]
                return len(begun) >= work.ranks
        return False

    def _until(self, otherwise: str, done: Callable[[], bool]) -> None:
        if not self._wait(done, PATIENCE_S):
            raise Stuck(f"{otherwise} within {PATIENCE_S:.0f} s: see what was said in {self.folder}/*.txt")

    def _wait(self, done: Callable[[], bool], patience_s: float) -> bool:
        """Watch the log until it is so; whether it is."""
        end = time.monotonic() + patience_s
        while True:
            self._look()
            if done():
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(LOOK_S)

    def _look(self) -> None:
        """Fold what the log has now, and draw it."""
        assert self._log is not None
        for record in self._log.read(self._position):
            self._position = record.position
            verdict = admit(self._head, record.data)
            if isinstance(verdict, Admitted):
                self._head = verdict.head
                cycle = open_envelope(verdict.envelope)
                apply(self.state, cycle)
                self._tell(cycle)
        self.screen.show(self.state, self._now_s())

    def _tell(self, cycle: Cycle) -> None:
        """Show what a person would want to know of a cycle."""
        names = {job.id: job.name for job in self.state.jobs.values()}
        names |= {event.job: event.name for event in cycle.inputs if isinstance(event, JobSubmitted)}
        for event in (*cycle.inputs, *cycle.decisions):
            if isinstance(event, InstancePreempted):
                self.say(f"{names[event.job]} is preempted by {names[event.by_job]}", "yellow")
            elif isinstance(event, InstanceStarted):
                self.say(f"{names[event.job]} attempt {event.attempt} starts", "dim")
            elif isinstance(event, NodeRegistered):
                self.say(f"node {event.node} is heard, with {len(event.spec.devices)} GPUs", "dim")
            elif isinstance(event, NodeSilent):
                self.say(f"node {event.node} is silent: no new work", "yellow")
            elif isinstance(event, NodeLost):
                self.say(f"node {event.node} is lost: its lease is over, and so are its tasks", "red")
            elif isinstance(event, DeviceHealthChanged):
                self.say(f"{event.device} is {event.health}", "red")
            elif isinstance(event, AttemptEnded):
                why = f" ({event.reason})" if event.reason else ""
                self.say(f"{names[event.job]} attempt {event.attempt} ended{why}, now {event.then}", "dim")

    def say(self, text: str, style: str = "") -> None:
        """Something happened now."""
        self.screen.say(self._now_s(), text, style)

    def _now_s(self) -> float:
        return time.monotonic() - self._begun


def alter(folder: Path) -> None:
    """A plant: one byte of one record of the log is another one."""
    connection = sqlite3.connect(folder / f"{CELL}.sqlite")
    with connection:
        (position,) = connection.execute("SELECT max(position) / 2 FROM log").fetchone()
        (data,) = connection.execute("SELECT data FROM log WHERE position = ?", (position,)).fetchone()
        altered = bytearray(data)
        altered[data.index(b",", data.index(b'"at_us":')) - 1] ^= 1  # the last digit of its time: it still decodes
        connection.execute("UPDATE log SET data = ? WHERE position = ?", (bytes(altered), position))
    connection.close()
