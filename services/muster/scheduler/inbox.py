"""Where messages come from: the port that the loop reads, and the queue inside the process for the mode without a broker."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from muster.scheduler.messages import BufferFull, Message

QUEUE_MAX: Final = 100_000


class Inbox(Protocol):
    """The input topics as a scheduler reads them."""

    async def seek(self, positions: Mapping[str, int]) -> None:
        """Read on from these positions, the next offset of each source; what was read before is forgotten."""
        ...

    def first(self) -> Message | None:
        """The next message that has arrived, without taking it."""
        ...

    def pop(self) -> None:
        """Take it."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Return when a message can be taken, or after `timeout_s` seconds."""
        ...

    async def catch_up(self) -> frozenset[str]:
        """Read each partition of `muster.nodes` up to an end offset asked for now, so that `first` has it all.

        Returns the sources that could not be read so far.
        """
        ...

    def moved(self, positions: Mapping[str, int]) -> None:
        """What lies below these positions stands in admitted cycles, or says nothing that does not."""
        ...

    async def beat(self) -> None:
        """Tell the followers that the leader is there and can append."""
        ...

    def beats(self) -> int:
        """How many such signs of others were seen so far."""
        ...


class _Item:
    __slots__ = ("durable", "message")

    def __init__(self, message: Message, durable: asyncio.Future[None]) -> None:
        self.message = message
        self.durable = durable


class QueueInbox:
    """Messages put by the same process. There is one scheduler, so nobody listens to beats.

    What is put is lost with the process until its future is done: whoever put it does not acknowledge it before.
    """

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self._given = 0
        """How many of the items were taken."""
        self._next: dict[str, int] = {}
        self._arrived = asyncio.Event()

    def put(self, source: str, data: bytes, appended_us: int, key: str = "") -> asyncio.Future[None]:
        """Hand a message in. The future is done when what follows from it is durable.

        Raises:
            BufferFull: too many wait already.
        """
        if len(self._items) >= QUEUE_MAX:
            raise BufferFull(f"{QUEUE_MAX} messages wait to be recorded; try again later")
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._items.append(_Item(Message(source, self._number(source), data, appended_us, key), durable))
        self._arrived.set()
        return durable

    async def seek(self, positions: Mapping[str, int]) -> None:
        """See `Inbox`. What is not durable yet is numbered anew and given again."""
        self._next = dict(positions)
        self._given = 0
        for item in self._items:
            old = item.message
            item.message = Message(old.source, self._number(old.source), old.data, old.appended_us, old.key)

    def first(self) -> Message | None:
        """See `Inbox`."""
        return self._items[self._given].message if self._given < len(self._items) else None

    def pop(self) -> None:
        """See `Inbox`."""
        self._given += 1

    async def wait(self, timeout_s: float) -> None:
        """See `Inbox`."""
        if self._given < len(self._items):
            await asyncio.sleep(0)
            return
        self._arrived.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return

    async def catch_up(self) -> frozenset[str]:
        """See `Inbox`. All that was put is here."""
        return frozenset()

    def moved(self, positions: Mapping[str, int]) -> None:
        """See `Inbox`."""
        items = self._items
        while self._given and items[0].message.offset < positions.get(items[0].message.source, 0):
            item = items.popleft()
            self._given -= 1
            if not item.durable.done():
                item.durable.set_result(None)

    async def beat(self) -> None:
        """See `Inbox`."""

    def beats(self) -> int:
        """See `Inbox`."""
        return 0

    def _number(self, source: str) -> int:
        offset = self._next.get(source, 0)
        self._next[source] = offset + 1
        return offset
