"""Chaos in which queues come, change, move and go: what `tests.support.chaos` makes, over a tree of queues."""

from random import Random
from typing import Any

import msgspec

from muster.cluster.queuetree import fault
from muster.events.base import Event
from muster.events.jobs import JobSubmitted
from muster.events.operations import Policy, PolicySet
from muster.events.queues import Amounts, QueueRemoved, QueueSet
from tests.support.build import S
from tests.support.chaos import Chaos, policy
from tests.support.plays import Plays

NAMES = ("red", "blue", "gray", "pink", "team", "org")
USERS = ("u", "v", "w")


def queue_policy(random: Random, tight: bool = True) -> Policy:
    """A policy of chaos, with what concerns queues in all its settings."""
    return msgspec.structs.replace(
        policy(random, tight),
        reclaim=random.random() < 0.85,
        reclaim_min_runtime_us=random.choice((0, 0, 0, 25 * S)),
        aging_after_us=random.choice((0, 0, 20 * S)),
        aging_max=random.choice((1, 1000)),
    )


class QueueChaos(Chaos):
    """Makes inputs for a cell with queues."""

    def inputs(self) -> list[Event]:
        """What arrives in one cycle."""
        found = super().inputs()
        found = [self.with_policy(event) for event in found]
        if self.random.random() < 0.25:
            found.append(self.queue())
        return found

    def with_policy(self, event: Event) -> Event:
        """A policy that is set knows of queues."""
        return PolicySet(policy=queue_policy(self.random)) if isinstance(event, PolicySet) else event

    def submission(self) -> JobSubmitted:
        """A job of somebody, in some queue."""
        event = super().submission()
        chance = self.random
        tree = self.state.tree
        known = sorted(tree.said) if tree is not None and chance.random() < 0.93 else ["other", *NAMES]
        queue = chance.choice(["default", *known])
        return msgspec.structs.replace(event, queue=queue, user=chance.choice(USERS))

    def queue(self) -> Event:
        """Something about a queue, which may be what cannot be said: it must change nothing then."""
        chance = self.random
        name = chance.choice(NAMES)
        if chance.random() < 0.07:
            return QueueRemoved(queue=name)
        return self.queue_set(name)

    def queue_set(self, name: str) -> QueueSet:
        """A queue with some of its fields set."""
        chance = self.random
        said: dict[str, Any] = {"parent": chance.choice(("", "", "team", "team", "org"))}
        if chance.random() < 0.6:
            said["guarantee"] = self.amounts((1, 2, 3))
        if chance.random() < 0.2:
            limit = self.amounts((3, 4, 6))
            said["limit"] = msgspec.structs.replace(limit, jobs=chance.choice((None, None, 2)))
        if chance.random() < 0.12:
            said["user_limit"] = msgspec.structs.replace(self.amounts((1, 2)), jobs=chance.choice((None, 1, 2)))
        if chance.random() < 0.12:
            said["borrow"] = self.amounts((0, 1, 2))
        if chance.random() < 0.2:
            said["lend"] = self.amounts((0, 1))
        return QueueSet(
            queue=name,
            weight=chance.choice((0, 1, 1, 3)),
            tier=chance.choice((0, 0, 0, 1)),
            order=chance.choice(("fifo", "fair")),
            preemption=chance.choice(("queue",) * 6 + ("subtree", "off")),
            protected_from=chance.choice((None, None, None, 2)),
            max_time_us=40 * S if chance.random() < 0.1 else None,
            default_priority=chance.choice((0, 0, 1)),
            users=("u", "v") if chance.random() < 0.08 else (),
            **said,
        )

    def amounts(self, counts: tuple[int, ...]) -> Amounts:
        """GPUs, of one model, or CPU."""
        chance = self.random
        sort = chance.random()
        if sort < 0.6:
            return Amounts(gpu_milli=1000 * chance.choice(counts))
        if sort < 0.8:
            return Amounts(gpu_milli_by_model={chance.choice("AB"): 1000 * chance.choice(counts)})
        return Amounts(cpu_milli=2000 * chance.choice(counts), gpu_milli=1000 * chance.choice(counts))


def queue_story(
    random: Random, cycles: int, kind: bool = False, nodes: int = 4, sort: type[QueueChaos] | None = None
) -> tuple[Plays, QueueChaos]:
    """Some cycles of chaos over queues, played in every way."""
    plays = Plays()
    chaos = (sort or QueueChaos)(random, plays.state, nodes, kind)
    said = [chaos.queue_set(name) for name in ("org", "team", *random.sample(NAMES, 3))]
    plays.step([PolicySet(policy=queue_policy(random, tight=not kind)), *chaos.nodes(), *said], plays.state.at_us + S)
    for _ in range(cycles):
        if not kind and random.random() < 0.03:
            plays.lead(random.choice((0, 30 * S)))
            continue
        wake = plays.live.next_wake_us()
        at_us = plays.state.at_us + random.choice((0, 1, 1, 5, 20, 60)) * S
        if wake is not None and not kind and random.random() < 0.3:
            at_us = max(plays.state.at_us, wake)
        plays.step(chaos.inputs(), at_us)
    return plays, chaos


def may_be_said(plays: Plays, event: QueueSet | QueueRemoved) -> bool:
    """Whether it can be said of the queues as they are."""
    tree = plays.state.tree
    return not fault(tree.said if tree is not None else {}, event)
