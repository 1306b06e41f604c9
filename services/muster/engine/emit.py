"""Where decisions go: each is folded in at once, kept in order, and counted against what a cycle may hold."""

from muster.cluster.evolve import evolve
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.decisions import PassStopped


class Emitter:
    """The decisions of one cycle."""

    __slots__ = ("decisions", "full", "places_left", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.decisions: list[Event] = []
        self.places_left = state.policy.placements_max
        self.full = False
        """The cycle holds no more: what is left to decide is decided in the next one."""

    def emit(self, decision: Event) -> None:
        """Decide this."""
        evolve(self.state, decision)
        self.decisions.append(decision)
        if len(self.decisions) >= self.state.policy.decisions_max - 1:
            self.full = True

    def room_for(self, places: int) -> bool:
        """Whether so many placements still fit into the cycle; if not, it is full."""
        if places > self.places_left:
            self.full = True
            return False
        return True

    def placed(self, places: int) -> None:
        """So many placements are about to be emitted."""
        self.places_left -= places

    def close(self) -> None:
        """The cycle ends here. If it is full, the log says that there is more to decide."""
        if self.full:
            self.emit(PassStopped())
