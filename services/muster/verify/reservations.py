"""What is reserved, as the second judge sees it: who may not be where, and who may be told to leave.

Who would be gone when is as for plans (`muster.verify.plans`). Without a time limit somebody is taken to be there for the
policy's horizon; if it is maintenance and he may be preempted, only for an instant.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET

from muster.events.decisions import Piece, Placement
from muster.events.operations import Backfill
from muster.events.reservations import ReservationSet
from muster.verify.plans import NEVER, Planned, Plans
from muster.verify.world import Attempt, Job, World


@dataclass(slots=True, eq=False)
class Kept:
    """One reservation."""

    spec: ReservationSet
    said_us: int
    pieces: tuple[Piece, ...] = ()

    def has(self, name: str, devices: tuple[int, ...]) -> bool:
        """Whether a task on this node with these devices has something of it."""
        return name in self.spec.nodes or any(
            piece.node == name and any(index in piece.devices for index in devices) for piece in self.pieces
        )


class Reservations:
    """All that were set and not removed; those that are over say nothing any more."""

    def __init__(self, world: World, plans: Plans) -> None:
        self.world = world
        self.plans = plans
        self.by_name: dict[str, Kept] = {}

    def put(self, spec: ReservationSet) -> None:
        """It is as this says."""
        self.by_name[spec.reservation] = Kept(spec, self.world.at_us)

    def place(self, name: str, pieces: tuple[Piece, ...]) -> str:
        """Its amount is these devices; what is wrong with them."""
        kept = self.by_name.get(name)
        if kept is None or kept.spec.nodes or kept.spec.windows[-1].until_us <= self.world.at_us:
            return "there is no reservation of an amount that is not over"
        kept.pieces = pieces
        seen: dict[tuple[str, int], None] = {}
        for piece in pieces:
            node = self.world.names.get(piece.node)
            if node is None or node.liveness != "heard" or len(piece.devices) != kept.spec.gpus:
                return f"{piece.node} is not there, or not {kept.spec.gpus} of its devices are named"
            for index in piece.devices:
                device = node.devices[index] if index < len(node.devices) else None
                if device is None or device.health != "healthy" or device.profile or (piece.node, index) in seen:
                    return f"device {index} of {piece.node} is not there, not healthy, a slice, or stands twice"
                seen[piece.node, index] = None
        for other in self.by_name.values():
            if other is not kept and self._at_once(kept, other):
                both = [piece.node for piece in pieces if other.has(piece.node, piece.devices)]
                if both:
                    return f"{both[0]} has some that {other.spec.reservation} has at that time"
        return "" if len(pieces) == kept.spec.count else f"{len(pieces)} pieces are named, {kept.spec.count} are reserved"

    def _at_once(self, one: Kept, other: Kept) -> bool:
        now_us = self.world.at_us
        return any(
            min(a.until_us, b.until_us) > max(a.from_us, b.from_us, now_us)
            for a in one.spec.windows
            for b in other.spec.windows
            if a.until_us > now_us
        )

    def taken(self, job: Job, name: str, places: Iterable[Placement], since_us: int, end_us: int) -> str:
        """Which reservation that is not for the job these places reach into; empty for none."""
        where = [(self.world.rows[place.row].name, place.devices) for place in places if place.row in self.world.rows]
        for kept in self.by_name.values():
            if not self._is_for(kept, job, name) and any(kept.has(*each) for each in where):
                until_us = end_us
                if end_us == NEVER:
                    until_us = since_us + (1 if self._for_nobody(kept) and job.request.preemptible else self._horizon_us())
                for window in kept.spec.windows:
                    if window.from_us < until_us and window.until_us > since_us:
                        return f"it reaches into {kept.spec.reservation}, from {window.from_us} until {window.until_us}"
        return ""

    def planned(self, planned: Planned, places: Iterable[Placement], start_us: int) -> str:
        """The same of a plan."""
        job = planned.instance.job
        return self.taken(job, planned.key[0], places, start_us, self.plans.gone_us(job, start_us))

    def may_leave(self, attempt: Attempt) -> bool:
        """Whether a reservation has begun where the attempt is that is not for it, and of which it was said before."""
        now_us, job = self.world.at_us, attempt.instance.job
        for kept in self.by_name.values():
            open_now = any(w.from_us <= now_us < w.until_us and kept.said_us < w.from_us for w in kept.spec.windows)
            here = any(task.holds and kept.has(task.node.name, task.devices) for task in attempt.tasks.values())
            if open_now and here and job.request.preemptible and not self._is_for(kept, job, attempt.key[0]):
                return True
        return False

    def _horizon_us(self) -> int:
        settings = self.world.policy.backfill
        return Backfill().horizon_us if settings is UNSET else settings.horizon_us

    def _for_nobody(self, kept: Kept) -> bool:
        return not (kept.spec.queue or kept.spec.user or kept.spec.job)

    def _is_for(self, kept: Kept, job: Job, name: str) -> bool:
        spec, books = kept.spec, self.world.books
        queues = [job.queue] if books is None else [job.queue, *books.path(job.queue)]
        return bool(
            (spec.user and spec.user == job.user) or (spec.job and spec.job == name) or (spec.queue and spec.queue in queues)
        )
