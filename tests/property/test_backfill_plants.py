"""Faults put into the planner on purpose: the judge, the plays or brute force find each."""

from random import Random

import pytest

from muster.engine import backfill, horizon, profile
from muster.engine.backfill import Backfill
from muster.engine.horizon import Horizon
from tests.property.test_backfill import Case, story
from tests.support.plays import come_to_rest

Patch = pytest.MonkeyPatch


def tell(patch: Patch, found: str, seeds: int = 12) -> None:
    """Some story, or some case against brute force, finds the fault and says so."""
    said = []
    for seed in range(seeds):
        for play in (lambda seed=seed: come_to_rest(story(Random(seed), cycles=25)), lambda seed=seed: Case(seed).play()):
            try:
                play()
            except AssertionError as error:
                said.append(str(error))
                if found in str(error):
                    return
    raise AssertionError(f"nobody finds it; found was {said[:3]}")


def test_a_plan_that_binds_nobody_is_found_to_be_delayed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Backfill, "binds", lambda self, planned, end_us: False)
    tell(monkeypatch, "rule='delay'", seeds=40)


def test_a_holder_who_is_overdue_and_counted_on_is_found(monkeypatch: Patch) -> None:
    curve = profile.curve
    monkeypatch.setattr(horizon, "curve", lambda state, node, uses=(), lenient=False: curve(state, node, uses, True))
    monkeypatch.setattr(Horizon, "_ends_on", _all_gone)
    tell(monkeypatch, "rule='plan'", seeds=40)


def _all_gone(self: Horizon, node: object, width: int) -> tuple[list[int], int, int]:
    return [0] * width, 0, 2**62


def test_a_plan_that_is_never_looked_at_again_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Backfill, "_stays", lambda self, planned: True)
    tell(monkeypatch, "brute force", seeds=40)


def test_a_plan_that_is_later_than_it_need_be_is_found(monkeypatch: Patch) -> None:
    rounded = Horizon._rounded
    monkeypatch.setattr(Horizon, "_rounded", lambda self, time_us: rounded(self, time_us) + 3_000_000)
    tell(monkeypatch, "brute force")


def test_a_plan_in_the_place_of_one_above_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Horizon, "put", lambda self, planned: None)
    tell(monkeypatch, "rule='plan'")


def test_plans_beyond_what_the_policy_says_are_found(monkeypatch: Patch) -> None:
    made = Backfill.__init__

    def more(self: Backfill, *args: object) -> None:
        made(self, *args)  # type: ignore[arg-type]
        self._most += 1

    monkeypatch.setattr(backfill.Backfill, "__init__", more)
    tell(monkeypatch, "there may be")
