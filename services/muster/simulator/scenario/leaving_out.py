"""How one thing is left out of the engine for a while: a function or a setting is another one."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from muster.cluster import evolve
from muster.cluster.state import State
from muster.events.base import Event

Mutant = Callable[[], AbstractContextManager[Any]]
"""Makes a context in which a rule is left out."""


def instead(owner: Any, name: str, function: Any) -> Mutant:
    return lambda: mock.patch.object(owner, name, function)


def both(*mutants: Mutant) -> Mutant:
    @contextmanager
    def made() -> Any:
        with ExitStack() as stack:
            for mutant in mutants:
                stack.enter_context(mutant())
            yield

    return made


def handling(kind: type[Event], handler: Callable[[State, Any], None]) -> Mutant:
    """The fold of one kind of entry is another."""
    return lambda: mock.patch.dict(evolve.HANDLERS, {kind: handler})


def ignored(kind: type[Event]) -> Mutant:
    return handling(kind, lambda state, event: None)
