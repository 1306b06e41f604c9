"""Planned starts under whatever comes in: legal, never delayed from below, the same in every play, and as early as can be."""

from collections import Counter
from random import Random
from typing import Any

import msgspec

from muster.cluster.plans import PlannedStart, order_of
from muster.events.base import Event
from muster.events.jobs import Constraints, GroupRequest, JobRequest, JobSubmitted, Within
from muster.events.nodes import NodeRegistered, NodeSpec
from muster.events.operations import Backfill, Policy, PolicySet
from tests.support.brute_plans import earliest
from tests.support.build import S, device
from tests.support.chaos import Chaos, policy
from tests.support.driver import Driver
from tests.support.plays import Plays, come_to_rest

STORIES = 30
CASES = 150
RACK_CASES = 60
ROUNDS = 8


def planning(random: Random) -> Policy:
    """A policy of chaos that plans."""
    return msgspec.structs.replace(
        policy(random),
        backfill=Backfill(
            reservations=random.choice((1, 1, 2, 5, 1000)),
            horizon_us=random.choice((100, 1000, 100_000)) * S,
            resolution_us=random.choice((1, S, 10 * S)),
            plan_ttl_us=random.choice((10, 1000)) * S,
        ),
    )


def limited(random: Random, inputs: list[Event]) -> list[Event]:
    """The same inputs; most jobs say how long they run."""
    result = []
    for event in inputs:
        if isinstance(event, JobSubmitted) and random.random() < 0.85:
            request = msgspec.structs.replace(event.request, time_limit_us=random.choice((5, 30, 60, 200, 400)) * S)
            event = msgspec.structs.replace(event, request=request)
        result.append(event)
    return result


def story(random: Random, cycles: int) -> Plays:
    """Some cycles of chaos; the policy changes now and then."""
    plays = Plays()
    chaos = Chaos(random, plays.state, 4)
    plays.step([PolicySet(policy=planning(random)), *chaos.nodes()], plays.state.at_us + S)
    for _ in range(cycles):
        if random.random() < 0.03:
            plays.lead(random.choice((0, 30 * S)))
            continue
        wake = plays.live.next_wake_us()
        at_us = plays.state.at_us + random.choice((0, 1, 1, 5, 20, 60)) * S
        if wake is not None and random.random() < 0.3:
            at_us = max(plays.state.at_us, wake)
        inputs = limited(random, [event for event in chaos.inputs() if not isinstance(event, PolicySet)])
        if random.random() < 0.03:
            inputs.append(PolicySet(policy=planning(random) if random.random() < 0.7 else policy(random)))
        plays.step(inputs, at_us)
    return plays


def test_plans_are_legal_and_the_same_in_every_play() -> None:
    counts: dict[str, int] = {}
    for seed in range(STORIES):
        plays = story(Random(seed), cycles=30)
        come_to_rest(plays)
        for kind, count in plays.judge.summary.decisions.items():
            counts[kind] = counts.get(kind, 0) + count
    print(f"{STORIES} stories: {dict(sorted(counts.items()))}")
    for kind in ("StartPlanned", "PlanDropped", "InstanceBound", "InstancePreempted"):
        assert counts.get(kind, 0) >= 20, f"the stories hold too little of {kind}: {counts}"


def test_what_is_planned_is_as_early_as_brute_force_finds() -> None:
    counts: Counter[str] = Counter()
    for seed in range(CASES):
        counts += Case(seed).play()
    print(f"{CASES} cases: {dict(sorted(counts.items()))}")
    assert counts["plans"] >= 1500
    assert counts["gangs"] >= 300
    assert counts["several groups"] >= 100
    assert counts["behind a plan"] >= 300
    assert counts["nothing within the horizon"] >= 50
    assert counts["several groups, later"] <= counts["several groups"] // 50


def test_what_stays_in_one_rack_is_planned_as_early_as_brute_force_finds() -> None:
    counts: Counter[str] = Counter()
    for seed in range(RACK_CASES):
        counts += Racks(seed).play()
    print(f"{RACK_CASES} cases with racks: {dict(sorted(counts.items()))}")
    assert counts["plans in one rack"] >= 150
    assert counts["several groups, later"] <= counts["several groups"] // 50


class Case:
    """A tiny cluster that is always too small; jobs come, start, end early or late."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.backfill = Backfill(
            reservations=self.random.choice((1, 3, 1000)),
            horizon_us=self.random.choice((150, 10_000)) * S,
            resolution_us=self.random.choice((1, S, 7 * S)),
        )
        self.driver = Driver(
            Policy(backfill=self.backfill, preemption=self.random.random() < 0.3, kill_margin_us=S), checked=False
        )
        self.jobs = 0
        self.counts: Counter[str] = Counter()

    def play(self) -> Counter[str]:
        """What was compared, counted."""
        driver, chance = self.driver, self.random
        driver.step(*[self.node(f"n{index}") for index in range(chance.randint(1, 3))])
        for _ in range(ROUNDS):
            driver.settle(*[self.submission() for _ in range(chance.randint(0, 4))])
            self.compare()
            waiting = [job.id for job in driver.state.jobs.values() if driver.instance(job.id).phase == "starting"]
            driver.run(*[id for id in waiting if chance.random() < 0.8])
            self.compare()
            running = [job.id for job in driver.state.jobs.values() if driver.instance(job.id).attempt is not None]
            gone = [id for id in running if chance.random() < 0.3]
            driver.step(after_s=chance.choice((1, 5, 40)))
            self.compare()
            if gone:
                driver.exit(*gone)
                self.compare()
        return self.counts

    def node(self, name: str) -> NodeRegistered:
        """One to three devices."""
        chance = self.random
        mixed = chance.random() < 0.3
        devices = [device(f"{name}-{at}", model="B" if mixed and at else "A") for at in range(chance.choice((1, 2, 3)))]
        spec = NodeSpec(cpu_milli=chance.choice((3000, 6000)), memory_mib=4000, devices=tuple(devices))
        return NodeRegistered(node=name, uid=name, boot="b", spec=spec)

    def submission(self) -> JobSubmitted:
        """One to three groups of few tasks; most say how long they run."""
        chance = self.random
        self.jobs += 1
        groups = tuple([self.group(f"g{index}") for index in range(chance.choice((1, 1, 1, 2, 3)))])
        limit_us = chance.choice((None, 10, 30, 30, 60, 100)) if chance.random() < 0.9 else None
        request = JobRequest(
            groups=groups,
            priority=chance.randint(0, 2),
            time_limit_us=None if limit_us is None else limit_us * S,
            grace_us=chance.choice((0, 3)) * S,
        )
        return JobSubmitted(job=f"j{self.jobs}", name="n", user="u", request=request)

    def group(self, name: str) -> GroupRequest:
        chance = self.random
        count = chance.choice((1, 1, 1, 2, 3))
        asked: dict[str, Any] = chance.choice(
            ({"gpus": 1}, {"gpus": 1}, {"gpus": 2}, {"gpu_milli": 400}, {"gpu_memory_mib": 600}, {})
        )
        models = ("A",) if asked and chance.random() < 0.2 else ()
        cpu = chance.choice((0, 500, 2000)) or (0 if asked else 1000)
        return GroupRequest(name=name, count=count, min=chance.randint(1, count), cpu_milli=cpu, gpu_models=models, **asked)

    def compare(self) -> None:
        """Each plan, and each that waits without one while more may be planned, against brute force."""
        state = self.driver.state
        if state.more or state.nominations:
            return
        self.counts["states"] += 1
        waiting = [instance for job in state.jobs.values() for instance in job.instances if instance.waits is not None]
        before: list[PlannedStart] = []
        for instance in sorted(waiting, key=lambda each: order_of(state.policy, each, state.at_us)):
            planned = state.plans.by_key.get(instance.key)
            if len(before) >= self.backfill.reservations:
                assert planned is None, f"seed {self.seed}: {instance.key} is planned though as many are above it"
                continue
            best = earliest(state, instance, before, self.backfill.resolution_us, self.backfill.horizon_us)
            where = f"seed {self.seed}, cycle {state.number}: {instance.key} {planned and planned.start_us}, brute force {best}"
            several = len(instance.job.gang.shapes) > 1
            if planned is None:
                self.counts["nothing within the horizon"] += best is None
                assert best is None or several, where
                self.counts["several groups, later"] += best is not None
                continue
            if best is not None and planned.start_us > best:
                assert several, where
                self.counts["several groups, later"] += 1
            self.counts["plans"] += 1
            self.counts["plans in one rack"] += bool(instance.job.gang.rules)
            self.counts["gangs"] += not instance.job.gang.single
            self.counts["several groups"] += several
            self.counts["behind a plan"] += bool(before) and best is not None
            before.append(planned)


class Racks(Case):
    """The same where nodes stand in racks, one in none, and half of the jobs stay within one."""

    def node(self, name: str) -> NodeRegistered:
        event = super().node(name)
        return msgspec.structs.replace(
            event, spec=msgspec.structs.replace(event.spec, rack=self.random.choice(("r1", "r2", "r2", "")))
        )

    def submission(self) -> JobSubmitted:
        event = super().submission()
        if self.random.random() < 0.5:
            return event
        within = Constraints(within=(Within(level="rack", required=True),))
        return msgspec.structs.replace(event, request=msgspec.structs.replace(event.request, constraints=within))
