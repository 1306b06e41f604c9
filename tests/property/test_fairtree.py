"""Whose turn it is by what was used, against Fair Tree worked out in fractions on tiny trees; and stories with a history."""

from fractions import Fraction
from random import Random
from unittest import mock

import msgspec

from muster.cluster.queuetree import Queue, QueueTree
from muster.cluster.usage import Used
from muster.engine.fairtree import ordered_by
from muster.events.operations import Policy
from muster.events.queues import QueueSet
from tests.support import queue_chaos
from tests.support.build import S, job, node
from tests.support.driver import Driver
from tests.support.plays import come_to_rest
from tests.support.queue_chaos import queue_policy, queue_story
from tests.support.soft import SoftQueueChaos

CASES = 300
STORIES = 25


def test_the_turns_of_a_tiny_tree_are_those_of_fair_tree() -> None:
    """Everybody asks for the one GPU: who is given it is whom the fractions say."""
    levels = 0
    for seed in range(CASES):
        chance = Random(seed)
        driver = Driver(Policy(history_half_life_us=3600 * S), checked=False)
        parents: dict[str, str] = {}
        for name in "abcdef"[: chance.randint(2, 6)]:
            tops = [each for each, above in parents.items() if not above]
            parents[name] = chance.choice(tops) if tops and chance.random() < 0.6 else ""
            driver.step(QueueSet(queue=name, parent=parents[name], weight=chance.choice((1, 1, 2, 5))))
        driver.step(node("n0", 1))
        tree = driver.state.tree
        assert tree is not None
        assert tree.usage is not None
        leaves = [name for name in parents if name not in parents.values()]
        for name in leaves:
            used = chance.choice((0, 10**9, 10**9, 3 * 10**9, 10**12))
            for each in tree.of(name).path if used else ():
                before = tree.usage.of(tree, each)
                tree.usage.entries[each.name, ""] = Used(before + used, driver.state.at_us)
        expected = _fair_tree(tree, tree.root)
        driver.step(*[job(f"j-{name}", queue=name) for name in leaves], at_us=driver.state.at_us)
        bound = [each.id for each in driver.state.jobs.values() if each.instances[0].attempt is not None]
        assert bound == [f"j-{expected}"], f"seed {seed}: {bound} has it, not {expected}"
        levels += bool(parents[expected])
    print(f"{CASES} cases, {levels} of them decided at two levels")
    assert levels >= CASES // 10


def _fair_tree(tree: QueueTree, queue: Queue) -> str:
    """The queue below this one whose turn it is, by the level fair shares of siblings; ties by name."""
    usage = tree.usage
    assert usage is not None
    children = [child for child in queue.children.values() if child.spec is not None]
    if not children:
        return queue.name
    used = {child.name: usage.of(tree, child) for child in children}
    shares, total = sum(child.weight for child in children), sum(used.values())

    def order(child: Queue) -> tuple[Fraction, str]:
        """U / S: nothing where nothing was used, of which the fair share is infinite."""
        part = Fraction(used[child.name], total) if total else Fraction(0)
        return part / Fraction(child.weight, shares), child.name

    return _fair_tree(tree, min(children, key=order))


def test_level_fair_shares_are_told_apart_at_any_size() -> None:
    driver = Driver(Policy(history_half_life_us=3600 * S), checked=False)
    driver.step(QueueSet(queue="a", weight=1000), QueueSet(queue="b", weight=999), node("n0", 1))
    tree = driver.state.tree
    assert tree is not None
    assert tree.usage is not None
    for name in "ab":
        tree.usage.entries[name, ""] = Used(10**16, driver.state.at_us)
    assert ordered_by(tree, tree.of("a"), 1000, 5) < ordered_by(tree, tree.of("b"), 999, 0)


def test_stories_with_a_history_are_the_same_in_every_play() -> None:
    """Rebuilt from a snapshot after each cycle, it goes on as it would have."""

    def policy(random: Random, tight: bool = True) -> Policy:
        return msgspec.structs.replace(queue_policy(random, tight), history_half_life_us=300 * S)

    kept = 0
    with mock.patch.object(queue_chaos, "queue_policy", policy):
        for seed in range(STORIES):
            plays, _ = queue_story(Random(seed), cycles=25, sort=SoftQueueChaos)
            come_to_rest(plays)
            tree = plays.state.tree
            kept += len(tree.usage.entries) if tree is not None and tree.usage is not None else 0
    print(f"{STORIES} stories, {kept} entries kept at their ends")
    assert kept >= STORIES
