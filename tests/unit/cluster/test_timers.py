"""Timers give back what is due, the earliest first, however they were set and cancelled."""

from random import Random

from muster.cluster.timers import TimerKey, Timers


def test_the_earliest_is_due_first_and_equal_instants_go_by_key() -> None:
    timers = Timers()
    timers.set(("node", "b", 0), 5)
    timers.set(("node", "a", 0), 5)
    timers.set(("attempt", "z", 1), 3)
    assert timers.next_us() == 3
    assert timers.due(5) == [("attempt", "z", 1), ("node", "a", 0), ("node", "b", 0)]


def test_what_is_due_stays_due_until_it_is_set_or_cancelled() -> None:
    timers = Timers()
    key: TimerKey = ("backoff", "j", 0)
    timers.set(key, 10)
    assert timers.due(10) == [key]
    assert timers.due(10) == [key]
    timers.set(key, 20)
    assert timers.due(10) == []
    timers.cancel(key)
    assert timers.next_us() is None
    assert timers.due(100) == []
    assert len(timers) == 0


def test_a_timer_set_back_and_forth_is_due_once() -> None:
    timers = Timers()
    key: TimerKey = ("node", "a", 0)
    for at_us in (10, 20, 10, 20, 10):
        timers.set(key, at_us)
    assert timers.due(30) == [key]
    assert timers.get(key) == 10


def test_cancelling_what_is_not_there_changes_nothing() -> None:
    timers = Timers()
    timers.cancel(("node", "a", 0))
    assert timers.items() == []


def test_timers_agree_with_a_plain_mapping() -> None:
    random = Random(3)
    timers, plain = Timers(), dict[TimerKey, int]()
    for _ in range(6000):
        key: TimerKey = (random.choice(("node", "attempt")), f"n{random.randrange(30)}", random.randrange(2))
        if random.random() < 0.7:
            plain[key] = at_us = random.randrange(1000)
            timers.set(key, at_us)
        else:
            plain.pop(key, None)
            timers.cancel(key)
        if random.random() < 0.2:
            now_us = random.randrange(1000)
            assert timers.due(now_us) == [key for at_us, key in sorted([(v, k) for k, v in plain.items()]) if at_us <= now_us]
            assert timers.next_us() == min(plain.values(), default=None)
    assert timers.items() == sorted(plain.items())
