"""How the queues of a tree stand: what each is promised, may have, is charged with and holds, as one line each.

Amounts are in the units of requests: `gpu_milli`, `gpu_milli/MODEL`, `cpu_milli`, `memory_mib`, and `jobs` for instances.
"""

from typing import Any

import msgspec

from muster.cluster.queuetree import Charge, Queue, QueueTree, task_amounts
from muster.cluster.state import State
from muster.engine.fairtree import used_ppm
from muster.engine.shares import ONE, share
from muster.engine.spare import held as held_by_spare

Shown = dict[str, int]


class QueueStands(msgspec.Struct, frozen=True, kw_only=True):
    """Where a queue stands in the tree, and how it stands."""

    parent: str
    depth: int
    """How many queues stand above it."""
    closed: bool
    weight: int
    tier: int
    guarantee: Shown
    """What it is promised now: scaled where more is promised than the nodes that are well have."""
    promised: Shown
    """The same, not scaled."""
    limit: Shown
    """The most that it may be charged with; with what it may borrow beyond its guarantee."""
    charged: Shown
    held: Shown
    """What its jobs have on nodes: what stops too, and nothing that is only nominated."""
    best_effort: Shown
    """What of it best-effort jobs have, with which no queue is charged."""
    share_ppm: int
    """The largest part that it has of anything there is."""
    used_ppm: int
    """What part of what it and its siblings used of late is its own; 0 where the policy keeps no history."""
    said: dict[str, Any] | None
    """As it was set, the fields of `QueueSet`; null for one that nobody set."""


def stands(state: State) -> dict[str, QueueStands]:
    """Every queue of the tree, each behind its parent, then by name; nothing where there is no tree."""
    tree = state.tree
    if tree is None:
        return {}
    if tree.stale:
        tree.settle()
    held, spare = _held(state, tree), held_by_spare(state, tree)
    found: dict[str, QueueStands] = {}

    def below(queue: Queue) -> None:
        for name in sorted(queue.children):
            child = queue.children[name]
            found[name] = QueueStands(
                parent=queue.name,
                depth=len(child.path) - 1,
                closed=child.closed,
                weight=child.weight,
                tier=child.tier,
                guarantee=_shown(child.guarantee),
                promised=_shown(child.promised),
                limit=_shown(child.caps),
                charged=_shown(child.charged),
                held=_shown(held[name]),
                best_effort=_shown(spare.get(name, {})),
                share_ppm=share(child.charged, tree.dimensions) * 1_000_000 // ONE,
                used_ppm=used_ppm(tree, child),
                said=None if child.spec is None else msgspec.to_builtins(child.spec),
            )
            below(child)

    below(tree.root)
    return found


def _held(state: State, tree: QueueTree) -> dict[str, Charge]:
    """What is charged, without what is nominated and with what stops."""
    held = {name: dict(queue.charged) for name, queue in tree.queues.items()}

    def add(name: str, charge: Charge, sign: int) -> None:
        for each in tree.of(name).path:
            for what, amount in charge.items():
                held[each.name][what] = held[each.name].get(what, 0) + sign * amount

    for nomination in state.nominations.values():
        add(nomination.instance.job.queue, nomination.charge or {}, -1)
    for attempt in (*tree.stopping, *[each for each in state.yielding if each.instance.job.spare]):
        if attempt.held:
            add(attempt.instance.job.queue, {"jobs": 1}, 1)
        for task in attempt.tasks.values():
            if task.holding:
                add(attempt.instance.job.queue, task_amounts(task.shape, task.node, task.devices), 1)
    return held


def _shown(charge: Charge) -> Shown:
    found = {}
    for what, amount in sorted(charge.items()):
        if what.startswith("gpus"):
            found[what.replace("gpus", "gpu_milli", 1)] = amount // 1000
        else:
            found[{"cpu": "cpu_milli", "memory": "memory_mib"}.get(what, what)] = amount
    return found
