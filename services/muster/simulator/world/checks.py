"""What must hold of a world in the end: of its log, of every follower, and of what really ran.

The truth is in the machines' records (`muster.simulator.world.node.Run`); neither the scheduler nor a log reader has any
part in them. What is found is said in one sentence each.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from muster.cluster import snapshot
from muster.cluster.check import BrokenInvariant
from muster.cluster.invariants import check_invariants, check_rebuild
from muster.cluster.jobs import TERMINAL
from muster.events.codec import open_envelope
from muster.events.decisions import AttemptEnded, InstanceBound, InstanceGrown, InstanceStarted, MembersReplaced
from muster.log.errors import OperatingError
from muster.log.fsck import check_records
from muster.log.memory import MemoryLog
from muster.log.port import Record
from muster.log.sqlite import SqliteFile
from muster.replay.audit import audit
from muster.scheduler.recovery import recover
from muster.scheduler.snapshots import Snapshots
from muster.simulator.world.gateway import CELL
from muster.simulator.world.node import Run, TaskKey
from muster.verify import verify

if TYPE_CHECKING:
    from muster.simulator.world.world import World

WHOLE = 1000
SHOWN_MAX = 5


def check(world: "World") -> list[str]:
    """Everything that does not hold."""
    found = [*_log(world), *_followers(world), *_truth(world)]
    early = sum(host.early_starts for host in world.schedulers)
    if early:
        found.append(f"{early} terms were started by somebody who did not stand at the end of the log")
    return found


def _log(world: "World") -> list[str]:
    """One history, decided as this build decides, and legally."""
    records = [Record(position, data) for position, data in enumerate(world.broker.records, 1)]
    broken = check_records(CELL, records).halt
    found = [] if broken is None else [f"fsck: the log halts after cycle {broken.number}: {broken.reason}"]
    audited = audit(lambda: world.view.admitted)
    if audited.difference is not None:
        found.append("audit: " + " ".join(audited.difference.lines()[:4]))
    violations = verify(open_envelope(envelope) for envelope, _ in world.view.admitted)
    found += [f"verify: cycle {v.cycle}: {v.rule}: {v.text}" for v in violations[:SHOWN_MAX]]
    try:
        check_invariants(world.view.state)
        check_rebuild(world.view.state)
    except BrokenInvariant as error:
        found.append(f"invariant: {error}")
    return found


def _followers(world: "World") -> list[str]:
    """Whoever stands at the head has the state of the fold, however it came there."""
    head = world.view.head
    right = snapshot.digest(world.view.state)
    states = {gateway.name: gateway.state for gateway in world.gateways if gateway.head == head}
    for host in world.schedulers:
        core = host.scheduler.core if host.scheduler is not None else None
        if core is not None and core.head == head and core.pending is None:
            states[host.process.name] = core.state
        name = f"recovery from the snapshots of {host.process.name}"
        try:
            states[name] = asyncio.run(recover(MemoryLog(world.broker), CELL, Snapshots(host.folder, CELL))).core.state
        except (BrokenInvariant, OperatingError) as error:
            return [f"{name}: {error}"]
    wrong = [name for name, state in states.items() if snapshot.digest(state) != right]
    return [f"{name} has another state than the fold of the log" for name in wrong]


# What really ran


def _truth(world: "World") -> list[str]:
    found = [*_accepted(world), *_said(world), *_over(world), *_once(world), *_devices(world), *_outcomes(world)]
    return found[: 2 * SHOWN_MAX]


def _accepted(world: "World") -> Iterable[str]:
    for job in world.users.accepted:
        if not world.view.instances(job):
            yield f"job {job} was accepted, and nobody knows it"


def _said(world: "World") -> Iterable[str]:
    """Nothing ran that the log does not say, nor more often."""
    bound: Counter[TaskKey] = Counter()
    started: dict[tuple[str, int, int], None] = {}
    for envelope, _ in world.view.admitted:
        for event in open_envelope(envelope).decisions:
            if isinstance(event, (InstanceBound, MembersReplaced, InstanceGrown)):
                for placement in event.placements:
                    bound[event.job, event.instance, event.attempt, placement.rank] += 1
            elif isinstance(event, InstanceStarted):
                started[event.job, event.instance, event.attempt] = None
    ran: Counter[TaskKey] = Counter()
    for run in world.runs:
        ran[run.key] += 1
        if ran[run.key] > bound[run.key]:
            yield f"{_named(run)} ran for the {ran[run.key]}. time, and the log bound it {bound[run.key]} times"
        elif run.key[:3] not in started and world.plans[run.key[0]].request.groups[0].count > 1:
            yield f"{_named(run)} ran, and the log never started its attempt"


def _over(world: "World") -> Iterable[str]:
    """An attempt that the log says has ended does not run any more, whatever was believed of its nodes."""
    runs: dict[tuple[str, int, int], list[Run]] = {}
    for run in world.runs:
        runs.setdefault(run.key[:3], []).append(run)
    for (envelope, _), landed_us in zip(world.view.admitted, world.view.landed_us, strict=True):
        for event in open_envelope(envelope).decisions:
            if isinstance(event, AttemptEnded):
                for run in runs.get((event.job, event.instance, event.attempt), []):
                    if run.ended_us is None or run.ended_us > landed_us:
                        yield f"{_named(run)} ran on after cycle {envelope.number} ended its attempt at {landed_us / 1e6:.3f} s"


def _once(world: "World") -> Iterable[str]:
    """No task runs twice at one time, and no two attempts of an instance do."""
    by_task: dict[TaskKey, list[Run]] = {}
    by_instance: dict[tuple[str, int], dict[int, list[Run]]] = {}
    for run in world.runs:
        by_task.setdefault(run.key, []).append(run)
        by_instance.setdefault(run.key[:2], {}).setdefault(run.key[2], []).append(run)
    for runs in by_task.values():
        for one, other in pairwise(runs):
            if _end(world, one) > other.began_us:
                yield f"{_named(one)} and {_named(other)}: it ran twice at one time"
    for attempts in by_instance.values():
        for number, later in pairwise(sorted(attempts)):
            over = max(attempts[number], key=lambda run: _end(world, run))
            next_one = min(attempts[later], key=lambda run: run.began_us)
            if _end(world, over) > next_one.began_us:
                yield f"{_named(over)} and {_named(next_one)}: two attempts ran at one time"


def _devices(world: "World") -> Iterable[str]:
    """No device is used beyond what it has."""
    uses: dict[tuple[str, int], list[tuple[int, int, Run]]] = {}
    for run in world.runs:
        units = world.plans[run.key[0]].request.groups[0].gpu_milli or WHOLE
        for index in run.devices:
            use = uses.setdefault((run.uid, index), [])
            use.append((run.began_us, units, run))
            use.append((_end(world, run), -units, run))
    for (uid, index), changes in uses.items():
        used = 0
        for _, units, run in sorted(changes, key=lambda change: (change[0], change[1])):
            used += units
            if used > WHOLE:
                yield f"device {index} of {uid} held {used} of {WHOLE} when {_named(run)} began"


def _outcomes(world: "World") -> Iterable[str]:
    """What is said of each instance is what happened to it."""
    runs: dict[tuple[str, int, int], list[Run]] = {}
    for run in world.runs:
        runs.setdefault(run.key[:3], []).append(run)
    over: dict[str, None] = {}
    for job, plan in world.plans.items():
        instances = world.view.instances(job)
        if instances and all(instance.phase in TERMINAL for instance in instances):
            over[job] = None
        for instance in instances:
            name = f"job {job}/{instance.index} {instance.phase}"
            if instance.phase == "finished":
                last = {run.key[3]: run.code for run in runs.get((job, instance.index, instance.attempts), [])}
                if len(last) < plan.request.groups[0].min or any(last.values()):
                    yield f"{name}, and its tasks exited with {last}"
            elif instance.phase == "failed" and not plan.may_fail:
                yield f"{name} ({instance.reason}), and nothing was wrong with it"
            elif instance.phase == "cancelled" and not plan.may_be_cancelled:
                yield f"{name}, and nobody asked for that"
            elif instance.phase == "rejected" and not plan.request.after:  # what it waited for may have been forgotten by then
                yield f"{name}, and it was feasible"
    for run in world.runs:
        if run.ended_us is None and run.key[0] in over:
            yield f"{_named(run)} still runs, and its job is over"


def _end(world: "World", run: Run) -> int:
    return world.timeline.now_us if run.ended_us is None else run.ended_us


def _named(run: Run) -> str:
    job, instance, attempt, rank = run.key
    end = "…" if run.ended_us is None else f"{run.ended_us / 1e6:.3f}"
    return f"{job}/{instance} attempt {attempt} rank {rank} on {run.boot} ({run.began_us / 1e6:.3f} to {end} s)"


def write_log(records: list[bytes], folder: Path, cell: str) -> None:
    """The log as a file, for `muster log`, `at`, `audit` and the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    with SqliteFile.open(folder, cell, writer=True) as file:
        for begin in range(file.end(), len(records), 64):
            file.append_many(records[begin : begin + 64])
