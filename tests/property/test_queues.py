"""Queues that change under load: charges are exact, decisions legal, and every way of playing it gives the same bytes."""

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.plays import come_to_rest
from tests.support.queue_chaos import queue_story

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
STORIES = 40


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
