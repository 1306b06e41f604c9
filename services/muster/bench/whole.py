"""`muster bench engine --full`: the figures of the engine with all that it decides about, each beside its floor.

The load is that of `muster.bench.full`. Single decisions are taken on a cluster of 20,000 running jobs that is full to the
last GPU; plans on one whose jobs all say how long they run. A figure of single decisions is the median of five.
"""

import random

import msgspec

from muster.bench.cell import Cell, Unexpected, bound_in
from muster.bench.engine import SAMPLES, Bench
from muster.bench.full import FullLoad, job_in, queues, shapes
from muster.bench.mix import CORDONED_EVERY, GPUS_A_NODE
from muster.cluster.jobs import Attempt
from muster.events.decisions import Nominated, StartPlanned
from muster.events.jobs import GroupRequest
from muster.events.nodes import TaskExited
from muster.events.operations import Backfill, Policy, PolicySet
from muster.events.queues import Amounts, QueueSet
from muster.scheduler.memory import settle
from muster.scheduler.messages import OPERATIONS

HOUR_US = 3_600_000_000


class FullSize(msgspec.Struct, frozen=True, kw_only=True):
    """How large the figures of `--full` are taken."""

    nodes: tuple[int, ...]
    queues: int
    pending: int
    starts: tuple[int, ...]
    """So many starts a cycle, for each number of nodes."""
    cycles: int
    plans: int
    gang: int
    """Tasks of the gang that goes through a full pass."""
    wanted: int
    """Whole nodes that one preemption, or reclaim, must find."""


FULL = FullSize(nodes=(1000, 10_000), queues=1000, pending=100_000, starts=(50, 100), cycles=200, plans=1000, gang=512, wanted=8)
QUICK = FullSize(nodes=(200, 500), queues=50, pending=2000, starts=(10, 20), cycles=20, plans=50, gang=64, wanted=2)


def run(bench: Bench, size: FullSize) -> None:
    """All figures; the logs stand in `bench.logs`."""
    for nodes, starts in zip(size.nodes, size.starts, strict=True):
        _starts(bench, size, nodes, starts)
    _single_decisions(bench, size, size.nodes[-1])
    _plans(bench, size, size.nodes[-1])


def _starts(bench: Bench, size: FullSize, nodes: int, starts: int) -> None:
    bench.say(f"filling {nodes:,} nodes, and queueing {size.pending:,} jobs in {size.queues:,} queues")
    cell = bench.cell(f"full-{nodes}")
    cell.register(nodes)
    load = FullLoad(cell, nodes, size.queues, size.pending, starts)
    load.set_queues(size.queues)
    load.fill()
    for _ in range(10):
        load.step()
    settle()
    bench.say(f"starting and ending jobs on {nodes:,} nodes")
    times = []
    rates = []
    for _ in range(SAMPLES):
        steps = [load.step() for _ in range(size.cycles // SAMPLES)]
        times += [took_s * 1000 for took_s, _ in steps]
        rates.append(sum([bound for _, bound in steps]) / sum([took_s for took_s, _ in steps]))
    bench.add(
        f"starts_per_s_{nodes}_nodes",
        rates,
        "1/s",
        2500,
        "whose turn it is, over all queues, once a cycle and once a reclaim; folding the entries of a job",
        higher=True,
    )
    p99 = sorted(times)[len(times) * 99 // 100]
    bench.add(f"cycle_p99_ms_{nodes}_nodes", [p99], "ms", 60, f"{starts} starts a cycle and the reclaims among them")


def _single_decisions(bench: Bench, size: FullSize, nodes: int) -> None:
    """One gang through a full pass, one reclaim, one preemption: on a full cluster, among all that runs."""
    usable = (nodes - nodes // CORDONED_EVERY) * GPUS_A_NODE
    bench.say(f"filling {nodes:,} nodes with jobs of four GPUs and less")
    cell = bench.cell("single-decisions")
    cell.register(nodes)
    for event in queues(size.queues, usable // 10):
        cell.outbox.append((OPERATIONS, event, event.queue))
    promised = Amounts(gpu_milli=1000 * max(size.gang, size.wanted * GPUS_A_NODE))
    cell.outbox.append((OPERATIONS, QueueSet(queue="claims", guarantee=promised), ""))
    teams = [each.queue for each in queues(size.queues, usable) if each.parent]
    chance = random.Random(7)
    left = usable - size.gang
    number = 0
    while left > 0:
        gpus = min(left, 2 if number % 10 == 9 else 4)
        left -= gpus
        job_in(cell, GroupRequest(cpu_milli=1000 * gpus, memory_mib=1024, gpus=gpus), teams[number % len(teams)])
        number += 1
        if len(cell.outbox) >= 500:
            cell.run_tasks(bound_in(cell.drain()))
    cell.run_tasks(bound_in(cell.drain()))
    for kind in range(size.pending // 10):
        too_much = GroupRequest(cpu_milli=1000 + 10 * (kind % 500), memory_mib=2**20, gpus=8)
        job_in(cell, too_much, chance.choice(teams))
    cell.drain()
    settle()
    times = []
    for _ in range(SAMPLES):
        job = job_in(cell, GroupRequest(count=size.gang, min=size.gang, cpu_milli=100, memory_mib=64, gpus=1), "claims")
        took_s, decisions = cell.cycle()
        if [len(event.placements) for event in bound_in(decisions)] != [size.gang]:
            raise Unexpected(f"a gang of {size.gang} tasks was not bound in its cycle")
        times.append(took_s * 1000)
        cell.cancel(job)
    bench.add(f"gang_{size.gang}_ms", times, "ms", 50, "one placement and one held task after another")
    fill = job_in(cell, GroupRequest(count=size.gang, min=size.gang, cpu_milli=100, memory_mib=64, gpus=1), teams[0])
    cell.run_tasks(bound_in(cell.drain()))
    wanted = GroupRequest(count=size.wanted, min=size.wanted, cpu_milli=8000, memory_mib=1024, gpus=GPUS_A_NODE)
    _told_to_stop(bench, cell, "reclaim_ms", wanted, "claims", 0, "the queues that borrow, and their attempts one by one")
    cell.cancel(fill)
    bench.say("moving everything into one queue")
    _preemption(bench, size, nodes)


def _preemption(bench: Bench, size: FullSize, nodes: int) -> None:
    """All in one queue, with ten priorities."""
    cell = bench.cell("preemption")
    cell.register(nodes)
    for event in queues(size.queues, nodes):
        cell.outbox.append((OPERATIONS, event, event.queue))
    chance = random.Random(7)
    left = (nodes - nodes // CORDONED_EVERY) * GPUS_A_NODE
    number = 0
    while left > 0:
        gpus = min(left, 2 if number % 10 == 9 else 4)
        left -= gpus
        group = GroupRequest(cpu_milli=1000 * gpus, memory_mib=1024, gpus=gpus)
        job_in(cell, group, "team-0", priority=chance.randrange(10))
        number += 1
        if len(cell.outbox) >= 500:
            cell.run_tasks(bound_in(cell.drain()))
    cell.run_tasks(bound_in(cell.drain()))
    settle()
    wanted = GroupRequest(count=size.wanted, min=size.wanted, cpu_milli=8000, memory_mib=1024, gpus=GPUS_A_NODE)
    _told_to_stop(bench, cell, "preemption_ms", wanted, "team-0", 100, "all attempts of the queue, by their ranks")


def _told_to_stop(bench: Bench, cell: Cell, name: str, group: GroupRequest, queue: str, priority: int, limit: str) -> None:
    times = []
    for _ in range(SAMPLES):
        cell.drain()
        job = job_in(cell, group, queue, priority=priority)
        took_s, decisions = cell.cycle()
        if not any(isinstance(event, Nominated) and event.job == job for event in decisions):
            raise Unexpected(f"{name}: nobody was told to stop")
        times.append(took_s * 1000)
        cell.cancel(job)
    bench.add(name, times, "ms", 50, limit)


def _end(cell: Cell, attempt: Attempt) -> None:
    for rank in attempt.tasks:
        cell.tell(TaskExited(job=attempt.instance.job.id, instance=0, attempt=attempt.number, rank=rank))


def _length_us(chance: random.Random) -> int:
    return chance.randrange(3600, 86_400) * 1_000_000


def _plans(bench: Bench, size: FullSize, nodes: int) -> None:
    """Planned starts of all that wait: from nothing, after one end, after one submission."""
    bench.say(f"planning the starts of {size.plans:,} jobs")
    cell = bench.cell("plans")
    cell.register(nodes)
    chance = random.Random(3)
    left = (nodes - nodes // CORDONED_EVERY) * GPUS_A_NODE
    while left > 0:
        gpus = min(left, chance.choice((1, 2, 4, 8, 8, 4)))
        left -= gpus
        job_in(cell, GroupRequest(cpu_milli=1000 * gpus, memory_mib=1024, gpus=gpus), limit_us=_length_us(chance))
        if len(cell.outbox) >= 500:
            cell.run_tasks(bound_in(cell.drain()))
    cell.run_tasks(bound_in(cell.drain()))
    policy = Policy(backfill=Backfill(reservations=size.plans))
    cell.outbox.append((OPERATIONS, PolicySet(policy=policy), ""))
    first = job_in(cell, GroupRequest(cpu_milli=1000, gpus=8), limit_us=HOUR_US)
    cell.drain()
    settle()
    kinds = shapes()
    for _ in range(size.plans - 1):
        job_in(cell, chance.choice(kinds), limit_us=_length_us(chance))
    took_s, decisions = cell.cycle(len(cell.outbox))
    planned = sum([isinstance(event, StartPlanned) for event in decisions])
    if planned < size.plans // 2:
        raise Unexpected(f"of {size.plans} jobs {planned} were planned")
    bench.add(f"plan_ms_{size.plans}_jobs", [took_s * 1000], "ms", 200, "the node over time, exactly, for each that is looked at")
    cell.run_tasks(bound_in(decisions))
    ends = []
    for _ in range(SAMPLES):
        attempts = [instance.attempt for job in cell.core.state.jobs.values() for instance in job.instances]
        _end(cell, chance.choice([attempt for attempt in attempts if attempt is not None and attempt.phase == "run"]))
        took_s, decisions = cell.cycle()
        ends.append(took_s * 1000)
        cell.run_tasks(bound_in(decisions))
    bench.add("replan_ms_one_end", ends, "ms", 20, "plans that become earlier by it, each made anew")
    times = []
    for _ in range(SAMPLES):
        job_in(cell, chance.choice(kinds), limit_us=_length_us(chance))
        took_s, _ = cell.cycle()
        times.append(took_s * 1000)
    bench.add("replan_ms_one_submission", times, "ms", 20, "putting one plan after another, and looking whether it stays")
    cell.cancel(first)
