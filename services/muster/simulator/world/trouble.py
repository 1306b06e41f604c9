"""What goes wrong in the world, and when: a seed draws which kinds of faults there are, how often, and each of them.

A fault ends by itself after a while, or with `World.calm`. Whatever an operator says here is true: a node is fenced or removed
only when it has no power.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from muster.events.nodes import DeviceHealthChanged, NodeRemoved
from muster.events.operations import LeaseExtended, NodeCordoned, NodeDrained, NodeFenced, NodeUncordoned
from muster.scheduler.messages import OPERATIONS
from muster.simulator.world.bus import LOG, SOURCES, TOPICS
from muster.simulator.world.process import MILLION, WALL_US, Process

if TYPE_CHECKING:
    from muster.simulator.world.node import Agent
    from muster.simulator.world.scheduler import SchedulerHost
    from muster.simulator.world.world import World

KIND_PERCENT = 65
"""How likely a seed has faults of a kind at all."""


FOCUS_WEIGHT = 20


class Trouble:
    """The faults of one seed."""

    def __init__(self, world: "World", focus: Sequence[str] = ()) -> None:
        """`focus` names kinds (methods) that are to be there, frequent and long, whatever is drawn."""
        self.world = world
        self.random = world.random
        self.over = False
        self.measured: dict[str, None] = {}
        """Devices of which telemetry said that they are not healthy."""
        kinds: tuple[tuple[int, Callable[[], str]], ...] = (
            (6, self._killed),
            (8, self._killed_at_an_await),
            (9, self._leader_killed_at_an_await),
            (4, self._stopped),
            (3, self._leader_stopped),
            (3, self._leader_stopped_at_an_await),
            (2, self._all_schedulers_stopped),
            (6, self._cut),
            (3, self._isolated),
            (2, self._leader_cut_from_topics),
            (1, self._gateways_cut_from_topics),
            (1, self._gateways_cut_from_log),
            (2, self._unreadable),
            (3, self._clock_stepped),
            (3, self._snapshot_spoilt),
            (3, self._rebooted),
            (2, self._replaced),
            (3, self._silent),
            (2, self._device_failed),
            (2, self._device_measured),
            (2, self._drained),
            (1, self._cordoned),
            (2, self._fenced),
            (1, self._removed),
            (1, self._lease_extended),
        )
        chosen = [kind for kind in kinds if self.random.randrange(100) < KIND_PERCENT]
        self._kinds = chosen or list(kinds)
        self._pace_us = self.random.choice((2, 4, 8)) * MILLION
        self._focus = bool(focus)
        if focus:
            self._pace_us = 12 * MILLION
            self._kinds += [(FOCUS_WEIGHT, kind) for _, kind in kinds if kind.__name__ in focus]

    def begin(self, until_us: int) -> None:
        """Faults from now on until then."""
        self._until_us = until_us
        self._next()

    def _next(self) -> None:
        self.world.timeline.after(self.random.randint(MILLION // 10, 2 * self._pace_us), self._strike)

    def _strike(self) -> None:
        if self.over or self.world.timeline.now_us >= self._until_us:
            return
        weights = [weight for weight, _ in self._kinds]
        what = self.random.choices([kind for _, kind in self._kinds], weights)[0]()
        if what:
            self.world.counts[f"fault: {what}"] += 1
        self._next()

    def _later(self, span_us: int, action: Callable[[], None]) -> None:
        """Undo a fault after a while, unless all are undone by then."""

        def undo() -> None:
            if not self.over:
                action()

        self.world.timeline.after(span_us, undo)

    def _span_us(self) -> int:
        """Short, longer than a takeover, or longer than a lease and its margin."""
        if self._focus and self.random.randrange(3):
            return self.random.randint(80, 120) * MILLION
        low, high = self.random.choice(((200_000, 4 * MILLION), (4 * MILLION, 20 * MILLION), (20 * MILLION, 100 * MILLION)))
        return self.random.randint(low, high)

    def _anybody(self) -> Process:
        return self.random.choice(self.world.processes)

    def _leader(self) -> "SchedulerHost | None":
        leaders = [host for host in self.world.schedulers if host.leads]
        return self.random.choice(leaders) if leaders else None

    def _agent(self) -> "Agent":
        return self.random.choice(self.world.agents)

    # Processes

    def _killed(self) -> str:
        process = self._anybody()
        process.kill()
        return f"{process.kind} killed"

    def _killed_at_an_await(self) -> str:
        process = self._anybody()
        process.kill_in = self.random.randint(1, 60)
        return f"{process.kind} to be killed at an await"

    def _leader_killed_at_an_await(self) -> str:
        leader = self._leader()
        if leader is None:
            return ""
        leader.process.kill_in = self.random.randint(1, 12)
        return "leader to be killed at an await"

    def _stop(self, process: Process, span_us: int) -> None:
        process.stop()
        self._later(span_us, process.resume)

    def _stopped(self) -> str:
        process = self._anybody()
        self._stop(process, self._span_us())
        return f"{process.kind} stopped"

    def _leader_stopped(self) -> str:
        leader = self._leader()
        if leader is None:
            return ""
        self._stop(leader.process, self._span_us())
        return "leader stopped"

    def _leader_stopped_at_an_await(self) -> str:
        """Wherever it stands; and half of the time nobody else can lead meanwhile."""
        leader = self._leader()
        if leader is None:
            return ""
        process = leader.process
        process.stop_in = self.random.randint(1, 12)
        process.stop_span_us = self._span_us()
        if self.random.randrange(2):
            for host in self.world.schedulers:
                if host is not leader:
                    self._stop(host.process, process.stop_span_us + 3 * MILLION)
        return "leader to be stopped at an await"

    def _all_schedulers_stopped(self) -> str:
        span_us = self._span_us()
        for host in self.world.schedulers:
            self._stop(host.process, span_us + self.random.randint(0, 3 * MILLION))
        return "all schedulers stopped"

    # Ways and places

    def _cut(self) -> str:
        world = self.world
        schedulers = [host.process.name for host in world.schedulers]
        gateways = [gateway.name for gateway in world.gateways]
        agents = [agent.process.name for agent in world.agents]
        clients = [world.users.process.name, world.operators.process.name, world.telemetry.process.name]
        ways = ((schedulers, [LOG, TOPICS]), (gateways, [LOG, TOPICS]), (agents, gateways), (clients, [TOPICS]))
        near, far = self.random.choice(ways)
        one, other = self.random.choice(near), self.random.choice(far)
        self._cut_for_a_while(one, other)
        return f"{one.rstrip('0123456789')} and {other.rstrip('0123456789')} cut apart"

    def _leader_cut_from_topics(self) -> str:
        leader = self._leader()
        if leader is None:
            return ""
        self._cut_for_a_while(leader.process.name, TOPICS)
        return "leader and topics cut apart"

    def _gateways_cut_from_topics(self) -> str:
        gateways = self.random.sample(self.world.gateways, self.random.randint(1, len(self.world.gateways)))
        for gateway in gateways:
            self._cut_for_a_while(gateway.name, TOPICS)
        return f"{len(gateways)} gateways and topics cut apart"

    def _gateways_cut_from_log(self) -> str:
        """They serve what was true when it began, all for one span."""
        span_us = self._span_us()
        network = self.world.network
        for gateway in self.world.gateways:
            network.cut(gateway.name, LOG)

        def mended() -> None:
            for gateway in self.world.gateways:
                network.mend(gateway.name, LOG)

        self._later(span_us, mended)
        return "all gateways and log cut apart"

    def _cut_for_a_while(self, one: str, other: str) -> None:
        self.world.network.cut(one, other)
        self._later(self._span_us(), lambda: self.world.network.mend(one, other))

    def _isolated(self) -> str:
        process = self._anybody()
        self._cut_for_a_while(process.name, "*")
        return f"{process.kind} cut off"

    def _unreadable(self) -> str:
        source = self.random.choice(SOURCES)
        unreadable = self.world.topics.unreadable
        unreadable[source] += 1

        def readable() -> None:
            unreadable[source] -= 1

        self._later(self._span_us(), readable)
        return "partition unreadable"

    def _clock_stepped(self) -> str:
        process = self._anybody()
        process.clock.step_us = self.random.choice((-1, 1)) * self.random.choice((1, 60, 7200)) * MILLION
        return "wall clock stepped"

    def _snapshot_spoilt(self) -> str:
        return "snapshot torn or altered" if self.random.choice(self.world.schedulers).spoil() else ""

    # Nodes and devices

    def _rebooted(self) -> str:
        agent = self._agent()
        agent.process.kill()
        agent.machine.reboot()
        return "node rebooted"

    def _replaced(self) -> str:
        agent = self._agent()
        agent.process.kill()
        agent.machine.replace()
        return "node replaced by another machine"

    def _silent(self) -> str:
        agent = self._agent()
        names = [gateway.name for gateway in self.world.gateways]
        for name in names:
            self.world.network.cut(agent.process.name, name)

        def back() -> None:
            for name in names:
                self.world.network.mend(agent.process.name, name)

        self._later(self._span_us(), back)
        return "node silent"

    def _device_failed(self) -> str:
        machine = self._agent().machine
        machine.health[self.random.choice(machine.uuids())] = self.random.choice(("failed", "degraded", "healthy"))
        machine.changed()
        return "device reported unhealthy or healthy by its agent"

    def _device_measured(self) -> str:
        machine = self._agent().machine
        uuid = self.random.choice(machine.uuids())
        self.measured[uuid] = None
        self.world.measure(DeviceHealthChanged(node=machine.name, uid=machine.uid, device=uuid, health="failed"))
        return "device held to have failed by telemetry"

    def _drained(self) -> str:
        name = self._agent().machine.name
        self.world.operate(NodeDrained(node=name))
        self._later(self._span_us(), lambda: self.world.operate(NodeUncordoned(node=name)))
        return "node drained"

    def _cordoned(self) -> str:
        name = self._agent().machine.name
        self.world.operate(NodeCordoned(node=name))
        self._later(self._span_us(), lambda: self.world.operate(NodeUncordoned(node=name)))
        return "node cordoned"

    def _power_off(self, agent: "Agent") -> None:
        agent.process.held_down = True
        agent.process.kill()
        agent.machine.off()

    def _fenced(self) -> str:
        agent = self._agent()
        if agent.process.held_down:
            return ""
        self._power_off(agent)
        self.world.operate(NodeFenced(node=agent.machine.name))

        def back() -> None:
            agent.machine.reboot()
            agent.process.held_down = False
            agent.process.start()

        self._back_once_said(self._span_us(), back)
        return "node fenced"

    def _removed(self) -> str:
        agent = self._agent()
        if agent.process.held_down:
            return ""
        self._power_off(agent)
        self.world.operate(NodeRemoved(node=agent.machine.name, uid=agent.machine.uid))

        def back() -> None:
            agent.machine.replace()
            agent.process.held_down = False
            agent.process.start()

        self._back_once_said(self._span_us(), back)
        return "node removed"

    def _back_once_said(self, span_us: int, back: Callable[[], None]) -> None:
        """The node gets its power back only when the operator's word stands in the log.

        A fence names no boot: read after the node had come back it would be about tasks of the next one.
        """
        world = self.world
        source = f"{OPERATIONS}/0"
        if world.operators.idle and world.view.state.positions.get(source, 0) == len(world.topics.messages[source]):
            world.timeline.after(MILLION if self.over else span_us, back)
        else:
            world.timeline.after(MILLION, lambda: self._back_once_said(span_us, back))

    def _lease_extended(self) -> str:
        until_us = WALL_US + self.world.timeline.now_us + self.random.randint(10, 60) * MILLION
        self.world.operate(LeaseExtended(until_us=until_us))
        return "lease extended"
