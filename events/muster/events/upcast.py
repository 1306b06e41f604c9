"""From an older version of a kind to the next one: numbered, pure steps on the decoded JSON body.

`STEPS[kind, version]` takes the body of that version and returns the body of `version + 1`. There are none yet: every
kind is at version 1. A step may trust nothing: bodies of an older version were never checked against it.
"""

from collections.abc import Callable, Mapping
from typing import Any

Body = dict[str, Any]
STEPS: dict[tuple[str, int], Callable[[Body], Body]] = {}


def upcast(
    kind: str, version: int, body: Body, newest: int, steps: Mapping[tuple[str, int], Callable[[Body], Body]] = STEPS
) -> Body:
    """The body as the newest version has it.

    Raises:
        KeyError: there is no step from a version on the way.
    """
    while version < newest:
        body = steps[kind, version](body)
        version += 1
    return body
