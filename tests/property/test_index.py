"""The indexes find what looking at every node finds."""

from random import Random

import numpy as np
import pytest

from muster.cluster.jobs import Attempt, job_of
from muster.cluster.nodes import LEVELS, Node
from muster.cluster.shapes import Shape, intern_gang, intern_shape
from muster.cluster.state import State
from muster.engine.bestfit import BestFit, Spot, rank
from muster.engine.candidates import Candidates
from muster.engine.place import Placer
from muster.engine.plan import Plan
from muster.engine.rows import Rows
from muster.events.jobs import JobRequest, JobRun
from muster.events.operations import Policy, PolicySet, Weight
from tests.support.build import S
from tests.support.chaos import TARGETS, Chaos
from tests.support.driver import Driver

STATES = 60
SHAPES = 20


def states(policy: Policy, seed: int) -> tuple[State, Chaos]:
    """A cell after some chaos."""
    random = Random(seed)
    driver = Driver(policy, checked=False)
    chaos = Chaos(random, driver.state, nodes=6)
    driver.step(*chaos.nodes())
    for _ in range(12):
        inputs = [event for event in chaos.inputs() if not isinstance(event, PolicySet)]
        driver.step(*inputs, at_us=driver.state.at_us + random.choice((0, 1, 5)) * S)
    return driver.state, chaos


def can_hold(node: Node, shape: Shape) -> bool:
    """Whether one task fits by what is free: from the amounts, and device by device."""
    if node.cpu_free < shape.cpu_milli or node.memory_free < shape.memory_mib or node.disk_free < shape.disk_mib:
        return False
    if node.tasks_free < 1:
        return False
    taking = [
        index
        for index, device in enumerate(node.devices)
        if device.usable
        and device.memory_mib >= shape.gpu_memory_mib
        and (not shape.gpu_models or device.model in shape.gpu_models)
    ]
    if shape.gpus:
        return len([index for index in taking if node.device_free[index] == node.devices[index].units]) >= shape.gpus
    if shape.share:
        return any(node.device_free[index] >= shape.units(node.devices[index].memory_mib) for index in taking)
    return True


def plain_rank(node: Node, shape: Shape) -> int | None:
    """The rank as the docstring of `muster.engine.bestfit` has it."""
    if not can_hold(node, shape):
        return None
    whole = [index for index, device in enumerate(node.devices) if device.usable and node.device_free[index] == device.units]
    if shape.gpus:
        return len(whole)
    if not shape.share:
        return 1 + len(whole) if any(device.present for device in node.devices) else 0
    used = [
        node.device_free[index] * LEVELS // device.units
        for index, device in enumerate(node.devices)
        if device.usable
        and 0 < node.device_free[index] < device.units
        and node.device_free[index] >= shape.units(device.memory_mib)
        and device.memory_mib >= shape.gpu_memory_mib
        and (not shape.gpu_models or device.model in shape.gpu_models)
    ]
    return min(used) if used else LEVELS + len(whole)


def expected(state: State, candidates: Candidates, excluded: int) -> int | None:
    """The row of the lowest rank in the first tier that has any, the lowest row among equals."""
    for _, tier in candidates.tiers:
        ranked = []
        for row, node in enumerate(state.ledger.nodes):
            if node is not None and tier >> row & 1 and not excluded >> row & 1:
                found = plain_rank(node, candidates.shape)
                assert found == rank(node, candidates.shape)
                if found is not None:
                    ranked.append((found, row))
        if ranked:
            return min(ranked)[1]
    return None


def ghost(shape_of: Chaos) -> Attempt:
    """Somebody who holds places in a plan."""
    request = JobRequest(groups=(shape_of.group("ghost"),))
    return Attempt(job_of("ghost", "n", "u", "default", request, JobRun(), intern_gang(request), (0, 0), 0).instances[0], 0, 0, 0)


@pytest.mark.parametrize("scores", [(Weight(name="best-fit"),), Policy().scores], ids=["best-fit", "default"])
def test_one_task_goes_to_the_row_that_looking_at_all_rows_finds(scores: tuple[Weight, ...]) -> None:
    found_some = 0
    for seed in range(STATES):
        state, chaos = states(Policy(scores=scores), seed)
        placer = Placer(state)
        assert isinstance(placer.picker, BestFit)
        for _ in range(SHAPES):
            shape = intern_shape(chaos.group("g"))
            excluded = chaos.random.choice((0, 0, 1, 2, 5)) & state.ledger.registered
            spot = placer.picker.one(placer.cache.of(shape), excluded)
            row = expected(state, placer.cache.of(shape), excluded)
            assert (spot[0] if spot else None) == row, f"seed {seed}: {spot}, not row {row}, for {shape.key}"
            if spot is not None:
                found_some += 1
                check_devices(state, shape, spot)
    assert found_some >= STATES * SHAPES // 6


def check_devices(state: State, shape: Shape, spot: Spot) -> None:
    """The devices of a spot are as asked for and free."""
    row, devices = spot
    node = state.ledger.node(row)
    assert len(set(devices)) == len(devices) == (shape.gpus or int(shape.share))
    for index in devices:
        device = node.devices[index]
        assert device.usable
        assert device.memory_mib >= shape.gpu_memory_mib
        assert not shape.gpu_models or device.model in shape.gpu_models
        assert node.device_free[index] >= (device.units if shape.gpus else shape.units(device.memory_mib))


def test_many_tasks_go_where_they_go_one_after_another() -> None:
    several = 0
    for seed in range(STATES):
        state, chaos = states(Policy(), seed)
        placer, other = Placer(state), Placer(state)
        assert isinstance(placer.picker, BestFit)
        for _ in range(SHAPES):
            shape = intern_shape(chaos.group("g"))
            want = chaos.random.choice((1, 2, 5, 30))
            excluded = chaos.random.choice((0, 0, 0, 3)) & state.ledger.registered
            spots = placer.picker.many(placer.cache.of(shape), want, excluded)
            single: list[Spot] = []
            with Plan(state) as plan:
                while len(single) < want:
                    spot = other.picker.one(other.cache.of(shape), excluded)
                    if spot is None:
                        break
                    single.append(spot)
                    plan.with_spots(ghost(chaos), shape, [spot])
            assert sorted(spots) == sorted(single), f"seed {seed}: {want} of {shape.key}"
            several += len(single) > 1
    assert several >= STATES


@pytest.mark.parametrize(
    "names", [("published-best-fit",), ("fgd",), ("model-preference", "fgd")], ids=lambda names: "+".join(names)
)
def test_scores_over_all_rows_choose_the_highest_and_then_the_lowest_row(names: tuple[str, ...]) -> None:
    for seed in range(STATES // 2):
        policy = Policy(
            scores=tuple([Weight(name=name, weight=1 + 99 * (name == "model-preference")) for name in names]), targets=TARGETS
        )
        state, chaos = states(policy, seed)
        placer = Placer(state)
        picker = placer.picker
        assert isinstance(picker, Rows)
        for _ in range(SHAPES):
            shape = intern_shape(chaos.group("g"))
            excluded = chaos.random.choice((0, 0, 1, 2, 5)) & state.ledger.registered
            spot = picker.one(placer.cache.of(shape), excluded)
            candidates = placer.cache.of(shape)
            best: tuple[int, int] | None = None
            for row, node in enumerate(state.ledger.nodes):
                if node is None or excluded >> row & 1 or not candidates.bits >> row & 1 or not can_hold(node, shape):
                    continue
                total = sum(int(score.row(picker.view, shape, np.array([row]))[0]) * weight for score, weight in picker.scores)
                total += sum(value for value, tier in candidates.tiers if tier >> row & 1)
                if best is None or total > best[0]:
                    best = total, row
            assert (spot[0] if spot else None) == (best[1] if best else None), f"seed {seed}: {spot}, not {best}"
            if spot is not None:
                check_devices(state, shape, spot)
