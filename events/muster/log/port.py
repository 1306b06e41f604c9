"""The log port: what every engine promises, and all that anybody may rely on.

The engines (memory, SQLite, Kafka) keep an order and know nothing of cycles, terms or who may write; `muster.log.admit`
judges what is read. `tests/conformance` holds each engine to the contract below.
"""

from typing import Protocol

import msgspec

RECORD_MAX_BYTES = 16 * 1024 * 1024
"""The largest record that an engine takes."""

READ_MAX_BYTES = 64 * 1024 * 1024
"""A read returns no further records once it holds so much."""


class Record(msgspec.Struct, frozen=True):
    """One record as it stands in the log. `position` is the engine's own and increases; it is not the cycle's number."""

    position: int
    data: bytes


class Log(Protocol):
    """An ordered log of records that may have many writers and many readers.

    The contract:

    1. A record whose `append` has returned is durable: every reader sees it sooner or later, also after a crash.
    2. The order of records is the order in which appends landed. It is one order for all readers and never changes.
       Appends in flight at the same time, from one writer or several, land in any order; one that was answered stands before
       any that was called after its answer.
    3. An append that was not answered (`AppendDoubt`, or cancelled) is unknown, not failed: its record may stand in the
       log already, may land later, earlier or after another's, or never. No engine takes it back. Any record may land
       twice; its copy stands within the 64 records after it.
    4. The tail may be behind: `read`, `end` and `wait` may not yet show records that have landed. What was shown once
       stays where it was, and what one handle has seen it sees for good.
    5. Bytes come back as they went in. The engine neither reads nor judges them: an engine that refuses a record for what it says
       is wrong.
    6. Positions are positive and increase. They may have gaps.
    """

    async def append(self, data: bytes) -> None:
        """Add a record; durable when it returns.

        Raises:
            AppendDoubt: not answered; see 3.
            RecordTooLarge: more than `RECORD_MAX_BYTES`; it is not in the log and never will be.
            LogFull: no room; it is not in the log and never will be.
            LogClosed: this handle cannot write.
        """
        ...

    async def read(self, after: int, limit: int = 1000) -> list[Record]:
        """The records that stand after position `after`, in order: at most `limit`, and at most about `READ_MAX_BYTES`.

        At least one where there is one to be seen; empty at the tail.

        Raises:
            LogClosed: the handle is closed.
        """
        ...

    async def end(self) -> int:
        """The position of the last record that a reader can see now; 0 where there is none."""
        ...

    async def wait(self, after: int, timeout_s: float) -> None:
        """Return when there may be something to read after position `after`, or when `timeout_s` seconds have passed."""
        ...

    async def close(self) -> None:
        """Give back what the handle holds. A second call does nothing."""
        ...
