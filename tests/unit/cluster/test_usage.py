"""What was used with a half-life: in integers, close to what it is, and the same however time passes."""

from fractions import Fraction

import pytest

from muster.cluster.queuetree import Queue, QueueTree
from muster.cluster.usage import EACH_US, ONE, Usage, Used, factor
from muster.events.operations import Policy
from muster.events.queues import QueueSet
from tests.support.build import job, node
from tests.support.driver import Driver

HOUR_US = 3_600_000_000


def _tree(charged: int) -> tuple[QueueTree, Queue]:
    """A queue that is charged with so many of a hundred cores."""
    tree = QueueTree()
    tree.stale = False
    tree.dimensions = [("cpu", 100)]
    queue = tree.of("q")
    queue.charged = {"cpu": charged} if charged else {}
    return tree, queue


@pytest.mark.parametrize("half_life_us", [EACH_US, HOUR_US, 86_400_000_000, 31_536_000_000_000])
def test_a_half_is_left_after_a_half_life(half_life_us: int) -> None:
    left = (factor(half_life_us) / ONE) ** (half_life_us // EACH_US)
    assert abs(left - 0.5) < 0.0002
    assert factor(half_life_us) < ONE


def test_what_is_charged_adds_up_by_its_dominant_share_and_fades() -> None:
    """Against the same sum in fractions."""
    tree, queue = _tree(25)
    history = Usage(HOUR_US, 0)
    history.touch(tree, queue, "u")
    exact, rate = Fraction(0), Fraction(1 << 32, 4)
    for at_us in range(EACH_US, 3 * HOUR_US + 1, EACH_US):
        exact = (exact + rate * 60) * Fraction(factor(HOUR_US), ONE)
        history.pass_time(tree, at_us)
    assert abs(history.of(tree, queue) - exact) < 1000
    history.pass_time(tree, 3 * HOUR_US + 7_000_000)
    assert abs(history.of(tree, queue) - exact - rate * 7) < 1000


@pytest.mark.parametrize("charged", [0, 25])
def test_a_long_gap_is_what_many_short_ones_are(charged: int) -> None:
    results = []
    for step_us in (EACH_US, 500 * EACH_US):
        tree, queue = _tree(charged)
        history = Usage(HOUR_US, 0)
        history.entries["q", ""] = Used(10**12, 0)
        for at_us in range(step_us, 500 * EACH_US + 1, step_us):
            history.pass_time(tree, at_us)
        results.append(history.of(tree, queue))
    assert abs(results[0] - results[1]) <= results[0] // 100_000 + 1000, results


def test_what_has_faded_is_dropped_and_what_is_charged_stays() -> None:
    for charged, kept in ((0, False), (25, True)):
        tree, _ = _tree(charged)
        history = Usage(EACH_US, 0)
        history.entries["q", ""] = Used(10**12, 0)
        for number in range(1, 60):
            history.pass_time(tree, number * EACH_US)
        assert bool(history.entries) is kept


def test_charges_count_from_when_they_change() -> None:
    tree, queue = _tree(0)
    history = Usage(HOUR_US, 0)
    history.pass_time(tree, 10_000_000)
    history.touch(tree, queue, "")
    queue.charged = {"cpu": 50}
    history.pass_time(tree, 14_000_000)
    history.touch(tree, queue, "")
    queue.charged = {}
    history.pass_time(tree, 40_000_000)
    assert history.of(tree, queue) == (1 << 31) * 4


def test_what_is_charged_already_is_noted_where_a_queue_moves_or_becomes_fair() -> None:
    driver = Driver(Policy(history_half_life_us=HOUR_US))
    driver.step(QueueSet(queue="old"), QueueSet(queue="new"), QueueSet(queue="team", parent="old"), node("n0", 2))
    driver.step(job("j", queue="team"))
    driver.step(QueueSet(queue="team", parent="new", order="fair"), after_s=10)
    driver.step(after_s=20)
    tree = driver.state.tree
    assert tree is not None
    assert tree.usage is not None
    used = [
        tree.usage.of(tree, tree.of(name), user) >> 31 for name, user in (("old", ""), ("new", ""), ("team", ""), ("team", "u"))
    ]
    assert used == [10, 20, 30, 20], "seconds of one of two GPUs"


def test_what_there_was_counts_until_it_is_another() -> None:
    driver = Driver(Policy(history_half_life_us=HOUR_US))
    driver.step(QueueSet(queue="team"), node("n0", 1), job("j", queue="team"))
    driver.step(node("n1", 3), after_s=10)
    driver.step(after_s=20)
    tree = driver.state.tree
    assert tree is not None
    assert tree.usage is not None
    assert tree.usage.of(tree, tree.of("team")) >> 32 == 10 + 20 // 4
