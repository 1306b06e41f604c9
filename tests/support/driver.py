"""Drives an engine cycle by cycle and keeps what a log would hold; the invariants are checked after each."""

from collections.abc import Sequence
from typing import Any, TypeVar

from muster.cluster import snapshot
from muster.cluster.evolve import apply
from muster.cluster.invariants import check_invariants, check_rebuild
from muster.cluster.jobs import Attempt, Instance, Job
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.engine.step import Engine
from muster.events.base import Event
from muster.events.codec import decode_cycle, digest, encode_cycle
from muster.events.decisions import InstanceBound
from muster.events.operations import Policy, PolicySet
from muster.events.record import GENESIS, Cycle, TermStarted
from muster.verify import Violation, verify
from tests.support.build import S, exited, ready, started

AnyEvent = TypeVar("AnyEvent", bound=Event)


class Driver:
    """One cell. Each call of `step` is a cycle, one second after the one before if nothing else is said."""

    def __init__(self, policy: Policy | None = None, checked: bool = True, engine: type[Engine] = Engine, **changes: Any) -> None:
        self.state = State("main")
        self.engine = engine(self.state)
        self.checked = checked
        self.cycles: list[Cycle] = []
        self.records: list[bytes] = []
        self.decided: list[Event] = []
        """The decisions of the last cycle."""
        self.lead()
        if policy is not None or changes:
            self.step(PolicySet(policy=policy or Policy(**changes)))

    def lead(self, gap_us: int = 0) -> None:
        """A term starts."""
        state = self.state
        begun = TermStarted(
            nonce="0" * 32, host="h", build="b", state=snapshot.digest(state), schema=snapshot.SCHEMA, gap_us=gap_us
        )
        cycle = self._cycle(state.term + 1, state.at_us + S + gap_us, (), (), begun)
        self.engine.fold(cycle)
        self._record(cycle)

    def step(self, *inputs: Event, after_s: int = 1, at_us: int | None = None) -> list[Event]:
        """A cycle with these inputs; its decisions."""
        state = self.state
        instant = state.at_us + after_s * S if at_us is None else at_us
        number, term = state.number + 1, state.term
        self.decided = self.engine.step(number, term, instant, inputs)
        self._record(self._cycle(term, instant, inputs, self.decided, None, number))
        return self.decided

    def fold(self, *decided: Event, inputs: Sequence[Event] = ()) -> None:
        """A cycle as if somebody had recorded it: these decisions, legal or not, one second later."""
        cycle = self._cycle(self.state.term, self.state.at_us + S, inputs, decided, None)
        self.engine.fold(cycle)
        self._record(cycle)

    def settle(self, *inputs: Event, cycles: int = 50) -> list[Event]:
        """A cycle with these inputs, and more at the same instant until nothing is left over; all decisions."""
        decided = list(self.step(*inputs))
        for _ in range(cycles):
            if not self.state.more:
                return decided
            decided += self.step(after_s=0)
        raise AssertionError("the engine does not come to an end")

    # What often happens

    def ready(self, *ids: str) -> list[Event]:
        """Every task of these jobs that prepares is ready."""
        return self.step(
            *[
                ready(task.attempt.instance.job.id, task.rank, task.attempt.number, task.attempt.instance.index)
                for id in ids
                for task in self._tasks(id)
                if task.phase == "preparing"
            ]
        )

    def run(self, *ids: str) -> list[Event]:
        """Every task of these jobs is ready, and then runs."""
        decided = self.ready(*ids)
        return decided + self.step(
            *[
                started(task.attempt.instance.job.id, task.rank, task.attempt.number, task.attempt.instance.index)
                for id in ids
                for task in self._tasks(id)
                if task.phase == "ready" and task.attempt.phase == "run"
            ]
        )

    def exit(self, *ids: str, code: int = 0) -> list[Event]:
        """Every task of these jobs that holds something is gone."""
        return self.step(
            *[
                exited(task.attempt.instance.job.id, task.rank, task.attempt.number, task.attempt.instance.index, code)
                for id in ids
                for task in self._tasks(id)
            ]
        )

    def _tasks(self, id: str) -> list[Any]:
        attempts = [instance.attempt for instance in self.state.jobs[id].instances]
        return [task for a in attempts if a is not None for _, task in sorted(a.tasks.items()) if task.holding]

    # What is true

    def job(self, id: str) -> Job:
        """The job."""
        return self.state.jobs[id]

    def instance(self, id: str, index: int = 0) -> Instance:
        """The instance."""
        return self.state.jobs[id].instances[index]

    def attempt(self, id: str, index: int = 0) -> Attempt:
        """The current attempt, which must be there."""
        attempt = self.instance(id, index).attempt
        assert attempt is not None, f"{id}/{index} is {self.instance(id, index).phase}"
        return attempt

    def phase(self, id: str, index: int = 0) -> str:
        """The phase of the instance."""
        return self.instance(id, index).phase

    def node(self, name: str) -> Node:
        """The node."""
        node = self.state.node(name)
        assert node is not None
        return node

    def places(self, id: str, index: int = 0) -> list[tuple[int, str, tuple[int, ...]]]:
        """Rank, node and devices of each task that holds something."""
        return [(t.rank, t.node.name, t.devices) for _, t in sorted(self.attempt(id, index).tasks.items()) if t.holding]

    def found(self, kind: type[AnyEvent], decided: Sequence[Event] | None = None) -> list[AnyEvent]:
        """The decisions of this kind among these, or in the last cycle."""
        return [event for event in (self.decided if decided is None else decided) if isinstance(event, kind)]

    def bound(self, decided: Sequence[Event] | None = None) -> list[str]:
        """The jobs that were bound, in order."""
        return [event.job for event in self.found(InstanceBound, decided)]

    def violations(self) -> list[Violation]:
        """What the second judge says of the whole log."""
        return verify([decode_cycle(data) for data in self.records])

    # The log

    def _cycle(
        self, term: int, at_us: int, inputs: Sequence[Event], decided: Sequence[Event], begun: TermStarted | None, number: int = 0
    ) -> Cycle:
        return Cycle(
            cell="main",
            number=number or self.state.number + 1,
            term=term,
            at_us=at_us,
            started=begun,
            inputs=tuple(inputs),
            decisions=tuple(decided),
            positions={},
            policy=f"{self.state.policy.name}/{self.state.policy.version}",
            previous=digest(self.records[-1]) if self.records else GENESIS,
        )

    def _record(self, cycle: Cycle) -> None:
        self.cycles.append(cycle)
        self.records.append(encode_cycle(cycle))
        if self.checked:
            check_invariants(self.state)
            check_rebuild(self.state)


def folded(records: Sequence[bytes]) -> State:
    """The state that these records make."""
    state = State("main")
    for data in records:
        apply(state, decode_cycle(data))
    return state
