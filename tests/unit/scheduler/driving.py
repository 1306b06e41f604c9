"""A core driven by hand: the term, messages, and cycles that are read back at once."""

from typing import Any

import msgspec

from muster.events.base import Event
from muster.events.codec import decode_cycle, encode_entry
from muster.events.levels import NodeReport
from muster.events.record import Cycle
from muster.scheduler.core import Core, Message
from tests.simulation.small_world import WALL_US

JOBS = "muster.jobs/0"
NODES = "muster.nodes/0"
GPU_HEALTH = "muster.gpu-health/0"
OPERATIONS = "muster.operations/0"
SECOND = 1_000_000


class Driver:
    """A core that leads, topics that count offsets, and a clock that is set by hand."""

    def __init__(self, core: Core | None = None) -> None:
        self.core = core if core is not None else Core("main")
        self.at_us = max(WALL_US, self.core.state.at_us)
        self.offsets: dict[str, int] = {}
        self.records: list[bytes] = []
        data = self.core.start_term(self.at_us, "0" * 32, "host", "build", 0)
        self.core.read_back(data)
        self.records.append(data)

    def put(self, source: str, data: bytes | Event | NodeReport, key: str = "", appended_us: int | None = None) -> Message:
        """Offer a message at the next offset of its source."""
        if isinstance(data, NodeReport):
            data = msgspec.json.encode(data)
        elif isinstance(data, Event):
            data = encode_entry(data)
        offset = self.offsets.get(source, 0)
        self.offsets[source] = offset + 1
        message = Message(source, offset, data, self.at_us if appended_us is None else appended_us, key)
        self.core.offer(message)
        return message

    def turn(self, after_s: int = 0, **options: Any) -> Cycle | None:
        """One cycle, `after_s` seconds later."""
        self.at_us += after_s * SECOND
        data = self.core.cycle(self.at_us, **options)
        if data is None:
            return None
        self.records.append(data)
        self.core.read_back(data)
        return decode_cycle(data)

    def inputs(self, after_s: int = 0, **options: Any) -> tuple[Event, ...]:
        """The inputs of one cycle, less the beat."""
        cycle = self.turn(after_s, **options)
        return () if cycle is None else tuple([event for event in cycle.inputs if type(event).__name__ != "NodesHeard"])
