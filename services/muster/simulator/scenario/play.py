"""Playing a scene: live, and four more times from its log, with everything judged.

Live, the real core runs in a `World`. The other plays step engines through the recorded inputs: one that goes on, one
rebuilt from the log after every cycle, one rebuilt from a snapshot after every cycle, one whose caches are dropped after
every cycle. Each must make the same records to the byte and want its next cycle at the same time.
"""

import time
import traceback
from pathlib import Path

import msgspec

from muster.cluster import snapshot
from muster.cluster.state import State
from muster.engine.step import Engine
from muster.events.codec import decode_cycle, decode_envelope, encode_cycle
from muster.events.operations import Policy
from muster.events.record import Cycle
from muster.reading.catalogue import package_catalogue
from muster.simulator.scenario.book import is_beat
from muster.simulator.scenario.expectations import Check
from muster.simulator.scenario.fields import with_changes
from muster.simulator.scenario.format import Scenario, Step
from muster.simulator.scenario.invariants import Invariants
from muster.simulator.scenario.judge import capture, judge
from muster.simulator.scenario.verbs import act
from muster.simulator.scenario.world import CELL, Outgoing, SceneFailure, World
from muster.verify import Judge

ORDERS = 20
"""How many orders of a shuffled step's inputs are tried, where there are so many."""

REBUILDS_MAX = 20_000
"""Up to so many folded records the log is read anew after each cycle; beyond, after those that hold more than a beat."""

REBUILDS_LAST = 64


class Result(msgspec.Struct, kw_only=True):
    """How a scene went. `step` is where it went wrong: its number from 1, its time in seconds and its line."""

    file: str
    name: str
    passed: bool
    step: str = ""
    expected: str = ""
    actual: str = ""
    error: str = ""
    """What is wrong with the file, where it is no scene."""
    cycles: int = 0
    decisions: int = 0
    elapsed_ms: int = 0

    @property
    def line(self) -> str:
        """The result in one line."""
        if self.passed:
            return f"pass {self.name}"
        if self.error:
            return f"FAIL {self.name}: {self.error}"
        return f"FAIL {self.name}: {self.step}, expected {self.expected}, actual {self.actual}"


class Performance:
    """One live play of a scene. `order` numbers the order of the inputs of shuffled steps; 0 is that of the file."""

    def __init__(self, scenario: Scenario, order: int = 0, invariants: bool = True) -> None:
        self.scenario = scenario
        self.where = "start"
        self.proved = False
        """An expectation was judged after a decision."""
        policy = with_changes(Policy(kill_margin_us=0), scenario.policy)
        self.world = World(policy, _apart(scenario))
        self._order = order
        self._nevers: list[tuple[str, tuple[Check, ...]]] = []
        self._invariants = Invariants(self.world) if invariants else None
        self.world.watchers.append(self._watch)

    def run(self) -> None:
        """Play it to the end.

        Raises:
            SceneFailure: something that must be true is not.
        """
        world = self.world
        scenario = self.scenario
        world.start(scenario.nodes, scenario.queues, scenario.licences, package_catalogue() if scenario.capable else ())
        times = sorted({step.at_us for step in scenario.steps} | set(scenario.instants))
        number = 0
        previous: list[Outgoing] = []
        for at_us in times:
            self.where = f"before {_seconds(at_us)} s"
            world.advance(at_us)
            steps = [step for step in scenario.steps if step.at_us == at_us]
            for offset, step in enumerate(steps, 1):
                self.where = _place(number + offset, step)
                previous = self._act(step, previous)
            self.where = _place(number + 1, steps[0]) if steps else f"at {_seconds(at_us)} s"
            world.happen()
            world.settle()
            if at_us in scenario.instants:
                capture(world)
            for offset, step in enumerate(steps, 1):
                self.where = _place(number + offset, step)
                self._expect(step)
            number += len(steps)
        self.where = "end"
        if self._invariants is not None:
            self._invariants.finish()
        if not self.proved:
            raise SceneFailure("an expectation after a decision", "there is none: the scene proves nothing")

    def _act(self, step: Step, previous: list[Outgoing]) -> list[Outgoing]:
        """What the step does is done, and its inputs arrive. Says what it sent, or what the step before did."""
        world = self.world
        self._nevers.extend((f"{self.where}, never", checks) for checks in step.nevers)
        world.sent = []
        world.order = self._order if step.shuffle else None
        for verb in step.verbs:
            act(world, verb, previous)
        world.deliver()
        return world.sent or previous

    def _expect(self, step: Step) -> None:
        for checks in step.expects:
            for check in checks:
                actual = judge(self.world, check)
                if actual is not None:
                    raise SceneFailure(check.text, actual)
        if step.expects and self.world.book.decisions:
            self.proved = True

    def _watch(self, cycle: Cycle) -> None:
        for where, checks in self._nevers:
            if all(judge(self.world, check) is None for check in checks):
                self.where = where
                raise SceneFailure(" and ".join(check.text for check in checks), f"so at {_seconds(self.world.now_us)} s")
        if self._nevers and cycle.decisions:
            self.proved = True
        if self._invariants is not None:
            self._invariants.check(cycle)


def play(scenario: Scenario) -> tuple[Result, World]:
    """All plays of a scene, and the world of the live one."""
    began = time.perf_counter()
    performance = Performance(scenario)
    failure = _live(performance)
    world = performance.world
    where = performance.where
    if failure is None:
        where = "end"
        failure = _replays(world) or _verified(world)
    for order in range(1, min(ORDERS, world.orders)) if failure is None else ():
        other = Performance(scenario, order)
        failure = _live(other) or _verified(other.world)
        if failure is not None:
            where = f"{other.where} (in another order of the inputs, {order})"
            world = other.world
            break
    return (
        Result(
            file=scenario.file,
            name=scenario.name,
            passed=failure is None,
            step=where if failure is not None else "",
            expected=failure.expected if failure is not None else "",
            actual=failure.actual if failure is not None else "",
            cycles=len(world.cycles),
            decisions=world.book.decisions,
            elapsed_ms=round((time.perf_counter() - began) * 1000),
        ),
        world,
    )


def _live(performance: Performance) -> SceneFailure | None:
    try:
        performance.run()
    except SceneFailure as failure:
        return failure
    except Exception as error:  # whatever stops the core is the scene's result, and the other files are played
        return _stopped(error)
    return None


def _stopped(error: Exception) -> SceneFailure:
    """What stopped the core, with the place in the code."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return SceneFailure("the core to go on", f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})")


def _verified(world: World) -> SceneFailure | None:
    """The second judge over the log."""
    second = Judge()
    for data in world.log:
        second.judge(decode_cycle(data))
    if second.violations:
        return SceneFailure("every decision to be legal", str(second.violations[0]))
    return None


def _replays(world: World) -> SceneFailure | None:
    """The other four plays, each from the recorded inputs."""
    for name in ("from its own log", "rebuilt from the log", "rebuilt from a snapshot", "without caches"):
        try:
            _Replay(world, name).run()
        except SceneFailure as failure:
            return SceneFailure(f"the same log when played {name}: {failure.expected}", failure.actual)
        except Exception as error:  # as in the live play
            stopped = _stopped(error)
            return SceneFailure(f"the same log when played {name}: {stopped.expected}", stopped.actual)
    return None


class _Replay:
    """One play from the recorded inputs."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.log = world.log
        self.wakes = world.wakes
        self.live = world.state
        self.engine = Engine(State(CELL))
        self.cycles: list[Cycle] = []
        self._often = len(self.log) ** 2 // 2 <= REBUILDS_MAX

    def run(self) -> None:
        for place, data in enumerate(self.log):
            cycle = decode_cycle(data)
            self.cycles.append(cycle)
            engine = self.engine
            if cycle.started is not None:
                digest = snapshot.digest(engine.state)
                if digest != cycle.started.state:
                    raise SceneFailure(f"the state before cycle {cycle.number} to have the recorded digest", digest)
                engine.fold(cycle)
            else:
                self._step(cycle, data)
            self._check_wake(cycle, self.wakes[place])
            self._disturb(cycle)
            self._check_wake(cycle, self.wakes[place])
        if snapshot.digest(self.engine.state) != snapshot.digest(self.live):
            raise SceneFailure("the state at the end to equal the live one", "another digest")

    def _step(self, cycle: Cycle, data: bytes) -> None:
        decisions = self.engine.step(cycle.number, cycle.term, cycle.at_us, cycle.inputs, cycle.positions)
        if list(cycle.decisions) != decisions:
            for number, (before, now) in enumerate(zip(cycle.decisions, decisions, strict=False)):
                if before != now:
                    raise SceneFailure(f"decision {number} of cycle {cycle.number} to be {before}", str(now))
            extra = [*cycle.decisions[len(decisions) :], *decisions[len(cycle.decisions) :]][0]
            counts = f"{len(decisions)}; {extra} is too many or missing"
            raise SceneFailure(f"{len(cycle.decisions)} decisions in cycle {cycle.number}", counts)
        again = msgspec.structs.replace(cycle, decisions=tuple(decisions))
        inputs = tuple([bytes(raw) for raw in decode_envelope(data).inputs])
        if encode_cycle(again, inputs) != data:
            raise SceneFailure(f"the bytes of cycle {cycle.number}", "other bytes with equal decisions")

    def _check_wake(self, cycle: Cycle, live_us: int | None) -> None:
        """Whatever was done to the engine, it wants its next cycle when the live one did."""
        wake_us = self.engine.next_wake_us()
        if wake_us != live_us:
            raise SceneFailure(f"the engine to want a cycle after cycle {cycle.number} at {live_us} us", str(wake_us))

    def _disturb(self, cycle: Cycle) -> None:
        if self.name == "without caches":
            self.engine.drop_caches()
        elif self.name == "rebuilt from a snapshot":
            self.engine = Engine(snapshot.decode(snapshot.encode(self.engine.state)))
        elif self.name == "rebuilt from the log":
            if self._often or not is_beat(cycle) or cycle.number % REBUILDS_LAST == 0:
                before = snapshot.digest(self.engine.state)
                self.engine = Engine(State(CELL))
                for earlier in self.cycles:
                    self.engine.fold(earlier)
                after = snapshot.digest(self.engine.state)
                if before != after:
                    raise SceneFailure(
                        f"the state rebuilt from the log to equal the one of cycle {cycle.number}", "another digest"
                    )


def _apart(scenario: Scenario) -> list[str]:
    """Nodes whose reports need a partition of their own, because the bus will not deliver them."""
    names = [name for step in scenario.steps for verb in step.verbs if verb.kind == "unreadable" for name in verb.args]
    return list(dict.fromkeys(names))


def _place(number: int, step: Step) -> str:
    return f"step {number} at {_seconds(step.at_us)} s (line {step.line})"


def _seconds(at_us: int) -> str:
    whole, micros = divmod(at_us, 1_000_000)
    return f"{whole}.{micros:06d}".rstrip("0").rstrip(".")
