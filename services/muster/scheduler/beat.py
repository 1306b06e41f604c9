"""The beat: once an interval, one small input that says which nodes were not heard.

A scheduler that begins to lead has heard nobody yet: its first beat comes a whole interval later.
"""

from collections.abc import Collection

from muster.cluster.state import State
from muster.events.nodes import NodesHeard
from muster.scheduler.reports import Agents


class Beats:
    """Who was heard since the last beat, and when the next is due."""

    __slots__ = ("_heard", "_last_us")

    def __init__(self) -> None:
        self._heard: dict[str, None] = {}
        self._last_us: int | None = None

    def start(self, at_us: int) -> None:
        """An interval begins; nobody was heard in it."""
        self._heard = {}
        self._last_us = at_us

    def stop(self) -> None:
        """No beat is due until `start`."""
        self._heard = {}
        self._last_us = None

    def hear(self, uid: str) -> None:
        """A report of this node was read."""
        self._heard[uid] = None

    def due_us(self, state: State) -> int | None:
        """When the next beat is due by log time; None without nodes or without a term."""
        if self._last_us is None or not state.node_rows:
            return None
        return self._last_us + state.policy.beat_us

    def beat(self, state: State, unread: Collection[str], agents: Agents) -> NodesHeard:
        """The input of this beat.

        Rows are those of the state before the cycle, so it stands before everything else in it. `unread` names the sources
        that could not be read to their end: a node of one of these, or of which nobody knows the source, was not heard and
        nothing follows from it.
        """
        heard = self._heard
        silent = [node for node in state.nodes if node is not None and node.uid not in heard]
        if not unread:
            return NodesHeard(missing=tuple([node.row for node in silent]))
        missing: list[int] = []
        skipped: list[int] = []
        for node in silent:
            source = agents.source(node.uid)
            (skipped if not source or source in unread else missing).append(node.row)
        return NodesHeard(missing=tuple(missing), unread=tuple(skipped))
