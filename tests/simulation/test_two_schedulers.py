"""Two schedulers over one log that loses, delays, doubles and reorders: one history, whoever wrote it."""

import asyncio

import pytest

from muster.cluster import snapshot
from muster.cluster.invariants import check_invariants
from muster.events.codec import open_envelope
from muster.log.memory import WEAK, MemoryBroker
from muster.replay.audit import audit
from muster.scheduler.loop import EXIT_DOUBT, EXIT_REPLACED, Settings
from muster.scheduler.recovery import recover
from muster.verify import verify
from tests.simulation.small_world import CELL, World, WorldClock, WorldLog

SEEDS = 25


def contested(seed: int) -> World:
    """A broker on a bad day, and jobs that fit only one after another."""
    world = World(nodes=2, gpus=2, broker=MemoryBroker(seed, WEAK))
    for number in range(1, 9):
        world.submit(number, gpus=1 + number % 2)
    world.submit(9, count=2, gpus=2)
    return world


async def supervised(world: World, identity: str, seed: int) -> None:
    """One scheduler that is started again whenever it leaves. With odd seeds both are hasty: they cut in on a living leader."""
    settings = Settings(
        identity=identity,
        append_deadline_us=2_000_000,
        takeover_after_us=400_000 if seed % 2 else 3_000_000,
        takeover_spread_us=200_000,
        poll_us=100_000,
    )
    while await world.incarnation(settings) is None:
        assert world.incarnations < 1000
        if world.incarnations > 12:
            world.broker.settle()  # the bad day ends, and then everything has to come to its end
        await asyncio.sleep(0)


async def play(seed: int) -> World:
    """Both until all jobs are over."""
    world = contested(seed)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for identity in ("a", "b"):
            group.create_task(supervised(world, identity, seed))
    world.broker.settle()
    world.view.follow()
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_there_is_one_history(seed: int) -> None:
    world = await play(seed)
    view = world.view
    assert [job for job in world.jobs if view.state.jobs[job].open] == []
    check_invariants(view.state)
    recovered = await recover(WorldLog(world, WorldClock(world)), CELL)
    assert snapshot.digest(recovered.core.state) == snapshot.digest(view.state)
    started = [(job, instance, rank) for agent in world.agents for job, instance, _, rank in agent.started]
    assert len(started) == len(dict.fromkeys(started)) == 10
    found = audit(lambda: view.admitted)
    assert found.difference is None, found.difference.lines()
    assert verify(open_envelope(envelope) for envelope, _ in view.admitted) == []


async def test_the_seeds_hold_conflicts() -> None:
    """What the seeds above are worth: races, replaced leaders and doubts must be among them."""
    terms = voids = 0
    exits = {EXIT_DOUBT: 0, EXIT_REPLACED: 0}
    for seed in range(SEEDS):
        world = await play(seed)
        terms += world.view.state.term
        voids += sum(world.view.voids.values())
        for code in world.exits:
            exits[code] += 1
    print(f"\n{SEEDS} seeds: {terms} terms, {voids} void records, {exits[EXIT_DOUBT]} doubts, {exits[EXIT_REPLACED]} replaced")
    assert terms > 2 * SEEDS
    assert voids > SEEDS
    assert exits[EXIT_DOUBT] > SEEDS
    assert exits[EXIT_REPLACED] > 2
