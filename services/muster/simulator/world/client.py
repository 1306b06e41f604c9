"""Whoever puts messages on the topics and repeats them until they are acknowledged: users, operators, telemetry."""

import heapq

import msgspec

from muster.simulator.world.bus import Topics, put
from muster.simulator.world.network import Network
from muster.simulator.world.process import Process

TURN_US = 1_000_000


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """One message to be put."""

    due_us: int
    topic: str
    data: bytes
    key: str = ""
    submits: str = ""
    """The job, where this is a submission."""


class Client:
    """One such process. What it has to do stands on its disk: whoever dies before the answer asks again, with the same id."""

    def __init__(self, process: Process, network: Network, topics: Topics) -> None:
        self.process = process
        self.network = network
        self.topics = topics
        self.accepted: dict[str, int] = {}
        """When each submission was acknowledged first."""
        self._errands: list[tuple[int, int, Errand]] = []
        self._count = 0

    @property
    def idle(self) -> bool:
        """Whether all was acknowledged."""
        return not self._errands

    def add(self, errand: Errand) -> None:
        """One more thing to do."""
        self._count += 1
        heapq.heappush(self._errands, (errand.due_us, self._count, errand))

    async def run(self, process: Process) -> None:
        """Do one errand after another."""
        while True:
            if not self._errands or self._errands[0][0] > process.timeline.now_us:
                await process.pause(TURN_US)
                continue
            first = self._errands[0]
            errand = first[2]
            if await put(process, self.network, self.topics, errand.topic, errand.data, errand.key):
                if errand.submits:
                    self.accepted.setdefault(errand.submits, process.timeline.now_us)
                await process.point("an errand that is done")
                self._errands.remove(first)
                heapq.heapify(self._errands)
