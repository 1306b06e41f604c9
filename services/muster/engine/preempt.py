"""Whose place a waiting instance may take, when none is free.

A victim is a whole attempt, or a member of an elastic one that goes on without it (`muster.engine.members`), of the same queue
with a lower priority, preemptible and past its `min_runtime`; where there is a tree of queues, others too
(`muster.engine.reclaim`). What stops already counts as free, but for what is kept of it for others: the beneficiary only waits
for it. There are no victims unless the beneficiary then fits, and no victim is left out of whom it would still fit.

Plans are compared by the ranks of their victims, the highest first, like words; then by tasks that lose their work, then
by the time for which they ran; where there is a tree by what was bound last, which goes first; ties by row (semantics 1).
For a single task every node is looked at: an estimate from below orders the nodes, and the best `EXACT_MAX` of them are
worked out; `SETS_MAX` sets of victims are tried in all.

For a gang, victims are taken off in order of rank until it fits, then spared again one by one, the highest rank first. The
optimum is not promised for gangs (it is a covering problem); legality and minimality are.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final, Protocol

from muster.cluster.jobs import BEHIND, Attempt, Job
from muster.cluster.nodes import Node
from muster.cluster.plans import standing
from muster.cluster.shapes import Shape
from muster.cluster.state import State
from muster.engine.backfill import Backfill
from muster.engine.bound import Bound
from muster.engine.candidates import CandidateCache
from muster.engine.disruption import breaches, last, subsets
from muster.engine.indomain import in_one_domain
from muster.engine.limits import within_limits
from muster.engine.members import Members, going, is_part, split_all, whole_of
from muster.engine.nodeindex import rows_of
from muster.engine.overlay import Overlay
from muster.engine.plan import Plan
from muster.engine.reclaim import Grounds
from muster.engine.room import Left, fits
from muster.engine.rows import devices_for
from muster.engine.yielding import yields
from muster.events.decisions import Placement

EXACT_MAX: Final = 64
SPARED_MAX: Final = 64
SETS_MAX: Final = 512

Rank = tuple[int, int, int]
"""0 for a member that its attempt goes on without; priority; and 1 if it has started: what was bound only loses nothing."""

Found = tuple[tuple[Placement, ...], list[Attempt]]
"""The places, and the attempts that are to be gone from them, those that stop already too."""


class Finder(Protocol):
    """What a search needs of a placer."""

    cache: CandidateCache

    def find(self, job: Job) -> tuple[Placement, ...] | None:
        """Places for a new attempt of an instance of this job, or None."""
        ...

    def excluded(self, avoid: Sequence[str]) -> int:
        """The rows of the nodes with these uids, as bits."""
        ...

    @property
    def bound(self) -> Bound:
        """What jobs ask of their places beside amounts."""
        ...

    @property
    def backfill(self) -> Backfill | None:
        """What is planned, where the policy plans."""
        ...

    @property
    def state(self) -> State:
        """The state in which places are looked for."""
        ...


def search(state: State, placer: Finder, job: Job, grounds: Grounds | None = None) -> Found | None:
    """Places for an instance of the job with the victims that this takes, or None.

    The ledger is as the caller's plan has it (nominations that the job outranks are lifted), and is left so. Where there is a
    tree of queues `grounds` say who may be a victim.
    """
    rules = job.gang.rules
    if rules is not None and placer.bound.required(job, rules):

        def on(state: State, node: Node, job: Job) -> tuple[list[Attempt], list[Attempt]]:
            return _on(state, node, job, grounds)

        def among(state: State, placer: Finder, job: Job) -> Found | None:
            return among_all(state, placer, job, grounds)

        best: Found | None = in_one_domain(state, placer, job, rules, on, _cost, among)
        return best
    if job.gang.single and rules is None:
        closed = placer.bound.closed(job) if placer.bound.around.crowded else 0
        found = _single(state, placer, job, grounds, closed)
        if found is not None or not closed:
            return found
    return among_all(state, placer, job, grounds)


def rank(attempt: Attempt) -> Rank:
    """The rank of a victim: lower goes first.

    Headroom before all others: nobody loses anything; then best-effort; then members that their attempts go on without.
    """
    job = attempt.instance.job
    if job.headroom:
        return 0, job.priority - 2 * BEHIND, 0
    if job.rank != job.priority:
        return 0, job.rank, int(attempt.phase == "run")
    return 1 if is_part(attempt) else 2, job.rank, int(attempt.phase == "run")


def may_be_victim(state: State, attempt: Attempt, job: Job) -> bool:
    """Whether the rules let the job have this attempt preempted."""
    other = attempt.instance.job
    if other.soft:
        return attempt.phase != "stop" and yields(other, job)
    return (
        not job.soft
        and attempt.phase != "stop"
        and other.queue == job.queue
        and other.priority < job.priority
        and standing(state.policy, other, attempt.bound_us) < job.priority
        and other.request.preemptible
        and not (attempt.phase == "run" and state.at_us < attempt.started_us + state.policy.min_runtime_us)
    )


def order(attempt: Attempt) -> tuple[Rank, int, tuple[int, int, int], int]:
    """Victims in the order in which they are taken: the lowest rank, then the latest start, then the latest place."""
    cycle, index, number = attempt.instance.place
    member = -max(attempt.tasks, default=0) if is_part(attempt) else 0
    return rank(attempt), -attempt.running_since_us, (-cycle, -index, -number), member


def _on(state: State, node: Node, job: Job, grounds: Grounds | None = None) -> tuple[list[Attempt], list[Attempt]]:
    """The attempts on a node that stop anyway, and those that may be victims, in their order."""
    stopping: dict[tuple[str, int], Attempt] = {}
    victims: dict[tuple[str, int], Attempt] = {}
    for task in node.tasks:
        attempt = task.attempt
        if attempt.phase == "stop":
            stopping[attempt.instance.key] = attempt
        elif attempt in grounds.victims if grounds is not None else may_be_victim(state, attempt, job):
            victims[attempt.instance.key] = attempt
    dying, there = list(stopping.values()), list(victims.values())
    if state.running_elastic or state.shrinking:
        here = [each for each in state.shrinking if any(task.going and task.node is node for task in each.tasks.values())]
        dying += going(here, lambda task: task.node is node)
        there = split_all(there, lambda task: task.node is node)
    return sorted(dying, key=order), sorted(there, key=order)


# A single task


def _single(state: State, placer: Finder, job: Job, grounds: Grounds | None, closed: int) -> Found | None:
    """On rows that are not `closed` (bits): these others have for themselves."""
    shape = job.gang.shapes[0]
    bits = placer.cache.of(shape).bits & ~placer.excluded(job.avoid) & ~closed
    if grounds is not None:
        bits &= grounds.rows()
    estimates: list[tuple[int, Rank, int, tuple[int, ...], int]] = []
    for row in rows_of(bits):
        node = state.ledger.node(row)
        least = _estimate(state, node, shape, job, grounds)
        if least is not None:
            estimates.append((*least, _newest(node, grounds), row))
    estimates.sort()
    best: tuple[tuple[int, list[Rank], int, int, tuple[int, ...], int], Found] | None = None
    tries = Tries(grounds)
    for tried, (beyond, least_rank, _, newest, row) in enumerate(estimates):
        if best is not None:
            broken, ranks = best[0][:2]
            if tried >= EXACT_MAX or not ranks or (not broken and (beyond or ranks[0] < least_rank)):
                break
        found = _on_node(placer, state, state.ledger.node(row), shape, job, tries)
        if found is not None:
            devices, victims = found
            taken = [attempt for attempt in victims if attempt.phase != "stop"]
            key = (*_cost(state, taken), newest, row)
            if best is None or key < best[0]:
                best = key, ((Placement(0, row, devices),), victims)
    return None if best is None else best[1]


def _newest(node: Node, grounds: Grounds | None) -> tuple[int, ...]:
    """Where there is a tree: what was bound last of all that may go from the node, so that the latest sorts first."""
    if grounds is None:
        return ()
    found = [task.attempt for task in node.tasks if task.attempt in grounds.victims and not task.going]
    return min([tuple([-at for at in (attempt.bound_cycle, *attempt.instance.place)]) for attempt in found], default=())


def _cost(state: State, victims: Sequence[Attempt]) -> tuple[int, list[Rank], int, int]:
    """Tasks beyond budgets, ranks from the highest, tasks, and device time lost."""
    ranks = sorted([rank(attempt) for attempt in victims], reverse=True)
    tasks = sum([attempt.held for attempt in victims])
    lost = sum(
        [
            (state.at_us - attempt.work_since_us) * sum([len(task.devices) for task in attempt.tasks.values()])
            for attempt in victims
            if attempt.phase == "run"
        ]
    )
    return breaches(victims), ranks, tasks, lost


def _estimate(state: State, node: Node, shape: Shape, job: Job, grounds: Grounds | None = None) -> tuple[int, Rank, int] | None:
    """Whether a budget must be broken (1), the highest rank that must go from this node at least, and how many attempts; None
    if all would not be enough."""
    stopping, victims = _on(state, node, job, grounds)
    sorted_victims = last(victims)
    cpu, memory, disk, tasks = node.cpu_free, node.memory_free, node.disk_free, node.tasks_free
    devices = node.whole_free if shape.gpus else 0
    highest: Rank = (-1, 0, 0)
    count = 0
    for attempt in [None, *stopping, *sorted_victims]:
        if attempt is not None:
            for task in attempt.tasks.values():
                if task.holding and task.node is node:
                    cpu += task.shape.cpu_milli
                    memory += task.shape.memory_mib
                    disk += task.shape.disk_mib
                    tasks += 1
                    devices += len(task.devices)
            if attempt.phase != "stop":
                highest = rank(attempt)
                count += 1
        if (
            cpu >= shape.cpu_milli
            and memory >= shape.memory_mib
            and disk >= shape.disk_mib
            and tasks > 0
            and devices >= shape.gpus
            and (count or attempt is not None)
        ):
            return int(count > 0 and breaches(sorted_victims[:count]) > 0), highest, count
    return None


class Tries:
    """Counts the sets of victims that one search tries, and says which may be tried."""

    __slots__ = ("grounds", "left")

    def __init__(self, grounds: Grounds | None = None) -> None:
        self.left = SETS_MAX
        self.grounds = grounds

    def together(self, some: Sequence[Attempt]) -> bool:
        """Whether all these may go."""
        return self.grounds is None or self.grounds.together(some)


def _on_node(
    placer: Finder, state: State, node: Node, shape: Shape, job: Job, tries: Tries
) -> tuple[tuple[int, ...], list[Attempt]] | None:
    """The devices of one task here, and the best set of victims for it; None if all of them would not be enough."""
    stopping, victims = _on(state, node, job, tries.grounds)
    if not Left(node, dict.fromkeys([whole_of(each) for each in [*stopping, *victims]])).may_take(shape):
        return None
    with Plan(state) as plan:
        for attempt in stopping:
            plan.without(attempt, node)
        if placer.backfill is not None:
            placer.backfill.bar_node(plan, node, placer.cache.of(shape))
        start = plan.mark()
        gone: list[Attempt] = []
        for attempt in last(victims):
            if _fits_here(placer, node, shape):
                break
            if not tries.together([*gone, attempt]):
                continue
            plan.without(attempt, node)
            gone.append(attempt)
        if not _fits_here(placer, node, shape):
            return None
        needed = []
        for attempt in reversed(gone):
            mark = plan.mark()
            plan.again(attempt)
            if not _fits_here(placer, node, shape):
                plan.undo(mark)
                needed.append(attempt)
        if breaches(needed):
            plan.undo(start)
            needed = _least_breaches(placer, plan, node, shape, victims, needed, tries)
            for attempt in needed:
                plan.without(attempt, node)
        elif len(needed) > 1:
            plan.undo(start)
            highest = max([rank(attempt) for attempt in needed])
            needed = _best_set(placer, plan, node, shape, [one for one in victims if rank(one) <= highest], needed, tries)
            for attempt in needed:
                plan.without(attempt, node)
        devices = _devices_here(placer, node, shape)
        assert devices is not None
        waited = _spare_in_place(placer, plan, job, stopping, [Placement(0, node.row, devices)], rules=False)
    return devices, [*sorted(waited, key=order), *sorted(needed, key=order)]


def _best_set(
    placer: Finder, plan: Plan, node: Node, shape: Shape, among: Sequence[Attempt], known: list[Attempt], tries: Tries
) -> list[Attempt]:
    """The victims with the best ranks, then costs, of all sets that will do, of which `known` is one.

    From the highest rank down: the fewest of one rank with which it still fits if all below it go, and each choice of so many.
    """
    ranks: dict[Rank, list[Attempt]] = {}
    for attempt in sorted(among, key=order):
        ranks.setdefault(rank(attempt), []).append(attempt)
    steps = sorted(ranks, reverse=True)
    state = placer.state
    best = _cost(state, known), known

    def descend(at: int, chosen: list[Attempt]) -> None:
        nonlocal best
        if at == len(steps):
            cost = _cost(state, chosen)
            if cost < best[0] and tries.together(chosen):
                best = cost, chosen
            return
        below = [attempt for one in steps[at + 1 :] for attempt in ranks[one]]
        for size in range(len(ranks[steps[at]]) + 1):
            enough = False
            for some in combinations(ranks[steps[at]], size):
                if not tries.left:
                    return
                tries.left -= 1
                mark = plan.mark()
                for attempt in (*chosen, *some, *below):
                    plan.without(attempt, node)
                fit = _fits_here(placer, node, shape)
                plan.undo(mark)
                if fit:
                    enough = True
                    descend(at + 1, [*chosen, *some])
            if enough:
                return

    descend(0, [])
    return best[1]


def _least_breaches(
    placer: Finder, plan: Plan, node: Node, shape: Shape, among: Sequence[Attempt], known: list[Attempt], tries: Tries
) -> list[Attempt]:
    """The same where budgets would be broken: of all sets, which are tried from the smallest."""
    best = _cost(placer.state, known), known
    for some in subsets(among):
        if not tries.left:
            break
        tries.left -= 1
        cost = _cost(placer.state, some)
        if cost < best[0] and tries.together(some):
            mark = plan.mark()
            for attempt in some:
                plan.without(attempt, node)
            if _fits_here(placer, node, shape):
                best = cost, list(some)
            plan.undo(mark)
    return best[1]


def _fits_here(placer: Finder, node: Node, shape: Shape) -> bool:
    return _devices_here(placer, node, shape) is not None


def _devices_here(placer: Finder, node: Node, shape: Shape) -> tuple[int, ...] | None:
    """The devices of one task here, behind what is planned; None if it does not fit."""
    with Plan(placer.state) as plan:
        if placer.backfill is not None:
            placer.backfill.bar_node(plan, node, placer.cache.of(shape))
        return devices_for(node.device_free, shape, node.row, placer.state) if fits(node, shape) else None


# A gang


def among_all(state: State, placer: Finder, job: Job, grounds: Grounds | None = None, anywhere: bool = False) -> Found | None:
    """The same for any gang, and for any job that is not about free amounts alone, on the rows that `placer.bound.only` leaves.

    Victims are taken off in order of rank; with `anywhere` also those on other nodes than it could take.
    """
    bits = 0
    for shape in job.gang.shapes:
        bits |= placer.cache.of(shape).bits
    if job.gang.rules is not None and (job.gang.rules.licences or job.gang.rules.anti_affinity):
        bits = state.ledger.registered  # whose leaving helps need not be where the job goes
    bits &= placer.bound.only
    stopping: dict[tuple[str, int], Attempt] = {}
    candidates: dict[tuple[str, int], Attempt] = {}
    if grounds is not None:
        dying, victims = grounds.on(bits)
        stopping = {attempt.instance.key: attempt for attempt in dying}
        candidates = {attempt.instance.key: attempt for attempt in victims}
    for row in rows_of(bits) if grounds is None else ():
        for task in state.ledger.node(row).tasks:
            attempt = task.attempt
            if attempt.phase == "stop":
                stopping[attempt.instance.key] = attempt
            elif may_be_victim(state, attempt, job):
                candidates[attempt.instance.key] = attempt
    if anywhere and grounds is not None:
        candidates = {attempt.instance.key: attempt for attempt in grounds.victims}
    leaving, ordered = list(stopping.values()), list(candidates.values())
    if state.running_elastic or state.shrinking:
        leaving += going(state.shrinking, lambda task: bool(bits >> task.row & 1))
        ordered = split_all(ordered, lambda task: anywhere or bool(bits >> task.row & 1))
    if not leaving and not ordered:
        return None
    ordered = last(sorted(ordered, key=order))
    if grounds is not None:
        ordered = grounds.as_many(ordered)
    with Plan(state) as plan:
        for attempt in leaving:
            plan.without(attempt)
        gone = (_fewest_first if grounds is None else _few_first)(plan, placer, job, ordered)
        if gone is None:
            return None
        places = placer.find(job)
        assert places is not None
        gone = _spare(state, plan, placer, job, gone, places)
        places = placer.find(job)
        assert places is not None
        gone = _spare_in_place(placer, plan, job, _where_it_matters(plan, gone, places), places)
        waited = _spare_in_place(placer, plan, job, leaving, places)
    return places, [*sorted(waited, key=order), *sorted(gone, key=order)]


def _where_it_matters(plan: Plan, gone: list[Attempt], places: Sequence[Placement]) -> list[Attempt]:
    """The same victims; those of whom the core goes fall apart into parts on the very places, and another core."""
    cores = [whole_of(each) for each in gone if isinstance(each, Members) and each.core]
    if not cores:
        return gone
    rows = dict.fromkeys([place.row for place in places])
    for each in gone:
        if whole_of(each) in cores:
            plan.again(each)
    anew = split_all(cores, lambda task: task.row in rows)
    for each in anew:
        plan.without(each)
    return [*[each for each in gone if whole_of(each) not in cores], *anew]


def _fewest_first(plan: Plan, placer: Finder, job: Job, ordered: Sequence[Attempt]) -> list[Attempt] | None:
    """The shortest beginning of the victims with which the job fits, taken off in the plan; None if all are not enough."""
    if placer.find(job) is not None:
        return []
    start = plan.mark()
    for attempt in ordered:
        plan.without(attempt)
    if placer.find(job) is None:
        return None
    low, high = 0, len(ordered)
    while high - low > 1:
        middle = (low + high) // 2
        plan.undo(start)
        for attempt in ordered[:middle]:
            plan.without(attempt)
        if placer.find(job) is None:
            low = middle
        else:
            high = middle
    plan.undo(start)
    for attempt in ordered[:high]:
        plan.without(attempt)
    return list(ordered[:high])


def _few_first(plan: Plan, placer: Finder, job: Job, ordered: Sequence[Attempt]) -> list[Attempt] | None:
    """The same, by trying twice as many each time: where very many may go and few have to."""
    if placer.find(job) is not None:
        return []
    low, high = 0, 0
    while True:
        low, high = high, min(len(ordered), max(8, 2 * high))
        if low == high:
            return None
        start = plan.mark()
        for attempt in ordered[low:high]:
            plan.without(attempt)
        if placer.find(job) is not None:
            break
    first = low
    while high - low > 1:
        middle = (low + high) // 2
        plan.undo(start)
        for attempt in ordered[first:middle]:
            plan.without(attempt)
        if placer.find(job) is None:
            low = middle
        else:
            high = middle
    plan.undo(start)
    for attempt in ordered[first:high]:
        plan.without(attempt)
    return list(ordered[:high])


def _spare(state: State, plan: Plan, placer: Finder, job: Job, gone: list[Attempt], places: Sequence[Placement]) -> list[Attempt]:
    """Put back whom the job can do without. Where there are many, only those on the places found are tried."""
    rows = dict.fromkeys([placement.row for placement in places])
    needed = []
    kept = []
    for attempt in reversed(gone):
        here = any(task.holding and task.node.row in rows for task in attempt.tasks.values())
        if len(gone) > SPARED_MAX and not here and not placer.bound.matters(job, attempt.instance.job):
            plan.again(attempt)
        else:
            kept.append(attempt)
    for tried, attempt in enumerate(kept):
        if tried >= SPARED_MAX:
            needed.append(attempt)
            continue
        mark = plan.mark()
        plan.again(attempt)
        if placer.find(job) is None:
            plan.undo(mark)
            needed.append(attempt)
    return needed


def _spare_in_place(
    placer: Finder, plan: Plan, job: Job, gone: list[Attempt], places: Sequence[Placement], rules: bool = True
) -> list[Attempt]:
    """Those without whose leaving the very places found could not be had. The others hold theirs again in the plan.

    `rules`: also what the job asks for beside amounts, and what others ask of it.
    """
    gang, state = job.gang, placer.state
    special = any(shape.special for shape in gang.shapes)
    wanted: dict[int, list[Placement]] = {}
    for placement in places:
        wanted.setdefault(placement.row, []).append(placement)
    needed = []
    for attempt in reversed(last(sorted(gone, key=order))):
        rows = dict.fromkeys([task.node.row for task in attempt.tasks.values() if task.holding and task.node.row in wanted])
        mark = plan.mark()
        plan.again(attempt)
        overlay = Overlay()
        for row in rows:
            if placer.backfill is not None:
                overlay.less(state.ledger.node(row), placer.backfill.barred(state.ledger.node(row)))
            for placement in wanted[row]:
                overlay.take(state.ledger.node(row), gang.shapes[gang.group_of(placement.rank)], placement.devices)
        if (
            not overlay.enough([state.ledger.node(row) for row in rows])
            or not within_limits(state, job, places)
            or (rules and not placer.bound.in_place(job, places))
            or (special and not _stand(state, plan, job, [place for row in rows for place in wanted[row]]))
        ):
            plan.undo(mark)
            needed.append(attempt)
    return needed


def _stand(state: State, plan: Plan, job: Job, places: Sequence[Placement]) -> bool:
    """Whether tasks that ask for more than amounts can stand on the very places, one after the other."""
    ghost = Attempt(job.instances[0], 0, 0, 0)
    mark = plan.mark()
    for place in places:
        shape, node = job.gang.shapes[job.gang.group_of(place.rank)], state.ledger.node(place.row)
        free = [units if index in place.devices else 0 for index, units in enumerate(node.device_free)]
        if not fits(node, shape) or devices_for(free, shape, place.row, state) is None:
            plan.undo(mark)
            return False
        plan.with_spots(ghost, shape, [(place.row, place.devices)])
    plan.undo(mark)
    return True
