"""Whose turn it is by what was used of late: Slurm's Fair Tree, level by level.

At each level siblings are ordered by their level fair share S / U: S is the part of a queue's weight in the weights of all
siblings, U the part of what it used in what all of them used. The sums are the same for all siblings, so what was used for each
unit of weight orders them alike, and needs no division of divisions. Who has used nothing comes first, and equals are ordered
by what they have now. Within a fair queue users are ordered so too, each of weight 1.

Source: Cox, Morrison, Fair Tree (Slurm 14.11, src/plugins/priority/multifactor/fair_tree.c).
"""

from typing import Final

from muster.cluster.queuetree import Queue, QueueTree

SHARE_BITS: Final = 40
"""What is had now stands below what was used, in one number."""
PPM: Final = 1_000_000


def ordered_by(tree: QueueTree, queue: Queue, weight: int, share: int) -> int:
    """Among its siblings the lower goes first: what it used for its weight, then the share that it has now."""
    usage = tree.usage
    return share if usage is None else _both(usage.of(tree, queue) * PPM // weight, share)


def own_ordered_by(tree: QueueTree, queue: Queue, share: int) -> int:
    """The same for what a queue that has others below it used itself."""
    usage = tree.usage
    if usage is None:
        return share
    below = sum([usage.of(tree, child) for child in queue.children.values()])
    return _both(max(0, usage.of(tree, queue) - below) * PPM, share)


def user_ordered_by(tree: QueueTree, queue: Queue, user: str, share: int) -> int:
    """The same for a user in a fair queue."""
    usage = tree.usage
    return share if usage is None else _both(usage.of(tree, queue, user) * PPM, share)


def used_ppm(tree: QueueTree, queue: Queue) -> int:
    """What part of what the queue and its siblings used is its own."""
    usage, parent = tree.usage, queue.parent
    if usage is None or parent is None:
        return 0
    total = sum([usage.of(tree, each) for each in parent.children.values()])
    return usage.of(tree, queue) * PPM // total if total else 0


def weight_ppm(queue: Queue) -> int:
    """What part of the weights of the queue and its siblings is its own."""
    total = sum([each.weight for each in queue.parent.children.values()]) if queue.parent is not None else 0
    return queue.weight * PPM // total if total else 0


def _both(used: int, share: int) -> int:
    return used << SHARE_BITS | min(share, (1 << SHARE_BITS) - 1)
