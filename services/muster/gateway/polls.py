"""Long polls of agents: each waits until its node's assignment changes, and costs nothing until then."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from muster.agent.protocol import POLL_S, Wanted
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.gateway.assigning import Assigner
from muster.gateway.live import Live
from muster.gateway.problems import Refused

REMIND_S: Final = 3.0
"""An agent that was told of wanted output and sent nothing is told again after this."""

BEHIND_MAX_US: Final = 15_000_000
"""A gateway that is further behind sends agents to another one: new work would come late by it."""


class Asked(msgspec.Struct):
    """Wanted output, and when the agent was told of it."""

    wanted: Wanted
    told_s: float = -1e9
    answered: bool = False


class Polls:
    """The waiting agents of all nodes."""

    def __init__(self, live: Live, secret: Callable[[str, int, int], str] | None = None) -> None:
        self._live = live
        self._assigner = Assigner(secret)
        self._waiting: dict[str, asyncio.Future[bytes | None]] = {}
        self._asked: dict[str, dict[str, Asked]] = {}
        """Wanted output by node and id."""
        self.closed = False
        self.seen_s: dict[str, float] = {}
        """When the agent of a node last asked here, by the monotonic clock."""
        self.woken = 0
        """How many polls were answered because something changed."""
        live.on_change(self._changed)

    def __len__(self) -> int:
        return len(self._waiting)

    async def poll(self, name: str, after: int, uid: str, wait_s: float = POLL_S) -> bytes | None:
        """The node's assignment once it is newer than cycle `after`, or output is wanted; None when time is up.

        Raises:
            Refused: 404, the node is not known; 409, the name is another's, or the agent has seen another log; 503, the
                gateway ends.
        """
        if self.closed:
            raise Refused(503, "the gateway ends; ask again", headers={"Retry-After": "1"})
        if self._live.behind_us() > BEHIND_MAX_US:
            detail = f"this gateway has not seen the end of the log for {self._live.behind_us() // 1_000_000} s; ask another one"
            raise Refused(503, detail, headers={"Retry-After": "1"})
        self.seen_s[name] = time.monotonic()
        if self._nothing_new(name, after, uid):
            waiting = self._wait(name)
        else:
            found = await self._live.read(lambda state: self._now(state, name, after, uid))
            if isinstance(found, bytes):
                return found
            waiting = found
        late = asyncio.get_running_loop().call_later(min(wait_s, POLL_S), self._late, waiting, after)
        try:
            return await waiting
        finally:
            late.cancel()
            if self._waiting.get(name) is waiting:
                del self._waiting[name]

    def want(self, node: str, wanted: Wanted) -> Asked:
        """Ask the node's agent for output."""
        asked = self._asked.setdefault(node, {})[wanted.id] = Asked(wanted)
        if node in self._waiting:
            waker = asyncio.ensure_future(self._live.read(lambda state: self._wake(state, node)))
            waker.add_done_callback(lambda done: done.exception())
        return asked

    def forget(self, node: str, id: str) -> None:
        """Nobody wants this output any more."""
        of_node = self._asked.get(node, {})
        of_node.pop(id, None)
        if not of_node:
            self._asked.pop(node, None)

    def close(self) -> None:
        """Answer everybody: there is nothing new, and from here on nothing to wait for."""
        self.closed = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    def _now(self, state: State, name: str, after: int, uid: str) -> bytes | asyncio.Future[bytes | None]:
        """The answer, or what to wait for."""
        node = self._node(state, name, uid)
        changed = self._live.books.changed.get(name, state.number)
        if after < changed <= state.number or after == 0 or self._reminds(name):
            return self._answer(state, node)
        return self._wait(name)

    def _nothing_new(self, name: str, after: int, uid: str) -> bool:
        """Whether this poll surely has to wait, as far as can be told without the state: most have."""
        books = self._live.books
        life = books.lives.get(name)
        changed = books.changed.get(name)
        return (
            life is not None
            and (not uid or life[0] == uid)
            and changed is not None
            and changed <= after
            and after > 0
            and not self._reminds(name)
        )

    def _wait(self, name: str) -> asyncio.Future[bytes | None]:
        """What is done when there is something new for the node."""
        earlier = self._waiting.get(name)
        if earlier is not None and not earlier.done():
            earlier.set_result(None)  # an agent polls once at a time: the one before has gone
        waiting = self._waiting[name] = asyncio.get_running_loop().create_future()
        return waiting

    def _late(self, waiting: asyncio.Future[bytes | None], after: int) -> None:
        """Its time is up."""
        if waiting.done():
            return
        if after > self._live.feed.number:
            detail = f"this log has {self._live.feed.number} cycles, and the agent has seen cycle {after} of another one"
            waiting.set_exception(Refused(409, detail))
        else:
            waiting.set_result(None)

    def _node(self, state: State, name: str, uid: str) -> Node:
        node = state.node(name)
        if node is None:
            raise Refused(404, f"no node {name[:64]!r} is registered; its next report is to say what it has")
        if uid and node.uid != uid:
            raise Refused(409, f"the name {name} is held by the node with uid {node.uid}, which is {node.liveness}")
        return node

    def _changed(self, state: State, dirty: dict[str, None]) -> None:
        self._assigner.forget(self._live.books.touched)
        if self._waiting:
            for name in dirty:
                if name in self._waiting:
                    self._wake(state, name)

    def _wake(self, state: State, name: str) -> None:
        waiting = self._waiting.get(name)
        if waiting is None or waiting.done():
            return
        self.woken += 1
        node = state.node(name)
        waiting.set_result(None if node is None else self._answer(state, node))

    def _reminds(self, name: str) -> bool:
        asked = self._asked.get(name)
        if not asked:
            return False
        now = time.monotonic()
        return any(not each.answered and now - each.told_s >= REMIND_S for each in asked.values())

    def _answer(self, state: State, node: Node) -> bytes:
        asked = self._asked.get(node.name, {})
        now = time.monotonic()
        for each in asked.values():
            each.told_s = now
        wanted = tuple([each.wanted for each in asked.values()])
        return self._assigner.assign(state, node.row, self._live.now_us(), wanted)
