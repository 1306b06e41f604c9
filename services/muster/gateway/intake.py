"""What goes into the cell: messages put on the scheduler's inbox, acknowledged once their cycle is durable."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from muster.events.base import Event
from muster.events.codec import encode_entry
from muster.gateway.problems import Refused
from muster.scheduler.inbox import QueueInbox
from muster.scheduler.messages import JOBS, NODES, OPERATIONS, BufferFull

DURABLE_S = 30
"""So long a request waits for its cycle; then its sender has to ask again."""
LOOK_S = 0.5
"""So often it is looked whether anybody has waited for so long."""


class Intake:
    """The way in, in the scheduler's process."""

    def __init__(self, inbox: QueueInbox) -> None:
        self._inbox = inbox
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()
        """What was put and is not durable, with the instant at which whoever put it is told so, the oldest first."""
        self._looks = False

    async def job(self, data: bytes, job: str) -> bool:
        """Put an entry about a job; returns when it is durable. Whether it is recorded too, or waits to be.

        Raises:
            Refused: 503, too much waits, or nothing is recorded now.
        """
        return await self._put(JOBS, data, job)

    async def report(self, data: bytes, node: str) -> bool:
        """Put a node's report. As `job` does."""
        return await self._put(NODES, data, node)

    async def operation(self, event: Event) -> bool:
        """Put what an operator says. As `job` does."""
        return await self._put(OPERATIONS, encode_entry(event), "")

    def begin_job(self, data: bytes, job: str) -> asyncio.Future[Any]:
        """Put an entry about a job without waiting; give what this returns to `durable`. Raises as `job` does."""
        return self._begin(JOBS, data, job)

    def waits(self, job: str) -> bool:
        """Whether something about this job is durable and no cycle has taken it. Never so in the scheduler's process."""
        return False

    async def durable(self, waiting: Sequence[asyncio.Future[Any]]) -> bool:
        """Return when all these are durable. Whether they are recorded too. Raises as `job` does."""
        for each in waiting:
            await each
        return True

    async def _put(self, topic: str, data: bytes, key: str) -> bool:
        return await self.durable((self._begin(topic, data, key),))

    def _begin(self, topic: str, data: bytes, key: str) -> asyncio.Future[Any]:
        try:
            durable = self._inbox.put(f"{topic}/0", data, time.time_ns() // 1000, key)
        except BufferFull as error:
            raise Refused(503, str(error), headers={"Retry-After": "1"}) from error
        self._waiting.append((time.monotonic() + DURABLE_S, durable))
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)
        return durable

    def _look(self) -> None:
        """Tell those who have waited for too long. One timer looks after all: there are thousands a second."""
        waiting = self._waiting
        now = time.monotonic()
        while waiting and (waiting[0][1].done() or waiting[0][0] <= now):
            durable = waiting.popleft()[1]
            if not durable.done():
                detail = "it is not recorded yet; ask again, with the same id: nothing is taken twice"
                durable.set_exception(Refused(503, detail, headers={"Retry-After": "5"}))
                durable.exception()  # whoever put it may have gone
        self._looks = bool(waiting)
        if waiting:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)
