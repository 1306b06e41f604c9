"""How a scheduler's process collects garbage.

The state of a large cell is millions of objects that live long, and looking through them again and again for circles
costs more than deciding does. Nothing in the core leaves circles behind (an ended attempt lets go of its tasks, a
forgotten job of its instances), so the collector has little to find and may look rarely. This changes when memory is given
back, and nothing else.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 100_000
"""So many new objects before the young ones are looked through."""
MIDDLE: Final = 50
OLD: Final = 1000


def settle() -> None:
    """What is there now stays; from here on look rarely. Call it once the state is recovered."""
    gc.unfreeze()  # a state that stayed before and is gone now was full of circles
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


@contextmanager
def growing() -> Iterator[None]:
    """While a state is folded: millions of objects come that stay, and looking for garbage would take most of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
