"""The live view: the state as of the last admitted cycle, and everybody who waits for the next.

In the embedded stack the state is the scheduler's own. While a record of its is in flight that state is ahead of the log,
and nobody looks: a read waits until the record was read back, and is done before the next is made. So what a
gateway shows has always happened.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from muster.cluster.jobs import Job
from muster.cluster.state import State
from muster.events.codec import decode_cycle
from muster.gateway.books import Books
from muster.gateway.feed import Feed
from muster.log.port import Record
from muster.scheduler.core import Core

Answer = TypeVar("Answer")


class Live:
    """One cell as its gateway sees it."""

    def __init__(self, core: Core, now_us: Callable[[], int]) -> None:
        """`core` follows the log and stands at its head; `now_us` is log time."""
        self._core = core
        self.now_us = now_us
        self.behind_us: Callable[[], int] = lambda: 0
        """For how long this gateway has not been at the end of the log."""
        self.books = Books(core.state)
        self.feed = Feed(core.head.number)
        self.position = 0
        """Where the record of the head stands in the log; 0 before the first was admitted here."""
        self._waiting: list[tuple[Callable[[State], None], asyncio.Future[None]]] = []
        self._changed: list[Callable[[State, dict[str, None]], None]] = []
        self.counted: Callable[[Core, Record], None] | None = None
        """Told of each record that was admitted and folded."""
        self._dirty: dict[str, None] = {}
        """Nodes whose assignments changed since `serve`."""

    @property
    def head(self) -> str:
        """Digest of the last admitted record."""
        return self._core.head.digest

    @property
    def at_us(self) -> int:
        """The log time of the last cycle that was read; 0 before the first."""
        return self._core.state.at_us

    def taken(self, source: str) -> int:
        """The next offset to be taken of a source of inputs, as of the last admitted cycle."""
        return self._core.state.positions.get(source, 0) if self._core.pending is None else 0

    def on_change(self, told: Callable[[State, dict[str, None]], None]) -> None:
        """Call this after each cycle, or after a few, with the state and the names of nodes whose assignments changed."""
        self._changed.append(told)

    def admitted(self, record: Record) -> None:
        """A record was read, admitted and folded: whoever waits for it is answered."""
        self.fold(record)
        self.serve()

    def fold(self, record: Record) -> None:
        """A record was read, admitted and folded. `serve` is to be called before the state changes again."""
        self.position = record.position
        state = self._core.state
        cycle = self._core.made
        if cycle is None or cycle.number != state.number:  # a start of a term, or another's
            cycle = decode_cycle(record.data)
        self._dirty.update(self.books.fold(state, cycle))
        self.feed.publish(record.data, cycle)
        if self.counted is not None:
            self.counted(self._core, record)

    def serve(self) -> None:
        """Answer polls and reads that wait. In the leader's process that is done between two cycles, in neither."""
        state = self._core.state
        dirty, self._dirty = self._dirty, {}
        for told in self._changed:
            told(state, dirty)
        self.books.touched = {}
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for look, done in waiting:
                if not done.done():
                    look(state)

    def recorded(self, job: str) -> tuple[int, Job] | None:
        """The cycle in which a job was submitted, if that is durable, and the job: its id, user and request never change."""
        found = self._core.state.jobs.get(job)
        if found is None or found.place[0] > self._core.head.number:
            return None
        return found.place[0], found

    async def read(self, look: Callable[[State], Answer]) -> Answer:
        """What `look` makes of the state. It must not keep the state or anything of it that changes."""
        if self._core.pending is None:
            return look(self._core.state)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def now(state: State) -> None:
            try:
                answer.set_result(look(state))
            except Exception as error:  # it is whoever asked who is told
                answer.set_exception(error)

        self._waiting.append((now, answer))  # type: ignore[arg-type]  # only `done` is asked of it
        return await answer
