"""Timers give back what is due, the earliest first, however they were set and cancelled."""

from random import Random

from muster.cluster.nodes import Node
from muster.cluster.timers import NOTES_MIN, Lane, TimerKey, Timers
from muster.events.nodes import NodeSpec


def lane() -> Lane[TimerKey]:
    return Lane(lambda key: key)


def node(row: int, name: str) -> Node:
    return Node(row, name, name, "", NodeSpec(), 0)


def keys(lane: Lane[TimerKey], now_us: int) -> list[TimerKey]:
    return [key for _, key, _ in sorted(lane.due(now_us))]


def test_the_earliest_is_due_first_and_equal_instants_go_by_key() -> None:
    timers = Timers()
    timers.node.set(node(0, "b"), 5)
    timers.node.set(node(0, "a"), 5)
    timers.nomination.set(("z", 1), 3)
    assert timers.next_us() == 3
    assert [key for key, _ in timers.due(5)] == [("nomination", "z", 1), ("node", "a", 0), ("node", "b", 0)]
    assert [owner.name for _, owner in timers.due(5)[1:]] == ["a", "b"]
    assert timers.due(4) == [(("nomination", "z", 1), ("z", 1))]


def test_what_is_due_stays_due_until_it_is_set_or_cancelled() -> None:
    timers = lane()
    key: TimerKey = ("backoff", "j", 0)
    timers.set(key, 10)
    assert keys(timers, 10) == [key]
    assert keys(timers, 10) == [key]
    timers.set(key, 20)
    assert keys(timers, 10) == []
    timers.cancel(key)
    assert timers.next_us() is None
    assert keys(timers, 100) == []
    assert len(timers) == 0


def test_a_timer_set_back_and_forth_is_due_once() -> None:
    timers = lane()
    timers.set(("node", "z", 0), 100)
    key: TimerKey = ("node", "a", 0)
    for at_us in (10, 20, 10, 20, 10):
        timers.set(key, at_us)
    assert keys(timers, 30) == [key]
    assert timers.get(key) == 10


def test_cancelling_what_is_not_there_changes_nothing() -> None:
    timers = Timers()
    timers.nomination.cancel(("a", 0))
    assert timers.items() == []


def test_notes_of_what_was_set_anew_stay_bounded() -> None:
    timers = lane()
    timers.set(("node", "z", 0), 10**9)
    for at_us in range(3 * NOTES_MIN):
        timers.set(("node", "a", 0), at_us)
    assert timers.notes <= NOTES_MIN
    assert keys(timers, 10**8) == [("node", "a", 0)]


def test_a_lane_agrees_with_a_plain_mapping() -> None:
    random = Random(3)
    timers, plain = lane(), dict[TimerKey, int]()
    rising = 0
    for _ in range(6000):
        key: TimerKey = (random.choice(("node", "attempt")), f"n{random.randrange(30)}", random.randrange(2))
        if random.random() < 0.7:
            rising += random.randrange(3)
            at_us = rising if random.random() < 0.5 else random.randrange(1000)
            plain[key] = at_us
            timers.set(key, at_us)
        else:
            plain.pop(key, None)
            timers.cancel(key)
        if random.random() < 0.2:
            now_us = random.randrange(rising + 1000)
            assert keys(timers, now_us) == [key for at_us, key in sorted([(v, k) for k, v in plain.items()]) if at_us <= now_us]
            assert timers.next_us() == min(plain.values(), default=None)
            assert len(timers) == len(plain)
    assert sorted(timers.items()) == sorted(plain.items())
