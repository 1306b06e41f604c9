"""Planned starts, and the one rule that protects them: nobody starts where that delays the plan of somebody who ranks above.

`Backfill.bar` is that rule. Every path that looks for places (a first pass, taken nominations, preemption, the replacement
of members) looks through `Placer`, which asks it: on each row where something is planned that begins before the asker would
be gone, what the plan needs is taken off for as long as the places are looked for. So an asker that ends before, or uses
none of what is planned, is not kept off anything.

`Backfill.consider` plans: in the order of a pass, for the first so many who do not fit. A plan is kept as long as it can
be had and nothing earlier can. It is looked at again if something moved since (`Plans.moved`) that it needs or that may let it
start earlier. That only saves looking: looked at again it would stay.

Where queues stand in a tree the turn of somebody who ranks above may come later. What is planned for such is planned behind
as well, as long as his turn has not come.
"""

from typing import Final

import numpy as np
from msgspec import UNSET

from muster.cluster.jobs import Instance
from muster.cluster.nodes import Node
from muster.cluster.plans import FAR, Order, PlannedStart, length_us, most_plans, order_of, promised_us
from muster.cluster.queues import PendingClass
from muster.cluster.state import State
from muster.engine.candidates import CandidateCache, Candidates
from muster.engine.emit import Emitter
from muster.engine.horizon import Horizon, with_room
from muster.engine.nodeindex import rows_of
from muster.engine.plan import Plan
from muster.engine.profile import curve, less, tasks_that_fit
from muster.engine.reserved import Reserved
from muster.events.decisions import PlanDropped, StartPlanned
from muster.events.operations import Backfill as Settings

HOPELESS_MAX: Final = 64
"""So many classes that can be planned nowhere are tried in a round."""

LOOKED_MAX: Final = 4096
"""If more rows moved than this, everything is looked at again."""

CHAINS_MAX: Final = 65_536

InstanceKey = tuple[str, int]
Behind = tuple[int, tuple[InstanceKey, ...]]
"""The chain of those kept or made before it in its round, and those who rank above it and whose turn had not come."""


class Since:
    """The rows that moved since a position, each once, as they are known up to another."""

    __slots__ = ("array", "few", "position", "rows", "upto")

    def __init__(self, position: int) -> None:
        self.position = self.upto = position
        self.rows: dict[int, None] = {}
        self.array = np.zeros(LOOKED_MAX, dtype=np.int64)
        """The same, in its beginning."""
        self.few = True

    def add(self, notes: list[int] | None) -> bool:
        """These moved too; None: any may have. Whether they are not too many in all."""
        if notes is None:
            self.few = False
        for row in notes or ():
            if self.few and row not in self.rows:
                if len(self.rows) >= LOOKED_MAX:
                    self.few = False
                    break
                self.array[len(self.rows)] = row
                self.rows[row] = None
        return self.few


class Backfill:
    """The plans of a state as the engine sees them in a pass. Everything but the state is a cache."""

    __slots__ = (
        "_alone",
        "_asker",
        "_behind",
        "_chain",
        "_chains",
        "_end_us",
        "_hopeless",
        "_kept",
        "_looked",
        "_most",
        "_position",
        "_seen",
        "_since",
        "_through",
        "_together",
        "cache",
        "counted",
        "horizon",
        "reserved",
        "settings",
        "state",
    )

    def __init__(self, state: State, cache: CandidateCache, settings: Settings, most: int) -> None:
        self.state = state
        self.cache = cache
        self.settings = settings
        self.horizon = Horizon(state, cache, settings)
        self._asker: Order = (0, 0, (0, 0, 0))
        self._end_us = 0
        self._alone = False
        self._most = most
        self.reserved = Reserved(state)
        self.counted = 0
        """Plans kept or made in this round."""
        self._seen: dict[InstanceKey, None] = {}
        """Whose they are."""
        self._hopeless: dict[tuple[str, tuple[str, ...]], None] = {}
        self._position = -1
        """Up to where of `Plans.moved` the horizon knows."""
        self._looked: dict[InstanceKey, int] = {}
        """Up to where of it a plan was looked at."""
        self._together: list[InstanceKey] = []
        """Plans that were looked at in this round; since then nothing moved but by plans of those who rank below them."""
        self._through = -1
        """Up to where that is so."""
        self._kept: dict[InstanceKey, int] = {}
        """Until when a plan that was looked at relies on nobody who is overdue."""
        self._since = Since(-1)
        self._chains: dict[tuple[int, InstanceKey], int] = {}
        self._chain = 0
        """Tells which plans were kept or made in this round so far: the same for the same, one after the other."""
        self._behind: dict[InstanceKey, Behind] = {}
        """Behind which plans a plan was looked at, where queues stand in a tree."""

    # The rule

    def ask_for(self, instance: Instance, since_us: int | None = None, first: bool = False) -> None:
        """Places are looked for from now on for this instance.

        Args:
            instance: who would start.
            since_us: when it would start, if not now.
            first: it lost members, and comes before those who wait.
        """
        start_us = self.state.at_us if since_us is None else since_us
        length = length_us(self.state.policy, instance.job)
        self._end_us = FAR if length == FAR else start_us + length
        attempt = instance.attempt
        if attempt is not None:
            self._end_us = promised_us(self.state.policy, attempt)
        self.reserved.ask_for(instance, start_us, self._end_us)
        rules = instance.job.gang.rules
        self._alone = rules is not None and rules.exclusive
        order = self._order(instance)
        self._asker = (order[0], 0, order[2]) if first else order

    def _order(self, instance: Instance) -> Order:
        return order_of(self.state.policy, instance, self.state.at_us)

    def for_ever(self) -> None:
        """As if nobody knew when the asker would be gone."""
        self._end_us = FAR

    @property
    def end_us(self) -> int:
        """When the asker would be gone."""
        return self._end_us

    @property
    def bits(self) -> int:
        """The rows on which something is planned, or reserved and kept from the asker."""
        return self.state.plans.bits | self.reserved.bits

    def binds(self, planned: PlannedStart, end_us: int) -> bool:
        """Whether the asker, gone by then, may not delay this plan."""
        return planned.start_us < end_us and self._order(planned.instance) < self._asker

    def bar(self, plan: Plan, wanted: list[Candidates]) -> int:
        """Take off, in the plan, what the asker may not have; the rows on which nothing of what it wants is left, as bits."""
        bits, closed = 0, self.reserved.closed
        for candidates in wanted:
            bits |= candidates.bits & with_room(self.state.ledger, candidates.shape)
        bits &= self.bits & ~closed
        for row in rows_of(bits):
            node = self.state.ledger.node(row)
            on = self.state.plans.rows.get(row, {}) if self._alone else {}
            if any(self.binds(each, self._end_us) for each in on.values()):
                closed |= 1 << row  # it would be there alone
                continue
            if not any(self._devices_left(node, candidates) for candidates in wanted):
                closed |= 1 << row
                continue
            barred = self.barred(node)
            if not barred:
                continue
            if any(self._left(node, barred, candidates) for candidates in wanted):
                plan.bar(node, barred, wanted)
            else:
                closed |= 1 << row
        return closed

    def bar_node(self, plan: Plan, node: Node, candidates: Candidates) -> None:
        """Take off what the asker may not have on this node, as the ledger has it in the plan."""
        if self.bits >> node.row & 1:
            barred = self.barred(node)
            if barred:
                plan.bar(node, barred, [candidates])

    def barred(self, node: Node) -> list[int]:
        """What of what is free on the node the asker must leave for the plans that bind it; empty for nothing."""
        if not self.bits >> node.row & 1:
            return []
        binding = [each for each in self.state.plans.rows.get(node.row, {}).values() if self.binds(each, self._end_us)]
        reserved = self.reserved.bits >> node.row & 1
        if not binding and not reserved:
            return []
        free = curve(self.state, node, lenient=True).raw[0]
        barred = self.reserved.kept(node, free) if reserved else []
        if binding:
            here = curve(self.state, node, [self.horizon.use(node, each) for each in binding], lenient=True)
            least = here.least(self.state.at_us, self._end_us)
            planned = [max(0, now - then) for now, then in zip(free, least, strict=True)]
            barred = [max(pair) for pair in zip(barred, planned, strict=True)] if barred else planned
        return barred if any(barred) else []

    def _devices_left(self, node: Node, candidates: Candidates) -> bool:
        """Whether as many devices as a task wants whole are free and not planned on: what is cheap to say, said first."""
        gpus = candidates.shape.gpus
        if not gpus:
            return True
        planned: dict[int, None] = dict.fromkeys(self.reserved.devices.get(node.row, ()))
        for each in self.state.plans.rows.get(node.row, {}).values():
            if self.binds(each, self._end_us):
                for placement in each.by_row[node.row]:
                    planned.update(dict.fromkeys(placement.devices))
        free, units = node.device_free, node.device_units
        idle = sum([free[index] == units[index] for index in planned if index < len(free)])
        return node.whole_free - idle >= gpus

    def _left(self, node: Node, barred: list[int], candidates: Candidates) -> bool:
        """Whether one task fits beside what is barred."""
        if not candidates.bits >> node.row & 1:
            return False
        return tasks_that_fit(node, candidates.shape, less(node, barred), 1) > 0

    # Planning

    def begin(self) -> None:
        """A round begins: nobody was considered yet."""
        if self._most:
            self.horizon.begin(self._moved())
        self.counted = 0
        self._seen = {}
        self._hopeless = {}
        self._part()
        self._chain = 0
        for key in [key for key in self._looked if key not in self.state.plans.by_key]:
            del self._looked[key], self._kept[key]
            self._behind.pop(key, None)

    def _moved(self) -> list[int] | None:
        """The rows that moved since this was last asked; None if any may have."""
        plans = self.state.plans
        position, self._position = self._position, plans.upto()
        return plans.since(position) if position >= 0 else None

    def order_limit(self) -> Order | None:
        """Who ranks below this cannot be planned, as things stand; None if anybody may."""
        plans = self.state.plans.by_key
        if not self._most:
            return -FAR, 0, (0, 0, 0)
        if len(plans) < self._most:
            return None
        return max([self._order(planned.instance) for planned in plans.values()])

    @property
    def open(self) -> bool:
        """Whether one more may be planned in this round."""
        return self.counted < self._most and len(self._hopeless) < HOPELESS_MAX

    def consider(self, emitter: Emitter, waiting: PendingClass, instance: Instance) -> bool:
        """Plan for an instance that does not fit now; whether it left its class."""
        state = self.state
        if instance.job.soft:
            return False  # it is owed no start
        if waiting.gang.rules is not None and not waiting.gang.rules.foreseen:
            return False  # where such a job may be depends on who will be there then, which nobody knows
        planned = state.plans.by_key.get(instance.key)
        gang = (waiting.gang.key, waiting.avoid)
        if planned is None and (not self.open or gang in self._hopeless):
            return False
        if self.counted >= self._most:
            return self._drop(emitter, instance, "outranked")
        self._take_in()
        if self.state.plans.upto() != self._through:
            self._part()
        later = self._later(instance) if state.tree is not None else []
        behind = self._chain, tuple([each.instance.key for each in later])
        same = state.tree is None or self._behind.get(instance.key) == behind
        clear = planned is None or self.reserved.clear_of(planned)
        if planned is not None and clear and same and self._stays(planned):
            self._count(planned, behind)
            return False
        before = self.horizon.only([*self.horizon.before, *later]) if later else []
        found = self.reserved.earliest(self.horizon, instance)
        holds = planned is not None and clear and self.horizon.holds(planned, lenient=found is None)
        if later:
            self.horizon.only(before)
        if planned is not None and holds and (found is None or found[0] >= planned.start_us):
            self._kept[instance.key] = self.horizon.relies_until(planned, later)
            self._count(planned, behind)
            return False
        if found is None:
            self._hopeless[gang] = None
            return planned is not None and self._drop(emitter, instance, "infeasible")
        start_us, places = found
        if not emitter.room_for(len(places)):
            return False
        emitter.placed(len(places))
        emitter.emit(
            StartPlanned(
                job=instance.job.id,
                instance=instance.index,
                placements=places,
                start_us=start_us,
                until_us=state.at_us + self.settings.plan_ttl_us,
            )
        )
        self._position = state.plans.upto()  # what a plan moves holds nothing
        self._kept[instance.key] = self.horizon.relies_until(state.plans.by_key[instance.key], later)
        self._count(state.plans.by_key[instance.key], behind)
        return True

    def _later(self, instance: Instance) -> list[PlannedStart]:
        """The plans of those who rank above and whose turn has not come in this round."""
        mine = self._order(instance)
        plans = [each for each in self.state.plans.by_key.values() if each.instance.key not in self._seen]
        return [each for each in plans if each.instance is not instance and self._order(each.instance) < mine]

    def _take_in(self) -> None:
        """What moved in this round so far."""
        if self.state.plans.upto() != self._position:
            self.horizon.moved(self._moved())

    def _drop(self, emitter: Emitter, instance: Instance, reason: str) -> bool:
        emitter.emit(PlanDropped(job=instance.job.id, instance=instance.index, reason=reason))  # type: ignore[arg-type]
        return True

    def _stays(self, planned: PlannedStart) -> bool:
        """Whether the plan surely stays, by what moved since it was looked at: it can still be had, and nothing earlier can."""
        key = planned.instance.key
        position = self._looked.get(key)
        if position is None or self._kept[key] < self.state.at_us:
            return False
        moved = self._rows_since(position)
        if moved is None:
            return False
        if any(row in moved.rows for row in planned.by_row):
            return False
        return not self.horizon.any_sooner(planned, moved.array[: len(moved.rows)])

    def _part(self) -> None:
        """Others moved something: the plans looked at so far have seen what was before."""
        for key in self._together:
            self._looked[key] = self._through
        self._together = []

    def _rows_since(self, position: int) -> "Since | None":
        """Which rows moved since, each once; None for too many."""
        since, plans = self._since, self.state.plans
        if since.position != position:
            since = self._since = Since(position)
        notes = plans.since(since.upto)
        since.upto = plans.upto()
        return since if since.add(notes) else None

    def _count(self, planned: PlannedStart, behind: Behind) -> None:
        """The plan is made or kept: who comes after in this round plans behind it."""
        key = planned.instance.key
        self.counted += 1
        self._seen[key] = None
        if self.state.tree is not None:
            self._behind[key] = behind
            if len(self._chains) >= CHAINS_MAX:
                self._chains.clear()
                self._behind.clear()
            self._chain = self._chains.setdefault((self._chain, key), len(self._chains) + 1)
        self._looked[key] = self._through = self.state.plans.upto()
        if self.state.tree is None:
            self._together.append(key)
        if key not in self._kept:
            self._kept[key] = -1
        self.horizon.put(planned)


def backfill_for(state: State, cache: CandidateCache) -> Backfill | None:
    """As the policy says, or None where it plans nothing and nothing is reserved."""
    settings, most = state.policy.backfill, most_plans(state.policy)
    if not most and not state.reservations.by_name:
        return None
    return Backfill(state, cache, Settings() if settings is UNSET else settings, most)
