"""Sends outputs that somebody wants to read to the gateway, piece by piece, each from where the reader stands.

A reader's request is served once, by its id. With `follow` it goes on until the task has ended and its last byte is sent.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from muster.agent import outputs
from muster.agent.client import Client, GatewayAway, GatewayRefused
from muster.agent.protocol import CHUNK_BYTES, Wanted

LOOK_S: Final = 0.1
"""How often a followed output is looked at for more."""
BEAT_S: Final = 10.0
"""How often a reader of a quiet output is asked whether it is still there."""
SERVED_MAX: Final = 1000
READERS_MAX: Final = 64
TRIES: Final = 5

LOGGER = logging.getLogger(__name__)


class Streaming:
    """The requests that are being served. `ended` says whether a task (job, instance, attempt or 0, rank) has ended here."""

    def __init__(self, root: Path, client: Client, ended: Callable[[str, int, int, int], bool]) -> None:
        self._root = root
        self._client = client
        self._ended = ended
        self._running: dict[str, asyncio.Task[None]] = {}
        self._served: dict[str, None] = {}

    def serve(self, wanted: tuple[Wanted, ...]) -> None:
        """Begin with those that are new; let go of those that nobody names any more."""
        named = {item.id: item for item in wanted}
        for key in [key for key in self._running if key not in named]:
            self._running.pop(key).cancel()
        for key, item in named.items():
            if key not in self._running and key not in self._served and len(self._running) < READERS_MAX:
                self._running[key] = asyncio.create_task(self._send(item))

    async def close(self) -> None:
        """Serve nobody any more."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _send(self, item: Wanted) -> None:
        try:
            await self._pieces(item)
        except (GatewayAway, GatewayRefused, OSError) as error:
            LOGGER.info("output for %s ends: %s", item.id, error)
        self._served[item.id] = None
        if len(self._served) > SERVED_MAX:
            del self._served[next(iter(self._served))]
        self._running.pop(item.id, None)

    async def _pieces(self, item: Wanted) -> None:
        offset = item.offset
        quiet_s = 0.0
        while True:
            ended = self._ended(item.job, item.instance, item.attempt, item.rank)  # asked before the last bytes are read
            path = outputs.find(self._root, item.job, item.instance, item.attempt, item.rank, item.stream)
            data = outputs.read(path, offset, CHUNK_BYTES) if path is not None else b""
            last = not data and (ended or not item.follow)
            if data or last or quiet_s >= BEAT_S:
                quiet_s = 0.0
                await self._post(item.id, offset, data, last)
                offset += len(data)
            if last:
                return
            if not data:
                quiet_s += LOOK_S
                await asyncio.sleep(LOOK_S)

    async def _post(self, key: str, offset: int, data: bytes, last: bool) -> None:
        for tries in range(TRIES):
            try:
                await self._client.output(key, offset, data, last)
                return
            except GatewayAway:
                if tries == TRIES - 1:
                    raise
                await asyncio.sleep(0.2 * 2**tries)
