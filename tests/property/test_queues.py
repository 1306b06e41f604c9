"""Queues that change under load: charges are exact, decisions legal, and every way of playing it gives the same bytes."""

import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.cluster.queuetree import Queue, QueueTree
from muster.engine import order, reclaim
from muster.engine.limits import LimitedPlacer, Limits
from muster.engine.order import TreePass
from tests.support.plays import come_to_rest
from tests.support.queue_chaos import queue_story

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
STORIES = 40
STORIES_MAX = 60


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(st.randoms(use_true_random=False))
def test_a_story_of_queues_that_hypothesis_tells_is_the_same_in_every_play(random: Random) -> None:
    plays, _ = queue_story(random, cycles=10)
    come_to_rest(plays)


def test_long_stories_of_queues_are_the_same_in_every_play() -> None:
    """Charges counted anew, rebuild, judge and four plays after each cycle of each story."""
    counts: dict[str, int] = {}
    for seed in range(STORIES):
        plays, _ = queue_story(Random(seed), cycles=28)
        come_to_rest(plays)
        for kind, count in plays.judge.summary.decisions.items():
            counts[kind] = counts.get(kind, 0) + count
    print(f"{STORIES} stories: {dict(sorted(counts.items()))}")
    for kind in ("InstancePreempted", "NominationEnded", "NodeLost", "MembersReplaced", "PassStopped"):
        assert counts.get(kind, 0) >= 1, f"the stories hold too little of {kind}: {counts}"


Patch = pytest.MonkeyPatch


def forgotten_release(patch: Patch) -> None:
    """What ends is charged for ever."""
    patch.setattr(QueueTree, "release", lambda *_: None)


def unlimited(patch: Patch) -> None:
    """No limit is looked at."""
    patch.setattr(Limits, "exceeded", lambda *_: None)


def unlimited_victims(patch: Patch) -> None:
    """A limit is not looked at where victims make room."""
    patch.setattr(LimitedPlacer, "find", lambda self, job: self.placer.find(job))
    patch.setattr(TreePass, "_without", lambda *_: True)
    allowed = Limits.allowed
    patch.setattr(Limits, "allowed", lambda self, job: allowed(self, job) or job)
    patch.setattr(Limits, "fits", lambda *_: True)


def everything_borrowed(patch: Patch) -> None:
    """What a queue is promised is taken back from it too."""
    patch.setattr(reclaim, "borrowed", lambda *_: True)


def anybody_reclaims(patch: Patch) -> None:
    """An ask beyond its guarantee takes back too."""
    patch.setattr(order, "levels", lambda tree, queue, asks: queue.path)


def stale_memo(patch: Patch) -> None:
    """Who was asked in vain is not asked again."""
    patch.setattr(TreePass, "_surely_in_vain", lambda self, waiting, queue: waiting.memo is not None)


def closed_queue_binds(patch: Patch) -> None:
    """A queue that was removed binds like any other."""
    close = QueueTree.close

    def and_open(self: QueueTree, queue: Queue) -> None:
        close(self, queue)
        queue.closed = False

    patch.setattr(QueueTree, "close", and_open)


PLANTS: tuple[tuple[Callable[[Patch], None], str], ...] = (
    (forgotten_release, r"counted anew|charged .* anew"),
    (unlimited, r"rule='quota'"),
    (unlimited_victims, r"rule='quota'"),
    (everything_borrowed, r"rule='preemption'|without an input"),
    (anybody_reclaims, r"rule='preemption'|without an input"),
    (stale_memo, r"is another without caches"),
    (closed_queue_binds, r"rule='quota'|the open queues|queues \["),
)
"""Each plant, and what the check says that finds it."""


@pytest.mark.parametrize(("plant", "says"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_the_fault_is_found_by_the_check_that_claims_to(plant: Callable[[Patch], None], says: str, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    others: list[str] = []
    for seed in range(STORIES_MAX):
        try:
            plays, _ = queue_story(Random(seed), cycles=25)
            come_to_rest(plays)
        except Exception as error:  # the check under test raises whatever it raises
            text = f"{type(error).__name__}: {error}"
            if re.search(says, text):
                print(f"{plant.__name__}: found at seed {seed}: {text[:200]}")
                return
            others.append(f"seed {seed}: {text[:160]}")
    pytest.fail(f"{plant.__doc__} Nothing said {says!r}. What was said: {others[:5]}")
