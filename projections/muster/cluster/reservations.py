"""What is reserved: for whom, on which nodes and devices, and when.

A reservation holds nothing of the ledger and charges nobody (semantics 28). It names nodes, or devices that the engine chose
(`ReservationPlaced`), and the engine lets nobody else have them in its windows (`muster.engine.reserved`). It is over, and leaves
the state, when its last window is.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from muster.cluster.jobs import Job
from muster.events.decisions import Piece
from muster.events.reservations import RESERVATIONS_MAX, ReservationRemoved, ReservationSet, Window

if TYPE_CHECKING:
    from muster.cluster.state import State

NAMED_MAX: Final = 3
"""So many of what is at fault are named."""


class Reservation:
    """One that is not over."""

    __slots__ = ("at", "made_us", "pieces", "spec")

    def __init__(self, spec: ReservationSet, made_us: int, at: int = 0, pieces: tuple[Piece, ...] = ()) -> None:
        self.spec = spec
        self.made_us = made_us
        """When it was said."""
        self.at = at
        """Which of its windows is the present or next one."""
        self.pieces = pieces
        """The devices of an amount, once they are chosen."""

    @property
    def window(self) -> Window:
        """The present or next one."""
        return self.spec.windows[self.at]

    @property
    def for_nobody(self) -> bool:
        """Whether it is maintenance."""
        return not (self.spec.queue or self.spec.user or self.spec.job)

    def is_open(self, now_us: int) -> bool:
        """Whether one of its windows is now."""
        return self.window.from_us <= now_us < self.window.until_us

    def pass_over(self, now_us: int) -> bool:
        """Windows that have ended are behind it; whether one is left."""
        windows = self.spec.windows
        while self.at < len(windows) and windows[self.at].until_us <= now_us:
            self.at += 1
        return self.at < len(windows)

    def next_us(self, now_us: int) -> int:
        """When it begins or ends next."""
        window = self.window
        return window.from_us if window.from_us > now_us else window.until_us

    def meets(self, start_us: int, end_us: int) -> Window | None:
        """Its first window of which something lies between these instants."""
        for window in self.spec.windows[self.at :]:
            if window.until_us > start_us:
                return window if window.from_us < end_us else None
        return None


class Reservations:
    """All that are not over, in the order of their names."""

    __slots__ = ("by_job", "by_name", "by_queue", "by_user", "version")

    def __init__(self) -> None:
        self.by_name: dict[str, Reservation] = {}
        self.by_queue: dict[str, list[str]] = {}
        self.by_user: dict[str, list[str]] = {}
        self.by_job: dict[str, list[str]] = {}
        """The names of those that are for a queue, a user, a job."""
        self.version = 0
        """Counts what changed in any: what is made of them before is stale."""

    def put(self, reservation: Reservation) -> None:
        """It is there, in the place of the one of its name."""
        self.by_name[reservation.spec.reservation] = reservation
        self._index()

    def drop(self, name: str) -> None:
        """It is no more."""
        del self.by_name[name]
        self._index()

    def _index(self) -> None:
        self.version += 1
        self.by_name = dict(sorted(self.by_name.items()))
        self.by_queue, self.by_user, self.by_job = {}, {}, {}
        for name, each in self.by_name.items():
            for index, whom in ((self.by_queue, each.spec.queue), (self.by_user, each.spec.user), (self.by_job, each.spec.job)):
                if whom:
                    index.setdefault(whom, []).append(name)


def those_for(state: "State", job: Job) -> list[str]:
    """The names of the reservations that are for the job."""
    reservations = state.reservations
    found = [*reservations.by_user.get(job.user, ()), *reservations.by_job.get(job.id, ())]
    if reservations.by_queue:
        tree = state.tree
        for name in [job.queue] if tree is None else [each.name for each in tree.of(job.queue).path]:
            found += reservations.by_queue.get(name, ())
    return sorted(found)


def mark(state: "State", job: Job) -> str:
    """What tells jobs apart that are equal but for what is reserved for them, or keeps them off."""
    if not state.reservations.by_name:
        return ""
    return f"|{','.join(those_for(state, job))}|{int(job.request.preemptible)}"


# What may be said


def fault(state: "State", known: Mapping[str, ReservationSet], event: ReservationSet | ReservationRemoved, at_us: int) -> str:
    """Why this cannot be said where these reservations are known, in one sentence; empty if it can."""
    name = event.reservation
    if isinstance(event, ReservationRemoved):
        return "" if name in known else f"reservation: there is no reservation {name!r} to remove"
    if name not in known and len(known) >= RESERVATIONS_MAX:
        return f"reservation: there are {len(known)} reservations; at most {RESERVATIONS_MAX} can be"
    if event.windows[-1].until_us <= at_us:
        return "windows: the last is over already"
    missing = [node for node in event.nodes if node not in state.ledger.rows]
    if missing:
        return f"nodes: there is no node {_some(missing)}"
    others = [each for each in known.values() if each.reservation != name and overlap(each, event, at_us) is not None]
    if event.nodes:
        return _taken(state, others, event, at_us)
    pieces = most = 0
    for node in state.ledger.nodes:
        if node is not None:
            there = sum([device.present and not device.profile for device in node.devices])
            most += there // event.gpus
            pieces += max(0, there - _reserved_on(state, others, node.name, there)) // event.gpus
    for each in others:
        if not each.nodes and not _pieces(state, each):  # not chosen yet
            pieces -= -(-each.count * each.gpus // event.gpus)
    if pieces < event.count:
        named = f"; of them {_some([each.reservation for each in others])} reserves at that time some" if pieces < most else ""
        return (
            f"count: {event.count} pieces of {event.gpus} GPUs each on one node are asked for; "
            f"the cluster has {most}{named}, so that {max(0, pieces)} are left"
        )
    return ""


def overlap(one: ReservationSet, other: ReservationSet, at_us: int) -> tuple[Window, Window] | None:
    """The first windows of both that have an instant in common, not over by now."""
    left, right = 0, 0
    while left < len(one.windows) and right < len(other.windows):
        mine, theirs = one.windows[left], other.windows[right]
        if min(mine.until_us, theirs.until_us) > max(mine.from_us, theirs.from_us, at_us):
            return mine, theirs
        if mine.until_us <= theirs.until_us:
            left += 1
        else:
            right += 1
    return None


def _taken(state: "State", others: Iterable[ReservationSet], event: ReservationSet, at_us: int) -> str:
    mine = dict.fromkeys(event.nodes)
    for each in others:
        both = [node for node in each.nodes or [piece.node for piece in _pieces(state, each)] if node in mine]
        met = overlap(each, event, at_us)
        if both and met is not None:
            theirs, asked = met
            return (
                f"nodes: {_some(list(dict.fromkeys(both)))} is reserved by {each.reservation} from {theirs.from_us} until "
                f"{theirs.until_us} us; this asks for it from {asked.from_us} until {asked.until_us} us"
            )
    return ""


def _pieces(state: "State", spec: ReservationSet) -> tuple[Piece, ...]:
    found = state.reservations.by_name.get(spec.reservation)
    return found.pieces if found is not None and found.spec is spec else ()


def _reserved_on(state: "State", others: Iterable[ReservationSet], name: str, there: int) -> int:
    """How many devices of a node these reserve."""
    taken: dict[int, None] = {}
    for each in others:
        if name in each.nodes:
            return there
        for piece in _pieces(state, each):
            if piece.node == name:
                taken.update(dict.fromkeys(piece.devices))
    return len(taken)


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED_MAX]) + (" and others" if len(names) > NAMED_MAX else "")
