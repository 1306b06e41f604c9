"""A broken invariant stops the process: what the log says cannot be, so going on would make it worse."""

from typing import NoReturn


class BrokenInvariant(AssertionError):
    """Something that always holds does not."""


def broken(message: str) -> NoReturn:
    """Stop here.

    Raises:
        BrokenInvariant: always.
    """
    raise BrokenInvariant(message)


def check(condition: bool, message: str) -> None:
    """Stop unless the condition holds; `python -O` cannot remove this.

    Raises:
        BrokenInvariant: it does not.
    """
    if not condition:
        raise BrokenInvariant(message)
