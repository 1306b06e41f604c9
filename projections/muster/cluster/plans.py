"""Planned starts: where and when an instance that does not fit is to start, and until when others promise to be gone.

A plan holds nothing of the ledger. It names places, and the engine lets nobody who ranks below take them beyond its start
(`muster.engine.backfill`). Whatever may change when something is free is noted in `Plans.moved`, for the caches of the engine.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from muster.cluster.jobs import Attempt, Instance, Job, Task
from muster.cluster.shapes import Gang, Shape
from muster.events.decisions import Placement
from muster.events.operations import Policy

if TYPE_CHECKING:
    from muster.cluster.state import State

FAR: Final = 2**62
"""Later than any instant: an end that nobody promised."""

MOVED_MAX: Final = 65_536

Where = tuple[int, ...]
"""Where an instance stands among those of equal priority and turn."""

Order = tuple[int, int, Where]
"""In which order a pass asks: the negative priority, 0 for one that lost members or its turn, where it stands."""


class PlannedStart:
    """The plan of one instance."""

    __slots__ = ("at_us", "by_row", "instance", "placements", "start_us", "until_us")

    def __init__(self, instance: Instance, placements: tuple[Placement, ...], start_us: int, at_us: int, until_us: int) -> None:
        self.instance = instance
        self.placements = placements
        self.start_us = start_us
        self.at_us = at_us
        """When it was decided."""
        self.until_us = until_us
        self.by_row: dict[int, list[Placement]] = {}
        for placement in placements:
            self.by_row.setdefault(placement.row, []).append(placement)


class Plans:
    """All plans of a state."""

    __slots__ = ("base", "bits", "by_key", "lengths", "moved", "on", "rows")

    def __init__(self) -> None:
        self.on = False
        """Whether the policy plans."""
        self.lengths = False
        """Whether how long an instance would run tells its class from others: where the policy plans, or orders by it."""
        self.by_key: dict[tuple[str, int], PlannedStart] = {}
        self.rows: dict[int, dict[tuple[str, int], PlannedStart]] = {}
        self.bits = 0
        """The rows on which something is planned, as bits."""
        self.moved: list[int] = []
        """Rows on which something was held, freed, promised or planned otherwise, in order, again and again."""
        self.base = 0
        """How many notes of these were dropped."""

    def add(self, plan: PlannedStart) -> None:
        """It is planned from now on, in the place of what was planned for the instance."""
        key = plan.instance.key
        self.drop(key)
        self.by_key[key] = plan
        for row in plan.by_row:
            self.rows.setdefault(row, {})[key] = plan
            self.bits |= 1 << row
        self.move(plan.by_row)

    def drop(self, key: tuple[str, int]) -> PlannedStart | None:
        """Nothing is planned for the instance any more. What was, is returned."""
        plan = self.by_key.pop(key, None)
        if plan is not None:
            for row in plan.by_row:
                here = self.rows[row]
                del here[key]
                if not here:
                    del self.rows[row]
                    self.bits ^= 1 << row
            self.move(plan.by_row)
        return plan

    def reorder(self, key: tuple[str, int]) -> None:
        """The instance ranks otherwise than before: who is planned on its rows may win or lose by it."""
        plan = self.by_key.get(key)
        if plan is not None:
            self.move(plan.by_row)

    def move(self, rows: Iterable[int]) -> None:
        """Note that these rows moved."""
        self.moved.extend(rows)

    def upto(self) -> int:
        """The position after the newest note."""
        return self.base + len(self.moved)

    def since(self, position: int) -> list[int] | None:
        """The rows that moved since, or None if that is too long ago to say."""
        return None if position < self.base else self.moved[position - self.base :]

    def trim(self) -> None:
        """Drop old notes, so that they stay bounded however long nobody looks."""
        if len(self.moved) > MOVED_MAX:
            self.forget()

    def forget(self) -> None:
        """Drop all notes: anything may have moved."""
        self.base += len(self.moved) + 1
        self.moved = []


def plan(state: "State", instance: Instance, placements: tuple[Placement, ...], start_us: int, until_us: int) -> None:
    """It is planned from now on."""
    dropped(state, instance)
    state.plans.add(PlannedStart(instance, placements, start_us, state.at_us, until_us))
    state.timers.plan.set(instance.key, until_us)


def dropped(state: "State", instance: Instance) -> None:
    """Nothing is planned for it any more: who waits may count on its places."""
    found = state.plans.drop(instance.key)
    if found is not None:
        state.timers.plan.cancel(instance.key)
        for row in found.by_row:
            if row < len(state.ledger.nodes):
                state.ledger.free(row)


def order_of(policy: Policy, instance: Instance, at_us: int) -> Order:
    """Where a pending instance stands in the order of a pass, of whatever queue it is."""
    return -standing(policy, instance.job, at_us), instance.job.turn, where_of(policy, instance)


def where_of(policy: Policy, instance: Instance) -> Where:
    """Where it stands among those of equal priority and turn: by its place, or first by what the policy orders by."""
    return instance.place if not policy.order else (size_of(policy, instance.job), *instance.place)


def size_of(policy: Policy, job: Job) -> int:
    """What the policy orders by: seconds, or seconds times thousandths of what it needs at least; `FAR` where nobody says."""
    if job.limit_us is None:
        return FAR
    length_s = -(-job.limit_us // 1_000_000)
    return length_s if policy.order == "shortest" else length_s * width_of(job.gang)


def width_of(gang: Gang) -> int:
    """What a gang needs at least: thousandths of a GPU, and of a core for tasks that need none."""
    return sum([count * _width(shape) for shape, count in zip(gang.shapes, gang.minima, strict=True)])


def _width(shape: Shape) -> int:
    if shape.needs_device:
        return shape.gpus * 1000 or shape.gpu_milli or 1000
    return shape.cpu_milli


def standing(policy: Policy, job: Job, until_us: int) -> int:
    """The rank of a job, higher for as long as it waited until then."""
    after_us = policy.aging_after_us
    if not after_us:
        return job.rank
    return job.rank + min(policy.aging_max, max(0, until_us - job.submitted_us) // after_us)


def length_us(policy: Policy, job: Job) -> int:
    """How long after its start an attempt is surely gone (semantics 18); `FAR` where nobody says."""
    limit_us = job.limit_us
    return FAR if limit_us is None else limit_us + job.request.grace_us + policy.kill_margin_us


def promised_us(policy: Policy, attempt: Attempt) -> int:
    """When the attempt is to be gone; `FAR` where nobody says. Before its start it is counted from its binding."""
    if attempt.phase == "stop":
        return attempt.kill_at_us + policy.kill_margin_us
    length = length_us(policy, attempt.instance.job)
    return FAR if length == FAR else attempt.running_since_us + length


def task_promised_us(policy: Policy, task: Task) -> int:
    """When what a task holds is to be free."""
    whole_us = promised_us(policy, task.attempt)
    return min(whole_us, task.kill_at_us + policy.kill_margin_us) if task.going else whole_us


def horizon_us(policy: Policy) -> int:
    """How far ahead is planned; 0 where nothing is."""
    return 0 if policy.backfill is UNSET else policy.backfill.horizon_us


def counts_lengths(policy: Policy) -> bool:
    """Whether it matters to others how long somebody who waits would run."""
    return bool(policy.order) or most_plans(policy) > 0


def most_plans(policy: Policy) -> int:
    """How many plans there may be."""
    return 0 if policy.backfill is UNSET else policy.backfill.reservations
