"""The state as bytes, and back; its digest.

A snapshot holds what the fold made and nothing that can be made anew from it (indexes, timers, what is free). Everything
in it is sorted, so that equal states have equal bytes however they came about.
"""

import hashlib
import heapq
from operator import attrgetter
from typing import Final

import msgspec
from msgspec import UNSET

from muster.cluster import dependencies
from muster.cluster.disruption import note_drain
from muster.cluster.evolve_elastic import elastic, has_to_shrink, misfits
from muster.cluster.evolve_jobs import count_running, enqueue
from muster.cluster.evolve_nodes import broken_place
from muster.cluster.evolve_nodes import set_timer as set_node_timer
from muster.cluster.evolve_nominations import claim_places
from muster.cluster.evolve_queues import plant
from muster.cluster.evolve_tasks import set_immune, set_timer, succeeded
from muster.cluster.jobs import TERMINAL, Attempt, Fault, Instance, Job, Task, mark
from muster.cluster.nodes import Device, Node
from muster.cluster.patience import set_eviction
from muster.cluster.plans import PlannedStart, counts_lengths, most_plans
from muster.cluster.queuetree import Queue, QueueTree
from muster.cluster.reservations import Reservation
from muster.cluster.shapes import Gang, intern_gang
from muster.cluster.snapshot_rows import (
    AttemptRow,
    DeviceRow,
    FaultRow,
    InstanceRow,
    JobRow,
    NodeRow,
    NominationRow,
    PlanRow,
    QueueRow,
    ReservationRow,
    ServiceRow,
    StateRow,
    TaskRow,
)
from muster.cluster.snapshot_services import reindex_service, service_in, services_out
from muster.cluster.state import Nomination, State
from muster.cluster.usage import Usage, Used
from muster.events.codec import encode as encode_canonical
from muster.events.decisions import AttemptRef, MembersRef
from muster.events.jobs import JobRequest, JobRun
from muster.events.nodes import Device as DeviceSpec
from muster.events.nodes import NodeSpec

SCHEMA: Final = 4
"""Goes up with every change of what is below, or of the requests, specs and policy in it, by which a state has other bytes.

A snapshot of another schema is not read, and the digests of states in records of another schema are not compared; after
a change `python -m tests.golden.record states` notes the digests of the golden logs anew.
"""


class SnapshotError(ValueError):
    """These bytes are no snapshot that this build reads."""


def encode(state: State) -> bytes:
    """The state, between two cycles, as bytes."""
    ledger = state.ledger
    jobs = sorted(state.jobs.values(), key=lambda job: job.place)
    requests: dict[bytes, int] = {}
    runs: dict[bytes, int] = {}
    job_rows = tuple([_job_out(state, job, requests, runs) for job in jobs])
    evictions = tuple(
        [
            (*instance.key, tuple(sorted([(*taint, due_us) for taint, due_us in instance.attempt.evictions.items()])))
            for job in jobs
            for instance in job.instances
            if instance.attempt is not None and instance.attempt.evictions
        ]
    )
    plans = tuple(
        [
            PlanRow(*key, planned.placements, planned.start_us, planned.at_us, planned.until_us)
            for key, planned in sorted(state.plans.by_key.items(), key=lambda item: item[0])
        ]
    )
    return encode_canonical(
        StateRow(
            schema=SCHEMA,
            cell=state.cell,
            number=state.number,
            term=state.term,
            at_us=state.at_us,
            policy=state.policy,
            positions=state.positions,
            lease_until_us=state.lease_until_us,
            beat_us=state.beat_us,
            missing=tuple(sorted(state.missing)),
            back=tuple(sorted(state.back)),
            more=state.more,
            deferred=tuple(sorted([(queue, shape, code) for (queue, shape), code in state.deferred.items()])),
            nodes=tuple([_node_out(node) for node in ledger.nodes if node is not None]),
            rows=len(ledger.nodes),
            requests=tuple(map(msgspec.Raw, requests)),  # type: ignore[arg-type]  # as they are read back
            runs=tuple(map(msgspec.Raw, runs)),  # type: ignore[arg-type]
            jobs=job_rows,
            nominations=tuple(
                [
                    NominationRow(
                        *key,
                        nomination.placements,
                        tuple([AttemptRef(*a.instance.key, a.number) for a in nomination.victims if a.held]),
                        nomination.at_us,
                        nomination.until_us,
                        _members_out(nomination),
                    )
                    for key, nomination in sorted(state.nominations.items(), key=lambda item: item[0])
                ]
            ),
            retired=tuple(state.retired.items()),  # in their order, which is state
            queues=None if state.tree is None else _queues_out(state.tree),
            limits=tuple([(j.id, j.limit_us) for j in jobs if j.limit_us is not None and j.request.time_limit_us is None]),
            plans=plans,
            licences=tuple(state.licences.items()),
            catalogue=state.catalogue,
            evictions=evictions,
            usage=_usage_out(state.tree),
            reservations=tuple([ReservationRow(r.spec, r.made_us, r.at, r.pieces) for r in state.reservations.by_name.values()]),
            services=services_out(jobs),
        )
    )


def digest(state: State) -> str:
    """BLAKE2b-256 of the state, in hexadecimal."""
    return hashlib.blake2b(encode(state), digest_size=32).hexdigest()


def decode(data: bytes) -> State:
    """The state that was encoded, with its indexes made anew.

    Raises:
        SnapshotError: not a snapshot of this schema.
    """
    try:
        snapshot = msgspec.json.decode(data, type=StateRow)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(f"not a snapshot: {error}") from None
    if snapshot.schema != SCHEMA:
        raise SnapshotError(f"the snapshot is of schema {snapshot.schema}; this build reads {SCHEMA}")
    state = State(snapshot.cell)
    state.number = snapshot.number
    state.term = snapshot.term
    state.at_us = snapshot.at_us
    state.policy = snapshot.policy
    state.positions = dict(snapshot.positions)
    state.lease_until_us = snapshot.lease_until_us
    state.beat_us = snapshot.beat_us
    state.retired = dict(snapshot.retired)
    state.missing = dict.fromkeys(snapshot.missing)
    state.back = dict.fromkeys(snapshot.back)
    state.more = snapshot.more
    state.deferred = {(queue, shape): code for queue, shape, code in snapshot.deferred}
    state.plans.on = most_plans(state.policy) > 0
    state.plans.lengths = counts_lengths(state.policy)
    _nodes_in(state, snapshot)
    gone: dict[str, Node] = {}
    gangs = [intern_gang(request) for request in snapshot.requests]
    services = {row.job: row for row in snapshot.services}
    for row in snapshot.jobs:
        service = services.get(row.id)
        _job_in(state, row, snapshot.requests[row.request], snapshot.runs[row.run], gangs[row.request], gone, service)
    for item in snapshot.nominations:
        victims = [_current(state, ref) for ref in item.victims]
        claim_places(
            state,
            Nomination(
                state.jobs[item.job].instances[item.instance],
                item.placements,
                [attempt for attempt in victims if attempt is not None],
                item.at_us,
                item.until_us,
                [task for some in item.members for task in _members_in(state, some)],
            ),
        )
    for name, limit_us in snapshot.limits:
        state.jobs[name].limit_us = limit_us
    if snapshot.queues is not None:
        _tree_in(state, snapshot.queues)
        half_life_us = state.policy.history_half_life_us
        if state.tree is not None and isinstance(half_life_us, int):
            usage = state.tree.usage = Usage(half_life_us, state.at_us)
            for queue, user, amount, since_us in snapshot.usage:
                usage.entries[queue, user] = Used(amount, since_us)
    for kept in snapshot.plans:
        instance = state.jobs[kept.job].instances[kept.instance]
        state.plans.add(PlannedStart(instance, kept.placements, kept.start_us, kept.at_us, kept.until_us))
    state.licences = dict(snapshot.licences)
    for said in snapshot.reservations:
        state.reservations.put(Reservation(said.spec, said.made_us, said.at, said.pieces))
    state.catalogue = snapshot.catalogue
    for job_id, index, taints in snapshot.evictions:
        attempt = state.jobs[job_id].instances[index].attempt
        if attempt is not None:
            attempt.evictions = {(row, key, value): due_us for row, key, value, due_us in taints}
    _reindex(state, [row for row in snapshot.jobs if row.held])
    return state


def _tree_in(state: State, rows: tuple[QueueRow, ...]) -> None:
    tree = plant(state, [(row.spec, row.closed) for row in rows])
    for row in rows:
        if _charged(tree.queues[row.spec.queue]) != row.charged:
            raise SnapshotError(f"queue {row.spec.queue} is said to be charged with other than what its jobs hold")


def _current(state: State, ref: AttemptRef) -> Attempt | None:
    """The victim, unless it is over: then it has given everything back."""
    return state.attempt(ref.job, ref.instance, ref.attempt)


def _members_in(state: State, some: MembersRef) -> list[Task]:
    attempt = state.attempt(some.job, some.instance, some.attempt)
    return [] if attempt is None else [attempt.tasks[rank] for rank in some.ranks]


# Out


def _members_out(nomination: Nomination) -> tuple[MembersRef, ...]:
    """Those that are still to go, by attempt."""
    ranks: dict[tuple[str, int, int], list[int]] = {}
    for task in nomination.members:
        if task.holding:
            ranks.setdefault((*task.attempt.instance.key, task.attempt.number), []).append(task.rank)
    return tuple([MembersRef(*key, tuple(sorted(some))) for key, some in sorted(ranks.items())])


def _queues_out(tree: QueueTree) -> tuple[QueueRow, ...]:
    return tuple([QueueRow(spec, closed, _charged(tree.queues[spec.queue])) for spec, closed in tree.all_said()])


def _charged(queue: Queue) -> tuple[tuple[str, int], ...]:
    return tuple(sorted([item for item in queue.charged.items() if item[1]]))


def _usage_out(tree: QueueTree | None) -> tuple[tuple[str, str, int, int], ...]:
    if tree is None or tree.usage is None:
        return ()
    return tuple(sorted([(*key, used.amount, used.since_us) for key, used in tree.usage.entries.items()]))


def _node_out(node: Node) -> NodeRow:
    return NodeRow(
        node.row,
        node.name,
        node.uid,
        node.boot,
        node.boots,
        node.spec,
        tuple([DeviceRow(_device_spec(device), device.present, device.foreign) for device in node.devices]),
        node.cordoned,
        node.drained,
        node.fenced,
        node.liveness,
        node.heard_us,
        node.quarantined_until_us,
        tuple(node.silences),
        node.foreign_cpu,
        node.foreign_memory,
    )


def _device_spec(device: Device) -> DeviceSpec:
    return DeviceSpec(
        uuid=device.uuid,
        model=device.model,
        memory_mib=device.memory_mib,
        numa=device.numa,
        island=device.island,
        health=device.health,
        profile=device.profile or UNSET,
        card=device.card or UNSET,
    )


def _job_out(state: State, job: Job, requests: dict[bytes, int], runs: dict[bytes, int]) -> JobRow:
    return JobRow(
        job.id,
        job.name,
        job.user,
        job.queue,
        requests.setdefault(encode_canonical(job.request), len(requests)),
        runs.setdefault(encode_canonical(job.run), len(runs)),
        job.place,
        job.submitted_us,
        job.priority,
        job.avoid,
        job.over_us,
        job.rejected,
        job.held,
        tuple([_instance_out(state, instance) for instance in job.instances]),
    )


def _instance_out(state: State, instance: Instance) -> InstanceRow:
    attempt = instance.attempt
    return InstanceRow(
        instance.phase,
        instance.attempts,
        instance.retries,
        instance.start_failures,
        instance.not_before_us,
        instance.cancelling,
        instance.ended_us,
        instance.reason,
        instance.code,
        None if attempt is None else _attempt_out(attempt),
        instance.ran,
    )


def _attempt_out(attempt: Attempt) -> AttemptRow:
    fault = attempt.fault
    return AttemptRow(
        attempt.number,
        attempt.phase,
        attempt.bound_us,
        attempt.bound_cycle,
        attempt.ready_until_us,
        attempt.started_us,
        attempt.kill_at_us,
        attempt.stop_reason,
        attempt.stop_code,
        attempt.stop_node,
        None if fault is None else FaultRow(fault.reason, fault.code, fault.node, fault.blame, fault.lost),
        attempt.degraded_until_us,
        attempt.ready,
        tuple(
            [
                TaskRow(
                    task.rank,
                    task.node.row,
                    task.node.name,
                    task.node.uid,
                    task.devices,
                    task.phase,
                    task.holding,
                    task.code,
                    task.port,
                    task.since,
                    task.going,
                    task.kill_at_us,
                )
                for _, task in sorted(attempt.tasks.items())
            ]
        ),
        attempt.changed,
        attempt.saved_us,
    )


# In


def _nodes_in(state: State, snapshot: StateRow) -> None:
    ledger = state.ledger
    ledger.nodes = [None] * snapshot.rows
    taken = [False] * snapshot.rows
    for item in snapshot.nodes:
        node = Node(item.row, item.name, item.uid, item.boot, item.spec, item.heard_us)
        node.boots = item.boots
        node.devices = []
        for kept in item.devices:
            device = Device(kept.spec)
            device.present = kept.present
            device.foreign = kept.foreign
            node.devices.append(device)
        node.cordoned, node.drained, node.fenced = item.cordoned, item.drained, item.fenced
        node.liveness = item.liveness
        node.quarantined_until_us = item.quarantined_until_us
        node.silences = list(item.silences)
        node.foreign_cpu, node.foreign_memory = item.foreign_cpu, item.foreign_memory
        node.recount()
        ledger.add(node)
        taken[item.row] = True
    ledger.free_rows = [row for row in range(snapshot.rows) if not taken[row]]
    heapq.heapify(ledger.free_rows)


def _job_in(
    state: State,
    row: JobRow,
    request: JobRequest,
    run: JobRun,
    gang: Gang,
    gone: dict[str, Node],
    service: ServiceRow | None,
) -> None:
    """Made whole at once, field after field in the order of the classes: a large cell has hundreds of thousands."""
    name, place = row.id, row.place
    if service is None and len(row.instances) != (request.array or 1):
        raise SnapshotError(f"the job {name} has {len(row.instances)} instances")
    job = state.jobs[name] = Job(
        name,
        row.name,
        row.user,
        row.queue,
        request,
        run,
        gang,
        place,
        row.submitted_us,
        row.priority,
        0,
        [],
        row.avoid,
        row.over_us,
        row.rejected,
        request.time_limit_us,
    )
    mark(job)
    if isinstance(job.request.deadline_us, int):
        state.dated[job] = None
    owners = None if service is None else service_in(job, service)
    for index, item in enumerate(row.instances):
        instance = Instance(
            job if owners is None else owners[index],
            index,
            (name, index),
            (*place, index),
            item.phase,
            None,
            item.attempts,
            item.retries,
            item.start_failures,
            item.not_before_us,
            item.cancelling,
            item.ended_us,
            item.reason,
            item.code,
            None,
            item.ran,
        )
        job.instances.append(instance)
        if item.phase not in TERMINAL:
            job.open += 1
        if item.attempt is not None:
            instance.attempt = _attempt_in(state, instance, item.attempt, gone)
            set_immune(state, instance.attempt)
    job.next = _in_play(job)


def _in_play(job: Job) -> int:
    """The first instance that is not in play yet: those in play are as many of the first that are not over as may be."""
    left = job.request.at_once
    if left:
        for instance in job.instances:
            if instance.phase not in TERMINAL:
                left -= 1
                if not left:
                    return instance.index + 1
    return len(job.instances)


def _attempt_in(state: State, instance: Instance, item: AttemptRow, gone: dict[str, Node]) -> Attempt:
    attempt = Attempt(instance, item.number, item.bound_us, item.bound_cycle, item.ready_until_us)
    attempt.phase = item.phase
    attempt.started_us = item.started_us
    attempt.kill_at_us = item.kill_at_us
    attempt.stop_reason = item.stop_reason
    attempt.stop_code = item.stop_code
    attempt.stop_node = item.stop_node
    kept = item.fault
    attempt.fault = None if kept is None else Fault(kept.reason, kept.code, kept.node, kept.blame, kept.lost)
    attempt.degraded_until_us = item.degraded_until_us
    attempt.ready = item.ready
    attempt.changed = item.changed
    attempt.saved_us = item.saved_us
    gang = instance.job.gang
    for row in item.tasks:
        node = state.node(row.node)
        if node is None or node.uid != row.uid:
            node = gone.get(row.uid)
            if node is None:
                node = gone[row.uid] = Node(row.row, row.node, row.uid, "", NodeSpec(), 0)
                node.liveness = "removed"
        group = gang.group_of(row.rank)
        task = Task(attempt, row.rank, group, gang.shapes[group], node, row.devices, row.since)
        task.phase = row.phase
        task.holding = row.holding
        task.code = row.code
        task.port = row.port
        if row.going:
            task.going = True
            task.kill_at_us = row.kill_at_us
            attempt.going += 1
        attempt.tasks[row.rank] = task
        if task.holding:
            state.ledger.hold(task)
            attempt.held += 1
    return attempt


def _reindex(state: State, held: list[JobRow]) -> None:
    """Everything that follows from the rest."""
    over = [job for job in state.jobs.values() if not job.open]
    over.sort(key=attrgetter("over_us"))  # timers that are set in order cost least
    after_us, forget = state.policy.forget_after_us, state.timers.forget
    for job in over:
        forget.set_first(job, job.over_us + after_us)
    for row in held:
        dependencies.rehold(state, state.jobs[row.id], row.held)
    for job in state.jobs.values():
        for instance in job.instances:
            attempt = instance.attempt
            if instance.phase == "pending":
                state.pending_total += 1
                if instance.index < job.next and not job.held:
                    enqueue(state, instance)
            if attempt is not None:
                _reindex_attempt(state, attempt)
            elif instance.cancelling and instance.phase == "pending":
                state.todo[instance] = None
        if job.service is not None:
            reindex_service(state, job.service)
    for key, nomination in state.nominations.items():
        state.timers.nomination.set(key, nomination.until_us)
        if broken_place(nomination) or misfits(nomination):
            state.todo[nomination.instance] = None
    for key, planned in state.plans.by_key.items():
        state.timers.plan.set(key, planned.until_us)
    for name, reservation in state.reservations.by_name.items():
        state.timers.reservation.set(name, reservation.next_us(state.at_us))
    for node in state.ledger.nodes:
        if node is not None:
            set_node_timer(state, node)


def _reindex_attempt(state: State, attempt: Attempt) -> None:
    instance = attempt.instance
    if attempt.phase == "stop":
        state.stopping += 1
    else:
        set_timer(state, attempt)
        count_running(state, attempt)
        note_drain(state, attempt)
    if attempt.going:
        state.stopping += 1
        state.shrinking[attempt] = None
    if attempt.phase == "run" and elastic(instance.job):
        state.running_elastic[instance.key] = None
    set_eviction(state, attempt)
    if attempt.degraded_until_us and any(task.phase in ("lost", "leaving") for task in attempt.tasks.values()):
        state.degraded[instance.key] = None
    if (
        not attempt.held
        or (attempt.phase != "stop" and (attempt.fault is not None or instance.cancelling))
        or (attempt.phase == "prepare" and attempt.ready + attempt.going == len(attempt.tasks))
        or (attempt.phase == "run" and succeeded(attempt))
        or has_to_shrink(attempt)
    ):
        state.todo[instance] = None
