"""Breadth-first search over the real `admit`: every order in which the records of two and three writers can land.

A state is the log, the records in flight, and what each writer that is not a mere follower has read and waits for. From
each state every step is tried that the log port allows: a record in flight lands, once or twice, or stays away for
ever; a writer reads one record more, starts a term at any prefix of the log (its tail may be behind), appends a cycle, or
crashes. The search is exhaustive within its bounds. Writers are equal, so states that differ in their names are one.

In every state must hold: nobody's reading halts; the records heard in one term are one writer's; numbers are dense and each
admitted record names the digest of the one before; and when the faults end, whatever is still in flight, a new writer
leads and is heard. Faults planted in copies of `admit` and of the writers' protocol show that the search would see them.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from muster.events.codec import decode_envelope, digest, encode_cycle
from muster.events.record import GENESIS, Cycle, Envelope, TermStarted
from muster.log.admit import LATE_START, REPLACED, TWICE, Admitted, Halt, Head, Void, admit, genesis

Verdict = Admitted | Void | Halt
Judge = Callable[[Head, bytes], Verdict]

STARTING, LEADING, WRITING = "starting", "leading", "writing"


class Writer(NamedTuple):
    """A writer that has started a term: it read up to `place`, and waits for `record` if one is in flight."""

    role: str
    place: int
    record: int
    name: int


class State(NamedTuple):
    """`log` is a place in the tree of logs; records and names are numbers."""

    log: int
    flight: tuple[int, ...]
    writers: tuple[Writer, ...]
    starts: int
    cycles: int
    doubles: int


class Bounds(NamedTuple):
    writers: int
    starts: int
    cycles: int
    doubles: int


class Protocol(NamedTuple):
    """How writers behave; the plants change one of these."""

    waits_for_its_start: bool = True
    one_in_flight: bool = True
    new_term_after_a_crash: bool = True


HONEST = Protocol()


class Violation(Exception):
    """The search found a state that must not be."""


class Place(NamedTuple):
    """A log, as its last record behind another log: the tree shares prefixes."""

    parent: int
    record: int
    depth: int
    verdict: Verdict | None
    head: Head
    heard: tuple[tuple[int, int], ...]
    """Term and writer's name of every term so far."""


class Search:
    """One exhaustive search; `run` raises `Violation` with the steps that lead to it."""

    def __init__(self, bounds: Bounds, judge: Judge = admit, protocol: Protocol = HONEST, *, checks_chain: bool = True) -> None:
        self.bounds = bounds
        self.judge = judge
        self.protocol = protocol
        self.checks_chain = checks_chain
        self.records: list[bytes] = []
        self.names: list[int] = []
        self.ids: dict[bytes, int] = {}
        self.places: list[Place] = [Place(-1, -1, 0, None, genesis("main"), ())]
        self.children: dict[tuple[int, int], int] = {}
        self.reached: dict[State, tuple[State, str] | None] = {}
        self.settled: dict[tuple[int, tuple[int, ...]], None] = {}
        self.counts = dict.fromkeys(("states", "steps", "logs", "two leaders", "in doubt", REPLACED, LATE_START, TWICE), 0)

    def run(self) -> dict[str, int]:
        start = State(0, (), (), 0, 0, 0)
        self.reached[start] = None
        frontier = [start]
        while frontier:
            following: list[State] = []
            for state in frontier:
                try:
                    self._settle(state)
                    for step, after in self._steps(state):
                        self.counts["steps"] += 1
                        if after not in self.reached:
                            self.reached[after] = state, step
                            following.append(after)
                except Violation as violation:
                    what, *last = violation.args
                    raise Violation(f"{what}, after: {'; '.join([*self._trace(state), *last])}") from None
                self.counts["two leaders"] += sum(writer.role != STARTING for writer in state.writers) > 1
                self.counts["in doubt"] += len(state.flight) > sum(writer.record >= 0 for writer in state.writers)
            frontier = following
        self.counts["states"] = len(self.reached)
        self.counts["logs"] = len(self.places)
        return self.counts

    def _steps(self, state: State) -> list[tuple[str, State]]:
        steps = []
        for index, record in enumerate(state.flight):
            if index and state.flight[index - 1] == record:
                continue
            log = self._land(state.log, record)
            rest = state.flight[:index] + state.flight[index + 1 :]
            steps.append((f"{self._say(record)} lands", state._replace(log=log, flight=rest)))
            if state.doubles < self.bounds.doubles:
                steps.append((f"{self._say(record)} lands, to land again", state._replace(log=log, doubles=state.doubles + 1)))
        if state.starts < self.bounds.starts and len(state.writers) < self.bounds.writers:
            for place in self._prefixes(state.log):
                steps.append(self._start(state, place))
        for index, writer in enumerate(state.writers):
            others = state.writers[:index] + state.writers[index + 1 :]
            steps.append((f"writer {writer.name} crashes", self._crash(state, writer, others)))
            if writer.place != state.log:
                steps.append((f"writer {writer.name} reads", self._read(state, writer, others)))
            if state.cycles < self.bounds.cycles and self._may_write(writer):
                steps.append(self._write(state, writer, others))
        return steps

    def _may_write(self, writer: Writer) -> bool:
        if writer.role == STARTING:
            return not self.protocol.waits_for_its_start
        return writer.role == LEADING or not self.protocol.one_in_flight

    def _start(self, state: State, place: int) -> tuple[str, State]:
        head = self.places[place].head
        name = state.starts
        record = self._record(head, head.term + 1, name, 0, starts=True)
        writer = Writer(STARTING, place, record, name)
        return f"writer {name} starts term {head.term + 1} at cycle {head.number}", self._with(
            state._replace(starts=state.starts + 1, flight=tuple(sorted((*state.flight, record)))), (*state.writers, writer)
        )

    def _write(self, state: State, writer: Writer, others: tuple[Writer, ...]) -> tuple[str, State]:
        head = self.places[writer.place].head
        if writer.record >= 0:  # planted only: on top of what is still in flight
            envelope = decode_envelope(self.records[writer.record])
            head = Head("main", envelope.number, envelope.term, digest(self.records[writer.record]))
        record = self._record(head, head.term, writer.name, state.cycles + 1, starts=False)
        after = state._replace(cycles=state.cycles + 1, flight=tuple(sorted((*state.flight, record))))
        role = WRITING if writer.role == LEADING else writer.role
        return f"writer {writer.name} appends cycle {head.number + 1}", self._with(
            after, (*others, writer._replace(role=role, record=record))
        )

    def _read(self, state: State, writer: Writer, others: tuple[Writer, ...]) -> State:
        place = self._next(writer.place, state.log)
        found = self.places[place]
        own = found.record == writer.record or (
            writer.record >= 0 and not self._strict() and self.names[found.record] == writer.name
        )
        if isinstance(found.verdict, Admitted):
            if not own:
                return self._with(state, others)  # somebody else was heard in its place: it stops
            if found.record != writer.record:
                return self._with(state, (*others, writer._replace(place=place)))
            return self._with(state, (*others, Writer(LEADING, place, -1, writer.name)))
        if own:
            return self._with(state, others)  # void: it lost the race and is a follower again
        return self._with(state, (*others, writer._replace(place=place)))

    def _crash(self, state: State, writer: Writer, others: tuple[Writer, ...]) -> State:
        """What it had in flight is in doubt from now on."""
        if self.protocol.new_term_after_a_crash or writer.role == STARTING:
            return self._with(state, others)
        return self._with(state, (*others, Writer(LEADING, writer.place, -1, writer.name)))

    def _strict(self) -> bool:
        return self.protocol.waits_for_its_start and self.protocol.one_in_flight

    def _with(self, state: State, writers: tuple[Writer, ...]) -> State:
        return state._replace(writers=tuple(sorted(writers)))

    def _land(self, log: int, record: int) -> int:
        """The log with this record behind it, judged and checked."""
        place = self.children.get((log, record))
        if place is not None:
            return place
        before = self.places[log]
        verdict = self.judge(before.head, self.records[record])
        head, heard = before.head, before.heard
        if isinstance(verdict, Halt):
            raise Violation(f"a halt by a race ({verdict.reason})", f"{self._say(record)} lands")
        if isinstance(verdict, Void):
            self.counts[verdict.reason] += 1
        else:
            envelope = verdict.envelope
            if self.checks_chain and (envelope.number != head.number + 1 or envelope.previous != head.digest):
                raise Violation("the chain is broken", f"{self._say(record)} lands")
            if dict(heard).setdefault(envelope.term, self.names[record]) != self.names[record]:
                raise Violation("two writers are heard in one term", f"{self._say(record)} lands")
            head, heard = verdict.head, tuple({**dict(heard), envelope.term: self.names[record]}.items())
        self.places.append(Place(log, record, before.depth + 1, verdict, head, heard))
        self.children[log, record] = len(self.places) - 1
        return len(self.places) - 1

    def _settle(self, state: State) -> None:
        """The faults end here: what is in flight lands before, between or after what a new writer does, and it is heard."""
        if (state.log, state.flight) in self.settled:
            return
        self.settled[state.log, state.flight] = None
        for moment in range(3):
            head = self.places[state.log].head
            for step in range(3):
                if step == moment:
                    for record in state.flight:
                        head = self._late(head, record)
                if step < 2:
                    head = self._heard(head, starts=step == 0)

    def _heard(self, head: Head, *, starts: bool) -> Head:
        verdict = self.judge(head, _bytes(head, head.term + starts, 99, 0, starts=starts))
        if not isinstance(verdict, Admitted):
            raise Violation(f"no progress when the faults ended ({verdict.reason})")
        return verdict.head

    def _late(self, head: Head, record: int) -> Head:
        verdict = self.judge(head, self.records[record])
        if isinstance(verdict, Halt):
            raise Violation(f"a halt when the faults ended ({verdict.reason})", f"{self._say(record)} lands")
        return verdict.head if isinstance(verdict, Admitted) else head

    def _prefixes(self, log: int) -> list[int]:
        found = [log]
        while self.places[found[-1]].parent >= 0:
            found.append(self.places[found[-1]].parent)
        return found

    def _next(self, place: int, log: int) -> int:
        """The place after `place` on the way to `log`."""
        while self.places[log].parent != place:
            log = self.places[log].parent
        return log

    def _record(self, head: Head, term: int, name: int, count: int, *, starts: bool) -> int:
        data = _bytes(head, term, name, count, starts=starts)
        if data not in self.ids:
            self.ids[data] = len(self.records)
            self.records.append(data)
            self.names.append(name)
        return self.ids[data]

    def _say(self, record: int) -> str:
        envelope = decode_envelope(self.records[record])
        kind = f"start of term {envelope.term}" if envelope.started is not None else f"cycle {envelope.number}"
        return f"the {kind} of writer {self.names[record]}"

    def _trace(self, state: State) -> list[str]:
        steps: list[str] = []
        came = self.reached[state]
        while came is not None:
            steps.append(came[1])
            came = self.reached[came[0]]
        return steps[::-1]


def _bytes(head: Head, term: int, name: int, count: int, *, starts: bool) -> bytes:
    started = TermStarted(nonce=f"{name:032x}", host=f"writer-{name}", build="test", state=GENESIS) if starts else None
    return encode_cycle(
        Cycle(
            cell="main",
            number=head.number + 1,
            term=term,
            at_us=count,
            started=started,
            inputs=(),
            decisions=(),
            positions={},
            policy=f"writer-{name}",
            previous=head.digest,
        )
    )


@pytest.mark.parametrize(
    ("writers", "starts", "cycles", "doubles"),
    [(2, 3, 2, 1), (2, 2, 3, 2), (2, 2, 4, 1), (3, 3, 2, 1), (3, 3, 3, 0), (3, 4, 1, 0)],
)
def test_no_race_halts_the_log_or_lets_two_be_heard_in_one_term_and_the_cell_always_goes_on(
    writers: int, starts: int, cycles: int, doubles: int
) -> None:
    counts = Search(Bounds(writers, starts, cycles, doubles)).run()
    print(f"{writers} writers, {starts} starts, {cycles} cycles, {doubles} doubles: {counts}")
    assert counts["states"] > 30_000
    if not doubles:
        assert counts.pop(TWICE) == 0
    assert all(counts.values()), counts


SMALL = Bounds(writers=2, starts=3, cycles=2, doubles=1)


def without_twice(head: Head, data: bytes) -> Verdict:
    return admit(Head(head.cell, head.number, head.term, head.digest), data)


def without_replaced(head: Head, data: bytes) -> Verdict:
    verdict = admit(head, data)
    return Halt("cut or altered") if isinstance(verdict, Void) and verdict.reason == REPLACED else verdict


def without_late_start(head: Head, data: bytes) -> Verdict:
    verdict = admit(head, data)
    return Halt("cut or altered") if isinstance(verdict, Void) and verdict.reason == LATE_START else verdict


def a_start_at_any_head(head: Head, data: bytes) -> Verdict:
    """Term comparison alone: number and digest of a start are not looked at."""
    envelope = decode_envelope(data)
    if envelope.started is not None and envelope.term > head.term:
        return Admitted(_moved(head, envelope, data), envelope)
    return admit(head, data)


def a_start_of_any_term(head: Head, data: bytes) -> Verdict:
    """Number comparison alone: a start of the term that stands already is heard too."""
    envelope = decode_envelope(data)
    if envelope.started is not None and envelope.number >= head.number:
        return Admitted(_moved(head, envelope, data), envelope)
    return admit(head, data)


def a_cycle_of_any_term(head: Head, data: bytes) -> Verdict:
    """A replaced writer is heard if its number is right."""
    envelope = decode_envelope(data)
    if envelope.started is None and envelope.number >= head.number and envelope.term < head.term:
        return Admitted(_moved(head, envelope, data), envelope)
    return admit(head, data)


def a_start_is_never_heard(head: Head, data: bytes) -> Verdict:
    """Of the second term on, starts are void: whoever dies is never replaced."""
    return Void(LATE_START) if head.term and decode_envelope(data).started is not None else admit(head, data)


def _moved(head: Head, envelope: Envelope, data: bytes) -> Head:
    return Head(head.cell, envelope.number, envelope.term, digest(data), (*head.recent, digest(data)))


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        (without_twice, "a halt"),
        (without_replaced, "a halt"),
        (without_late_start, "a halt"),
        (a_start_at_any_head, "the chain is broken"),
        (a_start_of_any_term, "the chain is broken"),
        (a_cycle_of_any_term, "the chain is broken"),
        (a_start_is_never_heard, "no progress"),
    ],
)
def test_a_fault_planted_in_admit_is_found(judge: Judge, says: str) -> None:
    with pytest.raises(Violation, match=says) as found:
        Search(SMALL, judge).run()
    print(f"{judge.__name__}: {found.value}")


@pytest.mark.parametrize(
    "protocol",
    [Protocol(waits_for_its_start=False), Protocol(one_in_flight=False), Protocol(new_term_after_a_crash=False)],
    ids=["does not wait for its start", "two records in flight", "no new term after a crash"],
)
def test_a_fault_planted_in_the_writers_is_found(protocol: Protocol) -> None:
    with pytest.raises(Violation, match="a halt") as found:
        Search(SMALL, protocol=protocol).run()
    print(found.value)


def test_two_writers_heard_in_one_term_are_found() -> None:
    """A start of the head's term is heard as well, and the search is told not to look at numbers and digests."""

    def judge(head: Head, data: bytes) -> Verdict:
        envelope = decode_envelope(data)
        if envelope.started is not None and envelope.term >= head.term:
            return Admitted(_moved(head, envelope, data), envelope)
        return admit(head, data)

    with pytest.raises(Violation, match="two writers are heard in one term"):
        Search(SMALL, judge, checks_chain=False).run()
