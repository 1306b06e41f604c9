"""A scheduler that is killed at any of its awaits starts again as if nothing had been: nothing is lost, nothing runs twice."""

import asyncio

from muster.cluster import snapshot
from muster.cluster.invariants import check_invariants
from muster.events.codec import open_envelope
from muster.replay.audit import audit
from muster.replay.travel import fold_to
from muster.scheduler.loop import Settings
from muster.scheduler.recovery import recover
from muster.verify import verify
from tests.simulation.small_world import CELL, World, WorldClock, WorldLog

SETTINGS = Settings(takeover_after_us=0, takeover_spread_us=0)


def small() -> World:
    """Two nodes and jobs that fit only one after another, among them a gang over both."""
    world = World(nodes=2, gpus=2)
    world.submit(1, gpus=1)
    world.submit(2, count=2, gpus=2)
    world.submit(3, gpus=1, array=2)
    world.submit(4, gpus=2)
    return world


async def until_done(world: World, kills: list[int]) -> None:
    """Incarnation after incarnation, each killed at its await of `kills`; after these, none is."""
    while True:
        world.awaits = 0
        world.kill_at = kills.pop(0) if kills else 0
        if await world.incarnation(SETTINGS) is not None:
            return
        assert world.incarnations < 2000


async def check(world: World) -> None:
    """What must hold once all is over."""
    world.kill_at = 0
    clock = WorldClock(world)
    recovered = await recover(WorldLog(world, clock), CELL)
    state = world.view.follow()
    folded = fold_to(world.view.admitted)
    assert snapshot.digest(recovered.core.state) == snapshot.digest(folded) == snapshot.digest(state)
    check_invariants(folded)
    assert recovered.core.head == world.view.head
    assert [job for job in world.jobs if folded.jobs[job].instances[0].phase != "finished"] == [], "an accepted job is lost"
    started = [(job, instance, rank) for agent in world.agents for job, instance, _, rank in agent.started]
    assert len(started) == len(dict.fromkeys(started)) == 6, "a task ran twice or not at all"
    for source, messages in world.topics.messages.items():
        assert recovered.core.positions[source] <= len(messages)
    found = audit(lambda: world.view.admitted)
    assert found.difference is None, found.difference.lines()
    assert verify(open_envelope(envelope) for envelope, _ in world.view.admitted) == []


async def test_what_was_accepted_runs_once_wherever_the_scheduler_is_killed() -> None:
    clean = small()
    await until_done(clean, [])
    total = clean.awaits
    await check(clean)
    assert total > 40
    terms = 0
    for after in (False, True):
        for kill in range(1, total + 1):
            world = small()
            world.kill_after = after
            await until_done(world, [kill])
            assert world.incarnations == 2
            await check(world)
            terms += world.view.state.term
    assert terms > 3 * total, "a killed leader was not replaced by a new term"
    print(f"\nkilled at each of {total} awaits, before and after what was awaited: {2 * total} deaths, {terms} terms")


async def test_the_successor_may_be_killed_too() -> None:
    clean = small()
    await until_done(clean, [])
    total = clean.awaits
    deaths = 0
    for first in range(1, total + 1):
        for second in range(1 + first % 9, total, 9):
            world = small()
            world.kill_after = (first + second) % 2 == 1
            await until_done(world, [first, second])
            await check(world)
            deaths += world.incarnations - 1
    assert deaths > 5 * total
    print(f"\n{deaths} deaths in pairs")


async def test_a_scheduler_that_dies_again_and_again_gets_there() -> None:
    deaths = 0
    for every in range(9, 40, 3):
        for after in (False, True):
            world = small()
            world.kill_after = after
            await until_done(world, [every] * 300)
            await check(world)
            deaths += world.incarnations - 1
    assert deaths > 50
    print(f"\n{deaths} deaths in crash loops")


def test_the_world_counts_the_same_awaits_each_time() -> None:
    counts = []
    for _ in range(2):
        world = small()
        asyncio.run(until_done(world, []))
        counts.append((world.awaits, world.view.head.digest))
    assert counts[0] == counts[1]
