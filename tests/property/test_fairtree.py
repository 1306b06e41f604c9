"""Whose turn it is by what was used, against Fair Tree worked out in fractions on tiny trees; and stories with a history."""

from collections.abc import Callable
from fractions import Fraction
from random import Random
from unittest import mock

import msgspec
import pytest

from muster.cluster import usage
from muster.cluster.queuetree import Queue, QueueTree
from muster.cluster.usage import Used
from muster.engine import hope, order
from muster.engine.fairtree import ordered_by
from muster.events.base import Event
from muster.events.decisions import InstanceBound
from muster.events.nodes import NodeRemoved
from muster.events.operations import Policy
from muster.events.queues import QueueSet
from muster.verify import verify
from tests.support import queue_chaos
from tests.support.build import S, exited, job, node, ready
from tests.support.driver import Driver
from tests.support.plays import Plays, come_to_rest
from tests.support.queue_chaos import queue_policy, queue_story
from tests.support.soft import SoftQueueChaos

CASES = 300
STORIES = 10
CROWDS, CYCLES = 12, 60

Patch = pytest.MonkeyPatch


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


def tell(seed: int) -> Plays:
    """A story of queues that remember: invariants, rebuild, the second judge and every play after each cycle."""

    def policy(random: Random, tight: bool = True) -> Policy:
        return msgspec.structs.replace(queue_policy(random, tight), history_half_life_us=random.choice((60, 300, 86_400)) * S)

    with mock.patch.object(queue_chaos, "queue_policy", policy):
        plays, _ = queue_story(Random(seed), cycles=25, sort=SoftQueueChaos)
        come_to_rest(plays)
    return plays


def test_stories_with_a_history_are_the_same_in_every_play() -> None:
    """Rebuilt from a snapshot after each cycle, it goes on as it would have."""
    kept = 0
    for seed in range(STORIES):
        tree = tell(seed).state.tree
        kept += len(tree.usage.entries) if tree is not None and tree.usage is not None else 0
    print(f"{STORIES} stories, {kept} entries kept at their ends")
    assert kept >= STORIES


def history_is_not_looked_at(patch: Patch) -> None:
    """Queues stand by what they have now, whatever they used."""
    patch.setattr(hope, "ordered_by", lambda tree, queue, weight, share: share)


def users_are_not_looked_at(patch: Patch) -> None:
    """Users stand by what they have now."""
    patch.setattr(order, "user_ordered_by", lambda tree, queue, user, share: share)


def nothing_fades(patch: Patch) -> None:
    """What is long ago counts like what was just now."""
    patch.setattr(usage, "factor", lambda half_life_us: usage.ONE - 1)


def capacity_is_late(patch: Patch) -> None:
    """What was used before there was more or less is counted by what there is after."""
    patch.setattr(usage.Usage, "touch_all", lambda *_: None)


PLANTS = (history_is_not_looked_at, users_are_not_looked_at, nothing_fades, capacity_is_late)


def crowd(seed: int) -> Driver:
    """Queues at two levels and users, all with jobs of one shape, that come and end while nodes come and go."""
    chance = Random(seed)
    driver = Driver(Policy(history_half_life_us=chance.choice((60, 60, 3600)) * S, reclaim=False), checked=False)
    weights = {name: chance.choice((1, 1, 2, 5)) for name in "abcde"}
    parents = {"c": "a", "d": "a"}
    driver.step(
        *[QueueSet(queue=n, weight=w, parent=parents.get(n, ""), order="fair") for n, w in weights.items()], node("n0", 2)
    )
    for number in range(CYCLES):
        inputs: list[Event] = [
            job(f"j{number}-{each}", queue=chance.choice("bcde"), user=chance.choice("uvw"))
            for each in range(chance.randint(0, 2))
        ]
        if chance.random() < 0.1:
            there = driver.state.node("n1")
            inputs.append(node("n1", 1 + number % 2) if there is None else NodeRemoved(node="n1", uid="uid-n1"))
        holding = [name for name in list(driver.state.jobs) if driver.state.jobs[name].instances[0].attempt is not None]
        gone = [exited(name, attempt=driver.attempt(name).number) for name in holding if chance.random() < 0.3]
        starts = [ready(name, attempt=driver.attempt(name).number) for name in holding if driver.attempt(name).phase == "bound"]
        driver.step(*starts, *gone, *inputs, after_s=chance.choice((1, 7, 30, 100)))
    return driver


def test_the_second_judge_agrees_whose_turn_it_was() -> None:
    """It has other numbers of what was used, and finds nothing."""
    bound = turns = 0
    for seed in range(CROWDS):
        driver = crowd(seed)
        assert [str(found) for found in verify(driver.cycles)] == [], f"seed {seed}"
        bound += len([event for cycle in driver.cycles for event in cycle.decisions if type(event) is InstanceBound])
        turns += len({job.queue for job in driver.state.jobs.values()}) > 1
    print(f"{CROWDS} crowds: {bound} bindings, {turns} with several queues at the end")
    assert bound >= 20 * CROWDS


@pytest.mark.parametrize("plant", PLANTS)
def test_the_second_judge_finds_a_turn_that_was_not_theirs(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(CROWDS):
        found = verify(crowd(seed).cycles)
        assert {each.rule for each in found} <= {"turn"}
        if found:
            print(f"{plant.__name__}: found at seed {seed}, {len(found)} times: {found[0].text}")
            return
    pytest.fail(f"{plant.__doc__} No turn was found.")
