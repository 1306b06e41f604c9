"""Output of tasks on its way from the agent that has it to whoever reads it. Nothing of it is kept here."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any, Final

from muster.agent.protocol import Wanted
from muster.gateway.polls import Asked, Polls
from muster.gateway.problems import Refused

CHUNKS_MAX: Final = 8
"""So many pieces wait for a slow reader; then the agent waits."""
PUT_S: Final = 15.0
FIRST_S: Final = 30.0
"""An agent that says nothing for so long, of output that is not followed, has none."""
READERS_MAX: Final = 1000


class _Reading:
    __slots__ = ("asked", "chunks", "node", "offset")

    def __init__(self, node: str, asked: Asked) -> None:
        self.node = node
        self.asked = asked
        self.offset = asked.wanted.offset
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue(CHUNKS_MAX)


class Outputs:
    """Everybody who reads output now."""

    def __init__(self, polls: Polls) -> None:
        self._polls = polls
        self._reading: dict[str, _Reading] = {}

    async def read(self, node: str, what: dict[str, Any]) -> AsyncIterator[bytes]:
        """Ask the node for output and yield it as it comes. `what` are the fields of `Wanted` but its id.

        Raises:
            Refused: 503, too many read already.
        """
        if len(self._reading) >= READERS_MAX:
            raise Refused(503, f"{READERS_MAX} outputs are read already; try again later", headers={"Retry-After": "5"})
        wanted = Wanted(id=secrets.token_hex(8), **what)
        reading = self._reading[wanted.id] = _Reading(node, self._polls.want(node, wanted))
        try:
            while True:
                limit_s = None if wanted.follow else FIRST_S
                try:
                    async with asyncio.timeout(limit_s):
                        chunk = await reading.chunks.get()
                except TimeoutError:
                    return
                if chunk is None:
                    return
                yield chunk
        finally:
            self._reading.pop(wanted.id, None)
            self._polls.forget(node, wanted.id)

    async def put(self, node: str, id: str, data: bytes, offset: int, end: bool) -> None:
        """A piece of output from its agent.

        Raises:
            Refused: 410, nobody reads it; 409, it is not the piece that comes next; 503, the reader is slow.
        """
        reading = self._reading.get(id)
        if reading is None or reading.node != node:
            raise Refused(410, "nobody waits for this output")
        reading.asked.answered = True
        fresh = reading.offset - offset
        if fresh < 0:
            raise Refused(409, f"the piece that begins at {reading.offset} comes next, not one at {offset}")
        data = data[fresh:]  # a piece sent again brings nothing twice
        try:
            async with asyncio.timeout(PUT_S):
                if data:
                    await reading.chunks.put(data)
                    reading.offset += len(data)
                if end:
                    await reading.chunks.put(None)
        except TimeoutError as error:
            raise Refused(503, "whoever reads this output is slow", headers={"Retry-After": "1"}) from error
        if id not in self._reading:
            raise Refused(410, "nobody waits for this output any more")

    def close(self) -> None:
        """Everybody has read to the end."""
        for reading in self._reading.values():
            if reading.chunks.full():
                reading.chunks.get_nowait()
            reading.chunks.put_nowait(None)
