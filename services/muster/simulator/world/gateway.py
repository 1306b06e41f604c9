"""A gateway: follows the log, serves assignments by long poll, and puts reports on `muster.nodes`, answering after the topic."""

import asyncio

from muster.cluster.assignment import assignment
from muster.cluster.evolve import apply
from muster.cluster.state import State
from muster.events.codec import open_envelope
from muster.events.levels import Assignment
from muster.log.admit import Admitted, Halt, admit, genesis
from muster.log.errors import LogHalted
from muster.log.memory import MemoryBroker
from muster.scheduler.messages import NODES
from muster.simulator.world.bus import Topics, WorldLog, put
from muster.simulator.world.network import Network, Reply, Unanswered, Work, serve
from muster.simulator.world.process import MILLION, Process

CELL = "main"
POLL_US = 2 * MILLION
"""How long a poll waits for news."""


class Gateway:
    """One gateway, incarnation after incarnation. Each starts without knowing anything."""

    def __init__(self, process: Process, network: Network, topics: Topics, broker: MemoryBroker) -> None:
        self.process = process
        self.name = process.name
        self.network = network
        self.topics = topics
        self.broker = broker
        self.head = genesis(CELL)
        self.state = State(CELL)
        self.position = 0
        self._waiting: list[asyncio.Future[None]] = []
        """Polls that wait for the next cycle."""

    async def run(self, process: Process) -> None:
        """Follow the log."""
        log = WorldLog(process, self.network, self.broker)
        self.head = genesis(CELL)
        self.state = State(CELL)
        self.position = 0
        self._waiting = []
        while True:
            records = await log.read(self.position)
            for record in records:
                verdict = admit(self.head, record.data)
                if isinstance(verdict, Halt):
                    raise LogHalted(record.position, self.head.number, verdict.reason)
                if isinstance(verdict, Admitted):
                    self.head = verdict.head
                    apply(self.state, open_envelope(verdict.envelope))
                self.position = record.position
            waiting, self._waiting = self._waiting, []
            for news in waiting:
                if not news.done():
                    news.set_result(None)
            if not records:
                await log.wait(self.position, 1.0)

    def handle(self, work: Work, reply: Reply) -> None:
        """See `Party`."""
        serve(self.process, work, reply)

    async def report(self, node: str, data: bytes) -> bool:
        """Put a report on the topic. Does not answer before the topic has.

        Raises:
            Unanswered: it may stand there, and the agent is told nothing.
        """
        if not await put(self.process, self.network, self.topics, NODES, data, node):
            raise Unanswered("the topic did not answer")
        return True

    async def poll(self, node: str, life: tuple[str, str], applied: int) -> Assignment | None:
        """The assignment of this life (uid, boot) of the node, once one is newer than `applied`; None if that takes long."""
        try:
            async with asyncio.timeout(POLL_US / MILLION):
                while True:
                    state = self.state
                    known = state.node(node)
                    if state.number > applied and known is not None and (known.uid, known.boot) == life:
                        return assignment(state, known.row)
                    news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(news)
                    await news
        except TimeoutError:
            return None
