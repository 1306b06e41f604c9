"""Audit: decide every cycle of a log again, and find the first that differs.

The recorded inputs are folded, the engine decides, and what it decides is compared with what is recorded. A record that
starts a term holds the digest of the state before it, which is compared too where this build writes states down in the
same schema. After a difference nothing more can be said, so the audit ends there. Whether a decision was *legal* is another
question: `muster verify` answers that.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from muster.cluster import snapshot
from muster.cluster.check import BrokenInvariant
from muster.cluster.state import State
from muster.engine.step import Engine
from muster.events.base import Event
from muster.events.codec import encode_entry, open_envelope
from muster.events.record import Cycle
from muster.log.reader import read_admitted
from muster.replay.travel import Records, fold_to


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first cycle that this build decides otherwise, and how."""

    number: int
    at_us: int
    what: str
    """One sentence for a person."""
    index: int
    """The first decision of the cycle that differs."""
    recorded: tuple[Event, ...]
    decided: tuple[Event, ...]
    before: State
    """The state before the cycle."""

    def lines(self) -> list[str]:
        """Both sides around the first decision that differs, for a person."""
        found = [f"cycle {self.number} at {self.at_us} us: {self.what}"]
        for side, events in (("recorded", self.recorded), ("decided", self.decided)):
            shown = events[self.index : self.index + 5]
            rest = len(events) - self.index - len(shown)
            found.append(f"  {side}, from decision {self.index} of {len(events)}:" + ("" if shown else " nothing more"))
            found.extend([f"    {encode_entry(event).decode()}" for event in shown])
            if rest > 0:
                found.append(f"    and {rest} more")
        return found


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared, and the difference if there is one."""

    cycles: int
    terms: int
    inputs: int
    decisions: int
    difference: Difference | None
    foreign: int = 0
    """Terms at whose start the digest is of a state in another schema: it was not compared."""

    def __str__(self) -> str:
        if self.difference is not None:
            return self.difference.lines()[0]
        found = f"{self.cycles} cycles with {self.inputs} inputs decided again: {self.decisions} decisions, none differs"
        if self.foreign:
            found += f"; at {self.foreign} of {self.terms} starts of a term the state is in another schema and was not compared"
        return found


def audit(
    log: str | Path | Callable[[], Records], cell: str | None = None, engine: Callable[[State], Engine] = Engine
) -> Audited:
    """Decide every cycle again.

    `log` is the folder or the file of a log, or a function that yields admitted records from the first; it is called a
    second time to find the state before a difference.

    Raises:
        LogError: the log cannot be read.
    """
    records = log if callable(log) else partial(read_admitted, log, cell)
    judge: Engine | None = None
    cycles = terms = inputs = decisions = foreign = 0
    difference: Difference | None = None
    for envelope, _ in records():
        cycle = open_envelope(envelope)
        if judge is None:
            judge = engine(State(cycle.cell))
        found = _compare(judge, cycle)
        if found is not None:
            index, what, decided = found
            difference = Difference(
                number=cycle.number,
                at_us=cycle.at_us,
                what=what,
                index=index,
                recorded=cycle.decisions,
                decided=decided,
                before=fold_to(records(), cycle.number - 1) if cycle.number > 1 else State(cycle.cell),
            )
            break
        cycles += 1
        if cycle.started is not None:
            terms += 1
            foreign += cycle.started.schema != snapshot.SCHEMA
        inputs += len(cycle.inputs)
        decisions += len(cycle.decisions)
    return Audited(cycles=cycles, terms=terms, inputs=inputs, decisions=decisions, difference=difference, foreign=foreign)


def _compare(judge: Engine, cycle: Cycle) -> tuple[int, str, tuple[Event, ...]] | None:
    """Decide one cycle again. Index of the first difference, a sentence, and what was decided here; None if all agrees."""
    try:
        if cycle.started is not None:
            comparable = cycle.started.schema == snapshot.SCHEMA
            own = snapshot.digest(judge.state) if comparable else ""
            judge.fold(cycle)
            if comparable and own != cycle.started.state:
                return 0, f"the state before has the digest {own[:16]}… here, and {cycle.started.state[:16]}… is recorded", ()
            return None
        decided = tuple(judge.step(cycle.number, cycle.term, cycle.at_us, cycle.inputs, cycle.positions))
    except BrokenInvariant as error:
        return 0, f"this build cannot decide it: {error}", ()
    if decided == cycle.decisions:
        return None
    index = next((i for i, (mine, theirs) in enumerate(zip(decided, cycle.decisions, strict=False)) if mine != theirs), None)
    if index is not None:
        return (
            index,
            f"decision {index} is recorded as {_name(cycle.decisions[index])} and decided as {_name(decided[index])}",
            decided,
        )
    index = min(len(decided), len(cycle.decisions))
    if len(decided) > index:
        return index, f"{_name(decided[index])} is decided and not recorded", decided
    return index, f"{_name(cycle.decisions[index])} is recorded and not decided", decided


def _name(event: Event) -> str:
    kind = type(event).__name__
    job = getattr(event, "job", None)
    return f"{kind} of {job}" if job is not None else kind
