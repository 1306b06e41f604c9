"""When garbage is looked for: rarely once the state stands, and not at all while it is folded."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from muster.scheduler import memory


class Circle:
    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_there_when_it_settles_is_not_looked_through_again_until_it_settles_anew() -> None:
    memory.settle()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == (memory.YOUNG, memory.MIDDLE, memory.OLD)
    circle = Circle()
    gone = weakref.ref(circle)
    memory.settle()
    del circle
    gc.collect()
    assert gone() is not None
    memory.settle()
    assert gone() is None


def test_nothing_is_collected_while_a_state_grows_and_it_is_as_before_afterwards() -> None:
    with memory.growing():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), memory.growing():
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    with memory.growing():
        assert not gc.isenabled()
    assert not gc.isenabled()
