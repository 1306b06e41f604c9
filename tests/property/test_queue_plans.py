"""Planned starts where queues stand in a tree: every play of a story gives the same bytes, and no fault is found."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from muster.engine.backfill import Backfill
from muster.engine.horizon import Horizon
from muster.events.base import Event
from muster.events.operations import PolicySet
from tests.property.test_backfill import limited, planning
from tests.support.plays import Plays, come_to_rest
from tests.support.queue_chaos import QueueChaos, queue_story

STORIES = 12
STORIES_MAX = 30

Patch = pytest.MonkeyPatch


class PlannedChaos(QueueChaos):
    """Chaos over queues, under policies that plan, with jobs that mostly say how long they run."""

    def nodes(self) -> list[Event]:
        """A policy that plans, and the nodes."""
        return [self.with_policy(PolicySet(policy=self.state.policy)), *super().nodes()]

    def inputs(self) -> list[Event]:
        """What arrives in one cycle."""
        return limited(self.random, super().inputs())

    def with_policy(self, event: Event) -> Event:
        """A policy that is set plans."""
        event = super().with_policy(event)
        if not isinstance(event, PolicySet):
            return event
        return PolicySet(policy=msgspec.structs.replace(event.policy, backfill=planning(self.random).backfill))


def tell(seed: int) -> Plays:
    """One story, to its end."""
    plays, _ = queue_story(Random(seed), cycles=25, sort=PlannedChaos)
    come_to_rest(plays)
    return plays


def test_plans_over_queues_are_legal_and_the_same_in_every_play() -> None:
    counts: dict[str, int] = {}
    for seed in range(STORIES):
        for kind, count in tell(seed).judge.summary.decisions.items():
            counts[kind] = counts.get(kind, 0) + count
    print(f"{STORIES} stories: {dict(sorted(counts.items()))}")
    for kind in ("StartPlanned", "PlanDropped", "InstanceBound", "Nominated"):
        assert counts.get(kind, 0) >= 10, f"the stories hold too little of {kind}: {counts}"


def in_the_place_of_those_whose_turn_comes_later(patch: Patch) -> None:
    """Nobody plans behind those who rank above and were not asked yet."""
    patch.setattr(Backfill, "_later", lambda *_: [])


def as_if_nobody_were_late(patch: Patch) -> None:
    """Who was to begin and has not is held to begin when he was to."""
    patch.setattr(Horizon, "relies_until", lambda *_: 2**62)


PLANTS: tuple[tuple[Callable[[Patch], None], str], ...] = (
    (in_the_place_of_those_whose_turn_comes_later, "rule='plan'"),
    (as_if_nobody_were_late, "is another"),
)


@pytest.mark.parametrize(("plant", "says"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_the_fault_is_found(plant: Callable[[Patch], None], says: str, monkeypatch: Patch) -> None:
    plant(monkeypatch)

    def tell_all() -> None:
        for seed in range(STORIES_MAX):
            tell(seed)

    with pytest.raises(AssertionError, match=says):
        tell_all()
