"""What would start a job now: small changes of its request, each tried on the state as it is. Nothing here decides.

Every sentence was found true: the changed job was looked a place for, as a pass would. At most `TRIES_MAX` are tried.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET

from muster.cluster.jobs import Job, job_of
from muster.cluster.shapes import intern_gang
from muster.cluster.state import State
from muster.engine import preempt
from muster.engine.nodeindex import rows_of
from muster.engine.place import Placer
from muster.events.jobs import Constraints, JobRequest, Toleration
from muster.events.nodes import Taint

TRIES_MAX: Final = 96
RANKS_MAX: Final = 8
"""So many priorities are tried at which others could be preempted."""

UNITS: Final = {"gpus": "GPUs", "gpu_milli": "thousandths of a GPU", "cpu_milli": "milli-CPU", "memory_mib": "MiB"}

Change = tuple[str, JobRequest]


class _Trials:
    """Looks for places for changed jobs, a bounded number of times."""

    def __init__(self, state: State, placer: Placer, job: Job) -> None:
        self.state = state
        self.placer = placer
        self.job = job
        self.left = TRIES_MAX

    def like(self, request: JobRequest) -> Job:
        """The job, had it been submitted with this request."""
        job = self.job
        gang = intern_gang(request)
        made = job_of(job.id, job.name, job.user, job.queue, request, job.run, gang, job.place, job.submitted_us)
        made.priority = job.priority
        made.avoid = job.avoid
        return made

    def starts(self, request: JobRequest) -> bool:
        """Whether it would start now with this request."""
        if not self.left:
            return False
        self.left -= 1
        return self.placer.find(self.like(request)) is not None

    def most(self, upto: int, request: Callable[[int], JobRequest]) -> int:
        """The largest number from 0 to `upto` with which it would start, where less never hurts; -1 if none."""
        if not self.starts(request(0)):
            return -1
        low, high = 0, upto + 1
        while high - low > 1 and self.left:
            middle = (low + high) // 2
            if self.starts(request(middle)):
                low = middle
            else:
                high = middle
        return low


def would_start(state: State, placer: Placer, job: Job) -> list[str]:
    """What would start the first instance of the job now, each a sentence that begins with 'if'."""
    trials = _Trials(state, placer, job)
    request = job.request
    if trials.starts(request):
        return ["when its turn comes: there is room for it"]
    found = [text for text, changed in _changes(state, job) if trials.starts(changed)]
    found += _fewer(trials, request)
    found += _smaller(trials, request)
    return found + _licences(trials) + _higher(trials)


def _changes(state: State, job: Job) -> Iterator[Change]:
    """One thing less that is asked."""
    request, asked = job.request, job.request.constraints or Constraints()
    for within in asked.within:
        if within.required:
            softer = tuple([msgspec.structs.replace(one, required=one.required and one is not within) for one in asked.within])
            yield f"if {within.level} were only preferred", _with(request, asked, within=softer)
    if asked.spread:
        yield "if its tasks need not stand apart", _with(request, asked, spread=())
    if asked.affinity:
        yield "if it need not be near others", _with(request, asked, affinity=())
    if asked.anti_affinity:
        yield "if it need not be away from others", _with(request, asked, anti_affinity=())
    if asked.exclusive:
        yield "if it shared its nodes", _with(request, asked, exclusive=False)
    if any(group.numa == "required" for group in request.groups):
        yield "if one NUMA node were only preferred", _each(request, numa=UNSET)
    if any(group.ports for group in request.groups):
        yield "if it named no ports", _each(request, ports=UNSET)
    if any(group.selector or group.any_of for group in request.groups):
        yield "if it had no selector", _each(request, selector=(), any_of=UNSET)
    if any(group.gpu_models for group in request.groups):
        yield "if it took any model of GPU", _each(request, gpu_models=())
    taints: dict[Taint, None] = {}
    for row in rows_of(state.ledger.registered):
        for taint in state.ledger.node(row).spec.taints:
            if taint.effect != "PreferNoSchedule" and not all(shape.tolerates(taint) for shape in job.gang.shapes):
                taints[taint] = None
    for taint in list(taints)[:4]:
        more = Toleration(key=taint.key, value=taint.value)
        groups = tuple([msgspec.structs.replace(group, tolerations=(*group.tolerations, more)) for group in request.groups])
        text = f"if it tolerated the taint {taint.key}{'=' if taint.value else ''}{taint.value}"
        yield text, msgspec.structs.replace(request, groups=groups)


def _fewer(trials: _Trials, request: JobRequest) -> list[str]:
    """With fewer tasks, where it has one group."""
    group = request.groups[0]
    if len(request.groups) > 1 or group.min < 2:
        return []

    def of(tasks: int) -> JobRequest:
        return _each(request, count=tasks + 1, min=tasks + 1)

    found = trials.most(group.min - 2, of) + 1
    return [f"if it started with {found} of its {group.count} tasks"] if found else []


def _smaller(trials: _Trials, request: JobRequest) -> list[str]:
    """With less of one amount for each task."""
    sentences = []
    for field, unit in (
        ("gpus", "GPUs"),
        ("gpu_milli", "thousandths of a GPU"),
        ("cpu_milli", "milli-CPU"),
        ("memory_mib", "MiB"),
    ):
        most = max([getattr(group, field) for group in request.groups])
        least = 1 if field in ("gpus", "gpu_milli") else 0
        if most <= least:
            continue

        def of(amount: int, field: str = field, least: int = least) -> JobRequest:
            groups = [
                msgspec.structs.replace(group, **{field: min(getattr(group, field), amount + least)}) for group in request.groups
            ]
            return msgspec.structs.replace(request, groups=tuple(groups))

        found = trials.most(most - 1 - least, of)
        if found >= 0:
            sentences.append(f"if a task asked for {found + least} {unit} and not for {most}")
    return sentences


def _licences(trials: _Trials) -> list[str]:
    """With more licences: those that are short."""
    rules, request = trials.job.gang.rules, trials.job.request
    if rules is None or not rules.licences:
        return []
    around = trials.placer.bound.around
    short = {name: count - around.licences_left(name) for name, count in rules.licences.items()}
    if not trials.starts(_with(request, request.constraints or Constraints(), licences=())):
        return []
    lacking = [f"{count} more licences {name}" for name, count in short.items() if count > 0]
    return [f"if there were {' and '.join(lacking)}"] if lacking else ["when those before it have had their licences"]


def _higher(trials: _Trials) -> list[str]:
    """With a higher priority: the lowest at which others could be preempted for it."""
    state, job = trials.state, trials.job
    if not state.policy.preemption or job.soft:
        return []
    running = state.pending.running.items()
    levels = sorted([key[1] for key, each in running if key[0] == job.queue and key[1] >= job.priority and each.count])
    for level in levels[:RANKS_MAX]:
        other = trials.like(job.request)
        other.priority = level + 1
        found = preempt.search(state, trials.placer, other)
        if found is not None:
            victims = sum([attempt.phase != "stop" for attempt in found[1]])
            return [f"if its priority were {level + 1}: {victims} attempts would be preempted for it"]
    return []


def _with(request: JobRequest, asked: Constraints, **changes: Any) -> JobRequest:
    return msgspec.structs.replace(request, constraints=msgspec.structs.replace(asked, **changes))


def _each(request: JobRequest, **changes: Any) -> JobRequest:
    """Every group with these fields changed."""
    groups = tuple([msgspec.structs.replace(group, **changes) for group in request.groups])
    return msgspec.structs.replace(request, groups=groups)
