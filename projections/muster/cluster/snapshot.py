"""The state as bytes, and back; its digest.

A snapshot holds what the fold made and nothing that can be made anew from it (indexes, timers, what is free). Everything
in it is sorted, so that equal states have equal bytes however they came about.
"""

import hashlib
import heapq
from typing import Final

import msgspec

from muster.cluster.evolve_jobs import count_running, enqueue, set_forget, set_immune, set_timer, succeeded
from muster.cluster.evolve_nodes import broken_place
from muster.cluster.evolve_nodes import set_timer as set_node_timer
from muster.cluster.evolve_nominations import claim_places
from muster.cluster.jobs import TERMINAL, Attempt, Fault, Instance, Job, Task, job_of
from muster.cluster.nodes import Device, Node
from muster.cluster.patience import set_eviction
from muster.cluster.shapes import intern_gang
from muster.cluster.state import Nomination, State
from muster.events.codec import encode as encode_canonical
from muster.events.decisions import AttemptRef, Placement
from muster.events.jobs import JobRequest, JobRun
from muster.events.nodes import Device as DeviceSpec
from muster.events.nodes import NodeSpec
from muster.events.operations import Policy

SCHEMA: Final = 2
"""Goes up with every change of what is below; a snapshot of another schema is not read."""

SCHEMA_MORE: Final = 3
"""With what few cells have (`_More`): without it the bytes are those of `SCHEMA`, so that digests of old logs stay true."""


class SnapshotError(ValueError):
    """These bytes are no snapshot that this build reads."""


class _Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Base of everything in a snapshot."""


class _Device(_Row):
    spec: DeviceSpec
    present: bool
    foreign: bool


class _Node(_Row):
    row: int
    name: str
    uid: str
    boot: str
    boots: int
    spec: NodeSpec
    devices: tuple[_Device, ...]
    cordoned: bool
    drained: bool
    fenced: bool
    liveness: str
    heard_us: int
    quarantined_until_us: int
    silences: tuple[int, ...]
    foreign_cpu: int
    foreign_memory: int


class _Task(_Row):
    rank: int
    row: int
    node: str
    uid: str
    devices: tuple[int, ...]
    phase: str
    holding: bool
    code: int
    port: int
    since: int


class _Fault(_Row):
    reason: str
    code: int
    node: str
    blame: str
    lost: bool


class _Attempt(_Row):
    number: int
    phase: str
    bound_us: int
    bound_cycle: int
    ready_until_us: int
    started_us: int
    kill_at_us: int
    stop_reason: str
    stop_code: int
    stop_node: str
    fault: _Fault | None
    degraded_until_us: int
    ready: int
    tasks: tuple[_Task, ...]


class _Instance(_Row):
    phase: str
    attempts: int
    retries: int
    start_failures: int
    not_before_us: int
    cancelling: bool
    ended_us: int
    reason: str
    code: int
    attempt: _Attempt | None


class _Job(_Row):
    id: str
    name: str
    user: str
    queue: str
    request: JobRequest
    run: JobRun
    place: tuple[int, int]
    submitted_us: int
    priority: int
    avoid: tuple[str, ...]
    over_us: int
    rejected: str
    instances: tuple[_Instance, ...]


class _Nomination(_Row):
    job: str
    instance: int
    placements: tuple[Placement, ...]
    victims: tuple[AttemptRef, ...]
    at_us: int
    until_us: int


class _Snapshot(_Row):
    schema: int
    cell: str
    number: int
    term: int
    at_us: int
    policy: Policy
    positions: dict[str, int]
    lease_until_us: int
    beat_us: int
    missing: tuple[int, ...]
    back: tuple[int, ...]
    more: bool
    deferred: tuple[tuple[str, str, str], ...]
    nodes: tuple[_Node, ...]
    rows: int
    jobs: tuple[_Job, ...]
    nominations: tuple[_Nomination, ...]
    retired: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


class _More(_Snapshot):
    licences: tuple[tuple[str, int], ...]
    evictions: tuple[tuple[str, int, tuple[tuple[int, str, str, int], ...]], ...]
    """Job and instance; then row, key and value of a taint that is put up with for a while, and until when."""


def encode(state: State) -> bytes:
    """The state, between two cycles, as bytes."""
    plain = _plain(state)
    evictions = [
        (*instance.key, tuple(sorted([(*taint, due_us) for taint, due_us in instance.attempt.evictions.items()])))
        for job in sorted(state.jobs.values(), key=lambda job: job.place)
        for instance in job.instances
        if instance.attempt is not None and instance.attempt.evictions
    ]
    if not state.licences and not evictions:
        return encode_canonical(plain)
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    more = _More(**{**fields, "schema": SCHEMA_MORE}, licences=tuple(state.licences.items()), evictions=tuple(evictions))
    return encode_canonical(more)


def _plain(state: State) -> _Snapshot:
    ledger = state.ledger
    jobs = sorted(state.jobs.values(), key=lambda job: job.place)
    return _Snapshot(
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
        jobs=tuple([_job_out(state, job) for job in jobs]),
        nominations=tuple(
            [
                _Nomination(
                    *key,
                    nomination.placements,
                    tuple([AttemptRef(*a.instance.key, a.number) for a in nomination.victims if a.held]),
                    nomination.at_us,
                    nomination.until_us,
                )
                for key, nomination in sorted(state.nominations.items(), key=lambda item: item[0])
            ]
        ),
        retired=tuple(state.retired.items()),  # in their order, which is state
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
        kind = _More if data.startswith(f"[{SCHEMA_MORE},".encode()) else _Snapshot
        snapshot = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(f"not a snapshot: {error}") from None
    if snapshot.schema != (SCHEMA_MORE if isinstance(snapshot, _More) else SCHEMA):
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
    _nodes_in(state, snapshot)
    gone: dict[str, Node] = {}
    for row in snapshot.jobs:
        _job_in(state, row, gone)
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
            ),
        )
    if isinstance(snapshot, _More):
        state.licences = dict(snapshot.licences)
        for job_id, index, taints in snapshot.evictions:
            attempt = state.jobs[job_id].instances[index].attempt
            if attempt is not None:
                attempt.evictions = {(row, key, value): due_us for row, key, value, due_us in taints}
    _reindex(state)
    return state


def _current(state: State, ref: AttemptRef) -> Attempt | None:
    """The victim, unless it is over: then it has given everything back."""
    return state.attempt(ref.job, ref.instance, ref.attempt)


# Out


def _node_out(node: Node) -> _Node:
    return _Node(
        node.row,
        node.name,
        node.uid,
        node.boot,
        node.boots,
        node.spec,
        tuple([_Device(_device_spec(device), device.present, device.foreign) for device in node.devices]),
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
    )


def _job_out(state: State, job: Job) -> _Job:
    return _Job(
        job.id,
        job.name,
        job.user,
        job.queue,
        job.request,
        job.run,
        job.place,
        job.submitted_us,
        job.priority,
        job.avoid,
        job.over_us,
        job.rejected,
        tuple([_instance_out(state, instance) for instance in job.instances]),
    )


def _instance_out(state: State, instance: Instance) -> _Instance:
    attempt = instance.attempt
    return _Instance(
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
    )


def _attempt_out(attempt: Attempt) -> _Attempt:
    fault = attempt.fault
    return _Attempt(
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
        None if fault is None else _Fault(fault.reason, fault.code, fault.node, fault.blame, fault.lost),
        attempt.degraded_until_us,
        attempt.ready,
        tuple(
            [
                _Task(
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
                )
                for _, task in sorted(attempt.tasks.items())
            ]
        ),
    )


# In


def _nodes_in(state: State, snapshot: _Snapshot) -> None:
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


def _job_in(state: State, row: _Job, gone: dict[str, Node]) -> None:
    gang = intern_gang(row.request)
    job = job_of(row.id, row.name, row.user, row.queue, row.request, row.run, gang, row.place, row.submitted_us)
    job.priority = row.priority
    job.avoid = row.avoid
    job.over_us = row.over_us
    job.rejected = row.rejected
    job.open = 0
    state.jobs[job.id] = job
    for instance, item in zip(job.instances, row.instances, strict=True):
        instance.phase = item.phase
        instance.attempts = item.attempts
        instance.retries = item.retries
        instance.start_failures = item.start_failures
        instance.not_before_us = item.not_before_us
        instance.cancelling = item.cancelling
        instance.ended_us = item.ended_us
        instance.reason = item.reason
        instance.code = item.code
        job.open += instance.phase not in TERMINAL
        if item.attempt is not None:
            instance.attempt = _attempt_in(state, instance, item.attempt, gone)
            set_immune(state, instance.attempt)


def _attempt_in(state: State, instance: Instance, item: _Attempt, gone: dict[str, Node]) -> Attempt:
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
        attempt.tasks[row.rank] = task
        if task.holding:
            state.ledger.hold(task)
            attempt.held += 1
    return attempt


def _reindex(state: State) -> None:
    """Everything that follows from the rest."""
    for job in state.jobs.values():
        if not job.open:
            set_forget(state, job)
        for instance in job.instances:
            attempt = instance.attempt
            if instance.phase == "pending":
                state.pending_total += 1
                enqueue(state, instance)
            if attempt is not None:
                _reindex_attempt(state, attempt)
            elif instance.cancelling and instance.phase == "pending":
                state.todo[instance] = None
    for key, nomination in state.nominations.items():
        state.timers.nomination.set(key, nomination.until_us)
        if broken_place(nomination):
            state.todo[nomination.instance] = None
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
    set_eviction(state, attempt)
    if attempt.degraded_until_us and any(task.phase in ("lost", "leaving") for task in attempt.tasks.values()):
        state.degraded[instance.key] = None
    if (
        not attempt.held
        or (attempt.phase != "stop" and (attempt.fault is not None or instance.cancelling))
        or (attempt.phase == "prepare" and attempt.ready == len(attempt.tasks))
        or (attempt.phase == "run" and succeeded(attempt))
    ):
        state.todo[instance] = None
