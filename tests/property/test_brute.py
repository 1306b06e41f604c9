"""The engine agrees with brute force on tiny clusters: on legality, on feasibility, and on who has to go."""

from collections import Counter
from random import Random
from typing import Any

import msgspec

from muster.cluster import snapshot
from muster.cluster.evolve import begin_cycle, evolve
from muster.cluster.jobs import Attempt
from muster.cluster.state import State
from muster.events.decisions import InstanceBound, InstancePreempted, Nominated, NominationEnded, ShapeDeferred
from muster.events.jobs import GroupRequest, JobCancelRequested, JobRequest, JobSubmitted
from muster.events.nodes import NodeRegistered, NodeSpec
from muster.events.operations import Policy, Weight
from tests.support import brute
from tests.support.build import S, device, exited
from tests.support.driver import Driver

CASES = 1200
ASKS = 4
SCORES = (Policy().scores, Policy().scores, (Weight(name="published-best-fit"),))


def test_the_engine_agrees_with_brute_force() -> None:
    counts: Counter[str] = Counter()
    for seed in range(CASES):
        counts += Case(seed).play()
    print(f"{CASES} cases: {dict(sorted(counts.items()))}")
    assert counts["asks"] >= 2000
    assert counts["cases with a preemption"] >= CASES / 3
    assert counts["cases with a deferral"] >= CASES / 3
    assert counts["single optima"] >= 200
    assert counts["gangs with victims"] >= 200


class Case:
    """A tiny cluster, filled; then some ask, one after the other."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.jobs = 0
        least_us = self.random.choice((0, 0, 0, 30 * S))
        self.driver = Driver(Policy(scores=self.random.choice(SCORES), min_runtime_us=least_us), checked=False)
        self.counts: Counter[str] = Counter()
        self.alike = self.random.random() < 0.3
        """Single tasks of few ranks and of several sizes: which of them go is a matter of counting."""

    def play(self) -> Counter[str]:
        """What happened, counted."""
        driver, chance = self.driver, self.random
        driver.step(*[self.node(f"n{index}") for index in range(chance.randint(1, 4))])
        fill = sorted([self.filler(chance.randint(0, 3)) for _ in range(chance.randint(3, 9))], key=_priority, reverse=True)
        for event in fill:
            driver.step(event)
            self.tidy()
            if chance.random() < 0.6 and event.job in driver.state.jobs and driver.instance(event.job).attempt is not None:
                driver.run(event.job)
        for _ in range(ASKS):
            self.ask()
        for kind in ("preemption", "deferral"):
            self.counts[f"cases with a {kind}"] = int(self.counts[f"{kind}s"] > 0)
        return self.counts

    def node(self, name: str) -> NodeRegistered:
        """Up to three devices."""
        chance = self.random
        mixed = chance.random() < 0.3
        devices = [
            device(f"{name}-{index}", model="B" if mixed and index else "A", memory_mib=1000, island=index // 2)
            for index in range(chance.choice((1, 2, 3, 3)))
        ]
        spec = NodeSpec(cpu_milli=chance.choice((3000, 6000)), memory_mib=4000, devices=tuple(devices))
        return NodeRegistered(node=name, uid=name, boot="b", spec=spec)

    def submission(self, priority: int) -> JobSubmitted:
        """A few tasks in one to three groups."""
        chance = self.random
        self.jobs += 1
        groups = tuple([self.group(f"g{index}") for index in range(chance.choice((1, 1, 1, 1, 2, 2, 3)))])
        if self.alike:
            cpu_milli = chance.choice((0, 500, 1500, 2500))
            share = chance.choice((0, 0, 300, 700))
            groups = (GroupRequest(gpus=0 if share else chance.choice((1, 1, 2, 3)), gpu_milli=share, cpu_milli=cpu_milli),)
            priority = min(priority, 1) if priority < 4 else priority
        if not sum(group.min for group in groups):
            groups = (GroupRequest(gpus=1), *groups)
        preemptible = chance.random() < 0.9
        request = JobRequest(groups=groups, priority=priority, preemptible=preemptible, max_retries=0)
        return JobSubmitted(job=f"j{self.jobs}", name="n", user="u", request=request)

    def filler(self, priority: int) -> JobSubmitted:
        """One of those who are there before: some best-effort, some with a budget of disruption."""
        chance = Random(1000 * self.seed + self.jobs)
        event = self.submission(priority)
        sort = 1 if self.alike else chance.random()
        changes: dict[str, Any] = {}
        if sort < 0.15:
            changes = {"kind": "best-effort", "preemptible": True}
        elif sort < 0.45:
            changes = {"budget": chance.choice((0, 0, 1, 2))}
        return msgspec.structs.replace(event, request=msgspec.structs.replace(event.request, **changes))

    def group(self, name: str) -> GroupRequest:
        """Whole devices, a share, or none."""
        chance = self.random
        count = chance.choice((1, 1, 1, 2, 2, 3))
        asked: dict[str, Any] = {"cpu_milli": chance.choice((0, 500, 1000, 2000))}
        sort = chance.random()
        if sort < 0.6:
            asked["gpus"] = chance.choice((1, 1, 1, 2, 2, 3))
        elif sort < 0.9:
            asked["gpu_milli"] = chance.choice((300, 500, 700))
        if sort < 0.9 and chance.random() < 0.25:
            asked["gpu_models"] = (chance.choice("AB"),)
        return GroupRequest(name=name, count=count, min=chance.randint(0, count) if chance.random() < 0.2 else count, **asked)

    def tidy(self) -> None:
        """Whoever waits is cancelled: only one asks at a time."""
        waiting = [job.id for job in self.driver.state.jobs.values() if any(i.phase == "pending" for i in job.instances)]
        if waiting:
            self.driver.step(*[JobCancelRequested(job=id) for id in waiting])
        assert not self.driver.state.nominations

    def ask(self) -> None:
        """One more job, decided by the engine and by brute force."""
        driver, chance = self.driver, self.random
        live = [j for j in driver.state.jobs.values() if j.instances[0].phase in ("starting", "running")]
        if live and chance.random() < 0.3:
            driver.step(JobCancelRequested(job=chance.choice(live).id))
        event = self.submission(chance.choice((0, 1, 2, 4, 4, 9)))
        before = snapshot.decode(snapshot.encode(driver.state))
        at_us = driver.state.at_us + chance.choice((1, 1, 40)) * S
        begin_cycle(before, before.number + 1, before.term, at_us, None, {})
        evolve(before, event)
        driver.step(event, at_us=at_us)
        self.counts["asks"] += 1
        self.judge(event, before)
        self.come_to_rest(event)

    def judge(self, event: JobSubmitted, state: State) -> None:
        """Compare what the engine decided with what brute force says of the state before."""
        decided = self.driver.decided
        instance = state.jobs[event.job].instances[0]
        free = brute.stopping(state)
        told = self.driver.found(InstancePreempted)
        victims = [_attempt(state, e) for e in told]
        where = f"seed {self.seed}, {event.job}: {decided}"
        bound, nominated = self.driver.found(InstanceBound), self.driver.found(Nominated)
        if brute.fits(state, instance, []):
            assert [e.job for e in bound] == [event.job], f"it fits as it is: {where}"
            assert not told, f"it fits without victims: {where}"
            assert not brute.legal(state, instance, bound[0].placements, []), where
            self.counts["bound"] += 1
            return
        assert not bound, f"nothing fits: {where}"
        everybody = brute.eligible(state, instance)
        if not brute.fits(state, instance, [*free, *everybody]):
            assert not told, f"even without everybody it would not fit: {where}"
            assert not nominated, f"even without everybody it would not fit: {where}"
            assert self.driver.found(ShapeDeferred), where
            self.counts["deferrals"] += 1
            return
        assert [e.job for e in nominated] == [event.job], f"it fits with victims: {where}"
        assert all(any(v is e for e in everybody) for v in victims), f"a victim that may not be one: {where}"
        fault = brute.legal(state, instance, nominated[0].placements, [*free, *victims])
        assert not fault, f"{fault}: {where}"
        self.counts["preemptions" if told else "waits for what stops"] += 1
        for spared in victims:
            others = [attempt for attempt in victims if attempt is not spared]
            assert not brute.fits(state, instance, [*free, *others]), f"{spared.instance.key} need not go: {where}"
        if instance.job.gang.single:
            best = brute.best_word(state, instance, free)
            assert brute.word(victims) == best, f"{brute.word(victims)} go, {best} would do: {where}"
            self.counts["single optima"] += bool(told)
            self.counts["budgets broken because they had to be"] += best is not None and best[0] > 0
            self.counts["best-effort alone"] += bool(told) and all(victim.instance.job.spare for victim in victims)
        else:
            self.counts["gangs with victims"] += bool(told)

    def come_to_rest(self, event: JobSubmitted) -> None:
        """Victims leave; who was nominated is bound, and perhaps runs."""
        driver, chance = self.driver, self.random
        gone = [
            exited(task.attempt.instance.job.id, task.rank, task.attempt.number, task.attempt.instance.index, -9)
            for node in driver.state.ledger.nodes
            for task in (node.tasks if node is not None else ())
            if task.attempt.phase == "stop"
        ]
        nominated = bool(driver.state.nominations)
        driver.step(*gone)
        if nominated:
            ended = [e.reason for e in driver.found(NominationEnded) if e.job == event.job]
            assert ended in (["bound"], ["taken"]), f"seed {self.seed}: its victims are gone, and its nomination {ended}"
        self.tidy()
        for job in list(driver.state.jobs.values()):
            if job.instances[0].phase == "starting" and chance.random() < 0.6:
                driver.run(job.id)


def _attempt(state: State, event: InstancePreempted) -> Attempt:
    attempt = state.attempt(event.job, event.instance, event.attempt)
    assert attempt is not None
    return attempt


def _priority(event: JobSubmitted) -> int:
    return event.request.priority
