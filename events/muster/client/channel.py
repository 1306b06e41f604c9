"""The way from a client to a cell, as a port: `muster.client.http` goes by a gateway, `muster.client.kafka` by the bus."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec

from muster.client.life import Entry, Outcome
from muster.events.cloudevents import Input
from muster.events.levels import NodeReport


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered to a node's report."""

    lease_us: int = 0
    """From when the report was sent, the node's tasks may run on for so long; 0 where only the bus answered, which knows
    none: then it is the policy's `lease_us`."""
    known: bool = True
    """Whether the cell knows this boot of the node. If not, the next report has to say what the node has."""
    warning: str = ""


class Channel(Protocol):
    """One way. Every call goes on trying for the client's patience, and what it sends carries the same id each time.

    Raises `muster.client.errors.ClientError`.
    """

    async def open(self) -> None:
        """Connect, where there is something to connect to beforehand."""
        ...

    async def put(self, topic: str, event: Input) -> int:
        """Hand an input in; returns when it is durable. The cycle in which it was recorded, or 0 where that is not known yet."""
        ...

    async def report(self, report: NodeReport) -> Reported:
        """Hand a node's report in; returns when it is durable."""
        ...

    def follow(self, job: str) -> AsyncGenerator[Entry, None]:
        """The entries about a job from its submission on, as they are recorded, each once. It does not end by itself."""
        ...

    async def outcomes(self, jobs: Sequence[str]) -> dict[str, Outcome]:
        """How these jobs ended, once all have."""
        ...

    async def close(self) -> None:
        """Let go of the connections."""
        ...
