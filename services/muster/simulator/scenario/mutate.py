"""Which rules of the engine a scene would miss: it is played with one left out at a time.

A mutant is made here by putting something else in the place of one of the engine's functions while the scene is played,
and taking it away again; the engine itself has no such switches. Only the scene's expectations judge: invariants and the
second judge would find most of these without it. A mutant that does not apply to a scene goes unnoticed, and that is no
fault; a scene that notices none proves nothing.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec

from muster.cluster import evolve_jobs
from muster.cluster.check import BrokenInvariant
from muster.cluster.jobs import Attempt, Job
from muster.cluster.nodes import Claim
from muster.cluster.queues import PendingClass
from muster.engine import lifecycle, liveness, preempt
from muster.engine.emit import Emitter
from muster.engine.filters import FILTERS
from muster.engine.passes import Pass
from muster.engine.place import Placer
from muster.events.base import Event
from muster.events.decisions import AttemptEnded, InstanceBound, InstancePreempted, InstanceStarted, StopOrdered
from muster.simulator.scenario.format import Scenario
from muster.simulator.scenario.play import Performance
from muster.simulator.scenario.world import SceneFailure

Patch = Callable[[], Any]
"""Makes a context in which a rule is left out."""


class Mutation(msgspec.Struct, kw_only=True):
    """What a scene noticed. A mutant that stopped the core by a broken invariant is `broken`: nothing was expected of it."""

    file: str
    name: str
    passed: bool
    noticed: list[str] = []
    unnoticed: list[str] = []
    broken: list[str] = []
    error: str = ""

    @property
    def line(self) -> str:
        """The result in one line."""
        if self.error:
            return f"FAIL {self.name}: {self.error}"
        parts = [f"noticed {', '.join(self.noticed) or 'none'}", f"unnoticed {', '.join(self.unnoticed) or 'none'}"]
        if self.broken:
            parts.append(f"broken {', '.join(self.broken)}")
        return f"{'pass' if self.passed else 'FAIL'} {self.name}: {'; '.join(parts)}"


def mutate(scenario: Scenario) -> Mutation:
    """Play the scene with each rule left out. It passes if it passes as it is and notices at least one mutant."""
    result = Mutation(file=scenario.file, name=scenario.name, passed=False)
    as_it_is = _failure(scenario)
    if as_it_is:
        result.error = f"it does not pass as it is: {as_it_is}"
        return result
    for name, patch in MUTANTS.items():
        with patch():
            try:
                (result.noticed if _failure(scenario) else result.unnoticed).append(name)
            except (BrokenInvariant, ArithmeticError, LookupError, TypeError, AttributeError, AssertionError, RuntimeError):
                result.broken.append(name)
    result.passed = bool(result.noticed)
    return result


def _failure(scenario: Scenario) -> str:
    """What an expectation says, or an empty string."""
    performance = Performance(scenario, invariants=False)
    try:
        performance.run()
    except SceneFailure as failure:
        return f"{performance.where}, expected {failure.expected}, actual {failure.actual}"
    return ""


def _instead(owner: Any, name: str, function: Any) -> Patch:
    return lambda: mock.patch.object(owner, name, function)


def _filter(name: str) -> Patch:
    return _instead(type(FILTERS[name]), "passes", lambda self, index, shape, among: among)


_emit = Emitter.emit
_ended = lifecycle._ended
_overdue = lifecycle.overdue
_faulty = lifecycle._faulty
_rank = preempt.rank


def _fifo() -> Any:
    made = PendingClass.__init__

    def make(self: PendingClass, key: Any, job: Job) -> None:
        made(self, key, job)
        self.priority = 0

    return mock.patch.object(PendingClass, "__init__", make)


def _no_requeue(state: Any, attempt: Attempt, *args: Any) -> Event:
    ended = _ended(state, attempt, *args)
    if isinstance(ended, AttemptEnded) and ended.then == "pending":
        return msgspec.structs.replace(ended, then="failed", not_before_us=0, avoid="")
    return ended


def _no_blame(state: Any, attempt: Attempt, *args: Any) -> Event:
    ended = _ended(state, attempt, *args)
    return msgspec.structs.replace(ended, not_before_us=0, avoid="") if isinstance(ended, AttemptEnded) else ended


def _partial_gangs(self: Placer, job: Job) -> Any:
    gang = job.gang
    minima = tuple([min(1, minimum) for minimum in gang.minima])
    return self._gang(job, gang, minima, gang.counts, gang.offsets, self.excluded(job.avoid))


def _new_place(self: Emitter, decision: Event) -> None:
    if isinstance(decision, AttemptEnded) and decision.then == "pending":
        self.state.jobs[decision.job].place = (self.state.number, self.state.index)
    _emit(self, decision)


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
                evolve_jobs.release(self.state, task, "exited")


def _no_barrier(self: Emitter, decision: Event) -> None:
    _emit(self, decision)
    if isinstance(decision, InstanceBound):
        _emit(self, InstanceStarted(job=decision.job, instance=decision.instance, attempt=decision.attempt))


def _no_limit(state: Any, instance: Any) -> Event | None:
    decision = _overdue(state, instance)
    return None if isinstance(decision, StopOrdered) and decision.reason == "time-limit" else decision


def _no_degradation(state: Any, attempt: Attempt, fault: Any) -> Event:
    request = attempt.instance.job.request
    with mock.patch.object(attempt.instance.job, "request", msgspec.structs.replace(request, degraded_grace_us=0)):
        return _faulty(state, attempt, fault)


MUTANTS: dict[str, Patch] = {
    "no-preemption": _instead(Pass, "_preempt", lambda self, instance, outranked: False),
    "fifo": _fifo,
    **{f"no-filter-{name}": _filter(name) for name in FILTERS},
    "no-nomination": _instead(Claim, "add", lambda self, shape, devices, node, sign: None),
    "no-outranking": _instead(Pass, "_outranked", lambda self, job: []),
    "no-requeue": _instead(lifecycle, "_ended", _no_requeue),
    "no-blame": _instead(lifecycle, "_ended", _no_blame),
    "no-gang": _instead(Placer, "find", _partial_gangs),
    "no-barrier": _instead(Emitter, "emit", _no_barrier),
    "requeue-last": _instead(Emitter, "emit", _new_place),
    "no-grace": _instead(Emitter, "emit", _no_grace),
    "free-at-notice": _instead(Emitter, "emit", _free_at_notice),
    "highest-victim": _instead(preempt, "rank", lambda attempt: (-_rank(attempt)[0], _rank(attempt)[1])),
    "no-time-limit": _instead(lifecycle, "overdue", _no_limit),
    "no-liveness": _instead(liveness, "due", lambda state, node: None),
    "no-degradation": _instead(lifecycle, "_faulty", _no_degradation),
}
