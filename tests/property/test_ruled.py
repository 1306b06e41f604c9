"""Jobs with constraints: the invariants hold, every decision is legal, and every way of playing gives the same bytes."""

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.plays import come_to_rest, story
from tests.support.ruled import RuledChaos

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
STORIES = 40


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(st.randoms(use_true_random=False))
def test_a_short_story_with_constraints_is_the_same_in_every_play(random: Random) -> None:
    plays, _ = story(random, cycles=10, nodes=6, sort=RuledChaos)
    come_to_rest(plays)


def test_long_stories_with_constraints_are_the_same_in_every_play() -> None:
    counts: dict[str, int] = {}
    for seed in range(STORIES):
        plays, _ = story(Random(seed), cycles=28, nodes=6, sort=RuledChaos)
        come_to_rest(plays)
        for kind, count in plays.judge.summary.decisions.items():
            counts[kind] = counts.get(kind, 0) + count
        ruled = [job for job in plays.state.jobs.values() if job.gang.rules is not None]
        counts["ruled"] = counts.get("ruled", 0) + len(ruled)
        counts["ruled and bound"] = counts.get("ruled and bound", 0) + sum([bool(job.instances[0].attempts) for job in ruled])
    print(f"{STORIES} stories: {dict(sorted(counts.items()))}")
    for kind, least in (("InstancePreempted", 5), ("MembersReplaced", 1), ("ruled and bound", 20)):
        assert counts.get(kind, 0) >= least, f"the stories hold too little of {kind}: {counts}"
