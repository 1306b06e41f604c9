"""Faults put into the core on purpose: the check that claims to find each does, within a few stories or cases."""

import re
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from muster.cluster import evolve, evolve_jobs, evolve_nodes, evolve_tasks
from muster.cluster.jobs import Attempt, Instance, Job, Task
from muster.cluster.ledger import Ledger
from muster.cluster.nodes import Claim, Node
from muster.cluster.queues import PendingClass
from muster.cluster.state import State
from muster.cluster.timers import Lane
from muster.engine import lifecycle, passes, place, preempt
from muster.engine.emit import Emitter
from muster.engine.plan import Plan
from muster.events.base import Event
from muster.events.decisions import AttemptEnded, InstanceStarted, JobsForgotten, NodeSilent
from muster.events.nodes import TaskReady
from tests.property.test_brute import Case
from tests.support.plays import come_to_rest, story
from tests.unit.engine import test_place

STORIES_MAX = 60
CASES_MAX = 600

Patch = pytest.MonkeyPatch


def table() -> dict[Any, Any]:
    """By kind, how entries are folded."""
    return evolve.HANDLERS


Finder = Callable[[int], None]


def tell(seed: int) -> None:
    """One story, in every play, with invariants and judge."""
    plays, _ = story(Random(seed), cycles=25)
    come_to_rest(plays)


def play(seed: int) -> None:
    """One case against brute force."""
    Case(seed).play()


def pack(_: int) -> None:
    """A gang of which a small group must leave a device to another."""
    test_place.test_a_small_group_leaves_a_device_to_the_group_that_needs_its_model()


def skipped_fencing(patch: Patch) -> None:
    """A fenced node takes new work."""

    def unfenced(self: Node) -> bool:
        return self.liveness == "heard" and not self.cordoned and not self.drained and not self.quarantined_until_us

    patch.setattr(Node, "open", property(unfenced))


def lost_requeue(patch: Patch) -> None:
    """An instance whose attempt ended is pending and waits nowhere."""
    enqueue = evolve_jobs.enqueue

    def first_time_only(state: State, instance: Instance) -> None:
        if not instance.attempts:
            enqueue(state, instance)

    patch.setattr(evolve_jobs, "enqueue", first_time_only)


def double_release(patch: Patch) -> None:
    """What a task held is given back twice."""
    release = Ledger.release

    def twice(self: Ledger, task: Task) -> None:
        release(self, task)
        task.node.cpu_free += task.shape.cpu_milli

    patch.setattr(Ledger, "release", twice)


def forgotten_nomination(patch: Patch) -> None:
    """What a beneficiary is nominated for is kept for nobody."""
    patch.setattr(Claim, "add", lambda *_: None)


def equal_victim(patch: Patch) -> None:
    """An equal is preempted."""

    def anybody(state: State, attempt: Attempt, job: Job) -> bool:
        return attempt.phase != "stop" and attempt.instance.job is not job and attempt.number == 1

    patch.setattr(preempt, "may_be_victim", anybody)
    patch.setattr(passes.Pass, "_may_preempt", lambda *_: True)


def dearest_victim(patch: Patch) -> None:
    """The highest rank goes first."""
    rank = preempt.rank
    patch.setattr(preempt, "rank", lambda attempt: (-rank(attempt)[0], rank(attempt)[1]))


def spared_nobody(patch: Patch) -> None:
    """Whoever was taken off in search goes, needed or not."""
    patch.setattr(preempt, "_spare", lambda state, plan, placer, job, gone, places: list(gone))
    patch.setattr(preempt, "_spare_in_place", lambda state, plan, job, gone, places: list(gone))


def greedy_victims(patch: Patch) -> None:
    """Among victims of one rank the first that add up go, though fewer would do."""
    patch.setattr(preempt, "_best_set", lambda state, plan, node, shape, among, known, tries: known)


def greedy_places(patch: Patch) -> None:
    """What the greedy orders do not find is not looked for."""
    patch.setattr(place, "pack", lambda *_: None)


def stale_report(patch: Patch) -> None:
    """What is said of another attempt is taken for the present one."""

    def any_attempt(state: State, event: Any) -> Task | None:
        instance = state.instance(event.job, event.instance)
        task = instance.attempt.tasks.get(event.rank) if instance is not None and instance.attempt is not None else None
        return task if task is not None and task.holding else None

    patch.setattr(evolve_tasks, "_task", any_attempt)


def started_without_one(patch: Patch) -> None:
    """A gang starts though one member is not ready."""
    decide = lifecycle.next_decision

    def early(state: State, instance: Instance) -> Event | None:
        decision = decide(state, instance)
        attempt = instance.attempt
        if decision is None and attempt is not None and attempt.phase == "prepare" and attempt.ready == len(attempt.tasks) - 1:
            return InstanceStarted(job=instance.job.id, instance=instance.index, attempt=attempt.number)
        return decision

    ready = evolve_tasks._task_ready

    def ask_again(state: State, event: Any) -> None:
        ready(state, event)
        instance = state.instance(event.job, event.instance)
        if instance is not None and instance.attempt is not None:
            attempt = instance.attempt
            if attempt.phase == "prepare" and attempt.held == len(attempt.tasks) > 1 and attempt.ready == len(attempt.tasks) - 1:
                state.todo[instance] = None

    patch.setattr(lifecycle, "next_decision", early)
    patch.setitem(table(), TaskReady, ask_again)


def rebound_while_held(patch: Patch) -> None:
    """An attempt that was told to stop ends while a member still holds its place."""
    emit = Emitter.emit

    def and_end(self: Emitter, decision: Event) -> None:
        emit(self, decision)
        if type(decision).__name__ == "InstancePreempted":
            ended: Any = decision
            emit(self, AttemptEnded(job=ended.job, instance=ended.instance, attempt=ended.attempt, then="pending"))

    patch.setattr(Emitter, "emit", and_end)


def dropped_timer(patch: Patch) -> None:
    """A timer that was set again is lost."""
    put = Lane.set

    def once(self: Lane[Any], owner: Any, at_us: int) -> None:
        if self.get(owner) is None:
            put(self, owner, at_us)
        else:
            self.cancel(owner)

    patch.setattr(Lane, "set", once)


def plan_not_undone(patch: Patch) -> None:
    """What a plan tried last stays tried."""
    undo = Plan.undo

    def all_but_one(self: Plan, mark: int = 0) -> None:
        undo(self, mark + 1 if self.mark() > 2 and not mark else mark)

    patch.setattr(Plan, "undo", all_but_one)


def stale_cache(patch: Patch) -> None:
    """A class that was asked in vain is not asked again when something is freed."""

    def for_ever(self: passes.Pass, waiting: PendingClass) -> bool:
        return isinstance(waiting.memo, passes.Asked)

    patch.setattr(passes.Pass, "_in_vain", for_ever)


def uncharged_retry(patch: Patch) -> None:
    """A failure of the job's own is tried again for nothing."""
    end = lifecycle._ended

    def free(*about: Any) -> Event:
        found: Any = end(*about)
        kept: Event = msgspec.structs.replace(found, charged=False) if found.charged else found
        return kept

    patch.setattr(lifecycle, "_ended", free)


def unbounded_cycle(patch: Patch) -> None:
    """A cycle holds whatever there is to decide."""

    def endless(self: Emitter, decision: Event) -> None:
        evolve.evolve(self.state, decision)
        self.decisions.append(decision)

    patch.setattr(Emitter, "emit", endless)
    patch.setattr(Emitter, "room_for", lambda *_: True)


def silent_is_lost(patch: Patch) -> None:
    """The tasks of a silent node are taken to be over, long before their lease is."""
    silent = evolve.HANDLERS[NodeSilent]

    def and_lost(state: State, event: NodeSilent) -> None:
        silent(state, event)
        evolve_nodes.lose_tasks(state, state.ledger.node(event.row), "node-lost")

    patch.setitem(table(), NodeSilent, and_lost)


def forgotten_too_soon(patch: Patch) -> None:
    """A job leaves the state before its time."""
    emit = Emitter.emit

    def early(self: Emitter, decision: Event) -> None:
        emit(self, decision)
        over = [job.id for job in self.state.jobs.values() if not job.open]
        if over and type(decision) is AttemptEnded:
            emit(self, JobsForgotten(jobs=tuple(over)))

    patch.setattr(Emitter, "emit", early)


PLANTS: tuple[tuple[Callable[[Patch], None], Finder, str], ...] = (
    (skipped_fencing, tell, r"rule='node'"),
    (lost_requeue, tell, r"pending classes"),
    (double_release, tell, r"counted anew"),
    (forgotten_nomination, tell, r"rule='nomination'"),
    (equal_victim, tell, r"rule='preemption'"),
    (dearest_victim, play, r"would do"),
    (spared_nobody, play, r"need not go"),
    (greedy_victims, play, r"would do"),
    (greedy_places, pack, r"'pending' == 'starting'"),
    (stale_report, tell, r"rule='(held|started|outcome|stop)'"),
    (started_without_one, tell, r"rule='started'"),
    (rebound_while_held, tell, r"still hold their places"),
    (dropped_timer, tell, r"timers:|is due"),
    (plan_not_undone, tell, r"counted anew|another|holds a place|holds nothing here"),
    (stale_cache, tell, r"is another without caches"),
    (uncharged_retry, tell, r"rule='retries'"),
    (unbounded_cycle, tell, r"rule='bounds'"),
    (silent_is_lost, tell, r"rule='(held|stop)'"),
    (forgotten_too_soon, tell, r"rule='forgotten'"),
)
"""Each plant, what looks for it, and what the check says that finds it."""


@pytest.mark.parametrize(("plant", "find", "says"), PLANTS, ids=[plant.__name__ for plant, _, _ in PLANTS])
def test_the_fault_is_found_by_the_check_that_claims_to(
    plant: Callable[[Patch], None], find: Finder, says: str, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    others: list[str] = []
    for seed in range(CASES_MAX if find is play else STORIES_MAX):
        try:
            find(seed)
        except Exception as error:  # the check under test raises whatever it raises
            text = f"{type(error).__name__}: {error}"
            if re.search(says, text):
                print(f"{plant.__name__}: found at seed {seed}: {text[:200]}")
                return
            others.append(f"seed {seed}: {text[:160]}")
    pytest.fail(f"{plant.__doc__} Nothing said {says!r}. What was said: {others[:5]}")
