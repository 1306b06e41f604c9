"""The worker: a Faust application that reads `muster.telemetry` and writes proposals to `muster.gpu-health`.

It keeps nothing but what it folds: no table, no changelog, and Faust's word on how far it has read is believed only roughly. When
it is given a partition, it looks at where that word points, goes back from there by `Rules.reach_s` and a margin of the
broker's time (`muster.telemetry.looking_back`), and folds again what it folded before: from then on it comes to the same
proposals as if it had never stopped. Those that stand on `muster.gpu-health` since then are not sent again.

A message counts as read when what it led to is durable, so a proposal may be sent twice and none is lost. Any error is the end
of the process, whoever keeps it starts it again: Faust by itself would acknowledge a message whose handling failed and go on.

Not here: what is proposed (`muster.telemetry.reducer`), and what becomes of it (the scheduler's).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterable
from typing import Any, Final

import msgspec
from faust.types import TP

from muster.events.cloudevents import GPU_HEALTH, TELEMETRY, refusal, to_data
from muster.events.edge import Malformed
from muster.events.telemetry import decode_sampled
from muster.log.bus import Bus
from muster.log.streams import make_app, serve
from muster.telemetry.looking_back import Begun, LookingBack, look_back, said_since
from muster.telemetry.proposals import Proposal
from muster.telemetry.reducer import Counts, Reducer
from muster.telemetry.rules import Rules

GROUP: Final = "muster-telemetry"
SEND_S: Final = 30
SETTINGS: Final[dict[str, Any]] = {
    "broker_commit_interval": 1.0,
    "consumer_max_fetch_size": 4 * 1024 * 1024,
    "stream_buffer_maxsize": 1024,  # messages are small
    "producer_acks": -1,
    "producer_request_timeout": SEND_S,
}
SAID_MAX: Final = 100_000
"""So many ids of proposals are known at most; the oldest are forgotten."""

logger = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told when it is started."""

    group: str = GROUP
    instance: str = ""
    """A name that only this worker has: started again under it, it gets its partitions back at once."""


class NotSent(Exception):
    """A proposal was not taken by the broker."""


class Worker:
    """One worker: its application, and what it folds of each partition that it has."""

    def __init__(self, bus: Bus, rules: Rules, options: Options) -> None:
        self.bus = bus
        self.rules = rules
        self.refused = 0
        """Messages that were no samples."""
        self.sent: Counter[tuple[str, str]] = Counter()
        """Proposals, by rule and health."""
        self.repeated = 0
        """Proposals that stood on the topic already."""
        self.counts = Counts()
        self._parts: dict[int, Begun] = {}
        self._reducers: dict[int, Reducer] = {}
        self._said: dict[str, None] = {}
        self._next: dict[int, int] = {}
        """By partition, what comes after the last message that was handled."""
        self.app = make_app(bus, options.group, options.instance, **SETTINGS)
        self.app.transport = LookingBack.made_for(self.app, self.began)
        self._samples = self.app.topic(TELEMETRY, key_serializer="raw", value_serializer="raw", key_type=bytes, value_type=bytes)
        self._health = self.app.topic(GPU_HEALTH, key_serializer="raw", value_serializer="raw", key_type=bytes, value_type=bytes)
        self.app.agent(self._samples, name=f"{options.group}.samples", concurrency=1)(self._read)

    async def run(self) -> None:
        """Be a worker until the process is told to stop. What Faust leaves behind takes no end: the process is to end then.

        Raises:
            Exception: why it could not go on.
        """
        await serve(self.app)

    @property
    def devices(self) -> int:
        """Of how many devices samples are known."""
        return sum(reducer.devices for reducer in self._reducers.values())

    def lag(self) -> int:
        """How many messages stand behind the last that was handled, in the partitions of this worker, as far as it knows."""
        ends = {part: self.app.consumer.highwater(TP(TELEMETRY, part)) or 0 for part in self._parts}
        return sum(max(0, end - self._next.get(part, self._parts[part].start)) for part, end in ends.items())

    async def began(self, committed: dict[int, int]) -> dict[int, int]:
        """By partition that this worker has, from which offset on it reads. What was folded before is dropped."""
        begun = await look_back(self.bus, committed, self.rules.reach_s())
        since_us = min((each.begins_us for each in begun.values() if each.begins_us), default=0)
        self._said = await said_since(self.bus, since_us, SAID_MAX) if begun else {}
        self._parts, self._next = begun, {}
        self._reducers = {part: Reducer(self.rules, begins_us=each.begins_us, counts=self.counts) for part, each in begun.items()}
        for part, each in sorted(begun.items()):
            logger.info("%s/%d is read from %d on; %d was read before", TELEMETRY, part, each.start, each.committed)
        return {part: each.start for part, each in begun.items()}

    async def _read(self, stream: Any) -> None:
        try:
            async for event in _events(stream):
                await self.take(event.message)
                self._next[event.message.partition] = event.message.offset + 1
        except Exception as error:
            await self.app.crash(error)
            raise

    async def take(self, message: Any) -> None:
        """Fold one message, and return when every proposal that it led to is durable.

        Raises:
            NotSent: one is not.
        """
        begun = self._parts.get(message.partition)
        if begun is None or not begun.is_due(message.offset):
            return  # it was fetched before the worker went back, and comes again
        data = to_data(TELEMETRY, message.headers or (), message.value)
        try:
            if refused := refusal(data):
                raise Malformed(refused.reason)
            sampled = decode_sampled(data)
            if (message.key or b"").decode(errors="replace") != sampled.node:
                raise Malformed(f"the message's key is {message.key!r}; it must be the node, {sampled.node!r}")
        except Malformed as error:
            self.refused += 1
            logger.warning("%s/%d, offset %d, is passed over: %s", TELEMETRY, message.partition, message.offset, error)
            return
        appended_us = max(0, int(1_000_000 * (message.timestamp or 0)))
        for proposal in self._reducers[message.partition].take(sampled, appended_us=appended_us):
            await self._propose(proposal)

    async def _propose(self, proposal: Proposal) -> None:
        if proposal.id in self._said:
            self.repeated += 1
            return
        key, headers, value = proposal.message()
        try:
            async with asyncio.timeout(SEND_S):
                await (await self._health.send(key=key, value=value, headers=headers))
        except Exception as error:
            raise NotSent(f"{GPU_HEALTH} did not take {proposal.id}: {error or type(error).__name__}") from error
        self._said[proposal.id] = None
        while len(self._said) > SAID_MAX:
            del self._said[next(iter(self._said))]
        self.sent[proposal.rule, proposal.health] += 1
        logger.info("%s on %s is %s: %s", proposal.device, proposal.node, proposal.health, proposal.reason)


def _events(stream: Any) -> AsyncIterable[Any]:
    events: AsyncIterable[Any] = stream.events()
    return events
