"""Best-effort jobs, headroom and budgets of disruption under chaos: decisions are legal, and every play gives the same bytes."""

import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.cluster import jobs
from muster.engine import disruption, preempt, yielding
from muster.events.codec import decode_cycle
from tests.property.test_brute import Case
from tests.support.plays import Plays, come_to_rest, story
from tests.support.queue_chaos import queue_story
from tests.support.soft import SoftChaos, SoftQueueChaos

Patch = pytest.MonkeyPatch

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
STORIES = 50
STORIES_MAX = 600


def flat(random: Random, cycles: int) -> Plays:
    """A story without a tree of queues."""
    plays, _ = story(random, cycles=cycles, sort=SoftChaos)
    come_to_rest(plays)
    return plays


def tree(random: Random, cycles: int) -> Plays:
    """A story over queues."""
    plays, _ = queue_story(random, cycles=cycles, sort=SoftQueueChaos)
    come_to_rest(plays)
    return plays


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(st.randoms(use_true_random=False), st.booleans())
def test_a_story_that_hypothesis_tells_is_the_same_in_every_play(random: Random, queues: bool) -> None:
    (tree if queues else flat)(random, 10)


@pytest.mark.parametrize("tell", [flat, tree])
def test_long_stories_are_the_same_in_every_play(tell: Callable[[Random, int], Plays]) -> None:
    """Invariants, rebuild, judge and four plays after each cycle; and enough of each kind happened."""
    counts = {"best-effort told to stop": 0, "headroom told to stop": 0, "headroom bound": 0, "best-effort bound": 0}
    for seed in range(STORIES):
        plays = tell(Random(seed), 28)
        for decision, job in told(plays):
            counts[f"{job} {decision}"] = counts.get(f"{job} {decision}", 0) + 1
    print(f"{STORIES} stories: {counts}")
    assert min(counts.values()) >= 3, counts


def told(plays: Plays) -> list[tuple[str, str]]:
    """What was decided of soft jobs."""
    kinds: dict[str, str] = {}
    found = []
    for cycle in map(decode_cycle, plays.records):
        for event in cycle.inputs:
            if type(event).__name__ == "JobSubmitted" and event.request.kind:  # type: ignore[attr-defined]
                kinds[event.job] = event.request.kind  # type: ignore[attr-defined]
        for event in cycle.decisions:
            kind = {"InstanceBound": "bound", "InstancePreempted": "told to stop"}.get(type(event).__name__)
            if kind and event.job in kinds:  # type: ignore[attr-defined]
                found.append((kind, kinds[event.job]))  # type: ignore[attr-defined]
    return found


def preempted_all_the_same(patch: Patch) -> None:
    """Those who make way are not tried first, nor taken before others."""
    patch.setattr("muster.engine.passes.making_way", lambda *_: None)
    patch.setattr(preempt, "rank", lambda attempt: (attempt.instance.job.priority, int(attempt.phase == "run")))


def for_anybody(patch: Patch) -> None:
    """Headroom makes way for other queues' jobs too, and for lower ones."""
    for module in (yielding, preempt):
        patch.setattr(module, "yields", lambda other, job: other.soft and not job.soft)


def as_a_job(patch: Patch) -> None:
    """Headroom is taken for a job that runs."""
    mark = jobs.mark

    def marked(job: jobs.Job) -> None:
        mark(job)
        job.headroom = False

    patch.setattr(jobs, "mark", marked)


def no_budgets(patch: Patch) -> None:
    """Budgets are not looked at where victims are chosen."""
    patch.setattr(preempt, "breaches", lambda victims: 0)
    patch.setattr(preempt, "last", list)


def drained_at_once(patch: Patch) -> None:
    """Budgets are not looked at where nodes are drained."""
    patch.setattr(disruption, "left", lambda job: 2**60)


def case(random: Random, cycles: int) -> None:
    """Against brute force; the numbers are the case's own."""
    Case(random.getrandbits(30)).play()


@pytest.mark.parametrize(
    ("plant", "tell", "said"),
    [
        (preempted_all_the_same, case, "would do"),
        (no_budgets, case, "would do"),
        (for_anybody, tree, "rule='preemption'"),
        (as_a_job, tree, "."),
        (drained_at_once, flat, "rule='budget'"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[Patch], None], tell: Callable[[Random, int], object], said: str, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    others = []
    for seed in range(STORIES_MAX):
        try:
            tell(Random(seed), 25)
        except AssertionError as error:
            if re.search(said, str(error)):
                print(f"{plant.__name__}: found at seed {seed}: {str(error)[:200]}")
                return
            others.append(str(error)[:160])
    pytest.fail(f"{plant.__doc__} Nothing said {said}. What was said: {others[:3]}")
