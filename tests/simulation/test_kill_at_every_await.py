"""A scheduler that is killed at any of its awaits starts again as if nothing had been: nothing is lost, nothing runs twice."""

import asyncio
import os
import random
from typing import Final, Self, get_args

from muster.cluster import snapshot
from muster.cluster.invariants import check_invariants
from muster.events.codec import open_envelope
from muster.log.bus import Bus
from muster.log.kafka import KafkaLog
from muster.replay.audit import audit
from muster.replay.travel import fold_to
from muster.scheduler.loop import Settings
from muster.scheduler.recovery import recover
from muster.verify import verify
from tests.simulation.small_world import CELL, KillWhen, World, WorldClock, WorldLog
from tests.support.kafka import Kafka
from tests.support.topics import make_log_topic

SETTINGS = Settings(takeover_after_us=0, takeover_spread_us=0)
WHEN: Final[tuple[KillWhen, ...]] = get_args(KillWhen)
SOAK = "MUSTER_SOAK" in os.environ
ON_KAFKA = 16
"""So many of the deaths are died on Kafka in `make test`; all of them in `make soak`."""


class KafkaWorld(World):
    """A world whose log is a topic. What its schedulers append is read back from the broker."""

    def __init__(self, bus: Bus, topic: str, reader: KafkaLog) -> None:
        super().__init__(nodes=2, gpus=2)
        self._bus = bus
        self._topic = topic
        self._reader = reader
        self._seen = 0

    @classmethod
    async def open(cls, kafka: Kafka) -> Self:
        bus, topic = Bus.parse(kafka.address), kafka.topic("kills")
        await make_log_topic(bus, topic)
        world = cls(bus, topic, await KafkaLog.open(bus, topic, writer=False))
        fill(world)
        return world

    async def open_log(self, clock: WorldClock) -> WorldLog:
        return WorldLog(self, clock, await KafkaLog.open(self._bus, self._topic, writer=True))

    async def see(self) -> None:
        while records := await self._reader.read(self._seen):
            self._seen = records[-1].position
            self.broker.records.extend([record.data for record in records])

    async def close(self) -> None:
        await self._reader.close()


def fill(world: World) -> None:
    """Jobs that fit only one after another, among them a gang over both nodes."""
    world.submit(1, gpus=1)
    world.submit(2, count=2, gpus=2)
    world.submit(3, gpus=1, array=2)
    world.submit(4, gpus=2)


def small() -> World:
    """Two nodes of two GPUs and their jobs."""
    world = World(nodes=2, gpus=2)
    fill(world)
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
    log = await world.open_log(WorldClock(world))
    recovered = await recover(log, CELL)
    await log.close()
    await world.see()
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
    for when in WHEN[::2]:
        for kill in range(1, total + 1):
            world = small()
            world.kill_when = when
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
            world.kill_when = "after" if (first + second) % 2 else "before"
            await until_done(world, [first, second])
            await check(world)
            deaths += world.incarnations - 1
    assert deaths > 5 * total
    print(f"\n{deaths} deaths in pairs")


async def test_a_scheduler_that_dies_again_and_again_gets_there() -> None:
    deaths = 0
    for every in range(9, 40, 3):
        for when in WHEN[::2]:
            world = small()
            world.kill_when = when
            await until_done(world, [every] * 300)
            await check(world)
            deaths += world.incarnations - 1
    assert deaths > 50
    print(f"\n{deaths} deaths in crash loops")


async def test_it_is_the_same_on_kafka(kafka: Kafka) -> None:
    """There what was asked for when the scheduler died may still come to pass."""
    clean = await KafkaWorld.open(kafka)
    await until_done(clean, [])
    total = clean.awaits
    await check(clean)
    await clean.close()
    deaths = [(kill, when) for kill in range(1, total + 1) for when in WHEN]
    if not SOAK:
        deaths = random.Random(1).sample(deaths, ON_KAFKA)
    died = 0
    for kill, when in deaths:
        world = await KafkaWorld.open(kafka)
        world.kill_when = when
        await until_done(world, [kill])
        await check(world)
        died += world.incarnations - 1
        await world.close()
    assert died > len(deaths) * 2 // 3, "killed after the last of its awaits"
    print(f"\n{died} deaths on Kafka at {total} awaits, before, during and after what was awaited")


def test_the_world_counts_the_same_awaits_each_time() -> None:
    counts = []
    for _ in range(2):
        world = small()
        asyncio.run(until_done(world, []))
        counts.append((world.awaits, world.view.head.digest))
    assert counts[0] == counts[1]
