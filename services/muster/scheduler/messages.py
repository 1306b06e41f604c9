"""What arrives on the input topics, and a bounded buffer of what was not taken yet.

A source is one partition of a topic, `topic/partition`. Offsets of a source increase. A position is the next offset to
read; what lies below it was taken and is dropped when it comes again.
"""

from collections import deque
from typing import Final

import msgspec

from muster.log.errors import OperatingError

JOBS: Final = "muster.jobs"
NODES: Final = "muster.nodes"
GPU_HEALTH: Final = "muster.gpu-health"
OPERATIONS: Final = "muster.operations"

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


class BufferFull(OperatingError):
    """No more is taken now. Positions say where to read on."""


class UnknownSource(OperatingError):
    """A message from a topic that is no input topic: the adapter is set up wrongly."""


def topic(source: str) -> str:
    """The topic of a source."""
    return source.partition("/")[0]


class Buffer:
    """Messages in the order in which they arrived, at most so many and so many bytes."""

    __slots__ = ("_ahead", "_bytes", "_messages", "_reports", "max_bytes", "max_messages")

    def __init__(self, max_messages: int = BUFFER_MAX_MESSAGES, max_bytes: int = BUFFER_MAX_BYTES) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._reports = 0
        self._ahead: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def reports(self) -> int:
        """How many of the messages come from `muster.nodes`."""
        return self._reports

    @property
    def ahead(self) -> dict[str, int]:
        """For each source that something came from since `clear`, the offset after the last."""
        return self._ahead

    def add(self, message: Message) -> None:
        """Keep a message; one that is here already, by its offset, is dropped.

        Raises:
            BufferFull: there is no room. A single message is taken however large it is.
            UnknownSource: its topic is no input topic.
        """
        source = message.source
        if message.offset < self._ahead.get(source, 0):
            return
        size = len(message.data)
        if self._messages and (len(self._messages) >= self.max_messages or self._bytes + size > self.max_bytes):
            raise BufferFull(f"the buffer holds {len(self._messages)} messages of {self._bytes} bytes; {source} has to wait")
        if topic(source) not in TOPICS:
            raise UnknownSource(f"{source!r} is no source of inputs; known are {', '.join(TOPICS)}")
        self._messages.append(message)
        self._bytes += size
        self._reports += topic(source) == NODES
        self._ahead[source] = message.offset + 1

    def first(self) -> Message | None:
        """The next message to take."""
        return self._messages[0] if self._messages else None

    def pop(self) -> None:
        """Drop the next message: it was taken."""
        message = self._messages.popleft()
        self._bytes -= len(message.data)
        self._reports -= topic(message.source) == NODES

    def clear(self) -> None:
        """Forget everything; reading starts anew at the positions of the state."""
        self._messages.clear()
        self._bytes = 0
        self._reports = 0
        self._ahead = {}


TOPICS: Final = (JOBS, NODES, GPU_HEALTH, OPERATIONS)
