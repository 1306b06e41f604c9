"""Stories in which some jobs are best-effort, some headroom, and some have a budget of disruption or a deadline."""

from random import Random
from typing import Any

from tests.support.chaos import Chaos
from tests.support.queue_chaos import QueueChaos


def soft(chaos: Chaos) -> dict[str, Any]:
    """Changes of a request, by choices of their own: the story is otherwise what it would be without."""
    chance = Random(1000 * len(chaos.past) + chaos.jobs)
    sort = chance.random()
    if sort < 0.15:
        return {"kind": "best-effort", "preemptible": True}
    if sort < 0.3:
        none = {"max_retries": 0, "time_limit_us": None, "grace_us": 0, "degraded_grace_us": 0, "success": ""}
        return {"kind": "headroom", "preemptible": True, **none}
    if sort < 0.5:
        return {"budget": chance.choice((0, 1, 2))}
    return {"deadline_us": chance.choice((50, 400, 900)) * 1_000_000} if sort < 0.75 else {}


class SoftChaos(Chaos):
    """Without a tree."""

    def soft(self) -> dict[str, Any]:
        """What else is asked of the job."""
        return soft(self)


class SoftQueueChaos(QueueChaos):
    """Over queues."""

    def soft(self) -> dict[str, Any]:
        """What else is asked of the job."""
        return soft(self)
