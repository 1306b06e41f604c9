"""The integer score `fgd` is the published float one: int(100 * sigmoid((F before - F after) / 1000))."""

import math
import random
from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
import pytest

from muster.engine.scores.fgd import Target, share_scores, thresholds, whole_scores
from muster.events.operations import TargetClass

MODELS = ("T4", "G2", "P100")


@pytest.mark.parametrize("total", [1, 7766, 256_000_000, 999_999_999_999])
def test_thresholds_are_rounded_up_exactly(total: int) -> None:
    with localcontext() as context:
        context.prec = 60
        exact = [Decimal(1000 * total) * (Decimal(k) / Decimal(100 - k)).ln() for k in range(1, 100)]
        assert thresholds(total).tolist() == [int(value.to_integral_value("ROUND_CEILING")) for value in exact]


def fragmentation(targets: Sequence[TargetClass], cpu_milli: int, milli: Sequence[int], model: str) -> float:
    """F of one node as the paper and benchmarks 1.3 word it, in floats, class by class."""
    total = sum(target.weight for target in targets)
    summed = 0.0
    for target in targets:
        gpus, each = target.gpus or (1 if target.gpu_milli else 0), target.gpu_milli or 1000
        enough = [free for free in milli if free >= each]
        allowed = not target.gpu_models or model in target.gpu_models
        hosts = gpus and allowed and len(enough) >= gpus and cpu_milli >= target.cpu_milli
        fragment = sum(free for free in milli if free < each) if hosts else sum(milli)
        summed += target.weight / total * fragment
    return summed


def score(before: float, after: float) -> int | None:
    """The published score; None where nothing changed and rounding alone decides."""
    if abs(before - after) < 1e-6:
        return None
    return int(100 / (1 + math.exp((after - before) / 1000)))


def node(chance: random.Random) -> tuple[int, list[int], str]:
    gpus = chance.choice([0, 2, 4, 8])
    milli = [chance.choice([0, 1000, 1000, 190, 540, chance.randrange(1001)]) for _ in range(gpus)] + [0] * (8 - gpus)
    return chance.randrange(8000, 128_000), milli, chance.choice(MODELS)


def workload(chance: random.Random) -> tuple[TargetClass, ...]:
    kinds = [(0, 0), (1, 0), (1, 0), (2, 0), (4, 0), (8, 0), (0, 810), (0, 460), (0, 190)]
    return tuple(
        TargetClass(
            cpu_milli=chance.randrange(0, 40_000),
            gpus=gpus,
            gpu_milli=share,
            gpu_models=chance.choice([(), (), ("T4",), ("G2", "P100")]) if gpus or share else (),
            weight=chance.randrange(1, 2000),
        )
        for gpus, share in chance.choices(kinds, k=chance.randrange(1, 30))
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_score_of_a_share_is_the_published_one_on_every_device(seed: int) -> None:
    chance = random.Random(seed)
    targets, compared = workload(chance), 0
    target = Target(targets)
    for _ in range(30):
        cpu, milli, model = node(chance)
        asked_cpu, asked = chance.randrange(0, 8000), chance.choice([810, 460, 190, chance.randrange(1, 1000)])
        free = np.array([milli], dtype=np.int64)
        found = share_scores(
            target, np.array([cpu]), free, free - asked, np.array([cpu - asked_cpu]), target.allowed([model])[None]
        )[0].tolist()
        before = fragmentation(targets, cpu, milli, model)
        for index, own in enumerate(milli):
            if own < asked:
                assert found[index] == -1
                continue
            left = [*milli[:index], own - asked, *milli[index + 1 :]]
            wanted = score(before, fragmentation(targets, cpu - asked_cpu, left, model))
            if wanted is not None:
                assert found[index] == wanted
                compared += 1
    assert compared > 20


@pytest.mark.parametrize("seed", range(20))
def test_the_score_of_whole_devices_or_none_is_the_published_one(seed: int) -> None:
    chance = random.Random(100 + seed)
    targets, compared = workload(chance), 0
    target = Target(targets)
    for _ in range(60):
        cpu, milli, model = node(chance)
        asked_cpu, gpus = chance.randrange(0, 8000), chance.choice([0, 1, 1, 2, 4])
        whole = [index for index, free in enumerate(milli) if free == 1000][:gpus]
        left = [0 if index in whole else free for index, free in enumerate(milli)]
        found = whole_scores(
            target,
            np.array([cpu]),
            np.array([milli], dtype=np.int64),
            np.array([left], dtype=np.int64),
            np.array([cpu - asked_cpu]),
            target.allowed([model])[None],
        ).tolist()
        wanted = score(fragmentation(targets, cpu, milli, model), fragmentation(targets, cpu - asked_cpu, left, model))
        if wanted is not None:
            assert found == [wanted]
            compared += 1
    assert compared > 10


def test_without_a_target_workload_all_nodes_are_equal_for_whole_devices() -> None:
    target = Target(())
    free = np.array([[1000, 1000], [1000, 0]], dtype=np.int64)
    left = np.array([[0, 1000], [0, 0]], dtype=np.int64)
    cpu = np.array([10, 10])
    scores = whole_scores(target, cpu, free, left, cpu, target.allowed(["T4"])[None])
    assert scores[0] == scores[1]
