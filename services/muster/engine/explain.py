"""Why is my job pending? Computed from the state of any cycle, with all numbers; nothing of it is recorded.

The nodes are told apart by the first thing that keeps a task off each: the filters of the policy in their order, then what
is not free. Nothing here decides; asking changes nothing.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from muster.cluster.dependencies import HOPES
from muster.cluster.disruption import disrupted, waits_to_drain
from muster.cluster.evolve_nodes import broken_place
from muster.cluster.jobs import TERMINAL, Attempt, Instance, Job
from muster.cluster.nodes import Node
from muster.cluster.plans import FAR, order_of, size_of, standing
from muster.cluster.queuetree import QueueTree
from muster.cluster.shapes import Shape
from muster.cluster.state import State
from muster.engine.advice import would_start
from muster.engine.bounded import kept_off, short_in
from muster.engine.deadline import about as about_deadline
from muster.engine.eta import eta
from muster.engine.fairtree import used_ppm, weight_ppm
from muster.engine.filters.model import devices_named, named
from muster.engine.limits import Limits, shown
from muster.engine.nodeindex import rows_of
from muster.engine.place import Placer
from muster.engine.preempt import may_be_victim
from muster.engine.profile import less, tasks_that_fit
from muster.engine.reclaim import Grounds, levels
from muster.engine.reserved_why import KeptOff, reserved_from
from muster.engine.room import fitting
from muster.engine.rows import devices_for
from muster.engine.services import said_of_service
from muster.engine.shares import ONE, Asks, share
from muster.engine.spare import held as held_by_spare
from muster.engine.special import ports_free, special_fits


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps a group off some of the nodes."""

    group: str
    code: str
    nodes: int
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: `summary` is one sentence; `lines` say it all, for a person."""

    job: str
    instance: int
    phase: str
    cycle: int
    queue: str
    position: int
    """How many pending instances go before it; -1 where it does not wait."""
    nodes: int
    reasons: tuple[Reason, ...]
    never: bool
    """No node here could ever hold one task of some group, even with nothing on it."""
    summary: str
    lines: tuple[str, ...]
    advice: tuple[str, ...] = ()
    """What would start it now, where that was asked: each was tried, and begins with if or when."""


def explain(state: State, job_id: str, index: int = 0, placer: Placer | None = None, advise: bool = False) -> Explanation:
    """Why the instance is where it is; where it is to `advise`, what would start it now, which takes many trials.

    Raises:
        KeyError: the state does not know the job, or it has no such instance.
    """
    job = state.jobs[job_id]
    if index >= len(job.instances):
        raise KeyError(f"job {job_id} has {len(job.instances)} instances, numbered from 0")
    instance = job.instances[index]
    job = instance.job
    if instance.phase != "pending":
        due = about_deadline(instance, state.at_us)
        return _answer(state, instance, (), False, _not_pending(state, instance) + (f"; {due}" if due else ""), ())
    placer = placer or Placer(state)
    registered = state.ledger.registered.bit_count()
    if waits := _waits_for(state, instance):
        return _answer(state, instance, (), False, f"pending: {waits[0]}", tuple(waits))
    reasons: list[Reason] = []
    lines: list[str] = []
    never = False
    if instance.not_before_us > state.at_us:
        wait_s = (instance.not_before_us - state.at_us + 999_999) // 1_000_000
        what = f"start failure {instance.start_failures}" if job.service is None else "ending again and again"
        lines.append(f"it backs off for {wait_s} s more after {what} ({instance.reason})")
    lines += _about_queue(state, instance)
    nomination = state.nominations.get(instance.key)
    if nomination is not None:
        still = [attempt for attempt in nomination.victims if attempt.held]
        where = ", ".join(dict.fromkeys([state.ledger.node(p.row).name for p in nomination.placements]))
        why = broken_place(nomination)
        lines.append(f"it is nominated on {where} and waits for {len(still)} victims to stop{f' ({why})' if why else ''}")
    barred, reserved = _barred(state, placer, instance), reserved_from(state, placer, instance)
    for name, group in zip([g.name for g in job.request.groups], range(len(job.gang.shapes)), strict=True):
        shape = job.gang.shapes[group]
        found, passing = _filtered(state, placer, shape, name, placer.excluded(job.avoid))
        never = never or (registered > 0 and not _ever(state, placer, shape))
        kept, passing = kept_off(placer, job, passing) if job.gang.special or placer.bound.around.crowded else ([], passing)
        found += [Reason(group=name, code=each.code, nodes=each.nodes, text=each.text) for each in kept]
        if passing:
            found += unfree(state, shape, name, passing, barred, reserved)
        domains = short_in(placer, job, group, passing)
        if domains:
            found = [reason for reason in found if reason.code != "fits"]
            found += [Reason(group=name, code=each.code, nodes=each.nodes, text=each.text) for each in domains]
        reasons += found
        text = ", ".join([f"{reason.nodes} {reason.text}" for reason in found])
        needed = f"{job.gang.counts[group]} x {_wants(shape)}"
        title = f"group {name} ({needed})" if len(job.gang.shapes) > 1 else needed
        lines.append(f"{title}: {registered} nodes: {text}" if text else f"{title}: {registered} nodes")
    if not job.gang.single and not any(reason.code in ("not-ready", "no-nodes") for reason in reasons) and not never:
        lines.append(f"all {sum(job.gang.minima)} tasks that it needs at least must fit at once; they do not")
    due = about_deadline(instance, state.at_us, None if never else _start_us(state, instance, placer))
    if due:
        lines.append(f"deadline: {due}")
    if not never:  # nobody's leaving would help
        if placer.backfill is not None:
            lines.append(f"start: {eta(state, job_id, index, placer.cache).text}")
        lines.append(_about_preemption(state, instance))
    advice: list[str] = []
    if advise and registered and nomination is None:
        advice = would_start(state, placer, job)
        lines.append(f"it would start now {', or '.join(advice)}" if advice else "no small change of it alone would start it now")
    return _answer(state, instance, tuple(reasons), never, "", tuple(lines), tuple(advice))


def _start_us(state: State, instance: Instance, placer: Placer) -> int | None:
    """When it is expected to start, for one that has a deadline."""
    if not isinstance(instance.job.request.deadline_us, int):
        return None
    return eta(state, instance.job.id, instance.index, placer.cache).start_us


def _about_queue(state: State, instance: Instance) -> list[str]:
    """What its queue has and may have, how far the job was lifted by waiting, and what the policy orders by."""
    lines = []
    job = instance.job
    lifted = standing(state.policy, job, state.at_us) - job.rank
    if lifted:
        waited_s = (state.at_us - job.submitted_us) // 1_000_000
        lines.append(f"its priority {job.priority} stands {lifted} higher for {waited_s} s since its submission")
    if state.policy.order:
        size = size_of(state.policy, job)
        what = "seconds" if state.policy.order == "shortest" else "thousandths x seconds"
        said = "it has no time limit, and comes last" if size == FAR else f"it has {size} {what}"
        lines.append(f"order {state.policy.order} among equals of its queue: {said}")
    before = _position(state, instance) if state.policy.strict else 0
    if before:
        lines.append(f"the policy is strict: nobody starts past the {before} who stand before it in queue {job.queue}")
    tree = state.tree
    if tree is None:
        return lines
    if job.spare:
        has = shown("gpus", held_by_spare(state, tree).get(job.queue, {}).get("gpus", 0))
        return [
            *lines,
            f"it is best-effort, and charged to no guarantee and no limit; those of queue {job.queue} hold {has} GPUs",
        ]
    found = Limits(state, tree).why(job)
    if found is not None:
        lines.append(str(found))
    queue = tree.of(job.queue)
    for each in queue.path:
        parts = []
        for what in sorted(dict.fromkeys([*each.guarantee, *each.caps, *(["gpus"] if each.charged.get("gpus") else [])])):
            part = f"{what} charged {shown(what, each.charged.get(what, 0))}"
            if what in each.guarantee:
                part += f" of {shown(what, each.guarantee[what])} guaranteed"
            if what in each.caps:
                part += f", limit {shown(what, each.caps[what])}"
            parts.append(part)
        part_ppm = share(each.charged, tree.dimensions) * 1_000_000 // ONE
        parts.append(f"share {part_ppm // 10_000}.{part_ppm // 100 % 100:02d} % at weight {each.weight}")
        if tree.usage is not None:
            used, due = used_ppm(tree, each), weight_ppm(each)
            parts.append(f"used {_percent(used)} of what its siblings and it used of late, {_percent(due)} is its part by weight")
        lines.append(f"queue {each.name}: {'; '.join(parts)}")
    return lines


def _percent(ppm: int) -> str:
    return f"{ppm // 10_000}.{ppm // 100 % 100:02d} %"


def _answer(
    state: State,
    instance: Instance,
    reasons: tuple[Reason, ...],
    never: bool,
    summary: str,
    lines: tuple[str, ...],
    advice: tuple[str, ...] = (),
) -> Explanation:
    job = instance.job
    position = _position(state, instance)
    if not summary:
        total = state.ledger.registered.bit_count()
        if not total:
            summary = "pending: no node is registered"
        elif never:
            summary = f"pending: no node here can ever hold it; {lines[0] if lines else ''}".rstrip("; ")
        else:
            summary = f"pending, {position} before it in queue {job.queue}; {lines[0]}"
    return Explanation(
        job=job.id,
        instance=instance.index,
        phase=instance.phase,
        cycle=state.number,
        queue=job.queue,
        position=position,
        nodes=state.ledger.registered.bit_count(),
        reasons=reasons,
        never=never,
        advice=advice,
        summary=summary,
        lines=(
            *((f"place in queue {job.queue}: {position} before it", *lines) if instance.phase == "pending" else (summary,)),
            *said_of_service(state, job),
        ),
    )


def _waits_for(state: State, instance: Instance) -> list[str]:
    """The other jobs, and the earlier elements of its own, before which it is not looked at."""
    job = instance.job
    found = []
    for condition in job.held:
        other = state.jobs.get(condition.job)
        if other is None:
            now = "is not known yet"
        else:
            phases = Counter(one.phase for one in other.instances)
            now = "is " + ", ".join(
                [f"{phase} ({count})" if len(phases) > 1 else phase for phase, count in sorted(phases.items())]
            )
        found.append(f"it waits until job {condition.job} {HOPES[condition.when]}, which {now}")
    if instance.index >= job.next:
        found.append(
            f"{job.request.at_once} elements of the job may be in play at once: it comes after element {job.next - 1}, when "
            f"{instance.index - job.next + 1} more have ended"
        )
    return found


def _not_pending(state: State, instance: Instance) -> str:
    attempt = instance.attempt
    if attempt is None or instance.phase in TERMINAL:
        why = f" ({instance.reason})" if instance.reason else ""
        return f"{instance.phase}{why}" + (f", exit {instance.code}" if instance.code else "")
    nodes = ", ".join(dict.fromkeys([task.node.name for _, task in sorted(attempt.tasks.items())][:8]))
    if instance.phase == "starting":
        return f"starting on {nodes}: {attempt.ready} of {len(attempt.tasks)} tasks are ready"
    if instance.phase == "stopping":
        by = f" for {' and '.join([f'{job}/{index}' for job, index in attempt.by])}" if attempt.by else ""
        return f"stopping ({attempt.stop_reason}{by}): {attempt.held} tasks still hold their places"
    if attempt.degraded_until_us:
        left_s = (attempt.degraded_until_us - state.at_us) // 1_000_000
        return f"running degraded on {nodes}: {attempt.held} of {len(attempt.tasks)} tasks; {left_s} s to be refilled"
    if instance.job.headroom:
        whom = f"queue {instance.job.queue} of priority {instance.job.priority} and above"
        return f"holding {len(attempt.tasks)} places on {nodes}, for jobs of {whom}; nothing runs"
    if instance.job.budgeted:
        gone = disrupted(instance.job)
        text = f"running on {nodes}; {gone} of its job's tasks are disrupted, its budget is {instance.job.request.budget}"
        if waits_to_drain(attempt):
            return f"{text}: it leaves the drained node when {attempt.held} more may be"
        return text
    return f"running on {nodes}"


def _position(state: State, instance: Instance) -> int:
    if instance.phase != "pending":
        return -1
    job = instance.job
    before = 0
    if state.policy.aging_after_us or state.policy.order:
        mine = order_of(state.policy, instance, state.at_us)
        return sum(
            [
                order_of(state.policy, other, state.at_us) < mine
                for waiting in state.pending.classes.values()
                if waiting.queue == job.queue
                for other in waiting.places().values()
            ]
        )
    for waiting in state.pending.classes.values():
        theirs = -waiting.priority, waiting.turn
        if waiting.queue == job.queue and theirs < (-job.rank, job.turn):
            before += waiting.count
        elif waiting.queue == job.queue and theirs == (-job.rank, job.turn):
            before += sum([place < instance.place for place in waiting.places()])
    return before


def _wants(shape: Shape) -> str:
    parts = []
    if shape.gpus:
        parts.append(f"{shape.gpus} {devices_named(shape)}")
    if shape.gpu_milli:
        parts.append(f"{shape.gpu_milli}/1000 of a GPU")
    if shape.gpu_memory_mib:
        parts.append(f"{shape.gpu_memory_mib} MiB of GPU memory")
    parts.append(f"{shape.cpu_milli} milli-CPU")
    parts.append(f"{shape.memory_mib} MiB")
    return " ".join([", ".join(parts), *([f"on {named(shape)}"] if shape.gpu_models else [])])


def _filtered(state: State, placer: Placer, shape: Shape, group: str, avoided: int) -> tuple[list[Reason], int]:
    """What the filters say, and the rows that pass."""
    placer.cache.of(shape)
    among = state.ledger.registered
    reasons = []
    if not among:
        return [Reason(group=group, code="no-nodes", nodes=0, text="no node is registered")], 0
    for each in placer.cache.filters:
        passing = each.passes(placer.cache.index, shape, among)
        lost = (among & ~passing).bit_count()
        if lost:
            reasons.append(Reason(group=group, code=each.code, nodes=lost, text=each.sentence(shape)))
        among = passing
    lost = (among & avoided).bit_count()
    if lost:
        reasons.append(Reason(group=group, code="avoided", nodes=lost, text="failed to start this job before"))
    return reasons, among & ~avoided


def _ever(state: State, placer: Placer, shape: Shape) -> bool:
    """Whether some node, were it ready and nothing on it, could hold one task."""
    among = state.ledger.registered
    for each in placer.cache.filters:
        if each.code != "not-ready":
            among = each.passes(placer.cache.index, shape, among)
    return bool(among)


def _barred(state: State, placer: Placer, instance: Instance) -> dict[int, list[int]]:
    """By row: what of what is free there is planned for those who rank above."""
    if placer.backfill is None:
        return {}
    placer.backfill.ask_for(instance)
    rows = {row: placer.backfill.barred(state.ledger.node(row)) for row in rows_of(state.plans.bits & state.ledger.registered)}
    return {row: amounts for row, amounts in rows.items() if amounts}


def unfree(
    state: State,
    shape: Shape,
    group: str,
    passing: int,
    barred: Mapping[int, list[int]],
    reserved: Mapping[int, KeptOff],
) -> list[Reason]:
    """What is not free on the nodes that pass: the first amount that is short, of those that a task needs.

    `barred`, by row: what is planned there for those who rank above; `reserved`: what is kept for others.
    """
    short: dict[str, int] = {}
    most: dict[str, int] = {}
    would = planned = 0
    broken: list[str] = []
    kept: dict[str, int] = {}
    for row in rows_of(passing):
        node = state.ledger.node(row)
        off = reserved.get(row)
        if off is not None and off.amounts is None:
            kept[off.text] = kept.get(off.text, 0) + 1
            continue
        sick = _would_do_if_healthy(node, shape)
        if sick:
            broken.append(f"{node.name} GPU {', '.join(map(str, sick))}")
        amounts = (
            ("unhealthy", bool(sick), _free_devices(node, shape)),
            ("gpu", _too_few(node, shape, row, state), _free_devices(node, shape)),
            ("numa", _devices_short(node, shape, row, state), _most_near(node, shape)),
            ("cpu", node.cpu_free < shape.cpu_milli, node.cpu_free),
            ("memory", node.memory_free < shape.memory_mib, node.memory_free),
            ("disk", node.disk_free < shape.disk_mib, node.disk_free),
            ("slots", node.tasks_free < 1, node.tasks_free),
            ("ports", bool(shape.ports) and not ports_free(node, shape), 0),
            ("numa", shape.special and not special_fits(node, shape), 0),
        )
        for code, is_short, free in amounts:
            if is_short:
                short[code] = short.get(code, 0) + 1
                most[code] = max(most.get(code, 0), free)
                break
        else:
            if off is not None and off.amounts and not tasks_that_fit(node, shape, less(node, off.amounts), 1):
                kept[off.text] = kept.get(off.text, 0) + 1
            elif row in barred and not tasks_that_fit(node, shape, less(node, barred[row]), 1):
                planned += 1
            else:
                would += 1
    reasons = [
        Reason(group=group, code=code, nodes=nodes, text=_short_text(code, shape, most[code], broken))
        for code, nodes in sorted(short.items(), key=lambda item: (-item[1], item[0]))
    ]
    reasons += [Reason(group=group, code="reserved", nodes=nodes, text=text) for text, nodes in kept.items()]
    if planned:
        text = "are planned on for jobs that rank above, before it would be gone"
        reasons.append(Reason(group=group, code="planned", nodes=planned, text=text))
    if would:
        reasons.append(Reason(group=group, code="fits", nodes=would, text="could take one task now"))
    return reasons


def _would_do_if_healthy(node: Node, shape: Shape) -> list[int]:
    """The devices here that are failed or degraded and without which too few are free."""
    if not shape.gpus:
        return []
    sick = [
        i for i, device in enumerate(node.devices) if device.present and device.health != "healthy" and fitting(node, shape, i)
    ]
    free = _free_devices(node, shape)
    return sick if free < shape.gpus <= free + len(sick) else []


def _too_few(node: Node, shape: Shape, row: int, state: State) -> bool:
    """Whether too few devices are free, wherever they are on the node."""
    if shape.numa != "required":
        return _devices_short(node, shape, row, state)
    free = _free_devices(node, shape)
    return free < (shape.gpus or shape.gpu_milli or shape.gpu_memory_mib) if shape.needs_device else False


def _most_near(node: Node, shape: Shape) -> int:
    """Of whole devices, how many are free on one NUMA node at most."""
    counts: dict[int, int] = {}
    for index, units in enumerate(node.device_free):
        if units > 0 and units == node.devices[index].units and fitting(node, shape, index):
            counts[node.devices[index].numa] = counts.get(node.devices[index].numa, 0) + 1
    return max(counts.values(), default=0)


def _devices_short(node: Node, shape: Shape, row: int, state: State) -> bool:
    return shape.needs_device and devices_for(node.device_free, shape, row, state) is None


def _free_devices(node: Node, shape: Shape) -> int:
    """For whole devices how many are free; for a share the largest free part, in thousandths or in MiB."""
    devices = [index for index, units in enumerate(node.device_free) if units > 0 and fitting(node, shape, index)]
    if shape.gpus:
        return sum([node.device_free[index] == node.devices[index].units for index in devices])
    if shape.gpu_milli:
        return max([0, *[node.device_free[index] * 1000 // node.devices[index].units for index in devices]])
    return max([0, *[node.device_free[index] // 1000 for index in devices]])


def _short_text(code: str, shape: Shape, most: int, broken: list[str]) -> str:
    if code == "unhealthy":
        named = "; ".join(broken[:3]) + (f"; and {len(broken) - 3} more nodes" if len(broken) > 3 else "")
        return f"have bad GPUs, without which too few are free (needs {shape.gpus}, most free {most}): {named}"
    if code == "gpu" and shape.gpus:
        return f"too few {devices_named(shape)} free (needs {shape.gpus}, most free {most})"
    if code == "gpu" and shape.gpu_milli:
        return f"too little of a GPU free (needs {shape.gpu_milli}/1000, most free {most}/1000)"
    if code == "gpu":
        return f"too little GPU memory free (needs {shape.gpu_memory_mib} MiB, most free {most} MiB)"
    if code == "numa":
        return f"too little free of one NUMA node (needs {shape.gpus} GPUs, most free {most}; and CPU and memory of the same)"
    if code == "ports":
        return f"have the port {' or '.join(map(str, shape.ports))} taken"
    if code == "cpu":
        return f"too little CPU free (needs {shape.cpu_milli} milli-CPU, most free {most})"
    if code == "memory":
        return f"too little memory free (needs {shape.memory_mib} MiB, most free {most})"
    if code == "disk":
        return f"too little disk free (needs {shape.disk_mib} MiB, most free {most})"
    return "no task slot free"


def _about_preemption(state: State, instance: Instance) -> str:
    """Whether others could be preempted for it, how many, and why the others not."""
    job = instance.job
    if job.headroom:
        return "preemption: it is headroom: only best-effort jobs are told to stop for it"
    if job.spare:
        return "preemption: it is best-effort: nobody is told to stop for it, and it is told to stop for any other job"
    if state.tree is not None:
        return _about_grounds(state, state.tree, job)
    if not state.policy.preemption:
        return "preemption: off in the policy"
    victims = 0
    kept: dict[str, int] = {}
    for other in state.jobs.values():
        if other.open and (other.queue == job.queue or other.spare) and other is not job:
            for each in other.instances:
                attempt = each.attempt
                if attempt is None:
                    continue
                if may_be_victim(state, attempt, job):
                    victims += 1
                else:
                    why = _kept_why(state, attempt, job)
                    kept[why] = kept.get(why, 0) + 1
    equal = kept.pop(NOT_LOWER, 0)
    if not victims and not kept:
        return f"preemption: nothing of a priority below {job.priority} runs in queue {job.queue}"
    rest = ", ".join([f"{count} {why}" for why, count in sorted(kept.items())])
    protected = f"; {sum(kept.values())} of lower priority may not be ({rest})" if kept else ""
    higher = f"; {equal} are {NOT_LOWER}" if equal else ""
    return f"preemption: {victims} attempts of lower priority could be, and even without them it does not fit{protected}{higher}"


def _about_grounds(state: State, tree: QueueTree, job: Job) -> str:
    """The same where queues stand in a tree: who could be told to stop for it, and of which queues."""
    queue = tree.of(job.queue)
    found = levels(tree, queue, Asks(tree).of(job.gang))
    if not state.policy.preemption and not (found and state.policy.reclaim):
        return "preemption: off in the policy" if not found else "preemption and reclaim: off in the policy"
    grounds = Grounds(state, tree, job, found)
    own = sum([attempt.instance.job.queue == job.queue for attempt in grounds.victims])
    others = len(grounds.victims) - own
    promised = "within its guarantee" if found else "beyond its guarantee"
    if not grounds.victims:
        return f"preemption and reclaim: it asks {promised}, and nothing may be told to stop for it"
    return (
        f"preemption and reclaim: it asks {promised}; {own} attempts of its queue and {others} of others could be told to stop, "
        "and even without them it does not fit"
    )


NOT_LOWER = "of equal or higher priority"


def _kept_why(state: State, attempt: Attempt, job: Job) -> str:
    other = attempt.instance.job
    if other.priority >= job.priority:
        return NOT_LOWER
    if attempt.phase == "stop":
        return "stopping already"
    if not other.request.preemptible:
        return "not preemptible"
    return f"started less than {state.policy.min_runtime_us // 1_000_000} s ago"
