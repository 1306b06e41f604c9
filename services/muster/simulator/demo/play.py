"""Plays the scene: one clock for everybody, agents and producers here, the scheduler in a process of its own.

This process follows the log like any gateway: what it shows, and what it tells the agents to do, it has read from the
log, admitted and folded. It judges nothing; it gathers what `checks` looks at.
"""

import heapq
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from muster.cluster.assignment import assignment
from muster.cluster.evolve import apply
from muster.cluster.jobs import Task
from muster.cluster.state import State
from muster.events.codec import open_envelope
from muster.events.decisions import AttemptEnded, InstancePreempted, NodeLost, NodeSilent
from muster.events.jobs import JobCancelRequested
from muster.events.nodes import DeviceHealthChanged
from muster.events.operations import PolicySet
from muster.events.record import Cycle
from muster.log.admit import Admitted, admit, genesis
from muster.log.sqlite import SqliteFile
from muster.scheduler.messages import NODES
from muster.simulator.demo import scene
from muster.simulator.demo.bus import Bus
from muster.simulator.demo.checks import Evidence
from muster.simulator.demo.cluster import Cluster
from muster.simulator.demo.scene import SECOND_US, WORK, Happening, Work
from muster.simulator.demo.scheduler import CELL, Scheduler, Turn
from muster.simulator.demo.table import Screen

LOST_JOB = "notebook"
DOUBLED_JOB = "evaluate"
FRAME_S = 0.1


class Play:
    """One performance."""

    def __init__(self, folder: Path, screen: Screen, plant: str = "", speed: int = 0) -> None:
        self.folder = folder
        self.screen = screen
        self.plant = plant
        self.speed = speed
        """Seconds of log time in one second; 0 is as fast as it goes."""
        self.at_us = 0
        self.state = State(CELL)
        self.bus = Bus(LOST_JOB if plant == "lost-job" else "")
        self.policy = scene.policy(preemption=plant != "no-preempt")
        self.statuses: list[int] = []
        self.recovered = 0
        self._scheduler = Scheduler(folder, 0)
        self._log = SqliteFile.open(folder, CELL, writer=False)
        self._head = genesis(CELL)
        self._position = 0
        self._down = False
        self._cluster = Cluster(self.bus.accepted, self.policy.lease_us, DOUBLED_JOB if plant == "double-start" else "")
        self._calls: list[tuple[int, int, Work | Happening]] = []
        calls: tuple[Work | Happening, ...] = (*WORK, *scene.HAPPENINGS)
        for number, call in enumerate(calls):
            heapq.heappush(self._calls, (call.at_s * SECOND_US, number, call))
        self._begun = time.monotonic()
        self._drawn = 0.0

    def run(self) -> Evidence:
        """Play everything."""
        self.screen.leader = "leads"
        self.bus.say(PolicySet(policy=self.policy, by="demo"), 0)
        while self.at_us <= scene.END_S * SECOND_US and not self._over():
            self._pace()
            self._cluster.advance(self.at_us)
            self._carry_out()
            for node, report in self._cluster.reports(self.at_us):
                self.bus.put(NODES, report, self.at_us, node)
            if not self._down:
                self._scheduler.turn(self._offer())
                self._follow()
            self.at_us = max(self.at_us + 1, self._next_us())
        self.statuses.append(self._scheduler.stop())
        self._draw(last=True)
        self._log.close()
        if self.plant == "altered-log":
            alter(self.folder)
        return Evidence(self.folder, self.bus.accepted, self._cluster.ran, self.statuses, self.recovered)

    def _carry_out(self) -> None:
        """What the scene has for this instant."""
        while self._calls and self._calls[0][0] <= self.at_us:
            _, number, call = heapq.heappop(self._calls)
            if isinstance(call, Work):
                self.bus.submit(scene.submission(call, number), self.at_us)
                self.screen.say(self.at_us, f"{call.name} is submitted")
                continue
            self.screen.say(self.at_us, call.text, "bold")
            if call.what == "kill":
                self.statuses.append(self._scheduler.kill_during(self._offer(), self._log))
                self._down = True
                self.screen.leader = "killed"
                self._follow()
            elif call.what == "restart":
                self._scheduler = Scheduler(self.folder, self.at_us)
                self.recovered = self._scheduler.led.recovered
                self._down = False
                self.screen.leader = f"leads, after reading {self.recovered} cycles in {self._scheduler.led.took_ms} ms"
            elif call.what == "cancel":
                job = next(job for job, name in self.bus.accepted.items() if name == call.job)
                self.bus.say(JobCancelRequested(job=job, by="demo"), self.at_us, key=job)
            else:
                self._hit(call)

    def _hit(self, call: Happening) -> None:
        """Something happens to where the first task of a job is, if it is anywhere."""
        for task in self._tasks(call.job):
            if call.what == "silence":
                self._cluster.silence(task.node.name)
            else:
                self._cluster.fail_device(task.node.name, task.devices[0])
            return

    def _offer(self) -> Turn:
        return Turn(self.at_us, self.bus.after(self._scheduler.positions))

    def _follow(self) -> None:
        """Fold what the log has now, and give the agents their assignments."""
        for record in self._log.read(self._position):
            self._position = record.position
            verdict = admit(self._head, record.data)
            if isinstance(verdict, Admitted):
                self._head = verdict.head
                cycle = open_envelope(verdict.envelope)
                apply(self.state, cycle)
                self._tell(cycle)
        for node in self.state.nodes:
            if node is not None:
                self._cluster.obey(assignment(self.state, node.row), self.at_us)

    def _tell(self, cycle: Cycle) -> None:
        """Show what a person would want to know of a cycle."""
        names = {job.id: job.name for job in self.state.jobs.values()}
        for event in (*cycle.inputs, *cycle.decisions):
            if isinstance(event, InstancePreempted):
                self.screen.say(
                    cycle.at_us, f"{names[event.job]}/{event.instance} is preempted by {names[event.by_job]}", "yellow"
                )
            elif isinstance(event, NodeSilent):
                self.screen.say(cycle.at_us, f"node {event.node} is silent: no new work", "yellow")
            elif isinstance(event, NodeLost):
                self.screen.say(cycle.at_us, f"node {event.node} is lost: its lease is over, and so are its tasks", "red")
            elif isinstance(event, DeviceHealthChanged):
                self.screen.say(cycle.at_us, f"{event.device} is {event.health}", "red")
            elif isinstance(event, AttemptEnded) and event.reason not in ("", "finished"):
                text = f"{names[event.job]}/{event.instance} attempt {event.attempt} ended ({event.reason}), now {event.then}"
                self.screen.say(cycle.at_us, text, "dim")

    def _tasks(self, name: str) -> Iterator[Task]:
        for job in self.state.jobs.values():
            if job.name == name:
                for instance in job.instances:
                    if instance.attempt is not None:
                        yield from instance.attempt.tasks.values()

    def _over(self) -> bool:
        """Whether the scene has nothing more to bring and every job that the log knows has ended."""
        return not self._calls and all(job.over_us for job in self.state.jobs.values())

    def _next_us(self) -> int:
        due = [self._cluster.next_us(self.at_us)]
        due += [self._calls[0][0]] if self._calls else []
        due += [] if self._down else [self._scheduler.wake_us]
        return min(due)

    def _pace(self) -> None:
        """Wait until it is time, drawing a frame now and then."""
        if self.speed:
            wait_s = self.at_us / SECOND_US / self.speed - (time.monotonic() - self._begun)
            while wait_s > 0:
                self._draw()
                time.sleep(min(wait_s, FRAME_S))
                wait_s = self.at_us / SECOND_US / self.speed - (time.monotonic() - self._begun)
            self._draw()

    def _draw(self, last: bool = False) -> None:
        if last or time.monotonic() - self._drawn >= FRAME_S:
            self._drawn = time.monotonic()
            self.screen.show(self.state, self.at_us)


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
