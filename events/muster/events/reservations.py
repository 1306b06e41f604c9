"""What operators reserve: nodes or an amount of GPUs, in windows of time, for somebody or, as maintenance, for nobody.

What recurs comes here already expanded into instants: whoever said it did so in a time zone, by the version of its tables that
is noted beside it, so that no later reading of the log depends on the tables of the reader.
"""

from typing import Annotated

from msgspec import Meta

from muster.events.base import Event, Micros, Name, Part, Text

RESERVATIONS_MAX = 1000
"""So many reservations at most that are not over."""
WINDOWS_MAX = 400
"""So many windows of one reservation at most: a year of days, and some."""
NODES_MAX = 5000
PIECES_MAX = 10_000

Said = Annotated[str, Meta(max_length=63)]


class Window(Part, frozen=True, kw_only=True):
    """From an instant until before another."""

    from_us: Micros
    until_us: Micros


class ReservationSet(Event, frozen=True, kw_only=True):
    """In these windows only those for whom it is may have these nodes, or `count` pieces of `gpus` GPUs, each on one node.

    It is made, or takes the place of the one of its name. What runs there is told to stop when a window begins, if it may be
    preempted and the reservation was made before; else the reservation waits for it and is active when it has gone.
    """

    reservation: Name
    nodes: Annotated[tuple[Name, ...], Meta(max_length=NODES_MAX)] = ()
    """Whole nodes, by name. Either these, or `count` and `gpus`."""
    count: Annotated[int, Meta(ge=0, le=PIECES_MAX)] = 0
    gpus: Annotated[int, Meta(ge=0, le=64)] = 0
    windows: Annotated[tuple[Window, ...], Meta(min_length=1, max_length=WINDOWS_MAX)]
    """In order, none before the one before it has ended."""
    queue: Said = ""
    """For the jobs of this queue and of those below it. At most one of `queue`, `user`, `job`; none: maintenance."""
    user: Said = ""
    job: Annotated[str, Meta(max_length=64)] = ""
    """The id of a job, which need not be known yet."""
    every: Text = ""
    """How its windows were said to recur, such as `daily@02:00`; empty for once."""
    zone: Text = ""
    """In which time zone, by its name in the tables."""
    tzdata: Text = ""
    """The version of these."""
    by: Text = ""


class ReservationRemoved(Event, frozen=True, kw_only=True):
    """It is no more. What runs there goes on."""

    reservation: Name
    by: Text = ""
