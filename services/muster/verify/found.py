"""What the second judge says of a log."""

from collections import Counter

import msgspec


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that was not legal; `index` is its place in the cycle, -1 where the cycle as such is at fault."""

    cycle: int
    index: int
    rule: str
    text: str


class Summary(msgspec.Struct, kw_only=True):
    """What was judged, so that a log with nothing in it to judge can be told from a good one."""

    cycles: int = 0
    inputs: int = 0
    placements: int = 0
    decisions: Counter[str] = msgspec.field(default_factory=Counter)  # by kind
