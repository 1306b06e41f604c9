"""The broker of the world: input topics that keep what they acknowledged, the log, and how a scheduler reads both.

The log is `muster.log.memory` with all its faults, reached over the network. A partition of a topic can be unreadable for a
time. Nothing is compacted or forgotten.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

from muster.events.codec import decode_envelope
from muster.log.memory import Faults, MemoryBroker, MemoryLog
from muster.log.port import Record
from muster.scheduler.messages import GPU_HEALTH, JOBS, NODES, OPERATIONS, Message
from muster.simulator.world.network import Network, Refused, Reply, Unanswered, Work
from muster.simulator.world.process import MILLION, WALL_US, Process, Timeline

SOURCES = (f"{JOBS}/0", f"{JOBS}/1", f"{NODES}/0", f"{NODES}/1", f"{GPU_HEALTH}/0", f"{OPERATIONS}/0")
NODE_SOURCES = (f"{NODES}/0", f"{NODES}/1")
FETCH_MAX = 50
FETCH_TIMEOUT_US = 1_500_000
LOG = "log"
TOPICS = "topics"


def source_of(topic: str, key: str) -> str:
    """The partition of a key."""
    if topic in (JOBS, NODES):
        return f"{topic}/{sum(key.encode()) % 2}"
    return f"{topic}/0"


class Broker(MemoryBroker):
    """The log's broker, which remembers when each record landed."""

    def __init__(self, timeline: Timeline, seed: int, faults: Faults) -> None:
        super().__init__(seed, faults)
        self.timeline = timeline
        self.landed_us: list[int] = []

    def land(self, data: bytes) -> None:
        """See `MemoryBroker`."""
        self.landed_us.append(self.timeline.now_us)
        super().land(data)


class Topics:
    """The input topics. What was acknowledged stays, in one order a partition."""

    name = TOPICS

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.messages: dict[str, list[Message]] = {source: [] for source in SOURCES}
        self.unreadable: Counter[str] = Counter()
        """Partitions without a leader."""
        self.inboxes: list[WorldInbox] = []

    def handle(self, work: Work, reply: Reply) -> None:
        """See `Party`."""
        try:
            result = work()
        except Refused:
            return
        reply(result)

    def put(self, topic: str, data: bytes, key: str) -> int:
        """Append a message; its offset.

        Raises:
            Refused: the partition has no leader.
        """
        source = source_of(topic, key)
        if self.unreadable[source]:
            raise Refused(f"{source} has no leader")
        partition = self.messages[source]
        partition.append(Message(source, len(partition), data, WALL_US + self.timeline.now_us, key))
        for inbox in self.inboxes:
            inbox.poke()
        return len(partition) - 1

    def beat(self, sender: "WorldInbox") -> None:
        """A leader's sign of life, to everybody else who can be reached."""
        for inbox in self.inboxes:
            if inbox is not sender:
                inbox.network.send(TOPICS, inbox.process.name, inbox.heard)


class WorldInbox:
    """One scheduler's view of the topics. See `muster.scheduler.inbox.Inbox`."""

    def __init__(self, process: Process, network: Network, topics: Topics) -> None:
        self.process = process
        self.network = network
        self.topics = topics
        self.loop = process.loop
        self._next: dict[str, int] = {}
        self._buffer: list[Message] = []
        self._beats = 0
        self._waiter: asyncio.Future[None] | None = None

    async def seek(self, positions: Mapping[str, int]) -> None:
        """Read on from these positions."""
        await self.process.point("seek")
        self._next = dict(positions)
        self._buffer = []

    def first(self) -> Message | None:
        """The next message."""
        return self._buffer[0] if self._buffer else None

    def pop(self) -> None:
        """Take it."""
        del self._buffer[0]

    async def wait(self, timeout_s: float) -> None:
        """Until something was fetched."""
        await self.process.point("a wait for inputs")
        if not self._buffer and not self._fetch():
            assert self.loop is not None
            self._waiter = self.loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._waiter
            except TimeoutError:
                pass
            finally:
                self._waiter = None
            self._fetch()
        await self.process.pause(self.network.latency_us())
        await self.process.point("inputs that came")

    async def catch_up(self) -> frozenset[str]:
        """Fetch `muster.nodes` to its end; what cannot be is named."""
        await self.process.point("a question for ends")
        if not self.network.up(self.process.name, TOPICS):
            await self.process.pause(FETCH_TIMEOUT_US)
            if not self.network.up(self.process.name, TOPICS):
                self.process.counts["beats that could read nothing"] += 1
                return frozenset(NODE_SOURCES)
        unread = frozenset(source for source in NODE_SOURCES if self.topics.unreadable[source])
        for source in NODE_SOURCES:
            if source not in unread:
                partition = self.topics.messages[source]
                self._take(source, len(partition) - self._next.get(source, 0))
        if unread:
            self.process.counts["beats with a partition unread"] += 1
        await self.process.pause(self.network.latency_us())
        await self.process.point("the ends of partitions")
        return unread

    def moved(self, positions: Mapping[str, int]) -> None:
        """Nothing to be done: the topics forget nothing."""

    async def beat(self) -> None:
        """A sign of life; nobody answers it."""
        await self.process.point("a beat")
        self.network.send(self.process.name, TOPICS, lambda: self.topics.beat(self))

    def beats(self) -> int:
        """Signs of others."""
        return self._beats

    def heard(self) -> None:
        """Another's sign of life arrives."""
        self._beats += 1

    def poke(self) -> None:
        """Something stands in a topic that did not before."""
        if self._waiter is not None and self.network.up(self.process.name, TOPICS):
            self.process.deliver(self.loop, self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fetch(self) -> bool:
        """Take some of what can be had, from the partitions in any order."""
        if not self.network.up(self.process.name, TOPICS):
            return False
        random = self.process.random
        for source in random.sample(SOURCES, len(SOURCES)):
            if not self.topics.unreadable[source]:
                self._take(source, random.randint(1, FETCH_MAX))
        return bool(self._buffer)

    def _take(self, source: str, count: int) -> None:
        begin = self._next.get(source, 0)
        found = self.topics.messages[source][begin : begin + count]
        self._buffer += found
        self._next[source] = begin + len(found)


class WorldLog:
    """One process's handle on the log, over the network. See `muster.log.port.Log`."""

    def __init__(
        self, process: Process, network: Network, broker: MemoryBroker, leads: Callable[[], bool] = lambda: False
    ) -> None:
        self.process = process
        self.network = network
        self.broker = broker
        self.on_early_start: Callable[[], None] = lambda: None
        """Called when a term is started by somebody who had not asked for the end of the log and reached it."""
        self._log = MemoryLog(broker)
        self._leads = leads
        self._read_to = 0
        self._end_us = -1
        """When the end was asked for and had been reached."""
        self._waited_us = 0

    async def append(self, data: bytes) -> None:
        """Over the network, so that it may be lost, land late, or not be answered."""
        process = self.process
        self._check_start(data)
        await process.point("an append")
        fate = process.random.randrange(1000) if self.network.weather.lost else 1000
        if not self.network.up(process.name, LOG) or fate < 10:
            process.counts["appends lost on the way"] += 1
            await self._never()
        if fate < 25:
            process.counts["appends that land much later"] += 1
            process.timeline.after(process.random.randint(1, 40 * MILLION), lambda: self.broker.land(data))
            await self._never()
        await process.pause(self.network.latency_us())
        await self._log.append(data)
        if not self.network.up(process.name, LOG) or fate < 40:
            process.counts["answers to appends lost on the way"] += 1
            await self._never()
        await process.pause(self.network.latency_us())
        await process.point("the answer to an append")

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        """As soon as the log can be reached."""
        await self._reach("a read")
        records = await self._log.read(after, limit)
        self._read_to = records[-1].position if records else max(self._read_to, after)
        await self.process.point("records that were read")
        return records

    async def end(self) -> int:
        """As soon as the log can be reached."""
        await self._reach("a question for the end")
        end = await self._log.end()
        self._end_us = self.process.timeline.now_us if end <= self._read_to else -1
        await self.process.point("the end of the log")
        return end

    async def wait(self, after: int, timeout_s: float) -> None:
        """Until a record has landed."""
        await self.process.point("a wait for records")
        self._waited_us = self.process.timeline.now_us
        if self.network.up(self.process.name, LOG):
            await self._log.wait(after, timeout_s)
        else:
            await asyncio.sleep(timeout_s)
        await self.process.point("records that came")

    async def close(self) -> None:
        """Nothing is held."""

    async def _reach(self, what: str) -> None:
        await self.process.point(what)
        while not self.network.up(self.process.name, LOG):
            await self.process.pause(100_000)

    async def _never(self) -> None:
        assert self.process.loop is not None
        await self.process.loop.create_future()

    def _check_start(self, data: bytes) -> None:
        """A term may be started only by who stands at the tail, by an end that was asked for after the wait began."""
        if decode_envelope(data).started is not None and not self._leads():
            if self._end_us < self._waited_us or self._end_us < 0:
                self.on_early_start()


async def put(process: Process, network: Network, topics: Topics, topic: str, data: bytes, key: str) -> bool:
    """A producer's message. Whether it was acknowledged."""
    try:
        await network.ask(process, topics, lambda: topics.put(topic, data, key))
    except Unanswered:
        process.counts["messages of producers not acknowledged"] += 1
        return False
    return True
