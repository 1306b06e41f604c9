"""What lies between the parties of the world: messages that are lost, doubled, late or out of order, and cuts between any two.

Whoever asks gets an answer or none (`Unanswered`). In the second case what was asked may have been done, may be done
later, twice, or never.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol

import msgspec

from muster.log.errors import OperatingError
from muster.simulator.world.process import MILLION, Process, Timeline

Work = Callable[[], Any]
Reply = Callable[[Any], None]


class Unanswered(OperatingError):
    """No answer came in time."""


class Refused(OperatingError):
    """The peer cannot do this now and says nothing."""


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """How a message fares: chances in thousandths, each drawn anew."""

    lost: int = 0
    doubled: int = 0
    late: int = 0
    """It takes up to `late_max_us`, so that others overtake it."""
    late_max_us: int = 8_000_000


FAIR = Weather()


class Party(Protocol):
    """Whoever can be asked."""

    name: str

    def handle(self, work: Work, reply: Reply) -> None:
        """Do the work where this party lives, and reply."""
        ...


class Network:
    """Every way between two parties."""

    def __init__(self, timeline: Timeline, random: Random, counts: Counter[str]) -> None:
        self.timeline = timeline
        self.random = random
        self.counts = counts
        self.weather = FAIR
        self._cuts: Counter[tuple[str, str]] = Counter()

    def up(self, one: str, other: str) -> bool:
        """Whether anything gets from one to the other."""
        return not (self._cuts[pair(one, other)] or self._cuts[one, "*"] or self._cuts[other, "*"])

    def cut(self, one: str, other: str) -> None:
        """Nothing gets through any more, either way. `*` is everybody."""
        self._cuts[pair(one, other)] += 1

    def mend(self, one: str, other: str) -> None:
        """One cut less."""
        if self._cuts[pair(one, other)]:
            self._cuts[pair(one, other)] -= 1

    def mend_all(self) -> None:
        """Everybody reaches everybody."""
        self._cuts.clear()

    def latency_us(self) -> int:
        """How long a message takes on a good day."""
        return self.random.randint(200, 4000)

    def send(self, one: str, other: str, action: Callable[[], None]) -> None:
        """Let this happen at the other end, if the weather allows it."""
        if not self.up(one, other):
            self.counts["messages into a cut"] += 1
            return
        weather = self.weather
        if weather is FAIR:
            self.timeline.after(self.latency_us(), action)
            return
        chance = self.random.randrange
        if chance(1000) < weather.lost:
            self.counts["messages lost"] += 1
            return
        span_us = self.latency_us()
        if chance(1000) < weather.late:
            self.counts["messages late"] += 1
            span_us += chance(weather.late_max_us)
        self.timeline.after(span_us, action)
        if chance(1000) < weather.doubled:
            self.counts["messages doubled"] += 1
            self.timeline.after(span_us + chance(weather.late_max_us), action)

    async def ask(self, process: Process, peer: Party, work: Work, timeout_us: int = 2_000_000) -> Any:
        """Let the peer do this and return what comes of it.

        Raises:
            Unanswered: it may have done it, or do it yet, or not.
        """
        loop = process.loop
        assert loop is not None
        await process.point(f"a question to {peer.name.rstrip('0123456789')}")
        answer: asyncio.Future[Any] = loop.create_future()

        def arrived(result: Any) -> None:
            if not answer.done():
                answer.set_result(result)

        def reply(result: Any) -> None:
            self.send(peer.name, process.name, lambda: process.deliver(loop, lambda: arrived(result)))

        self.send(process.name, peer.name, lambda: peer.handle(work, reply))
        try:
            async with asyncio.timeout(timeout_us / MILLION):
                result = await answer
        except TimeoutError:
            raise Unanswered(f"{peer.name} did not answer") from None
        await process.point(f"an answer of {peer.name.rstrip('0123456789')}")
        return result


def serve(process: Process, work: Callable[[], Coroutine[Any, Any, Any]], reply: Reply) -> None:
    """Do asynchronous work inside a process that is there, and reply once it is done."""
    loop = process.loop
    if loop is None:
        return

    def done(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is None:
            reply(task.result())

    process.deliver(loop, lambda: process.spawn(work()).add_done_callback(done))


def pair(one: str, other: str) -> tuple[str, str]:
    """The way between two, whoever is named first; a cut from everybody names `*` last."""
    if "*" in (one, other):
        return (one, "*") if other == "*" else (other, "*")
    return (one, other) if one < other else (other, one)
