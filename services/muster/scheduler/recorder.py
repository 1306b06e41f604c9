"""The recorder: from what arrived to the inputs of a cycle.

It takes messages in the order in which they arrived, drops what the state has seen, refuses what is malformed (with an
entry that says why), turns reports into differences, and stops at the bounds of a cycle; the rest stays for the next one.
Positions move by exactly what was taken, in the cycle that holds what was made of it.

It reads no clock, and decides nothing.
"""

from collections.abc import Collection, Iterable
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final

import msgspec

from muster.cluster import reservations
from muster.cluster.evolve_elastic import resize_fault
from muster.cluster.queuetree import fault
from muster.cluster.state import State
from muster.engine.policies import unknown
from muster.events.base import Event
from muster.events.cloudevents import KINDS, Input, refusal
from muster.events.codec import Malformed, decode_input, decode_inputs, decode_report, digest, encode_entry
from muster.events.ids import made_us
from muster.events.jobs import (
    JobCancelRequested,
    JobCheckpointed,
    JobReprioritised,
    JobResizeRequested,
    JobRevised,
    JobSubmitted,
)
from muster.events.nodes import (
    DeviceHealthChanged,
    ForeignUseChanged,
    NodeRegistered,
    NodeRemoved,
    NodesHeard,
    TaskExited,
    TaskMissing,
    TaskReady,
    TaskStarted,
)
from muster.events.operations import (
    InputRefused,
    PolicySet,
)
from muster.events.queues import QueueRemoved, QueueSet
from muster.events.reservations import ReservationRemoved, ReservationSet
from muster.events.services import JobMetricReported, JobScaleRequested
from muster.scheduler import reports
from muster.scheduler.beat import Beats
from muster.scheduler.messages import BEAT, JOBS, NODES, TOPICS, Buffer, Message
from muster.scheduler.reports import Agents

INPUTS_MAX_BYTES: Final = 4 * 1024 * 1024
MESSAGES_MAX: Final = 20_000
_ABOUT_JOBS: Final = (JobCancelRequested, JobReprioritised, JobRevised, JobScaleRequested, JobMetricReported, JobCheckpointed)
"""So many messages a cycle at most, also where most of them say nothing new."""

TAKEN: Final[dict[str, tuple[type[Input], ...]]] = {
    **{topic: KINDS[topic] for topic in TOPICS},
    NODES: (
        NodeRegistered,
        NodeRemoved,
        DeviceHealthChanged,
        ForeignUseChanged,
        TaskReady,
        TaskStarted,
        TaskExited,
        TaskMissing,
    ),
}
"""Which inputs each topic may bring: what producers may say, and of nodes the entries that reports are turned into. A beat or
a refusal comes from the recorder alone."""

TAKEN_AS_THEY_ARE: Final[dict[str, dict[type[Event], None]]] = {
    topic: {kind: None for kind in (TaskReady, TaskStarted, TaskExited, TaskMissing) if kind in kinds}
    for topic, kinds in TAKEN.items()
}
"""Those of them in which the recorder looks for nothing: the events of a job's tasks."""

BATCH: Final = 512
"""So many messages are decoded at once: more than fit into the cycle are decoded in vain."""

_source_of = attrgetter("source")


class Recorded(msgspec.Struct):
    """The inputs of one cycle so far, and their canonical bytes."""

    room: int
    """So many inputs at most, of `bytes_max` together; but a single one has room however large it is."""
    bytes_max: int
    inputs: list[Event] = []
    encoded: list[bytes] = []
    size: int = 0

    def add(self, event: Event, data: bytes) -> None:
        """One more input."""
        self.inputs.append(event)
        self.encoded.append(data)
        self.size += len(data) + 1

    def add_all(self, events: list[Event], encoded: list[bytes]) -> bool:
        """Many more, if there is room for all."""
        size = self.size + sum(map(len, encoded)) + len(encoded)
        if size > self.bytes_max or len(self.inputs) + len(events) > self.room:
            return False
        self.inputs += events
        self.encoded += encoded
        self.size = size
        return True


class Young:
    """Tells at a glance ids that `_check_age` does not refuse, which are nearly all."""

    __slots__ = ("_first", "_last", "_too_old_us", "_until_us")

    def __init__(self, too_old_us: int) -> None:
        self._too_old_us = too_old_us
        self._until_us = -1
        self._first = self._last = ""

    def surely(self, message: Message) -> bool:
        """Whether the job that is the message's key is not too old; False where this has to be looked at.

        An id between two UUIDv7 with the same first digits has these too, so it is ordered by its other digits as they are
        by their instants, whatever letters stand among them; but `int` would leave out an underscore.
        """
        if message.appended_us > self._until_us:
            self._set(message.appended_us)
        key = message.key
        return self._first <= key < self._last and "_" not in key

    def _set(self, appended_us: int) -> None:
        """For the next minute: a message that was appended before it may have older ids."""
        self._until_us = appended_us + 60_000_000
        oldest_ms = max(0, -((self._too_old_us - self._until_us) // 1000))
        self._first = _digits(oldest_ms)
        self._last = _digits(self._until_us // 1000 + 1)
        if self._first[:2] != self._last[:2] or len(self._last) != 13:
            self._last = self._first


class Recorder:
    """What was read and not taken, what was taken and not recorded, and what is remembered between cycles."""

    def __init__(self) -> None:
        self.buffer = Buffer()
        self.agents = Agents()
        self.beats = Beats()
        self.moved: dict[str, int] = {}
        """Positions beyond the state's: of messages that made no input and wait for the next record."""
        self.refused: dict[tuple[str, int], str] = {}
        """Digests of messages that must not be looked at, by source and offset."""
        self._submitted: dict[str, None] = {}
        self._at_us = 0
        self._reserved: dict[str, ReservationSet] | None = None
        """Likewise the reservations."""
        self._queues: dict[str, QueueSet] | None = None
        """The queues as they are after what this cycle took, once it took something about them."""

    def offer(self, state: State, message: Message) -> None:
        """Something arrived. What was taken before is dropped.

        Raises:
            BufferFull: there is no room now; positions say where to read on.
            UnknownSource: its topic brings no inputs.
        """
        if message.offset >= self.position(state, message.source):
            self.buffer.add(message)

    def offer_all(self, state: State, messages: Iterable[Message]) -> None:
        """Offer one message after another; see `offer`."""
        moved = self.moved
        positions = state.positions
        self.buffer.add_all(messages, lambda source: moved[source] if source in moved else positions.get(source, 0))

    def position(self, state: State, source: str) -> int:
        """The next offset to take of a source."""
        moved = self.moved.get(source)
        return moved if moved is not None else state.positions.get(source, 0)

    def refuse(self, source: str, offset: int, content: str) -> None:
        """Record the message with this digest as refused when its turn comes, without looking into it."""
        self.refused[source, offset] = content

    def restart(self) -> None:
        """Forget what was read and not recorded: reading starts anew at the positions of the state."""
        self.buffer.clear()
        self.moved = {}
        self.agents.begin_term()
        self._submitted = {}

    def record(self, state: State, at_us: int, unread: Collection[str], take: int, beat: bool) -> Recorded:
        """Take what a cycle has room for, at most `take` messages, and the beat if it is due and `beat` allows it.

        A beat waits for the cycle that takes the last report that was read: who stands in the buffer was heard.
        """
        due_us = self.beats.due_us(state) if beat else None
        beat = due_us is not None and due_us <= at_us
        self.agents.begin_cycle()
        if self._submitted:
            self._submitted = {}
        self._queues = self._reserved = None
        self._at_us = at_us
        recorded = Recorded(state.policy.inputs_max, INPUTS_MAX_BYTES)
        if beat:
            recorded.room = max(1, recorded.room - 1)
            recorded.bytes_max -= 64 + 8 * len(state.nodes)
        buffer = self.buffer
        inputs = recorded.inputs
        upcoming = buffer.upcoming(take)
        taken = 0
        while batch := list(islice(upcoming, min(BATCH, recorded.room - len(inputs)))):
            done = self._take_batch(state, batch, recorded)
            taken += done
            if done < len(batch) or len(inputs) >= recorded.room:
                break
        buffer.drop(taken)
        if beat and not buffer.reports and len(inputs) < state.policy.inputs_max:
            self._beat(state, unread, recorded)
            self.beats.start(at_us)
        return recorded

    def _take_batch(self, state: State, batch: list[Message], recorded: Recorded) -> int:
        """Make inputs of messages. Returns how many were taken: the next one, or a part of it, stays for the next cycle."""
        runs: list[tuple[str, int, int]] = []
        end = 0
        for source, run in groupby(map(_source_of, batch)):
            begin, end = end, end + len(list(run))
            runs.append((source, begin, end))
        events, encoded = self._decode(state, batch, runs)
        for source, begin, end in runs:
            taken = self._take_run(state, source, batch[begin:end], events[begin:end], encoded[begin:end], recorded)
            if taken < end - begin:
                return begin + taken
        return len(batch)

    def _decode(self, state: State, batch: list[Message], runs: list[tuple[str, int, int]]) -> tuple[list[Any], list[bytes]]:
        """Of each message the input (or the `Malformed` that it is) and its canonical bytes.

        None stands where the message was taken before, must not be looked into, or is a report.
        """
        refused = self.refused
        entries = [message.data for message in batch]
        others: list[int] = []
        for source, begin, end in runs:
            if self.buffer.topics[source] == NODES:
                others += [at for at in range(begin, end) if not entries[at].startswith(b"[")]
            position = self.position(state, source)
            if refused or batch[begin].offset < position:  # offsets of a source increase
                offsets = [(at, batch[at].offset) for at in range(begin, end)]
                others += [at for at, offset in offsets if offset < position or (source, offset) in refused]
        if not others:
            return decode_inputs(entries)
        others = sorted(dict.fromkeys(others))
        for at in reversed(others):
            del entries[at]
        decoded = decode_inputs(entries)
        events: list[Any] = decoded[0]
        encoded = decoded[1]
        for at in others:
            events.insert(at, None)
            encoded.insert(at, b"")
        return events, encoded

    def _take_run(
        self,
        state: State,
        source: str,
        messages: list[Message],
        events: list[Any],
        encoded: list[bytes],
        recorded: Recorded,
    ) -> int:
        """Make inputs of messages of one source, decoded where they could be; see `_take_batch`.

        What is usual is taken right here, everything else by `_take_slowly`.
        """
        topic = self.buffer.topics[source]
        usual = TAKEN_AS_THEY_ARE[topic]
        if all(map(usual.__contains__, map(type, events))) and recorded.add_all(events, encoded):
            self.moved[source] = messages[-1].offset + 1
            return len(messages)
        inputs = recorded.inputs
        jobs, submitted = state.jobs, self._submitted
        young = Young(state.policy.too_old_us)
        taken = 0
        last: Message | None = None
        """The last one that was not taken before."""
        for message, event, data in zip(messages, events, encoded, strict=True):
            if len(inputs) >= recorded.room:
                break
            kind = type(event)
            if kind is JobSubmitted and topic == JOBS and message.key == event.job and young.surely(message):
                if message.key not in jobs and message.key not in submitted:
                    submitted[message.key] = None
                    if recorded.size + len(data) > recorded.bytes_max and inputs:
                        break
                    inputs.append(event)
                    recorded.encoded.append(data)
                    recorded.size += len(data) + 1
                last = message
            elif event is not None or message.offset >= self.position(state, source):
                if not self._take_slowly(state, message, event, data, recorded):
                    break
                last = message
            taken += 1
        if last is not None:
            self.moved[source] = last.offset + 1
        return taken

    def _take_slowly(
        self,
        state: State,
        message: Message,
        event: Event | Malformed | None,
        data: bytes,
        recorded: Recorded,
    ) -> bool:
        """Make inputs of a message, decoded where it could be. False: it, or a part of it, stays for the next cycle."""
        topic = self.buffer.topics[message.source]
        if self.refused and self.refused.pop((message.source, message.offset), "") == digest(message.data):
            event = _refusal(message, "the scheduler died of this input three times")
            recorded.add(event, encode_entry(event))
            return True
        try:
            if topic == NODES and not message.data.startswith(b"["):
                return message.data == BEAT or self._report(state, message, recorded)
            if isinstance(event, Malformed):
                raise event
            if event is None:
                event, data = decode_input(message.data)
            if type(event) not in TAKEN[topic]:
                raise Malformed(f"{type(event).__name__} does not come by {topic}")
            if isinstance(event, JobSubmitted):
                job = event.job
                if job in state.jobs or job in self._submitted:
                    return True
                _check_key(message, "job", job)
                _check_age(job, message.appended_us, state.policy.too_old_us)
                self._submitted[job] = None
            elif not self._wanted(state, message, event):
                return True
        except Malformed as error:
            event = _refusal(message, str(error))
            data = encode_entry(event)
        if recorded.size + len(data) > recorded.bytes_max and recorded.inputs:
            return False
        if isinstance(event, NodeRegistered):
            self.agents.learn(state, event)
            self.agents.registered[event.node] = event.uid
            self.beats.hear(event.uid)
        recorded.add(event, data)
        return True

    def _wanted(self, state: State, message: Message, event: Event) -> bool:
        """Whether the input says anything that is not known.

        Raises:
            Malformed: it comes under the wrong key, or names what does not exist.
        """
        if isinstance(event, _ABOUT_JOBS):
            _check_key(message, "job", event.job)
        elif isinstance(event, JobResizeRequested):
            _check_key(message, "job", event.job)
            job = state.jobs.get(event.job)
            why = "" if job is None else resize_fault(state, job, event.count)
            if why:
                raise Malformed(why)
        elif isinstance(event, PolicySet):
            why = unknown(event.policy)
            if why:
                raise Malformed(why)
        elif isinstance(event, QueueSet | QueueRemoved):
            self._check_queue(state, event)
        elif isinstance(event, ReservationSet | ReservationRemoved):
            self._check_reservation(state, event)
        elif isinstance(event, DeviceHealthChanged):
            _check_key(message, "node", event.node)
            node = reports.registered(state, event.node)
            if node is not None and node.uid == event.uid and event.node not in self.agents.registered:
                return any(device.uuid == event.device and device.health != event.health for device in node.devices)
        return True

    def _check_queue(self, state: State, event: QueueSet | QueueRemoved) -> None:
        """Whether it can be said of the queues that there are, with what this cycle says of them.

        Raises:
            Malformed: it cannot.
        """
        said = self._queues
        if said is None:
            said = self._queues = dict(state.tree.said) if state.tree is not None else {}
        why = fault(said, event)
        if why:
            raise Malformed(why)
        if isinstance(event, QueueSet):
            said[event.queue] = event
        else:
            del said[event.queue]

    def _check_reservation(self, state: State, event: ReservationSet | ReservationRemoved) -> None:
        """Whether it can be said of the reservations that there are, with what this cycle says of them.

        Raises:
            Malformed: it cannot.
        """
        said = self._reserved
        if said is None:
            said = self._reserved = {name: each.spec for name, each in state.reservations.by_name.items()}
        why = reservations.fault(state, said, event, self._at_us)
        if why:
            raise Malformed(why)
        if isinstance(event, ReservationSet):
            said[event.reservation] = event
        else:
            del said[event.reservation]

    def _report(self, state: State, message: Message, recorded: Recorded) -> bool:
        """Make inputs of a report. Only what the state has folded is compared, so a node that this cycle registers waits."""
        agents = self.agents
        report = decode_report(message.data)
        _check_key(message, "node", report.node)
        if report.node in agents.registered:
            return False
        if agents.late(report):
            return True
        events = agents.differences(state, report)
        node = reports.registered(state, report.node)
        if not events:
            if node is not None and node.uid == report.uid:
                agents.accept(state, report, message.source, events)
                self.beats.hear(report.uid)
            return True
        room, bytes_max = recorded.room, recorded.bytes_max
        encoded = [encode_entry(event) for event in events]
        size = sum(map(len, encoded)) + len(encoded)
        if recorded.inputs and (len(recorded.inputs) + len(events) > room or recorded.size + size > bytes_max):
            return False
        whole = len(events) <= room and size <= bytes_max
        if not whole:  # a report is a level: what it says beyond this is found again in the next cycle
            events, encoded = _first(events, encoded, room, bytes_max)
        else:
            agents.accept(state, report, message.source, events)
        self.beats.hear(report.uid)
        for event, data in zip(events, encoded, strict=True):
            recorded.add(event, data)
        return whole

    def _beat(self, state: State, unread: Collection[str], recorded: Recorded) -> None:
        beat: NodesHeard = self.beats.beat(state, unread, self.agents)
        data = encode_entry(beat)
        recorded.inputs.insert(0, beat)
        recorded.encoded.insert(0, data)
        recorded.size += len(data) + 1
        self.agents.prune(state)


def _refusal(message: Message, reason: str) -> InputRefused:
    refused = refusal(message.data)  # the bus found that it is no CloudEvent, and says why
    return InputRefused(
        source=message.source[:128],
        offset=message.offset,
        id=message.key[:128],
        event=message.event[:128],
        reason=reason[:1024] if refused is None else refused.reason[:1024],
        digest=digest(message.data) if refused is None else refused.digest[:128],
    )


def _check_key(message: Message, what: str, name: str) -> None:
    """What is said of a job or a node is keyed by it, so that nothing overtakes anything about the same one.

    Raises:
        Malformed: the key is another's, or a message of the bus has none.
    """
    if message.key != name and (message.key or message.event):
        raise Malformed(f"key: {message.key[:64]!r} is not the {what} {name!r}")


def _check_age(job: str, appended_us: int, too_old_us: int) -> None:
    """An id of UUIDv7 says when it was made: one this old may have been forgotten.

    Raises:
        Malformed: it is too old.
    """
    made = made_us(job)
    if made is not None and appended_us - made > too_old_us:
        age_s = (appended_us - made) // 1_000_000
        raise Malformed(f"job: the id was {age_s} s old when it arrived; at most {too_old_us // 1_000_000} s are taken")


def _digits(at_ms: int) -> str:
    """The beginning of a UUIDv7 that is made at this instant."""
    digits = f"{at_ms:012x}"
    return f"{digits[:-4]}-{digits[-4:]}"


def _first(events: list[Event], encoded: list[bytes], room: int, bytes_max: int) -> tuple[list[Event], list[bytes]]:
    """So many of the events as a cycle holds, at least one."""
    size = 0
    count = 0
    for data in encoded[:room]:
        size += len(data) + 1
        if count and size > bytes_max:
            break
        count += 1
    return events[:count], encoded[:count]
