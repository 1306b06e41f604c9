"""The demo's nodes: simulated agents that obey and report, and a record of every process that ran on them.

The record is made by looking at the nodes, not at the log and not at reports: it is what really happened.
"""

import msgspec

from muster.events.levels import Assignment
from muster.simulator.agents import Agent, AgentTask, Behaviour, Fleet
from muster.simulator.demo import scene
from muster.simulator.demo.scene import SECOND_US, WORK

READY_TAKES_US = 2 * SECOND_US
STOP_TAKES_US = 3 * SECOND_US
REPORT_US = 4 * SECOND_US
"""A report at least so often."""


class Ran(msgspec.Struct):
    """One process that ran on a node."""

    job: str
    instance: int
    attempt: int
    rank: int
    node: str
    started_us: int
    ended_us: int | None = None
    code: int = 0
    """Exit status; -n for signal n."""


class Cluster:
    """All nodes of the demo. `names` gives the names of jobs by id."""

    def __init__(self, names: dict[str, str], lease_us: int, double: str = "") -> None:
        self.ran: list[Ran] = []
        self._names = names
        self._lease_us = lease_us
        self._double = double
        """A plant: the first task of this job is started by a second node too."""
        self._fleet = Fleet(self._behaviour)
        self._runs: dict[int, tuple[AgentTask, Ran]] = {}
        """The processes that run now, by the identity of their task."""
        self._report_us: dict[str, int] = {}
        for name, kind in scene.NODES.items():
            agent = Agent(name, f"uid-{name}")
            model, memory_mib = scene.MODELS[kind]
            agent.describe(scene.SPEC, scene.GPUS[kind], model, memory_mib)
            self._fleet.agents[name] = agent
            self._report_us[name] = 0

    def advance(self, at_us: int) -> None:
        """What is due on the nodes by now happens."""
        self._fleet.fire(at_us)
        self._look(at_us)

    def obey(self, level: Assignment, at_us: int) -> None:
        """A node's agent reads its assignment, if it can."""
        agent = self._fleet.agents[level.node]
        if not agent.silent:
            self._fleet.obey(agent, level, at_us)
            self._look(at_us)

    def reports(self, at_us: int) -> list[tuple[str, bytes]]:
        """The reports that are due, by the name of the node."""
        found = []
        for name, agent in self._fleet.agents.items():
            if not agent.silent and (agent.changed or at_us >= self._report_us[name]):
                found.append((name, agent.report(at_us)))
                self._report_us[name] = at_us + REPORT_US
        return found

    def silence(self, node: str) -> None:
        """The node can reach nobody any more."""
        self._fleet.silence(self._fleet.agents[node], self._lease_us)

    def fail_device(self, node: str, index: int) -> None:
        """A GPU fails; the node's next report says so."""
        agent = self._fleet.agents[node]
        agent.health[agent.devices[index].uuid] = "failed"
        agent.changed = True

    def next_us(self, at_us: int) -> int:
        """When something is due next."""
        agents = self._fleet.agents
        due = [
            at_us if agents[name].changed else report_us for name, report_us in self._report_us.items() if not agents[name].silent
        ]
        next_us = self._fleet.next_us()
        return min(due if next_us is None else [*due, next_us])

    def _behaviour(self, job: str) -> Behaviour:
        work = next(work for work in WORK if work.name == self._names[job])
        return Behaviour(ready_takes_us=READY_TAKES_US, runtime_us=work.runtime_s * SECOND_US, stop_takes_us=STOP_TAKES_US)

    def _look(self, at_us: int) -> None:
        """Write down which processes began and which ended."""
        for name, agent in self._fleet.agents.items():
            for task in agent.tasks.values():
                if task.phase == "running" and id(task) not in self._runs:
                    self._began(task, name, at_us)
        for key, (task, ran) in list(self._runs.items()):
            forgotten = self._fleet.agents[ran.node].tasks.get(task.key) is not task
            if task.phase == "exited" or forgotten:
                ran.ended_us, ran.code = at_us, task.code
                del self._runs[key]

    def _began(self, task: AgentTask, node: str, at_us: int) -> None:
        ran = Ran(*task.key, node, at_us)
        self.ran.append(ran)
        self._runs[id(task)] = task, ran
        if self._double == self._names[task.key[0]]:
            self._double = ""
            other = next(agent for agent in self._fleet.agents.values() if agent.name != node and not agent.silent)
            twin = AgentTask(task.key, task.devices)
            twin.phase = "running"
            other.tasks[task.key] = twin
            self._began(twin, other.name, at_us)
