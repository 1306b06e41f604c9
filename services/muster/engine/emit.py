"""Where decisions go: each is folded in at once, kept in order, and counted against what a cycle may hold."""

from muster.cluster.evolve import HANDLERS
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.decisions import PassStopped


class Emitter:
    """The decisions of one cycle."""

    __slots__ = ("_most", "decisions", "full", "places_left", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.decisions: list[Event] = []
        self._most = state.policy.decisions_max - 1
        """So many decisions, and `PassStopped`, fit into the cycle."""
        self.places_left = state.policy.placements_max
        self.full = False
        """The cycle holds no more: what is left to decide is decided in the next one."""

    def emit(self, decision: Event) -> None:
        """Decide this."""
        HANDLERS[type(decision)](self.state, decision)
        decisions = self.decisions
        decisions.append(decision)
        if len(decisions) >= self._most:
            self.full = True

    def room_for(self, places: int, decisions: int = 1) -> bool:
        """Whether so many placements in so many decisions still fit into the cycle.

        If not, it is full; unless they would fit into none, which the next cycle cannot mend.
        """
        if places <= self.places_left and len(self.decisions) + decisions <= self._most:
            return True
        policy = self.state.policy
        if places > policy.placements_max or decisions > policy.decisions_max - 1:
            return False
        self.full = True
        return False

    def placed(self, places: int) -> None:
        """So many placements are about to be emitted."""
        self.places_left -= places

    def close(self) -> None:
        """The cycle ends here. If it is full, the log says that there is more to decide."""
        if self.full:
            self.emit(PassStopped())
