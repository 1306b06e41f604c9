"""Who stood clearly before somebody who was bound, by what queues, or users of a fair queue, used of late.

What differs by less than a thousandth is taken to be equal.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Final

import msgspec

from muster.verify.constraints import Place, constraint_fault
from muster.verify.history import History, Key
from muster.verify.places import Gone, node_fault
from muster.verify.queues import Books
from muster.verify.waiting import waiting_fault
from muster.verify.world import Attempt, Instance, Job, Node, Use, World

CLEARLY: Final = Decimal("1.001")

Uses = dict[Node, list[Use]]


class Turns:
    """Who waits for the same as somebody who is bound, looked for once a cycle."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._number = -1
        self._alike: dict[bytes, list[Job]] = {}
        self._said: dict[str, bytes] = {}

    def fault(
        self,
        instance: Instance,
        places: list[Place],
        missing: Callable[[Instance, Uses, Gone], str],
        over_quota: Callable[[Books, Instance, Uses, list[Attempt]], str],
    ) -> str:
        """Who might have had these places and stands clearly before it; empty for nobody. What he lacks is told by the judge."""
        uses: Uses = {}
        for group, node, devices in places:
            uses.setdefault(node, []).append((group, devices))
        for other, text in self.before(instance, places):
            if not missing(other, uses, {}) and not over_quota(self.books, other, uses, []):
                return text
        return ""

    def before(self, instance: Instance, places: list[Place]) -> Iterator[tuple[Instance, str]]:
        """Those who ask for the same, might have these places, and stand clearly before it by what their queues or users used."""
        world = self.world
        if world.books is None or world.books.history is None or instance.job.request.kind or world.policy.strict is True:
            return
        if self._number != world.number:
            self._number, self._alike = world.number, {}
            for name, job in world.jobs.items():
                if job.ended < len(job.instances) and not job.request.kind:
                    if name not in self._said:
                        self._said[name] = msgspec.json.encode(job.request)
                    self._alike.setdefault(self._said[name], []).append(job)
        for job in self._alike.get(msgspec.json.encode(instance.job.request), ()):
            text = self._first(job, instance.job) if job is not instance.job and job.avoid == instance.job.avoid else ""
            other = next((one for one in job.instances if self._waits(one, places)), None) if text else None
            if other is not None:
                yield other, text

    @property
    def books(self) -> Books:
        """Those of a world that has queues."""
        books = self.world.books
        assert books is not None
        return books

    def _waits(self, one: Instance, places: list[Place]) -> bool:
        free = one.attempt is None and not one.outcome and not one.cancelled and one.not_before_us <= self.world.at_us
        named = any(kept.instance is one for kept in self.world.nominations.values())
        if not free or named or waiting_fault(self.world, one):
            return False
        shut = any(node_fault(self.world, one.job, node, group) for group, node, _ in places)
        return not shut and not constraint_fault(self.world, one, places, {})

    def _first(self, one: Job, other: Job) -> str:
        """Why the turn of one is clearly before the other's; empty where it is not, or something else decides."""
        books = self.books
        mine, theirs = books.path(one.queue)[::-1], books.path(other.queue)[::-1]
        apart = next(((a, b) for a, b in zip(mine, theirs, strict=False) if a != b), None)
        if apart is not None:
            (a, first), (b, second) = ((name, self._stands(books, name)) for name in apart)
            return _less(books.history, (a, ""), (b, ""), first[3], second[3]) if first[:3] == second[:3] else ""
        spec = books.said.get(one.queue)
        fair = one.queue == other.queue and spec is not None and spec.order == "fair"
        if not fair or one.user == other.user or one.priority != other.priority or self.world.policy.aging_after_us:
            return ""
        return _less(books.history, (one.queue, one.user), (one.queue, other.user), 1, 1)

    def _stands(self, books: Books, name: str) -> tuple[bool, int, bool, int]:
        """Whether it has less than it is promised, its tier, whether it has a weight, and that."""
        spec, promised, charged = books.said.get(name), books.promised(name), books.charged.get(name, Counter())
        whats = [what for what in promised if what.startswith("gpus")] or [what for what in ("cpu", "memory") if what in promised]
        weight, tier = (spec.weight, spec.tier) if spec is not None else (1, 0)
        return any(charged[what] < promised[what] for what in whats), tier, weight > 0, max(1, weight)


def _less(history: History | None, one: Key, other: Key, weight: int, others_weight: int) -> str:
    used = history.used if history is not None else {}
    mine, theirs = used.get(one, Decimal(0)) / weight, used.get(other, Decimal(0)) / others_weight
    if mine * CLEARLY + 1 >= theirs:
        return ""
    named = [" of ".join([name for name in (user, queue) if name]) for queue, user in (one, other)]
    return f"{named[0]} used {mine:.0f} for its weight, {named[1]} {theirs:.0f}"
