"""The world of one scene: topics, a log, agents and a virtual clock around the real core.

There is no broker and no waiting. Messages lie on topics, by offset; the core is offered what it has not taken; its
records go to a list and are read back; agents get the assignments that follow and answer. What a step's verbs do to
this world stands in `muster.simulator.scenario.verbs`; what must be true, in `judge` and `invariants`.
"""

import itertools
import math
import random
from collections.abc import Callable

from msgspec import UNSET

from muster.cluster import snapshot
from muster.cluster.assignment import assignment
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.events.catalogue import CatalogueSet, DeviceModel
from muster.events.codec import decode_cycle, encode_entry
from muster.events.decisions import InstanceBound, InstanceGrown, MembersReplaced
from muster.events.nodes import NodeSpec
from muster.events.operations import LicencesSet, Policy, PolicySet
from muster.events.queues import QueueSet
from muster.events.record import Cycle
from muster.log.admit import Admitted
from muster.scheduler.core import Core
from muster.scheduler.messages import BufferFull, Message
from muster.simulator.agents import Agent, Behaviour, Fleet
from muster.simulator.scenario.book import Book, Unit, is_beat
from muster.simulator.scenario.fields import JobScene, NodeScene

START_US = 1_767_225_600_000_000
"""The wall clock when a scene begins: the first instant of 2026."""

CELL = "main"
JOBS = "muster.jobs/0"
NODES = "muster.nodes/0"
OPERATIONS = "muster.operations/0"

CYCLES_MAX = 2_000
"""With so many cycles at one time the scheduler does not settle."""

Outgoing = tuple[str, bytes, str]
"""Source, data and key of a message that is to be put on a topic."""


class SceneFailure(Exception):
    """The scene went wrong: what was expected, and what was."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"expected {expected}, actual {actual}")
        self.expected = expected
        self.actual = actual


class Unsettled(SceneFailure):
    """Decisions do not stop."""


class World:
    """The core and everything around it. `apart` are nodes whose reports have a partition of their own."""

    def __init__(self, policy: Policy, apart: list[str]) -> None:
        self.cycles_max = CYCLES_MAX
        self.now_us = 0
        self.clock_us = START_US
        """The leader's wall clock less virtual time."""
        self.log: list[bytes] = []
        self.cycles: list[Cycle] = []
        self.wakes: list[int | None] = []
        """After each cycle, when the engine next wants one."""
        self.book = Book()
        self.core: Core | None = None
        self.state = State(CELL)
        self.policy = policy
        self.fail_append = ""
        self.lead_at: tuple[int, int] | None = None
        """When the next scheduler starts, and log time when the last one stopped."""
        self.watchers: list[Callable[[Cycle], None]] = []
        """Called after every cycle."""
        self.fleet = Fleet(self._behaviour)
        self.fleet.epoch_us = START_US
        self.outbox: list[Outgoing] = []
        self.licences: dict[str, int] = {}
        """How many of each consumable the cell was said to have."""
        self.nodes: dict[str, NodeScene] = {}
        """What each node has now."""
        self.gone: dict[str, Agent] = {}
        """Agents of removed nodes, by uid."""
        self.uids: dict[tuple[str, int, int, int], str] = {}
        """The uid of the node of each task: job, instance, attempt, rank."""
        self.sent: list[Outgoing] = []
        """What the present step has sent so far."""
        self.order: int | None = None
        """In which of its orders the messages of the present step arrive; None where that is the file's."""
        self.orders = 1
        """How many orders the messages of a shuffled step have."""
        self.captured: dict[int, dict[Unit, list[str]]] = {}
        """The devices of each instance, at the times that expectations ask for."""
        self.jobs: dict[str, list[str]] = {}
        """Ids of the jobs of a name, the newest last."""
        self.promised: dict[str, str] = {}
        """The ids that jobs will have for which others wait and which are not submitted yet, by name."""
        self.scenes: dict[str, JobScene] = {}
        """By id."""
        self.submissions: dict[tuple[str, int], str] = {}
        """The job's id, by source and offset of its submission."""
        self.reserved: dict[str, tuple[str, int]] = {}
        """Source and offset of what was last said of each reservation."""
        self.behaviours: dict[str, Behaviour] = {}
        self._messages: list[Message] = []
        self._waiting: list[Message] = []
        self._offsets: dict[str, int] = {}
        self._partitions = {name: f"muster.nodes/{number}" for number, name in enumerate(apart, 1)}
        self._unreadable: dict[str, None] = {}
        self._generations: dict[str, int] = {}
        self._behind: dict[str, None] = {}
        self._terms = 0

    @property
    def log_now_us(self) -> int:
        """Log time now."""
        return self.now_us + self.fleet.epoch_us

    def start(
        self,
        nodes: tuple[NodeScene, ...],
        queues: tuple[QueueSet, ...] = (),
        licences: dict[str, int] | None = None,
        catalogue: tuple[DeviceModel, ...] = (),
    ) -> None:
        """A scheduler starts to lead, policy, queues, licences and catalogue are set and the nodes of the cluster register."""
        self.lead(gap_us=0)
        self.set_policy(self.policy)
        for queue in queues:
            self.send(OPERATIONS, encode_entry(queue))
        self.set_licences(licences or {})
        if catalogue:
            self.send(OPERATIONS, encode_entry(CatalogueSet(models=catalogue)))
        for node in nodes:
            self.add_node(node)
        self.flush()
        self.settle()

    # What is sent

    def send(self, source: str, data: bytes, key: str = "") -> None:
        """Something to be put on a topic with the next flush."""
        self.outbox.append((source, data, key))

    def set_policy(self, policy: Policy) -> None:
        """From here on decisions follow this policy."""
        self.policy = policy
        self.send(OPERATIONS, encode_entry(PolicySet(policy=policy)))

    def set_licences(self, licences: dict[str, int]) -> None:
        """From here on the cell has so many of these consumables, and of the others what it had."""
        if licences:
            self.licences = {**self.licences, **licences}
            self.send(OPERATIONS, encode_entry(LicencesSet(licences=self.licences)))

    def deliver(self) -> None:
        """What the verbs of the present step have sent so far arrives."""
        self.sent.extend(self.flush(self.order))

    def end_cycle(self) -> None:
        """What follows in the step is the next cycle's."""
        self.deliver()
        self.settle()

    def flush(self, order: int | None = None) -> list[Outgoing]:
        """Put everything that is to be sent on its topic, reports of changed levels last, and say what it was.

        With an order it is put there in that one of its orders; 0 is the one in which it was sent.
        """
        for agent in self.fleet.agents.values():
            if agent.changed and not agent.silent:
                self.report(agent)
        sent, self.outbox = self.outbox, []
        if order is not None:
            self.orders = max(self.orders, math.factorial(min(len(sent), 20)))
            sent = in_order(sent, order)
        for source, data, key in sent:
            offset = self._offsets.get(source, 0)
            self._offsets[source] = offset + 1
            message = Message(source=source, offset=offset, data=data, appended_us=START_US + self.now_us, key=key)
            if data.startswith(b'["ReservationSet"'):
                self.reserved[key] = (source, offset)
            if source == JOBS and data.startswith(b'["JobSubmitted"'):
                self.submissions[source, offset] = key
            self._messages.append(message)
            self._waiting.append(message)
        return sent

    def report(self, agent: Agent) -> None:
        """The agent's level is to be sent."""
        self.send(self.source(agent.name), agent.report(self.now_us), agent.name)

    def source(self, name: str) -> str:
        """The partition of the node's reports."""
        return self._partitions.get(name, NODES)

    # Nodes

    def add_node(self, scene: NodeScene) -> None:
        """A node with a uid that never was before."""
        generation = self._generations[scene.name] = self._generations.get(scene.name, 0) + 1
        agent = Agent(scene.name, f"{scene.name}-{generation}")
        self.describe(agent, scene)
        self.fleet.agents[scene.name] = agent

    def describe(self, agent: Agent, scene: NodeScene) -> None:
        """The node has this now."""
        spec = NodeSpec(
            cpu_milli=scene.cpu_milli,
            memory_mib=scene.memory_mib,
            disk_mib=scene.disk_mib,
            tasks_max=scene.pods,
            labels=scene.labels,
            taints=scene.taints,
            zone=scene.zone,
            block=scene.block,
            rack=scene.rack,
            nvlink_domain=scene.nvlink_domain,
            numa=scene.numa or UNSET,
            images=scene.images or UNSET,
            datasets=scene.datasets or UNSET,
        )
        agent.describe(spec, scene.gpus, scene.gpu_model, scene.gpu_memory_mib, scene.mig)
        self.nodes[agent.name] = scene

    def remove_node(self, name: str) -> Agent:
        """The node is gone, and what ran there with it.

        Raises:
            SceneFailure: there is none now.
        """
        agent = self.agent(name)
        del self.fleet.agents[name]
        self.gone[agent.uid] = agent
        return agent

    def agent(self, name: str) -> Agent:
        """The agent of this node.

        Raises:
            SceneFailure: there is none now.
        """
        agent = self.fleet.agents.get(name)
        if agent is None:
            raise SceneFailure(f"the node {name} to be there", "it is not")
        return agent

    def set_readable(self, name: str, readable: bool) -> None:
        """Whether the bus can deliver this node's reports."""
        if readable:
            self._unreadable.pop(self.source(name), None)
        else:
            self._unreadable[self.source(name)] = None

    def come_back(self, agent: Agent) -> None:
        """The node is heard again, and gets its assignment when it was."""
        self.fleet.come_back(agent)
        self._behind[agent.name] = None

    # Jobs

    def newest(self, name: str) -> str | None:
        """The id of the newest job of this name; None before its submission."""
        ids = self.jobs.get(name)
        return ids[-1] if ids else None

    def refused_jobs(self) -> dict[str, None]:
        """Ids of jobs whose submission was refused."""
        found = [self.submissions.get(place) for place in self.book.refused]
        return {job: None for job in found if job is not None and job not in self.state.jobs}

    def _behaviour(self, job: str) -> Behaviour:
        return self.behaviours[job]

    # Leading

    def lead(self, gap_us: int, takeover: bool = False) -> None:
        """A scheduler starts on what the log says and leads from here on, `gap_us` after the last one stopped.

        It anchors log time at the wall clock or, as the follower that it is in a takeover, where the log stands.
        """
        stopped_us = self.log_now_us - gap_us
        core = self._recovered(takeover)
        if not takeover:
            self.fleet.epoch_us = max(core.state.at_us, self.clock_us + self.now_us) - self.now_us
        self._terms += 1
        host = "standby" if takeover else "scene"
        jump_us = max(0, self.log_now_us - stopped_us)
        record = core.start_term(self.log_now_us, f"{self._terms:032x}", host, "scene", jump_us if self.log else 0)
        self.core = core
        self.state = core.state
        self.lead_at = None
        self._append(core, record)
        positions = core.positions
        self._waiting = [message for message in self._messages if message.offset >= positions.get(message.source, 0)]

    def stop_leading(self, until_us: int) -> None:
        """Nobody leads until then."""
        self.core = None
        self.lead_at = (until_us, self.log_now_us)

    def _recovered(self, takeover: bool) -> Core:
        """A core that read the log: from its start or, as a standby, from a snapshot on."""
        core = Core(CELL)
        half = len(self.log) // 2 if takeover else 0
        for data in self.log[:half]:
            self._follow(core, data)
        if half:
            core = Core(CELL, snapshot.decode(snapshot.encode(core.state)), core.head)
        for data in self.log[half:]:
            self._follow(core, data)
        return core

    def _follow(self, core: Core, data: bytes) -> None:
        verdict = core.follow(data)
        if not isinstance(verdict, Admitted):
            raise SceneFailure("every record of the log to be admitted in recovery", f"{verdict}")

    # Time

    def advance(self, until_us: int) -> None:
        """Everything that is due before this instant happens, at its own time; then it is this instant."""
        turns = 0
        while True:
            due = self._next_us()
            if due is None or due >= until_us:
                break
            turns = turns + 1 if due <= self.now_us else 0
            if turns > self.cycles_max:
                raise Unsettled("time to go on", f"something is due at {self.now_us / 1e6} s again and again")
            self.now_us = max(self.now_us, due)
            self.happen()
            self.settle()
        self.now_us = until_us
        if self.lead_at is not None and self.lead_at[0] <= self.now_us:
            self._take_lead()

    def happen(self) -> None:
        """What is due now on the nodes happens, a scheduler starts if one is due, and what follows is sent."""
        self.fleet.fire(self.now_us)
        if self.lead_at is not None and self.lead_at[0] <= self.now_us:
            self._take_lead()
        self.flush()

    def settle(self) -> None:
        """The loop runs until it is quiet at this time.

        Raises:
            SceneFailure: it does not settle.
        """
        for _ in range(self.cycles_max):
            core = self.core
            if core is None:
                return
            self._beat(core)
            self._offer(core)
            record = core.cycle(self.log_now_us, tuple(self._unreadable))
            if record is not None:
                self._append(core, record)
                continue
            for name in self._behind:
                self._assign(self.fleet.agents.get(name))
            self._behind = {}
            self.fleet.fire(self.now_us)
            if not self.flush() and not self._readable():
                return
        raise Unsettled("the scheduler to settle", f"{self.cycles_max} cycles at one time and no end")

    def _next_us(self) -> int | None:
        due = [self.fleet.next_us(), self.lead_at[0] if self.lead_at is not None else None]
        if self.core is not None:
            wake_us = self.core.next_wake_us()
            due.append(None if wake_us is None else wake_us - self.fleet.epoch_us)
        known = [at_us for at_us in due if at_us is not None]
        return min(known) if known else None

    def _take_lead(self) -> None:
        if self.lead_at is not None:
            self.lead(gap_us=self.log_now_us - self.lead_at[1])

    def _beat(self, core: Core) -> None:
        """Before a beat every agent that can be heard reports."""
        due_us = core.recorder.beats.due_us(core.state)
        if due_us is not None and due_us <= self.log_now_us:
            for agent in self.fleet.agents.values():
                if not agent.silent and agent.heard_us < self.now_us:
                    self.report(agent)
            self.flush()

    def _readable(self) -> bool:
        return any(message.source not in self._unreadable for message in self._waiting)

    def _offer(self, core: Core) -> None:
        waiting, self._waiting = self._waiting, []
        for number, message in enumerate(waiting):
            if message.source in self._unreadable:
                self._waiting.append(message)
                continue
            try:
                core.offer(message)
            except BufferFull:
                self._waiting.extend(waiting[number:])
                return

    def _append(self, core: Core, record: bytes) -> None:
        """The record goes to the log, unless this append is to fail, and what it says reaches everybody."""
        cycle = decode_cycle(record)
        if self.fail_append and cycle.started is None and not is_beat(cycle):
            landed, self.fail_append = self.fail_append == "landed", ""
            if landed:
                self.log.append(record)
                self._happened(cycle)
            self.lead(gap_us=0)
            return
        self.log.append(record)
        core.read_back(record)
        self._happened(cycle)

    def _happened(self, cycle: Cycle) -> None:
        core = self.core
        assert core is not None
        self.state = core.state
        self.cycles.append(cycle)
        self.wakes.append(core.engine.next_wake_us())
        self.book.enter(cycle, self.now_us)
        for event in cycle.decisions:
            if isinstance(event, InstanceBound | MembersReplaced | InstanceGrown):
                for placement in event.placements:
                    node = self.state.nodes[placement.row]
                    if node is not None:
                        self.uids[event.job, event.instance, event.attempt, placement.rank] = node.uid
        if not is_beat(cycle):
            for agent in self.fleet.agents.values():
                if not agent.silent and agent.name not in self._behind:
                    self._assign(agent)
            self.fleet.fire(self.now_us)
            self.flush()
        for watch in self.watchers:
            watch(cycle)

    def _assign(self, agent: Agent | None) -> None:
        node = self.node(agent.name) if agent is not None else None
        if agent is not None and node is not None and node.uid == agent.uid:
            agent.lease_until_us = self.state.lease_until_us - self.fleet.epoch_us
            self.fleet.obey(agent, assignment(self.state, node.row), self.now_us)

    def node(self, name: str) -> Node | None:
        """The node of this name in the state."""
        return self.state.node(name)


def in_order(sent: list[Outgoing], order: int) -> list[Outgoing]:
    """One of the orders of some messages, 0 the given one: each of them where they are few, else a random one by its number."""
    if order == 0:
        return sent
    if len(sent) <= 4:
        return list(next(itertools.islice(itertools.permutations(sent), order % math.factorial(len(sent)), None)))
    return random.Random(order).sample(sent, len(sent))
