"""What arrives on the input topics, and a bounded buffer of what was not taken yet.

A source is one partition of a topic, `topic/partition`. Offsets of a source increase. A position is the next offset to
read; what lies below it was taken and is dropped when it comes again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter
from typing import Final

import msgspec

from muster.events.cloudevents import GPU_HEALTH, JOBS, NODES, OPERATIONS
from muster.log.errors import OperatingError

__all__ = ["BEAT", "GPU_HEALTH", "JOBS", "NODES", "OPERATIONS", "TOPICS", "Buffer", "BufferFull", "Message", "UnknownSource"]

TOPICS: Final = (JOBS, NODES, GPU_HEALTH, OPERATIONS)

BEAT: Final = b"beat"
"""The data of a leader's sign of life, which stands on `muster.nodes` among the reports and says nothing new."""

BUFFER_MAX_MESSAGES: Final = 20_000
BUFFER_MAX_BYTES: Final = 64 * 1024 * 1024


class Message(msgspec.Struct, frozen=True):
    """One message of an input topic, as it arrived."""

    source: str
    """`topic/partition`."""
    offset: int
    data: bytes
    appended_us: int
    """When the broker took it, by the broker's clock; 0 where that is not known."""
    key: str = ""
    event: str = ""
    """The id of the CloudEvent that it came as; empty where it did not come by the bus."""


_source_of = attrgetter("source")
_offset_of = attrgetter("offset")
_data_of = attrgetter("data")


class BufferFull(OperatingError):
    """No more is taken now. Positions say where to read on."""


class UnknownSource(OperatingError):
    """A message from a topic that is no input topic: the adapter is set up wrongly."""


class Buffer:
    """Messages in the order in which they arrived, at most so many and so many bytes."""

    __slots__ = ("_bytes", "_messages", "_reports", "ahead", "max_bytes", "max_messages", "topics")

    def __init__(self, max_messages: int = BUFFER_MAX_MESSAGES, max_bytes: int = BUFFER_MAX_BYTES) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.topics: dict[str, str] = {}
        """The topic of each source that something came from."""
        self.ahead: dict[str, int] = {}
        """For each source that something came from since `clear`, the offset after the last."""
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._reports = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def reports(self) -> int:
        """How many of the messages come from `muster.nodes`."""
        return self._reports

    def add(self, message: Message) -> None:
        """Keep a message; one that is here already, by its offset, is dropped.

        Raises:
            BufferFull: there is no room. A single message is taken however large it is.
            UnknownSource: its topic is no input topic.
        """
        source = message.source
        offset = message.offset
        if offset < self.ahead.get(source, 0):
            return
        size = self._bytes + len(message.data)
        messages = self._messages
        if (len(messages) >= self.max_messages or size > self.max_bytes) and messages:
            raise BufferFull(f"the buffer holds {len(messages)} messages of {self._bytes} bytes; {source} has to wait")
        topic = self.topics.get(source)
        if topic is None:
            topic = source.partition("/")[0]
            if topic not in TOPICS:
                raise UnknownSource(f"{source!r} is no source of inputs; known are {', '.join(TOPICS)}")
            self.topics[source] = topic
        if topic == NODES:
            self._reports += 1
        messages.append(message)
        self._bytes = size
        self.ahead[source] = offset + 1

    def add_all(self, messages: Iterable[Message], position: Callable[[str], int]) -> None:
        """Keep each message that is not below its source's position; see `add`. What stands before one that raises is kept."""
        for source, run in groupby(messages, _source_of):
            least = position(source)
            batch = list(run)
            if batch[0].offset < least:
                batch = [message for message in batch if message.offset >= least]
            if not self._add_run(source, batch):
                for message in batch:
                    self.add(message)

    def _add_run(self, source: str, batch: list[Message]) -> bool:
        """Keep messages of one source that follow on each other, if there is room for all and the source is known."""
        if source not in self.topics or not batch:
            return not batch
        first = batch[0].offset
        size = self._bytes + sum(map(len, map(_data_of, batch)))
        if (
            first < self.ahead.get(source, 0)
            or size > self.max_bytes
            or len(self._messages) + len(batch) > self.max_messages
            or list(map(_offset_of, batch)) != list(range(first, first + len(batch)))
        ):
            return False
        self._messages.extend(batch)
        self._bytes = size
        self.ahead[source] = first + len(batch)
        if self.topics[source] == NODES:
            self._reports += len(batch)
        return True

    def first(self) -> Message | None:
        """The next message to take."""
        return self._messages[0] if self._messages else None

    def upcoming(self, count: int) -> Iterator[Message]:
        """The next messages to take, at most so many."""
        return islice(self._messages, count)

    def drop(self, count: int) -> None:
        """The next so many messages were taken."""
        messages = self._messages
        topics = self.topics
        size = reports = 0
        if count == len(messages):
            messages.clear()
            self._bytes = self._reports = 0
            return
        for _ in range(count):
            message = messages.popleft()
            size += len(message.data)
            if topics[message.source] == NODES:
                reports += 1
        self._bytes -= size
        self._reports -= reports

    def clear(self) -> None:
        """Forget everything; reading starts anew at the positions of the state."""
        self._messages.clear()
        self._bytes = 0
        self._reports = 0
        self.ahead = {}
