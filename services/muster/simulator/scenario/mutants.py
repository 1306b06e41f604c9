"""The engine with one rule left out, for `muster.simulator.scenario.mutate`.

A mutant puts something else in the place of a function of the core while a scene is played. The core has no switches for
this, and nothing here is used by any program.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec

from muster.cluster import catalogue, dependencies, evolve, evolve_jobs, evolve_nodes, evolve_tasks, jobs, plans, snapshot, usage
from muster.cluster.jobs import TERMINAL, Attempt, Instance, Job, Task, job_of
from muster.cluster.ledger import Ledger
from muster.cluster.nodes import Claim, Device, Node
from muster.cluster.queues import PendingClass
from muster.cluster.queuetree import Charge, Queue, QueueTree
from muster.cluster.shapes import Shape
from muster.cluster.state import State
from muster.engine import (
    disruption,
    gate,
    hope,
    lifecycle,
    order,
    place,
    preempt,
    profile,
    reclaim,
    reserved,
    yielding,
)
from muster.engine.around import Around
from muster.engine.bestfit import BestFit, Spot
from muster.engine.bound import Bound
from muster.engine.candidates import Candidates
from muster.engine.caps import Caps
from muster.engine.emit import Emitter
from muster.engine.filters import FILTERS, JOB_FILTERS
from muster.engine.filters.resources import ResourcesFilter
from muster.engine.filters.selector import SelectorFilter
from muster.engine.horizon import Horizon
from muster.engine.limits import Limits
from muster.engine.passes import Asked, Pass
from muster.engine.place import Placer
from muster.engine.reserved import Reserved
from muster.engine.scores import HOLDINGS, STATIC
from muster.engine.scores.preferred import Preferred
from muster.events.base import INT_MAX, Event
from muster.events.decisions import AttemptEnded, InstanceBound, InstancePreempted, InstanceStarted, NodeSilent, StopOrdered
from muster.events.jobs import Dependency, JobCancelRequested, JobReprioritised, JobRevised
from muster.events.nodes import (
    DeviceHealthChanged,
    ForeignUseChanged,
    NodeRegistered,
    NodeRemoved,
    TaskExited,
    TaskReady,
    TaskStarted,
)
from muster.events.operations import (
    InputRefused,
    LeaseExtended,
    LicencesSet,
    NodeCordoned,
    NodeDrained,
    NodeFenced,
    NodeUncordoned,
    Policy,
)
from muster.events.queues import QueueRemoved, QueueSet
from muster.events.reservations import ReservationRemoved, ReservationSet
from muster.events.services import JobMetricReported, JobScaleRequested
from muster.scheduler import reports
from muster.scheduler.beat import Beats
from muster.scheduler.core import Core
from muster.scheduler.recorder import Recorded
from muster.simulator.scenario.leaving_out import Mutant
from muster.simulator.scenario.leaving_out import both as _both
from muster.simulator.scenario.leaving_out import handling as _handling
from muster.simulator.scenario.leaving_out import ignored as _ignored
from muster.simulator.scenario.leaving_out import instead as _instead
from muster.simulator.scenario.mutants_elastic import elastic_mutants
from muster.simulator.scenario.mutants_services import service_mutants
from muster.simulator.scenario.world import World

HUGE = 2**60


def _most_capable_first(capability: int, bandwidth_gbs: int, memory_mib: int, name: str) -> tuple[int, int, int, str]:
    return -capability, -bandwidth_gbs, -memory_mib, name


def _passing_jobs(self: Any, around: Any, job: Job, among: int) -> int:
    return among


def _in_one_tier(self: Any, index: Any, shape: Shape, among: int) -> list[tuple[int, int]]:
    return [(0, among)]


def _all_equal(self: Any, view: Any, shape: Shape, rows: Any) -> Any:
    return rows * 0


def _one_domain_for_all(self: Bound, levels: Any, among: int) -> Any:
    return [((), among)]


def _anywhere_again(self: Bound, instance: Instance, counts: tuple[int, ...], closed: int, minima: Any = None) -> Any:
    rules = instance.job.gang.rules
    assert rules is not None
    offsets = tuple([sum(counts[:group]) for group in range(len(counts))])
    return self._place(instance.job, rules, self.allowed_more(instance) & ~closed, minima or counts, counts, offsets)


def _largest_domain(self: Bound, *args: Any) -> Any:
    return reversed(list(_parts(self, *args)))


def _passing(self: Any, index: Any, shape: Shape, among: int) -> int:
    return among


_emit = Emitter.emit
_holds = dependencies.holds
_ended = lifecycle._ended
_faulty = lifecycle._faulty
_mark = jobs.mark
_rank = preempt.rank
_on_node = preempt._on_node
_recount = Node.recount
_one = BestFit.one
_describe = Device.describe
_ask = Pass._ask
_parts = Bound._parts
_made = PendingClass.__init__
_add = Recorded.add
_beat = Beats.beat
_set_policy = World.set_policy
_begin = evolve.begin_cycle


# Order and preemption


def _described_whole(self: Device, spec: Any) -> None:
    _describe(self, msgspec.structs.replace(spec, profile=msgspec.UNSET))


def _without_priority(self: PendingClass, key: Any, job: Job) -> None:
    _made(self, key, job)
    self.priority = 0


def _preempt_first(self: Pass, waiting: PendingClass, instance: Instance) -> bool:
    if instance.key not in self.state.nominations and self._preempt(instance, []):
        return True
    return _ask(self, waiting, instance)


def _anybody(state: State, attempt: Attempt, job: Job) -> bool:
    """Everybody once: else equals preempt each other for ever."""
    return attempt.phase != "stop" and attempt.instance.job is not job and attempt.number == 1


def _everybody_there(placer: Placer, state: State, node: Node, shape: Shape, job: Job, tries: Any) -> Any:
    found = _on_node(placer, state, node, shape, job, tries)
    if found is None:
        return None
    stopping, victims = preempt._on(state, node, job)
    return found[0], [*stopping, *victims]


def _spare_nobody(state: State, plan: Any, placer: Any, job: Job, gone: list[Attempt], places: Any) -> list[Attempt]:
    return gone


def _no_hopeless(state: State, condition: Dependency, since_us: int) -> bool | None:
    """What can never be is waited for all the same."""
    known = condition.job in state.jobs
    return (_holds(state, condition, since_us) or None) if known else None


def _all_in_play(*args: Any) -> Job:
    job = job_of(*args)
    job.next = len(job.instances)
    return job


def _no_grace(self: Emitter, decision: Event) -> None:
    if isinstance(decision, InstancePreempted | StopOrdered):
        decision = msgspec.structs.replace(decision, kill_at_us=self.state.at_us)
    _emit(self, decision)


def _free_at_notice(self: Emitter, decision: Event) -> None:
    _emit(self, decision)
    if isinstance(decision, InstancePreempted | StopOrdered):
        attempt = self.state.attempt(decision.job, decision.instance, decision.attempt)
        for task in list(attempt.tasks.values()) if attempt is not None else ():
            if task.holding:
                evolve_tasks.release(self.state, task, "exited")
        self.full = self.full or bool(self.state.todo)  # the next cycle ends what holds nothing now


# Kinds


def _mark_batch(job: Job) -> None:
    _mark(job)
    job.spare = job.headroom = False
    job.apart = job.tag


def _mark_without_turn(job: Job) -> None:
    _mark(job)
    job.turn = jobs.NO_TURN


# Gangs


def _partial(self: Placer, job: Job) -> Any:
    gang = job.gang
    minima = tuple([min(1, minimum) for minimum in gang.minima])
    return self.places(job, gang, minima, gang.counts, gang.offsets, self.excluded(job.avoid))


def _minimum_of_the_whole(self: Placer, job: Job) -> Any:
    gang = job.gang
    left = sum(gang.minima)
    minima = []
    for count in gang.counts:
        minima.append(min(left, count))
        left -= minima[-1]
    return self.places(job, gang, tuple(minima), gang.counts, gang.offsets, self.excluded(job.avoid))


def _only_the_minimum(self: Placer, job: Job) -> Any:
    gang = job.gang
    return self.places(job, gang, gang.minima, gang.minima, gang.offsets, self.excluded(job.avoid))


def _no_barrier(self: Emitter, decision: Event) -> None:
    _emit(self, decision)
    if isinstance(decision, InstanceBound):
        _emit(self, InstanceStarted(job=decision.job, instance=decision.instance, attempt=decision.attempt))


def _no_degradation(state: State, attempt: Attempt, fault: Any) -> Event:
    request = attempt.instance.job.request
    with mock.patch.object(attempt.instance.job, "request", msgspec.structs.replace(request, degraded_grace_us=0)):
        return _faulty(state, attempt, fault)


# What comes of an attempt


def _no_requeue(state: State, attempt: Attempt, *args: Any) -> Event:
    ended = _ended(state, attempt, *args)
    if isinstance(ended, AttemptEnded) and ended.then == "pending":
        return msgspec.structs.replace(ended, then="failed", not_before_us=0, avoid="")
    return ended


def _no_blame(state: State, attempt: Attempt, *args: Any) -> Event:
    ended = _ended(state, attempt, *args)
    return msgspec.structs.replace(ended, not_before_us=0, avoid="") if isinstance(ended, AttemptEnded) else ended


def _always_retried(state: State, attempt: Attempt, *args: Any) -> Event:
    ended = _ended(state, attempt, *args)
    if isinstance(ended, AttemptEnded) and ended.then == "failed":
        return msgspec.structs.replace(ended, then="pending")
    return ended


def _requeue_last(self: Emitter, decision: Event) -> None:
    if isinstance(decision, AttemptEnded) and decision.then == "pending":
        last = self.state.index + len(self.decisions)  # no two stand at one place
        self.state.jobs[decision.job].instances[decision.instance].place = (self.state.number, last, 0)
    _emit(self, decision)


def _no_time_limit(instance: Instance) -> int | None:
    return None


# Reports


def _any_report(state: State, node: Node, task: Any, applied: int) -> tuple[int, bool]:
    return 0, True


def _any_attempt(state: State, event: Any) -> Any:
    instance = state.instance(event.job, event.instance)
    task = instance.attempt.tasks.get(event.rank) if instance is not None and instance.attempt is not None else None
    return task if task is not None and task.holding else None


def _reviving(kind: type[Event], phase: str) -> Callable[[State, Any], None]:
    handle = evolve.HANDLERS[kind]

    def revive(state: State, event: Any) -> None:
        instance = state.instance(event.job, event.instance)
        if instance is not None and instance.phase in TERMINAL:
            instance.phase = phase or ("failed" if event.code else "finished")
        else:
            handle(state, event)

    return revive


def _refusals_unsaid(self: Recorded, event: Event, data: bytes) -> None:
    if type(event) is not InputRefused:
        _add(self, event, data)


# Nodes and devices


def _no_liveness(state: State, node: Node) -> None:
    state.timers.node.cancel(node)


def _silent_is_over(state: State, event: Any) -> None:
    evolve_nodes._node_silent(state, event)
    evolve_nodes.lose_tasks(state, state.ledger.node(event.row), "node-lost")


def _by_place(state: State, event: NodeRegistered) -> None:
    evolve_nodes._node_registered(state, event)
    node = state.node(event.node)
    if node is not None and len(node.devices) == len(event.spec.devices):
        by_uuid = {device.uuid: device for device in node.devices}
        node.devices = [by_uuid.get(spec.uuid, device) for spec, device in zip(event.spec.devices, node.devices, strict=True)]
        state.ledger.recount(node)


def _unread_is_missing(self: Beats, state: State, unread: Any, agents: Any) -> Any:
    return _beat(self, state, (), agents)


def _policy(**changes: Any) -> Mutant:
    def changed(self: World, policy: Policy) -> None:
        _set_policy(self, msgspec.structs.replace(policy, **changes))

    return _instead(World, "set_policy", changed)


# The ledger


def _empty_recount(self: Node) -> None:
    tasks, self.tasks = self.tasks, {}
    _recount(self)
    self.tasks = tasks


def _hold_nothing(self: Ledger, task: Task) -> None:
    task.node.tasks[task] = None
    self.dirty.append(task.node.row)


def _release_nothing(self: Ledger, task: Task) -> None:
    del task.node.tasks[task]
    self.dirty.append(task.node.row)
    self.recount(task.node)


_no_holdings = _both(
    _instead(Ledger, "hold", _hold_nothing),
    _instead(Ledger, "release", _release_nothing),
    _instead(Node, "recount", _empty_recount),
)


def _plenty(amount: str) -> Mutant:
    """One resource is never short, on any node."""

    def recount(self: Node) -> None:
        _recount(self)
        setattr(self, amount, getattr(self, amount) + HUGE)

    return _both(_instead(Node, "recount", recount), _instead(ResourcesFilter, "passes", _passing))


def _worst_fit(self: BestFit, candidates: Candidates, excluded: int) -> Spot | None:
    last = None
    while (spot := _one(self, candidates, excluded)) is not None:
        last = spot
        excluded |= 1 << spot[0]
    return last


def _no_second_look(self: Pass, waiting: PendingClass) -> bool:
    return isinstance(waiting.memo, Asked)


# The log


def _positions_forgotten(state: State, number: int, term: int, at_us: int, started: Any, positions: Any) -> None:
    _begin(state, number, term, at_us, started, {})


def _gap_ignored(state: State, gap_us: int) -> None:
    """Deadlines do not move."""


def _unscaled(self: QueueTree, queue: Queue, there: Charge) -> None:
    for child in queue.children.values():
        child.guarantee = child.promised
        self._scale(child, there)


class _Everything(dict[str, int]):
    def get(self, key: str, default: Any = None) -> Any:
        return INT_MAX


ON_A_BOARD = ("fgd", "published-best-fit")
"""Scores that stand for published ones, and are held against what was published (`tests/golden/test_openb_gate.py`)."""

MUTANTS: dict[str, Mutant] = {
    "fifo": _instead(PendingClass, "__init__", _without_priority),
    **{f"no-filter-{name}": _instead(type(filter), "passes", _passing) for name, filter in FILTERS.items()},
    **{f"no-filter-{name}": _instead(type(filter), "passes", _passing_jobs) for name, filter in JOB_FILTERS.items()},
    "no-filter-ports": _both(
        lambda: mock.patch("muster.engine.special.ports_free", return_value=True),
        lambda: mock.patch("muster.engine.filters.ports.ports_free", return_value=True),
    ),
    "no-filter-numa": _both(
        _instead(type(JOB_FILTERS["numa"]), "passes", _passing_jobs),
        lambda: mock.patch("muster.engine.room.take_near", lambda node, shape, found: tuple(found[: shape.gpus])),
        lambda: mock.patch("muster.engine.room.with_room", lambda node, shape, free: free),
    ),
    "slices-are-gpus": _instead(Device, "describe", _described_whole),
    "slices-anywhere": lambda: mock.patch("muster.engine.room.by_card", lambda node, found, free: found),
    **{f"no-score-{name}": _instead(type(score), "split", _in_one_tier) for name, score in STATIC.items()},
    **{
        f"no-score-{name}": _instead(type(made(Policy())), "row", _all_equal)
        for name, made in HOLDINGS.items()
        if name not in ON_A_BOARD
    },
    "no-alternatives": _instead(SelectorFilter, "meets_one", lambda self, shape, labels: True),
    "no-preferences": _instead(Preferred, "split", _in_one_tier),
    "no-catalogue": _instead(catalogue, "asks", lambda group: False),
    "most-capable-first": _instead(catalogue, "rank", _most_capable_first),
    "no-sizes": _instead(catalogue, "large", lambda sizes, memory_mib: sizes),
    "taints-for-ever": _instead(Shape, "tolerated_us", lambda self, taint: None),
    "no-gate": lambda: mock.patch("muster.engine.step.gate", return_value=""),
    "no-domains": _instead(Bound, "_split", _one_domain_for_all),
    "largest-domain": _instead(Bound, "_parts", _largest_domain),
    "any-number-of-domains": _instead(Bound, "_fewest", lambda *args: None),
    "replaced-anywhere": _instead(Bound, "refill", _anywhere_again),
    "no-spread": _instead(Caps, "full", lambda self: 0),
    "unwelcome-is-fine": _instead(Around, "unwelcome", lambda self, job: 0),
    "licences-for-anybody": _instead(Around, "licences_waited_for", lambda self, name, job: False),
    "nothing-kept": _instead(Around, "kept", lambda self: iter(())),
    "no-holdings": _no_holdings,
    "no-cpu": _plenty("cpu_free"),
    "no-memory": _plenty("memory_free"),
    "no-disk": _plenty("disk_free"),
    "no-task-slots": _plenty("tasks_free"),
    "worst-fit": _instead(BestFit, "one", _worst_fit),
    "no-second-look": _instead(Pass, "_in_vain", _no_second_look),
    "no-preemption": _instead(Pass, "_preempt", lambda self, instance, outranked: False),
    "preempt-first": _instead(Pass, "_ask", _preempt_first),
    "preempt-anybody": _both(
        _instead(preempt, "may_be_victim", _anybody), _instead(Pass, "_may_preempt", lambda self, job: True)
    ),
    "highest-victim": _instead(preempt, "rank", lambda attempt: (_rank(attempt)[0], -_rank(attempt)[1], _rank(attempt)[2])),
    "spare-nobody": _both(_instead(preempt, "_spare", _spare_nobody), _instead(preempt, "_on_node", _everybody_there)),
    "no-reclaim": _both(
        _instead(order, "levels", lambda tree, queue, asks: ()),
        _instead(order, "crosses", lambda state, tree, queue, asks: tree.tiered or tree.subtrees),
    ),
    "no-fairness": _both(*[_instead(module, "share", lambda charged, dimensions, weight=1: 0) for module in (hope, order)]),
    "best-effort-is-batch": _both(*[_instead(module, "mark", _mark_batch) for module in (jobs, snapshot)]),
    "best-effort-not-first": lambda: mock.patch("muster.engine.passes.making_way", return_value=None),
    "best-effort-stays": _both(
        lambda: mock.patch("muster.engine.passes.making_way", return_value=None),
        _instead(reclaim, "those_for", lambda state, job: {}),
        _instead(preempt, "yields", lambda other, job: False),
    ),
    "headroom-is-batch": _both(*[_instead(module, "mark", _mark_batch) for module in (jobs, snapshot)]),
    "headroom-stays": _instead(yielding, "yields", lambda other, job: other.spare and not job.spare),
    "headroom-in-its-place": _both(*[_instead(module, "mark", _mark_without_turn) for module in (jobs, snapshot)]),
    "no-history": _policy(history_half_life_us=msgspec.UNSET),
    "no-levels": _instead(hope, "ordered_by", lambda tree, queue, weight, share: 0 if queue.children else share),
    "no-decay": _instead(usage, "factor", lambda half_life_us: usage.ONE - 1),
    "no-deadlines": _both(*[_instead(module, "mark", _mark_without_turn) for module in (jobs, snapshot)]),
    "no-budgets": _both(
        _instead(preempt, "breaches", lambda victims: 0), _instead(preempt, "last", lambda ordered: list(ordered))
    ),
    "drained-at-once": _instead(disruption, "left", lambda job: HUGE),
    "no-promises": _instead(hope, "below", lambda queue: False),
    "no-weights": _instead(Queue, "weight", property(lambda self: 1)),
    "no-tiers": _instead(Queue, "tier", property(lambda self: 0)),
    "no-subtrees": _instead(reclaim, "_subtree", lambda queue: False),
    "no-quota": _instead(Limits, "exceeded", lambda self, queue, user, asks: None),
    "no-lending": _instead(Limits, "_unlent", lambda self, queue, asks: None),
    "no-scaling": _instead(QueueTree, "_scale", _unscaled),
    "no-queue-times": _instead(QueueTree, "max_time_us", lambda self, queue: None),
    "no-protection": _instead(Queue, "spared", property(lambda self: False)),
    "no-aging": _both(
        *[_instead(module, "standing", lambda policy, job, until_us: job.priority) for module in (order, plans, preempt, reclaim)]
    ),
    "no-nomination": _instead(Claim, "add", lambda self, shape, devices, node: None),
    "no-outranking": _instead(Pass, "_outranked", lambda self, job: []),
    "no-grace": _instead(Emitter, "emit", _no_grace),
    "free-at-notice": _instead(Emitter, "emit", _free_at_notice),
    "no-gang": _instead(Placer, "find", _partial),
    "no-group-minimum": _instead(Placer, "find", _minimum_of_the_whole),
    "only-the-minimum": _instead(Placer, "find", _only_the_minimum),
    "greedy-groups": _both(_instead(place, "ORDERS_MAX", 1), _instead(Placer, "_packed", lambda *args: None)),
    "no-barrier": _instead(Emitter, "emit", _no_barrier),
    "no-degradation": _instead(lifecycle, "_faulty", _no_degradation),
    **elastic_mutants(),
    "no-requeue": _instead(lifecycle, "_ended", _no_requeue),
    "no-dependencies": _instead(dependencies, "hold", lambda state, job: None),
    "no-hopeless": _instead(dependencies, "holds", _no_hopeless),
    "no-dependency-cycle": _instead(gate, "cycle", lambda state, job: []),
    "no-at-once": _both(
        _instead(evolve_jobs, "job_of", _all_in_play), _instead(snapshot, "_in_play", lambda job: len(job.instances))
    ),
    **service_mutants(),
    "no-blame": _instead(lifecycle, "_ended", _no_blame),
    "no-failure": _instead(lifecycle, "_ended", _always_retried),
    "requeue-last": _instead(Emitter, "emit", _requeue_last),
    "no-time-limit": _both(*[_instead(module, "limit_of", _no_time_limit) for module in (evolve_jobs, evolve_tasks)]),
    "stale-reports": _both(_instead(reports, "_held", _any_report), _instead(evolve_tasks, "_task", _any_attempt)),
    "revival": _both(
        _instead(reports, "_held", _any_report),
        *[
            _handling(kind, _reviving(kind, phase))
            for kind, phase in ((TaskExited, ""), (TaskReady, "ready"), (TaskStarted, "running"))
        ],
    ),
    "refusals-unsaid": _instead(Recorded, "add", _refusals_unsaid),
    "no-liveness": _instead(evolve_nodes, "set_timer", _no_liveness),
    "silent-is-over": _handling(NodeSilent, _silent_is_over),
    "unread-is-missing": _instead(Beats, "beat", _unread_is_missing),
    "no-backfill": _policy(backfill=msgspec.UNSET),
    "no-order": _policy(order=msgspec.UNSET),
    "no-strictness": _policy(strict=msgspec.UNSET),
    "planned-in-any-domain": _instead(Horizon, "_domains", lambda self, levels: [self.state.ledger.registered]),
    "planned-beside-exclusive": _instead(profile, "_last_alone", lambda state, node, lenient: None),
    "no-reservations": _instead(Reserved, "binding", lambda self, job: []),
    "reserved-for-nobody": lambda: mock.patch("muster.engine.reserved.those_for", return_value=[]),
    "reserved-stay": _instead(Reserved, "evicted", lambda self: []),
    "reserved-anywhere": _instead(reserved, "_against", lambda state, held, node: {}),
    "no-quarantine": _policy(flap_limit=0),
    "endless-flap-window": _policy(flap_window_us=10**13),
    "devices-by-place": _handling(NodeRegistered, _by_place),
    "inputs-lost": _instead(Core, "positions", _Everything()),
    "positions-forgotten": _both(
        _instead(evolve, "begin_cycle", _positions_forgotten),
        lambda: mock.patch("muster.engine.step.begin_cycle", _positions_forgotten),
    ),
    "gap-ignored": _instead(evolve, "_shift_deadlines", _gap_ignored),
    **{
        f"without-{kind.__name__}": _ignored(kind)
        for kind in (
            JobCancelRequested,
            JobReprioritised,
            JobRevised,
            JobScaleRequested,
            JobMetricReported,
            DeviceHealthChanged,
            ForeignUseChanged,
            NodeRemoved,
            NodeCordoned,
            NodeUncordoned,
            NodeDrained,
            NodeFenced,
            LeaseExtended,
            QueueSet,
            QueueRemoved,
            LicencesSet,
            ReservationSet,
            ReservationRemoved,
            TaskExited,
        )
    },
}
"""By name. What a scene does not touch it cannot notice."""
