"""What operators say about queues: a tree of them, what each is promised, and what each may have at most.

The tree has a root without a name, under which every queue without a parent stands. `default` is always there.
"""

from typing import Annotated, Literal

from msgspec import Meta

from muster.events.base import Event, Label, Name, Part, Priority, Text

QUEUES_MAX = 10_000
"""So many queues at most, and no queue deeper than `DEPTH_MAX` below the root."""
DEPTH_MAX = 16
AMOUNT_MAX = 2**40
"""The most of any amount of a queue."""

Amount = Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]


class Amounts(Part, frozen=True, kw_only=True):
    """Amounts of what jobs are charged with. What is not named is not governed: promised to nobody, limited for nobody."""

    gpu_milli: Amount | None = None
    """Thousandths of a GPU, of whatever model."""
    gpu_milli_by_model: Annotated[dict[Label, Amount], Meta(max_length=64)] = {}
    cpu_milli: Amount | None = None
    memory_mib: Amount | None = None
    jobs: Amount | None = None
    """Instances that are bound or nominated: in limits only."""


class QueueSet(Event, frozen=True, kw_only=True):
    """The queue is now as this says: it is made, or all its fields change, or it is open again after it was removed.

    A change kills nothing: what is bound beyond a new limit goes on, and nothing more is bound.
    """

    queue: Name
    parent: Annotated[str, Meta(max_length=63)] = ""
    """A queue that is there, or empty for the root."""
    guarantee: Amounts = Amounts()
    """What it gets before anybody borrows, and gets back from those who did."""
    limit: Amounts = Amounts()
    """What it and all below it are charged with at most."""
    user_limit: Amounts = Amounts()
    """The same for each user."""
    borrow: Amounts = Amounts()
    """How much more than its guarantee it may have at most."""
    lend: Amounts = Amounts()
    """How much of its guarantee others may have while it does not use it; what is not named may all be lent."""
    weight: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    """Beyond the guarantees queues with one parent are served in proportion to it; one of 0 is served after all others."""
    tier: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """A queue of a higher tier goes before its siblings, and may have what they borrowed."""
    order: Literal["fifo", "fair"] = "fifo"
    """Among jobs of one priority: by submission, or first those of the user who has least here."""
    preemption: Literal["queue", "subtree", "off"] = "queue"
    """Whom a job of higher priority may have told to stop: those in its own queue; those in all queues below this one; and
    `off`: nobody in it or below it is told to stop for another, for whatever reason."""
    protected_from: Priority | None = None
    """Jobs of this priority and above are not told to stop for others."""
    max_time_us: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """The longest time limit that a job may have, and the limit of those that name none."""
    default_priority: Priority = 0
    """Of jobs submitted with priority 0."""
    users: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    """Who may submit; empty means everybody."""
    by: Text = ""


class QueueRemoved(Event, frozen=True, kw_only=True):
    """The queue is closed: nothing is promised to it and nothing new is bound from it. It is gone when it is empty."""

    queue: Name
    by: Text = ""
