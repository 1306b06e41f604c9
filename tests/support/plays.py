"""One story played in several ways at once: whatever the way, every record has the same bytes and every state the same digest."""

from random import Random

from muster.cluster import snapshot
from muster.cluster.evolve import apply
from muster.cluster.invariants import check_invariants, check_rebuild
from muster.cluster.state import State
from muster.engine.step import Engine
from muster.events.base import Event
from muster.events.codec import decode_cycle, digest, encode_cycle
from muster.events.operations import PolicySet
from muster.events.record import GENESIS, Cycle, TermStarted
from muster.verify import Judge
from tests.support.build import S
from tests.support.chaos import Chaos, policy

CYCLES_MAX = 200
"""More cycles than this in a row without any input, and the engine is held not to come to an end."""


class Plays:
    """The cell, played live, with its caches dropped, from the encoded records, and from a snapshot, after each cycle."""

    def __init__(self) -> None:
        self.live = Engine(State("main"))
        self.dropped = Engine(State("main"))
        self.rebuilt = Engine(State("main"))
        self.folded = State("main")
        self.judge = Judge()
        self.records: list[bytes] = []
        self.lead(0)

    @property
    def state(self) -> State:
        """The live one."""
        return self.live.state

    def lead(self, gap_us: int) -> None:
        """A term starts."""
        state = self.state
        begun = TermStarted(
            nonce="0" * 32, host="h", build="b", state=snapshot.digest(state), schema=snapshot.SCHEMA, gap_us=gap_us
        )
        cycle = self._cycle(state.term + 1, state.at_us + S + gap_us, (), (), begun, state.number + 1)
        for engine in (self.live, self.dropped, self.rebuilt):
            engine.fold(cycle)
        self._compare(encode_cycle(cycle))

    def step(self, inputs: list[Event], at_us: int) -> list[Event]:
        """One cycle, in every way."""
        number, term = self.state.number + 1, self.state.term
        encoded = []
        for engine in (self.live, self.dropped, self.rebuilt):
            decided = engine.step(number, term, at_us, inputs)
            encoded.append(encode_cycle(self._cycle(term, at_us, tuple(inputs), tuple(decided), None, number)))
        live, dropped, rebuilt = encoded
        assert dropped == live, f"cycle {number} is another without caches:\n{live!r}\n{dropped!r}"
        assert rebuilt == live, f"cycle {number} is another from a snapshot:\n{live!r}\n{rebuilt!r}"
        self._compare(live)
        return list(decode_cycle(live).decisions)

    def _cycle(
        self, term: int, at_us: int, inputs: tuple[Event, ...], decided: tuple[Event, ...], begun: TermStarted | None, number: int
    ) -> Cycle:
        return Cycle(
            cell="main",
            number=number,
            term=term,
            at_us=at_us,
            started=begun,
            inputs=inputs,
            decisions=decided,
            positions={},
            policy=f"{self.state.policy.name}/{self.state.policy.version}",
            previous=digest(self.records[-1]) if self.records else GENESIS,
        )

    def _compare(self, record: bytes) -> None:
        cycle = decode_cycle(record)
        assert encode_cycle(cycle) == record, f"cycle {cycle.number}: decoded and encoded again, it is another"
        self.records.append(record)
        apply(self.folded, cycle)
        data = snapshot.encode(self.state)
        for name, state in (("folded", self.folded), ("dropped", self.dropped.state), ("rebuilt", self.rebuilt.state)):
            assert snapshot.encode(state) == data, f"cycle {cycle.number}: the {name} state is another than the live one"
        check_invariants(self.state)
        check_rebuild(self.state)
        violations = self.judge.judge(cycle)
        assert not violations, violations
        self.dropped.drop_caches()
        self.rebuilt = Engine(snapshot.decode(data))


def story(
    random: Random, cycles: int, plays: Plays | None = None, kind: bool = False, nodes: int = 4, sort: type[Chaos] = Chaos
) -> tuple[Plays, Chaos]:
    """Some cycles of chaos."""
    plays = plays or Plays()
    chaos = sort(random, plays.state, nodes, kind)
    plays.step([PolicySet(policy=policy(random, tight=not kind)), *chaos.nodes()], plays.state.at_us + S)
    for _ in range(cycles):
        if not kind and random.random() < 0.03:
            plays.lead(random.choice((0, 30 * S)))
            continue
        wake = plays.live.next_wake_us()
        at_us = plays.state.at_us + random.choice((0, 1, 1, 5, 20, 60)) * S
        if wake is not None and not kind and random.random() < 0.3:
            at_us = max(plays.state.at_us, wake)
        plays.step(chaos.inputs(), at_us)
    return plays, chaos


def come_to_rest(plays: Plays) -> None:
    """Let time stand still until the engine wants no cycle at this instant.

    Raises:
        AssertionError: it does not come to an end.
    """
    for _ in range(CYCLES_MAX):
        wake = plays.live.next_wake_us()
        if wake is None or wake > plays.state.at_us:
            return
        plays.step([], plays.state.at_us)
    raise AssertionError(f"{CYCLES_MAX} cycles without an input, and still there is something to decide")
