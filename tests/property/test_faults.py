"""Faults put into the protocol on purpose: the simulated world finds each within a few seeds."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from muster.cluster import evolve_jobs, evolve_tasks
from muster.cluster.jobs import Instance, Task
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.events.codec import decode_envelope, digest
from muster.events.levels import TaskAssignment, TaskReport
from muster.log.admit import REPLACED, Admitted, Halt, Head, Void
from muster.scheduler import core as core_module
from muster.scheduler import reports
from muster.simulator.world.bus import WorldInbox, WorldLog, put
from muster.simulator.world.gateway import Gateway
from muster.simulator.world.node import Machine
from muster.simulator.world.world import Outcome, play

SEEDS_MAX = 30


def unfenced(patch: pytest.MonkeyPatch) -> None:
    """A scheduler does not look at the term: the record of a writer that was replaced is heard."""

    def hearing(judge: Callable[..., Admitted | Void | Halt]) -> Callable[..., Admitted | Void | Halt]:
        def heard(head: Head, *rest: Any) -> Admitted | Void | Halt:
            verdict = judge(head, *rest)
            if isinstance(verdict, Void) and verdict.reason == REPLACED:
                data = max((each for each in rest if isinstance(each, bytes)), key=len)
                own = digest(data)
                return Admitted(Head(head.cell, head.number + 1, head.term, own, head.recent), decode_envelope(data))
            return verdict

        return heard

    for name in ("admit", "admit_own", "judge"):
        patch.setattr(core_module, name, hearing(getattr(core_module, name)))


def position_before_append(patch: pytest.MonkeyPatch) -> None:
    """A scheduler reads on where it had read, and not where the log says: what Kafka's group offsets would be."""
    pop, seek = WorldInbox.pop, WorldInbox.seek

    def counted(self: WorldInbox) -> None:
        message = self.first()
        assert message is not None
        self.topics.__dict__.setdefault("committed", {})[message.source] = message.offset + 1
        pop(self)

    async def own_offsets(self: WorldInbox, positions: Mapping[str, int]) -> None:
        await seek(self, self.topics.__dict__.get("committed", {}))

    patch.setattr(WorldInbox, "pop", counted)
    patch.setattr(WorldInbox, "seek", own_offsets)


def double_start(patch: pytest.MonkeyPatch) -> None:
    """An agent that reads of a task which has exited that it is to run lets it run."""
    follow = Machine.follow

    def again(self: Machine, item: TaskAssignment, at_us: int) -> None:
        held = self.tasks.get((item.job, item.instance, item.attempt, item.rank))
        if held is not None and held.phase == "exited" and item.phase == "run":
            held.phase = "ready"
        follow(self, item, at_us)

    patch.setattr(Machine, "follow", again)


def stale_report(patch: pytest.MonkeyPatch) -> None:
    """What is said of an earlier attempt is taken for the present one."""

    def any_attempt(state: State, event: Any) -> Task | None:
        instance = state.instance(event.job, event.instance)
        if instance is None or instance.attempt is None:
            return None
        task = instance.attempt.tasks.get(event.rank)
        return task if task is not None and task.holding else None

    def held(state: State, node: Node, task: TaskReport, applied: int) -> tuple[int, str]:
        return reports.PREPARING, "started"

    patch.setattr(evolve_tasks, "_task", any_attempt)
    patch.setattr(reports, "_held", held)
    patch.setattr(reports.Agents, "late", lambda self, report: False)


def lost_requeue(patch: pytest.MonkeyPatch) -> None:
    """An instance whose attempt has ended is not put back."""
    enqueue = evolve_jobs.enqueue

    def first_time_only(state: State, instance: Instance) -> None:
        if not instance.attempts:
            enqueue(state, instance)

    patch.setattr(evolve_jobs, "enqueue", first_time_only)


def no_lease(patch: pytest.MonkeyPatch) -> None:
    """Supervisors let tasks go on whatever happens."""
    patch.setattr(Machine, "check_lease", lambda self: None)


def takeover_anywhere(patch: pytest.MonkeyPatch) -> None:
    """A follower starts a term without asking where the log ends."""

    async def nowhere(self: WorldLog) -> int:
        return 0

    patch.setattr(WorldLog, "end", nowhere)


def early_answer(patch: pytest.MonkeyPatch) -> None:
    """A gateway acknowledges a report before the topic has it."""

    async def at_once(self: Gateway, node: str, data: bytes) -> bool:
        self.process.spawn(put(self.process, self.network, self.topics, "muster.nodes", data, node))
        return True

    patch.setattr(Gateway, "report", at_once)


PLANTS: tuple[tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]], ...] = (
    (unfenced, ("_leader_stopped",)),
    (position_before_append, ()),
    (double_start, ()),
    (stale_report, ("_drained",)),
    (lost_requeue, ()),
    (no_lease, ("_silent",)),
    (takeover_anywhere, ()),
    (early_answer, ("_gateways_cut_from_topics",)),
)
"""Each plant, and which kinds of faults the worlds have most of."""


@pytest.mark.parametrize(("plant", "focus"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_the_world_finds_the_fault(
    plant: Callable[[pytest.MonkeyPatch], None],
    focus: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "muster.scheduler")
    plant(monkeypatch)
    tried: list[Outcome] = []
    for seed in range(SEEDS_MAX):
        tried.append(play(seed, focus=focus))
        if tried[-1].problems:
            break
    assert tried[-1].problems, f"{SEEDS_MAX} seeds do not find it"
    print(f"\nfound with {len(tried)} seeds: {tried[-1].problems[0].splitlines()[-1][:200]}")
