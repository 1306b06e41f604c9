"""Recorder and engine as one synchronous step without a clock: messages in, records out, records back in.

The loop, the scenario runner, the simulated world and the tools all drive this one. A record that `cycle` or `start_term`
made is nothing yet: it has to be appended, read from the log again, admitted, and given to `read_back`. Until then no
further record is made.
"""

from collections.abc import Collection, Iterable
from typing import Final

from muster.cluster import snapshot
from muster.cluster.check import check
from muster.cluster.state import State
from muster.engine.step import Engine
from muster.events.base import Event
from muster.events.codec import encode_cycle, encode_frame, open_envelope, open_record
from muster.events.nodes import NodeRegistered
from muster.events.operations import LossAccepted
from muster.events.record import Cycle, TermStarted
from muster.log.admit import Admitted, Halt, Head, Void, admit, admit_own, genesis, judge
from muster.log.errors import OperatingError
from muster.scheduler.messages import BufferFull, Message, UnknownSource
from muster.scheduler.recorder import MESSAGES_MAX, Recorder

__all__ = ["BufferFull", "Core", "Message", "Replaced", "UnknownSource"]

POSITIONS_US: Final = 600_000_000
"""After so long without a cycle one is made for the positions alone: messages that say nothing new may be forgotten by their
topic, and must not be missed then."""


class Replaced(OperatingError):
    """Another's record was admitted in the place of ours, or ours came too late: what was computed has not happened."""


class Core:
    """A scheduler without its loop."""

    def __init__(self, cell: str, state: State | None = None, head: Head | None = None) -> None:
        self.cell = cell
        self.engine = Engine(state if state is not None else State(cell))
        self.head = head if head is not None else genesis(cell)
        self.recorder = Recorder()
        self.term = 0
        """The term in which this scheduler leads; 0 when it follows."""
        self.voids: dict[str, int] = {}
        """How many records were void, by reason."""
        self._pending: bytes | None = None
        self._frame = b""
        """The pending cycle without its entries."""
        self._folded = False
        self.made: Cycle | None = None
        """The last cycle that was made here (once it was read back, what stands in its record) or folded."""
        self._buffer = bytearray()
        check(self.engine.state.number == self.head.number, "a head and a state of different cycles")

    @property
    def state(self) -> State:
        """The state; with a record pending it is ahead of the head by that record."""
        return self.engine.state

    @property
    def positions(self) -> dict[str, int]:
        """The next offset to read of each source, as the state has it."""
        return self.engine.state.positions

    def taken(self) -> dict[str, int]:
        """The next offset to take of each source: `positions`, and beyond them what said nothing new."""
        return {**self.engine.state.positions, **self.recorder.moved}

    def ahead(self) -> dict[str, int]:
        """For each source, the offset after the last message that was offered in this term."""
        return self.recorder.buffer.ahead

    def first(self) -> Message | None:
        """The next message to be taken."""
        return self.recorder.buffer.first()

    def beat_due_us(self) -> int | None:
        """When the next beat is due by log time; None where none is. Before it `muster.nodes` is read to its end."""
        return self.recorder.beats.due_us(self.engine.state)

    def beat_due(self, at_us: int) -> bool:
        """Whether a beat is due."""
        due_us = self.beat_due_us()
        return due_us is not None and due_us <= at_us

    @property
    def pending(self) -> bytes | None:
        """The record that was made and not read back."""
        return self._pending

    @property
    def leads(self) -> bool:
        """Whether this scheduler started the term of the head."""
        return self.term != 0 and self.term == self.head.term

    def start_term(self, at_us: int, nonce: str, host: str, build: str, gap_us: int) -> bytes:
        """The record that makes this scheduler lead, once it is read back.

        `nonce` is 128 random bits in hexadecimal; `gap_us` is how long nobody led.
        """
        check(self._pending is None, "a record is in flight")
        state = self.engine.state
        digest, schema = snapshot.digest(state), snapshot.SCHEMA
        started = TermStarted(nonce=nonce, host=host, build=build, state=digest, schema=schema, gap_us=gap_us)
        self._pending = encode_cycle(self._record(self.head.term + 1, max(at_us, state.at_us), started))
        self._folded = False
        return self._pending

    def accept_loss(self, at_us: int, event: LossAccepted) -> bytes:
        """The record of an operator's word to go on without what is lost, which moves the positions to where reading goes on."""
        check(self._pending is None, "a record is in flight")
        check(self.leads, "only a leader makes cycles")
        engine = self.engine
        at_us = max(at_us, engine.state.at_us)
        positions = {loss.source: loss.resumed for loss in event.lost}
        self.recorder.restart()
        self._folded = True
        decisions = engine.step(self.head.number + 1, self.term, at_us, [event], positions)
        cycle = self._record(self.term, at_us, inputs=(event,), decisions=tuple(decisions), positions=positions)
        self._pending = encode_cycle(cycle)
        self._frame = encode_frame(cycle)
        self.made = cycle
        return self._pending

    def offer(self, message: Message) -> None:
        """Something arrived on an input topic. What was taken already is dropped.

        Raises:
            BufferFull: there is no room now; `positions` say where to read on.
            UnknownSource: its topic brings no inputs.
        """
        self.recorder.offer(self.engine.state, message)

    def offer_all(self, messages: Iterable[Message]) -> None:
        """Offer one message after another.

        Raises:
            BufferFull: there was no room for one of them; `ahead` and `positions` say where to read on.
            UnknownSource: a topic brings no inputs.
        """
        self.recorder.offer_all(self.engine.state, messages)

    def cycle(self, at_us: int, unread: Collection[str] = (), *, take: int = MESSAGES_MAX, beat: bool = True) -> bytes | None:
        """The next record to append, or None when there is nothing to say and nothing is due.

        Args:
            at_us: log time; not before the last cycle's.
            unread: sources of `muster.nodes` that could not be read to their end, for the beat.
            take: at most so many messages.
            beat: whether a beat may be made: not when reports have been left unread elsewhere.
        """
        check(self._pending is None, "a record is in flight")
        check(self.leads, "only a leader makes cycles")
        engine = self.engine
        recorder = self.recorder
        recorded = recorder.record(engine.state, at_us, unread, take, beat)
        inputs = recorded.inputs
        if not inputs:
            wake_us = engine.next_wake_us()
            if (wake_us is None or wake_us > at_us) and not self._positions_due(at_us):
                return None
        positions = recorder.moved
        recorder.moved = {}
        self._folded = True
        decisions = engine.step(self.head.number + 1, self.term, at_us, inputs, positions)
        cycle = self._record(self.term, at_us, inputs=tuple(inputs), decisions=tuple(decisions), positions=positions)
        self._pending = encode_cycle(cycle, recorded.encoded, self._buffer)
        self._frame = encode_frame(cycle)
        self.made = cycle
        return self._pending

    def read_back(self, data: bytes) -> None:
        """Our record was read from the log, in its place: it has happened.

        Raises:
            Replaced: it is not admitted.
        """
        check(self._pending is not None and data == self._pending, "this is not the record in flight")
        if not isinstance(self.follow(data), Admitted):
            raise Replaced(f"cell {self.cell}: the record after cycle {self.head.number} came too late")

    def follow(self, data: bytes) -> Admitted | Void | Halt:
        """Judge the next record of the log and fold it in if it is admitted: another's, or our own.

        The envelope of an admitted record may come without its entries: they are folded.

        Raises:
            Replaced: a cycle of ours is in flight and this one was admitted in its place, or ours is void.
        """
        own = self._pending is not None and data == self._pending
        cycle = None
        if own and self._folded:
            verdict = admit_own(self.head, self._frame, data)
        elif opened := open_record(data):
            envelope, cycle = opened
            verdict = judge(self.head, data, envelope, bool(cycle.inputs or cycle.decisions))
        else:
            verdict = admit(self.head, data)
        if isinstance(verdict, Admitted):
            if self._folded and not own:
                raise Replaced(f"cell {self.cell}: another's record was admitted as cycle {verdict.head.number}")
            if not self._folded:
                self._fold(cycle if cycle is not None else open_envelope(verdict.envelope))
            self.head = verdict.head
            self._pending = None
            self._folded = False
            if verdict.envelope.started is not None:
                self._begin_term(own, verdict.envelope.at_us)
        elif isinstance(verdict, Void):
            self.voids[verdict.reason] = self.voids.get(verdict.reason, 0) + 1
            if own:
                if self._folded:
                    raise Replaced(f"cell {self.cell}: the record after cycle {self.head.number} is void: {verdict.reason}")
                self._pending = None
        return verdict

    def refuse(self, source: str, offset: int, content: str) -> None:
        """Record this message as refused when its turn comes, without looking into it; `content` is its digest."""
        self.recorder.refuse(source, offset, content)

    def next_wake_us(self) -> int | None:
        """When a cycle is wanted although nothing new arrives: the engine's wake or the beat, whichever is sooner.

        Not later than the present when messages wait. None: never.
        """
        state = self.engine.state
        if len(self.recorder.buffer):
            return state.at_us
        wake_us = self.engine.next_wake_us()
        beat_us = self.recorder.beats.due_us(state)
        if wake_us is None or beat_us is None:
            return beat_us if wake_us is None else wake_us
        return min(wake_us, beat_us)

    def _positions_due(self, at_us: int) -> bool:
        """Whether what was read says nothing new, and that it was read is to be written down all the same."""
        return bool(self.recorder.moved) and at_us - self.engine.state.at_us >= POSITIONS_US

    def _begin_term(self, own: bool, at_us: int) -> None:
        """A term begins, ours or another's. Whatever was read and not recorded is read anew by whoever leads."""
        self.term = self.head.term if own else 0
        self.recorder.restart()
        if own:
            self.recorder.beats.start(at_us)
        else:
            self.recorder.beats.stop()

    def _fold(self, cycle: Cycle) -> None:
        state = self.engine.state
        agents = self.recorder.agents
        for event in cycle.inputs:
            if type(event) is NodeRegistered:
                agents.learn(state, event)
        self.engine.fold(cycle)
        self.made = cycle

    def _record(
        self,
        term: int,
        at_us: int,
        started: TermStarted | None = None,
        inputs: tuple[Event, ...] = (),
        decisions: tuple[Event, ...] = (),
        positions: dict[str, int] | None = None,
    ) -> Cycle:
        policy = self.engine.state.policy
        return Cycle(
            cell=self.cell,
            number=self.head.number + 1,
            term=term,
            at_us=at_us,
            started=started,
            inputs=inputs,
            decisions=decisions,
            positions=positions or {},
            policy=f"{policy.name}/{policy.version}",
            previous=self.head.digest,
        )
