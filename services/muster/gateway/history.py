"""What was: the state at an earlier cycle, and entries that were admitted before somebody asked.

Folding an old state takes long, so it is done in a process of its own, which keeps the last state and goes on from it; the
scheduler beside the gateway does not wait for it. Entries are read here, some records at a time, in a thread.
"""

import asyncio
import multiprocessing
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.cluster import snapshot
from muster.cluster.evolve import apply
from muster.cluster.jobs import Job
from muster.cluster.state import State
from muster.engine.eta import eta
from muster.engine.explain import explain
from muster.engine.whynot import why_not
from muster.events.codec import decode_envelope, digest, open_envelope
from muster.events.decisions import InstanceBound, InstanceGrown, MembersReplaced
from muster.events.record import Envelope
from muster.gateway import shown
from muster.gateway.books import Places
from muster.gateway.feed import Batch, told
from muster.gateway.problems import Refused
from muster.gateway.reserved import reservation_list
from muster.log.admit import Admitted, Halt, Head, admit
from muster.log.errors import LogHalted, LogUnreachable
from muster.log.port import Record
from muster.log.reader import open_log
from muster.scheduler.snapshots import Snapshot, Snapshots

AT_ONCE: Final = 200
WAITING_MAX: Final = 64
"""So many questions about the past wait at most: each may take seconds."""
STEP: Final = 500
"""A state is kept every so many cycles on the way, so that an earlier one is near; the newest of these only."""
KEPT: Final = 4


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the state after cycle `at`."""

    at: int
    what: str
    """jobs, elements, job, explain, why-not, eta, nodes, node, queues, reservations, catalogue or state;
    in the past places too."""
    key: str = ""
    """The job or the node."""
    instance: int = 0
    state: str = ""
    user: str = ""
    queue: str = ""
    name: str = ""
    only: str = ""
    """Nothing of jobs of other users than this one is shown; empty means all."""
    limit: int = shown.LIMIT
    after: str = ""
    ids: tuple[str, ...] = ()
    """Of these jobs only; empty means all."""
    over: bool = True
    """With elements: those too that are over."""
    first: int = 1
    advise: bool = False
    """With explain: what would start the job now too."""


def matches(question: Question, job: Job) -> bool:
    """Whether a list shows this job."""
    return (
        (not question.only or job.user == question.only)
        and (not question.user or job.user == question.user)
        and (not question.queue or job.queue == question.queue)
        and (not question.name or job.name == question.name)
        and (not question.state or shown.job_state(job) == question.state)
    )


def answer(state: State, question: Question, head: str = "") -> msgspec.Struct:
    """What the question asks, from the state after its cycle.

    Raises:
        Refused: 404, the state does not know what is asked for.
    """
    what = question.what
    if what == "jobs":
        return shown.job_list(state, lambda job: matches(question, job), question.limit, question.after, question.ids)
    if what == "elements":
        return shown.element_list(
            state, lambda job: matches(question, job), question.over, question.limit, question.after, question.ids
        )
    if what == "nodes":
        return shown.node_list(state)
    if what == "queues":
        return shown.queue_list(state)
    if what == "reservations":
        return reservation_list(state)
    if what == "state":
        return shown.cell_shown(state, head)
    if what == "catalogue":
        return shown.Catalogue(models=state.catalogue)
    if what == "node":
        node = state.node(question.key)
        if node is None:
            raise Refused(404, f"there is no node {question.key[:64]!r} at cycle {state.number}")
        return shown.node_shown(state, node, lambda job: not question.only or job.user == question.only)
    job = state.jobs.get(question.key)
    if job is None or (question.only and job.user != question.only):
        raise Refused(404, f"there is no job {question.key[:64]!r} at cycle {state.number}")
    if what == "job":
        return shown.job_shown(state, job)
    if question.instance >= len(job.instances):
        raise Refused(404, f"job {job.id} has the instances 0 to {len(job.instances) - 1}, not {question.instance}")
    if what == "why-not":
        if state.node(question.name) is None:
            raise Refused(404, f"there is no node {question.name[:64]!r} at cycle {state.number}")
        return why_not(state, job.id, question.name, question.instance)
    if what == "eta":
        return eta(state, job.id, question.instance)
    return explain(state, job.id, question.instance, advise=question.advise)


class History:
    """The past of one cell, from its log and from snapshots of it."""

    def __init__(self, place: str | Path, cell: str, snapshots: Path | None = None) -> None:
        """`place` is what `muster.log.reader.open_log` takes; `snapshots` a folder in which some may lie."""
        self.place = str(place)
        self.cell = cell
        self._snapshots = str(snapshots or "")
        self._process: ProcessPoolExecutor | None = None
        self._waiting = 0

    async def ask(self, question: Question) -> bytes:
        """The answer as JSON.

        Raises:
            Refused: there is no such cycle, or nothing of that name in it; 503, too many ask.
        """
        if self._waiting >= WAITING_MAX:
            raise Refused(503, f"{WAITING_MAX} questions about the past wait already; try again", headers={"Retry-After": "2"})
        self._waiting += 1
        try:
            return await self._ask(question)
        finally:
            self._waiting -= 1

    async def _ask(self, question: Question) -> bytes:
        for attempt in (1, 2):
            if self._process is None:
                context = multiprocessing.get_context("spawn")
                self._process = ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent)
            try:
                status, data = await self._look_back(question)
                break
            except BrokenProcessPool:
                self.close()
                if attempt == 2:
                    raise
        if status != 200:
            raise Refused(status, data.decode())
        return data

    async def entries(self, first: int, last: int, job: str = "") -> AsyncIterator[Batch]:
        """The entries of the cycles from `first` to `last`, all or those about one job; cycles without any are left out."""
        chain = Chain(self.cell, first)
        position = max(0, first - 1)  # each cycle takes a position of its own, so it stands no earlier
        if first > last:
            return
        log = await asyncio.to_thread(open_log, self.place, self.cell)
        try:
            while chain.number < last and (records := await asyncio.to_thread(log.read, position, AT_ONCE)):
                position = records[-1].position
                for envelope in chain.take(records):
                    if first <= envelope.number <= last:
                        batch = told(envelope, job)
                        if batch.entries:
                            yield batch
                    await asyncio.sleep(0)  # the scheduler beside us goes first
        finally:
            await asyncio.to_thread(log.close)

    async def places(self, job: str, first: int, last: int) -> dict[int, Places]:
        """Where the newest attempt of each instance was, as the cycles from `first` to `last` say."""
        data = await self.ask(Question(at=last, what="places", key=job, first=first))
        found = msgspec.json.decode(data, type=dict[int, tuple[int, dict[int, str]]])
        places: dict[int, Places] = {}
        for instance, (attempt, nodes) in found.items():
            places[instance] = Places(attempt)
            places[instance].nodes = nodes
        return places

    def close(self) -> None:
        """End the process that looks back."""
        if self._process is not None:
            self._process.shutdown(wait=False, cancel_futures=True)
            self._process = None

    async def _look_back(self, question: Question) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._process, look_back, self.place, self.cell, self._snapshots, question)


class Chain:
    """Tells admitted records from void ones in the middle of a log: the first is believed, those after it must follow on it."""

    def __init__(self, cell: str, first: int) -> None:
        self.number = 0
        self.digest = ""
        self._cell = cell
        self._first = first
        self._head: Head | None = None

    def take(self, records: list[Record]) -> Iterator[Envelope]:
        """The admitted ones, one after the other; `number` and `digest` are those of the last one given.

        Raises:
            LogHalted: the log was cut or altered.
        """
        for record in records:
            if self._head is None:
                try:
                    envelope = decode_envelope(record.data)
                except (msgspec.DecodeError, ValueError):
                    continue
                if envelope.cell != self._cell or envelope.number < self._first - 1:
                    continue
                own = digest(record.data)
                self._head = Head(self._cell, envelope.number, envelope.term, own, (own,))
            else:
                verdict = admit(self._head, record.data)
                if isinstance(verdict, Halt):
                    raise LogHalted(record.position, self._head.number, verdict.reason)
                if not isinstance(verdict, Admitted):
                    continue
                self._head = verdict.head
                envelope = verdict.envelope
            self.number = self._head.number
            self.digest = self._head.digest
            yield envelope


# In the process that looks back


class _Past:
    """States of the past, in the process that folds them."""

    def __init__(self, place: str, cell: str, snapshots: str) -> None:
        self._place = place
        self._cell = cell
        self._snapshots = Snapshots(Path(snapshots), cell) if snapshots else None
        self._kept: list[tuple[int, bytes]] = []
        """Encoded states by cycle, some of those that were passed."""
        self._state: State | None = None
        self.digest = ""
        """Of the record after which the state stands, where it was read; else empty."""

    def at(self, number: int) -> State:
        """The state after this cycle.

        Raises:
            Refused: there is no such cycle.
        """
        if number < 1:
            raise Refused(404, f"there is no cycle {number}: they are numbered from 1")
        state = self._state
        if state is None or state.number > number:
            state = self._near(number)
            self.digest = ""
        if state.number < number:
            self._state = None
            self._forward(state, number)
        self._state = state
        return state

    def _near(self, number: int) -> State:
        """The nearest state before this cycle, of those that were kept and those that were written down."""
        near = [data for at, data in self._kept if at <= number]
        state = snapshot.decode(near[-1]) if near else State(self._cell)
        if self._snapshots is not None:
            written = self._snapshots.before(number)
            if written is not None and written.head.number > state.number and self._stands(written):
                return written.state
        return state

    def _stands(self, written: Snapshot) -> bool:
        """Whether the log holds the record after which it was written."""
        with open_log(self._place, self._cell) as log:
            records = log.read(written.position - 1, 1)
        return bool(records) and digest(records[0].data) == written.head.digest

    def places(self, job: str, first: int, last: int) -> dict[int, tuple[int, dict[int, str]]]:
        """By instance the newest attempt and the names of its nodes by rank, as the cycles from `first` to `last` say."""
        needle = f'"{job}"'.encode()
        found: dict[int, tuple[int, dict[int, str]]] = {}
        position = max(0, first - 1)
        with open_log(self._place, self._cell) as file:
            while records := file.read(position, AT_ONCE):
                position = records[-1].position
                for record in [record for record in records if needle in record.data]:
                    cycle = open_envelope(decode_envelope(record.data))
                    for event in cycle.decisions if cycle.number <= last else ():
                        if isinstance(event, (InstanceBound, MembersReplaced, InstanceGrown)) and event.job == job:
                            nodes = found.get(event.instance, (0, {}))[1] if not isinstance(event, InstanceBound) else {}
                            ledger = self.at(cycle.number).ledger
                            nodes.update({place.rank: ledger.node(place.row).name for place in event.placements})
                            found[event.instance] = (event.attempt, nodes)
        return found

    def _forward(self, state: State, number: int) -> None:
        """Fold on from where the state stands."""
        chain = Chain(self._cell, state.number)
        position = max(0, state.number - 1)
        with open_log(self._place, self._cell) as file:
            while records := file.read(position, AT_ONCE):
                position = records[-1].position
                for envelope in chain.take(records):
                    if envelope.number == state.number + 1:
                        self.digest = chain.digest
                        apply(state, open_envelope(envelope))
                        self._keep(state)
                    if state.number >= number:
                        return
        raise Refused(404, f"there is no cycle {number}: the log has the cycles 1 to {state.number}")

    def _keep(self, state: State) -> None:
        if state.number % STEP == 0 and all(at != state.number for at, _ in self._kept):
            self._kept = sorted([*self._kept, (state.number, snapshot.encode(state))])[-KEPT:]


_past: dict[tuple[str, str], _Past] = {}


def look_back(place: str, cell: str, snapshots: str, question: Question) -> tuple[int, bytes]:
    """In the other process: a status and the answer, or why there is none."""
    past = _past.get((place, cell))
    if past is None:
        past = _past[place, cell] = _Past(place, cell, snapshots)
    try:
        if question.what == "places":
            return 200, msgspec.json.encode(past.places(question.key, question.first, question.at))
        state = past.at(question.at)
        return 200, msgspec.json.encode(answer(state, question, past.digest))
    except Refused as error:
        return error.problem.status, error.problem.detail.encode()
    except LogUnreachable as error:
        return 503, f"the past cannot be read now: {error}".encode()


def _end_with_parent() -> None:
    """Nobody is left to ask once the gateway is gone, however it went."""
    parent: Any = multiprocessing.parent_process()

    def wait() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
