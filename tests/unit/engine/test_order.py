"""Whose turn it is, against brute force: at each binding the queue is the one that shares, tiers, weights and promises say."""

from collections import Counter
from random import Random

import msgspec

from muster.events.decisions import InstanceBound
from muster.events.jobs import GroupRequest, JobSubmitted
from muster.events.queues import Amounts, QueueSet
from tests.support.build import job, node
from tests.support.driver import Driver

CASES = 150
GPUS, CORES = 12, 48


def test_each_binding_is_of_the_queue_that_brute_force_names() -> None:
    counts: Counter[str] = Counter()
    for seed in range(CASES):
        counts += Case(Random(seed)).play(seed)
    print(f"{CASES} cases: {dict(sorted(counts.items()))}")
    assert counts["bindings"] >= 800
    assert counts["of several queues"] >= 500
    assert counts["by weight or share"] >= 150


class Case:
    """Some queues at two levels, all with single tasks of one GPU that wait while nothing is free; then all becomes free."""

    def __init__(self, random: Random) -> None:
        self.random = random
        names = ["a", "b", "c", "d", "e"][: random.randint(2, 5)]
        self.said: dict[str, QueueSet] = {}
        for name in names:
            parents = ["", "", *[other for other in self.said if not self.said[other].parent]]
            promised = random.choice((None, None, 1000, 2000))
            self.said[name] = QueueSet(
                queue=name,
                parent=random.choice(parents),
                weight=random.choice((0, 1, 1, 2, 3)),
                tier=random.choice((0, 0, 0, 1)),
                guarantee=Amounts(gpu_milli=promised),
            )
        self.charged: Counter[tuple[str, str]] = Counter()

    def play(self, seed: int) -> Counter[str]:
        """Compare the order of bindings with what brute force says; counted."""
        counts: Counter[str] = Counter()
        driver = Driver(checked=False, reclaim=False, preemption=False)
        driver.step(*self.said.values())
        jobs: dict[str, JobSubmitted] = {}
        waiting: dict[str, list[str]] = {}
        leaves = [name for name in self.said if not any(spec.parent == name for spec in self.said.values())]
        for number in range(self.random.randint(6, 20)):
            name = self.random.choice(leaves)
            shape = GroupRequest(gpus=1, cpu_milli=self.random.choice((0, 1000, 4000)))
            event = job(f"j{number}", shape, queue=name)
            jobs[event.job] = event
            waiting.setdefault(name, []).append(event.job)
        driver.step(*jobs.values())
        driver.step(node("n", GPUS, cpu_milli=1000 * CORES))
        for told in driver.found(InstanceBound):
            bound = jobs[told.job]
            choices = [name for name in leaves if waiting.get(name)]
            right = self.turn("", choices)
            where = f"seed {seed}: {told.job} of {bound.queue} is bound, it was the turn of {right}; {self.charged}"
            assert bound.queue == right, where
            assert told.job == waiting[right][0], where
            waiting[right].pop(0)
            counts["bindings"] += 1
            counts["of several queues"] += len(choices) > 1
            counts["by weight or share"] += len(choices) > 1 and right != min(choices)
            self.charge(bound)
        return counts

    def charge(self, bound: JobSubmitted) -> None:
        name = bound.queue
        while name:
            self.charged[name, "gpus"] += 1
            self.charged[name, "cpu"] += bound.request.groups[0].cpu_milli
            name = self.said[name].parent

    def turn(self, above: str, choices: list[str]) -> str:
        """The leaf below a queue whose turn it is."""
        below = {
            name for name, spec in self.said.items() if spec.parent == above and any(self.under(leaf, name) for leaf in choices)
        }
        name = min(below, key=self.key)
        return name if name in choices else self.turn(name, choices)

    def under(self, leaf: str, name: str) -> bool:
        while leaf and leaf != name:
            leaf = self.said[leaf].parent
        return leaf == name

    def promised(self, name: str) -> int:
        own = self.said[name].guarantee.gpu_milli or 0
        return max(own // 1000, sum(self.promised(child) for child, spec in self.said.items() if spec.parent == name))

    def key(self, name: str) -> tuple[bool, int, bool, int, str]:
        spec = self.said[name]
        gpus, cpu = self.charged[name, "gpus"], self.charged[name, "cpu"]
        weight = max(1, spec.weight)
        share = max(gpus * 2**32 // (weight * GPUS), cpu * 2**32 // (weight * 1000 * CORES))
        return gpus >= self.promised(name), -spec.tier, not spec.weight, share, name


def test_a_turn_costs_no_look_at_queues_in_which_nobody_waits() -> None:
    driver = Driver(checked=False)
    driver.step(*[QueueSet(queue=f"q{number}") for number in range(300)])
    driver.step(node("n", 4))
    event = job("j", queue="q7")
    driver.step(event, msgspec.structs.replace(event, job="k", queue="q8"))
    assert driver.bound() == ["j", "k"]
