"""Agents that lost their gateway come back soon, and not all at once. Time is counted here, not waited for."""

import random
from bisect import bisect_left, bisect_right
from itertools import pairwise

import pytest

from muster.agent.backoff import BUSY_S, REFUSED_S, Backoff


def tries(seed: int, until_s: float, refused: bool) -> list[float]:
    """When an agent asks, that found its gateway away at 0 and goes on until then."""
    backoff = Backoff(random.Random(seed))
    found = [0.0]
    while found[-1] < until_s:
        found.append(found[-1] + backoff.next_s(refused))
    return found


@pytest.mark.parametrize("away_s", [0.05, 0.3, 0.9, 3.0, 30.0])
def test_a_gateway_where_nobody_listened_is_found_soon_after_it_is_back(away_s: float) -> None:
    for seed in range(1000):
        back = next(at for at in tries(seed, away_s + 1, refused=True) if at >= away_s)
        assert back - away_s <= min(1.5 * REFUSED_S[-1], 2 * away_s + 1.5 * REFUSED_S[0])


def test_a_thousand_agents_neither_hammer_a_dead_gateway_nor_come_back_all_at_once() -> None:
    every = [tries(seed, 20.0, refused=True) for seed in range(1000)]
    asked = sorted(at for agent in every for at in agent if 10 <= at < 20)
    assert len(asked) / 10 < 1000 * 2 / REFUSED_S[-1]
    firsts = [next(at for at in agent if at >= 10.0) for agent in every]
    most = max(bisect_right(asked, at + 0.05) - bisect_left(asked, at) for at in firsts)
    assert most < 250, "more than a quarter of all agents ask within a twentieth of a second"


def test_a_gateway_that_cannot_answer_is_asked_less_and_less() -> None:
    for seed in range(100):
        for number, (asked, again) in enumerate(pairwise(tries(seed, 60.0, refused=False))):
            base = BUSY_S[min(number, len(BUSY_S) - 1)]
            assert 0.499 * base <= again - asked <= 1.501 * base


def test_an_answer_makes_the_next_waits_short_again() -> None:
    backoff = Backoff(random.Random(1))
    assert not backoff.reset()
    for _ in range(10):
        backoff.next_s(refused=False)
    assert backoff.reset()
    assert backoff.next_s(refused=False) <= 1.5 * BUSY_S[0]
