"""Entries as they are told to whoever follows the log or one job, live and from history.

An entry is told as `{"cycle","at_us","side","kind","body"}`; its id is `CYCLE.INDEX`, its place in the log. Whoever follows
gets what was admitted before from the log itself, and from then on each cycle as soon as it was admitted. The last records are
kept here, so that nobody who has just submitted a job opens the log for it.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from muster.events.codec import decode_envelope
from muster.events.decisions import JobsForgotten
from muster.events.record import Cycle, Envelope
from muster.events.registry import DECISIONS

BACKLOG_MAX: Final = 256
"""Cycles that wait for a slow reader; beyond it reads them from the log again."""

KEPT_MAX: Final = 256
KEPT_MAX_BYTES: Final = 2 * 1024 * 1024
"""So many of the last records are kept at most."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, as it is told."""

    cycle: int
    at_us: int
    side: str
    """input, decision or term."""
    kind: str
    body: msgspec.Raw


class Batch(msgspec.Struct, frozen=True):
    """The entries of one cycle that a follower wants, each with its index in the cycle."""

    cycle: int
    entries: tuple[tuple[int, bytes], ...]


_open_entry = msgspec.json.Decoder(tuple[str, int, msgspec.Raw]).decode


def told(envelope: Envelope, job: str = "") -> Batch:
    """The entries of a record, all or those about one job."""
    entries: list[tuple[int, bytes]] = []
    if envelope.started is not None and not job:
        started = msgspec.Raw(msgspec.json.encode(envelope.started))
        entry = Told(cycle=envelope.number, at_us=envelope.at_us, side="term", kind="TermStarted", body=started)
        entries.append((0, msgspec.json.encode(entry)))
    needle = f'"{job}"'.encode()
    for index, raw in enumerate((*envelope.inputs, *envelope.decisions)):
        if job and needle not in bytes(raw):
            continue
        kind, _, body = _open_entry(raw)
        if job and not _about(kind, body, job):
            continue
        if job and kind == "JobsForgotten":
            body = msgspec.Raw(msgspec.json.encode({"jobs": [job]}))  # the others are no business of whoever follows this one
        side = "decision" if kind in DECISIONS else "input"
        entries.append(
            (
                index,
                msgspec.json.encode(Told(cycle=envelope.number, at_us=envelope.at_us, side=side, kind=kind, body=body)),
            )
        )
    return Batch(envelope.number, tuple(entries))


class Subscription:
    """One follower: of a job, or of everything where `job` is empty."""

    __slots__ = ("_arrived", "_backlog", "_feed", "after", "job", "overflowed")

    def __init__(self, feed: "Feed", job: str, after: int) -> None:
        self.job = job
        self.after = after
        """It gets what is admitted after this cycle."""
        self.overflowed = False
        """It was too slow: cycles are missing, and it is told nothing more."""
        self._feed = feed
        self._backlog: deque[Batch] = deque()
        self._arrived = asyncio.Event()

    def put(self, batch: Batch) -> None:
        """A cycle with something for it."""
        if len(self._backlog) >= BACKLOG_MAX:
            self.overflowed = True
            self._backlog.clear()
        if not self.overflowed:
            self._backlog.append(batch)
        self._arrived.set()

    async def next(self, timeout_s: float) -> Batch | None:
        """The next cycle with something for it; None after `timeout_s`, or when it overflowed."""
        if not self._backlog and not self.overflowed and not self._feed.closed:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        return self._backlog.popleft() if self._backlog else None

    def wake(self) -> None:
        """Let `next` return."""
        self._arrived.set()

    def close(self) -> None:
        """It follows no longer."""
        self._feed.forget(self)


class Feed:
    """All followers."""

    def __init__(self, number: int) -> None:
        self.number = number
        """The last admitted cycle."""
        self.closed = False
        self._all: dict[Subscription, None] = {}
        self._jobs: dict[str, dict[Subscription, None]] = {}
        self._kept: deque[bytes] = deque()
        """The last records, without a gap up to `number`."""
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._all) + sum(map(len, self._jobs.values()))

    def follow(self, job: str = "") -> Subscription:
        """Follow from now on."""
        subscription = Subscription(self, job, self.number)
        if job:
            self._jobs.setdefault(job, {})[subscription] = None
        else:
            self._all[subscription] = None
        return subscription

    def kept(self, first: int, last: int, job: str = "") -> list[Batch] | None:
        """The entries of the cycles from `first` to `last`, all or those about one job; None where not all of them are kept."""
        begin = self.number - len(self._kept) + 1
        if first < begin:
            return None
        needle = f'"{job}"'.encode()
        records = list(self._kept)[first - begin : max(0, last - begin + 1)]
        found = [told(decode_envelope(data), job) for data in records if not job or needle in data]
        return [batch for batch in found if batch.entries]

    def forget(self, subscription: Subscription) -> None:
        """See `Subscription.close`."""
        self._all.pop(subscription, None)
        followers = self._jobs.get(subscription.job)
        if followers is not None:
            followers.pop(subscription, None)
            if not followers:
                del self._jobs[subscription.job]

    def close(self) -> None:
        """Nobody is told anything more."""
        self.closed = True
        for followers in (self._all, *self._jobs.values()):
            for subscription in followers:
                subscription.wake()

    def publish(self, data: bytes, cycle: Cycle) -> None:
        """A cycle was admitted; `data` is its record."""
        self.number = cycle.number
        self._kept.append(data)
        self._kept_bytes += len(data)
        while len(self._kept) > KEPT_MAX or self._kept_bytes > KEPT_MAX_BYTES:
            self._kept_bytes -= len(self._kept.popleft())
        if not self._all and not self._jobs:
            return
        mentioned = [job for job in _mentioned((*cycle.inputs, *cycle.decisions)) if job in self._jobs] if self._jobs else []
        if not self._all and not mentioned:
            return
        envelope = decode_envelope(data)
        if self._all:
            batch = told(envelope)
            for subscription in self._all:
                subscription.put(batch)
        for job in mentioned:
            batch = told(envelope, job)
            for subscription in self._jobs[job]:
                subscription.put(batch)


def _mentioned(events: Iterable[Any]) -> dict[str, None]:
    found: dict[str, None] = {}
    for event in events:
        for name in ("job", "by_job"):
            job = getattr(event, name, "")
            if job:
                found[job] = None
        if type(event) is JobsForgotten:
            found.update(dict.fromkeys(event.jobs))
    return found


def _about(kind: str, body: msgspec.Raw, job: str) -> bool:
    """Whether an entry in which the id stands is about the job: it may stand in a text too."""
    fields = msgspec.json.decode(body)
    return job in (fields.get("job"), fields.get("by_job")) or (kind == "JobsForgotten" and job in fields.get("jobs", ()))
