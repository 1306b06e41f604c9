"""Whatever comes in: the invariants hold, every decision is legal, and every way of playing it gives the same bytes."""

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.engine.explain import explain
from muster.engine.place import Placer
from muster.events.operations import PolicySet
from tests.support.build import S
from tests.support.chaos import Chaos, policy
from tests.support.plays import Plays, come_to_rest, story

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
STORIES = 40
ENDS_MAX = 400
"""More cycles than this, and a job that could end has not."""


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(st.randoms(use_true_random=False))
def test_a_short_story_that_hypothesis_tells_is_the_same_in_every_play(random: Random) -> None:
    plays, _ = story(random, cycles=10)
    come_to_rest(plays)


def test_long_stories_are_the_same_in_every_play() -> None:
    """The same from fixed seeds, longer: invariants, rebuild, judge and four plays after each cycle of each story."""
    counts: dict[str, int] = {}
    for seed in range(STORIES):
        plays, _ = story(Random(seed), cycles=28)
        come_to_rest(plays)
        for kind, count in plays.judge.summary.decisions.items():
            counts[kind] = counts.get(kind, 0) + count
    print(f"{STORIES} stories: {dict(sorted(counts.items()))}")
    for kind in ("InstancePreempted", "NominationEnded", "NodeLost", "MemberLost", "MembersReplaced", "PassStopped"):
        assert counts.get(kind, 0) >= 1, f"the stories hold too little of {kind}: {counts}"


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(st.randoms(use_true_random=False))
def test_without_input_the_engine_comes_to_rest_at_every_instant(random: Random) -> None:
    plays, _ = story(random, cycles=8)
    for _ in range(6):
        come_to_rest(plays)
        wake = plays.live.next_wake_us()
        if wake is None:
            return
        plays.step([], max(wake, plays.state.at_us))


def test_when_everybody_exits_and_nodes_are_well_every_feasible_job_ends() -> None:
    ended = 0
    for seed in range(12):
        random = Random(seed)
        plays, chaos = story(random, cycles=15, kind=True)
        feasible = _feasible(plays, chaos)
        for _ in range(ENDS_MAX):
            open_now = [id for id in feasible if id in plays.state.jobs and plays.state.jobs[id].open]
            if not open_now:
                break
            plays.step(chaos.agents(), plays.state.at_us + S)
        assert not open_now, f"seed {seed}: {open_now} could end and did not"
        ended += len(feasible)
    print(f"{ended} jobs ended")
    assert ended >= 40


def _feasible(plays: Plays, chaos: Chaos) -> list[str]:
    """The jobs that an empty cluster of these nodes holds: bound by a cell of their own."""
    found = []
    for job in list(plays.state.jobs.values()):
        if job.rejected:
            continue
        alone = Plays()
        twin = chaos.past_submission(job.id)
        alone.step([PolicySet(policy=plays.state.policy), *chaos.registered, twin], S * 10)
        instances = alone.state.jobs[job.id].instances
        if any(instance.attempts for instance in instances) and job.request.time_limit_us is None:
            found.append(job.id)
    return found


def test_stories_are_decided_by_their_seed_alone() -> None:
    first, _ = story(Random(7), cycles=12)
    second, _ = story(Random(7), cycles=12)
    assert first.records == second.records
    assert policy(Random(1)) == policy(Random(1))


def test_nobody_waits_who_could_be_bound_and_explain_says_so() -> None:
    waited = 0
    for seed in range(100, 130):
        plays, _ = story(Random(seed), cycles=20)
        come_to_rest(plays)
        state = plays.state
        placer = Placer(state)
        for job in state.jobs.values():
            for instance in job.instances:
                if instance.waits is None or instance.key in state.nominations:
                    continue
                where = f"seed {seed}: {instance.key}"
                assert job.gang.tasks > state.policy.placements_max or placer.find(job) is None, f"{where} waits and fits"
                found = explain(state, job.id, instance.index)
                if job.gang.single:
                    assert not [reason for reason in found.reasons if reason.code == "fits"], f"{where}: {found.lines}"
                    assert sum(reason.nodes for reason in found.reasons) == found.nodes, f"{where}: {found.lines}"
                    waited += 1
    print(f"{waited} single tasks wait, each for a reason on each node")
    assert waited >= 30
