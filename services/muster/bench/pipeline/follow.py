"""The log as it grows: what became durable, and when it was seen there. Nothing else counts as having happened."""

import time
from collections.abc import Callable
from typing import Final

import msgspec

from muster.events.codec import decode_envelope
from muster.log.port import Record

LOOK_S: Final = 0.05
"""So often the log is looked at."""
LIVES: Final = ("JobSubmitted", "InstanceBound", "InstanceStarted", "TaskStarted", "TaskExited", "AttemptEnded")
"""What is counted: the entries of a whole life."""

_kind = msgspec.json.Decoder(tuple[str, int, msgspec.Raw]).decode


class Seen(msgspec.Struct, frozen=True):
    """How many entries of each kind stood in the log at an instant of `time.perf_counter`."""

    at_s: float
    counts: dict[str, int]


class Follower:
    """Reads on, and keeps what it saw when."""

    def __init__(self, read: Callable[[int], list[Record]]) -> None:
        """`read` gives the records after a position, the first time those after 0."""
        self._read = read
        self._position = 0
        self.counts = dict.fromkeys(LIVES, 0)
        self.bound_us: dict[str, int] = {}
        """Log time of the cycle that bound each job."""
        self.started_us: dict[str, int] = {}
        """Log time of the cycle in which each job's first task was heard to run."""
        self.term = 0
        """The last that was seen."""
        self.bound_term = 0
        """The last in which something was bound."""
        self.bound_term_s = 0.0
        """When that was seen first."""
        self.seen = [Seen(time.perf_counter(), dict(self.counts))]

    def look(self) -> Seen:
        """Read to the end."""
        while records := self._read(self._position):
            now_s = time.perf_counter()
            for record in records:
                self._take(record.data)
            self._position = records[-1].position
            self.seen.append(Seen(now_s, dict(self.counts)))
        return self.seen[-1]

    def until(self, done: Callable[[dict[str, int]], bool], patience_s: float) -> bool:
        """Look until it is so, or for so long. Whether it is."""
        limit = time.perf_counter() + patience_s
        while not done(self.look().counts):
            if time.perf_counter() >= limit:
                return False
            time.sleep(LOOK_S)
        return True

    def rate(self, kind: str, begin_s: float, end_s: float) -> float:
        """Entries of this kind a second that were seen between these instants."""
        first = [seen for seen in self.seen if seen.at_s <= begin_s][-1]
        last = [seen for seen in self.seen if seen.at_s <= end_s][-1]
        span_s = last.at_s - first.at_s
        return (last.counts[kind] - first.counts[kind]) / span_s if span_s > 0 else 0.0

    def _take(self, data: bytes) -> None:
        envelope = decode_envelope(data)
        self.term = max(self.term, envelope.term)
        for raw in (*envelope.inputs, *envelope.decisions):
            kind, _, body = _kind(raw)
            if kind not in self.counts:
                continue
            self.counts[kind] += 1
            if kind == "InstanceBound":
                self.bound_us.setdefault(_job(body), envelope.at_us)
                if envelope.term > self.bound_term:
                    self.bound_term, self.bound_term_s = envelope.term, time.perf_counter()
            elif kind in ("TaskStarted", "TaskExited"):  # a short one may have ended before anybody heard that it runs
                self.started_us.setdefault(_job(body), envelope.at_us)


class _Job(msgspec.Struct, frozen=True):
    job: str


def _job(body: msgspec.Raw) -> str:
    return msgspec.json.decode(body, type=_Job).job
