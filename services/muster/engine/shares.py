"""Who has how much of what is promised, and of all there is: integers that order queues and users.

A share is the largest part that is had of anything there is, of the CPU, the memory, or the GPUs of one model (dominant
resource fairness: Ghodsi et al., NSDI 2011), in 2^-32 of it and divided by a weight.

What a queue has of a guarantee is told by GPUs where it is promised any, else by CPU and memory. An ask stands *within* a
guarantee if all that is promised of what it asks for is enough, and something of it is promised. What is bound is
*borrowed* where its queue has more than it is promised: of GPUs, for what has GPUs; of CPU or memory, for what has none.
"""

from collections.abc import Sequence
from typing import Final

from muster.cluster.queuetree import Charge, Queue, QueueTree
from muster.cluster.shapes import Gang

ONE: Final = 2**32
AMOUNTS: Final = ("cpu", "memory")


def share(charged: Charge, dimensions: Sequence[tuple[str, int]], weight: int = 1) -> int:
    """The dominant share, of these amounts that there are of each thing."""
    most = 0
    for what, there in dimensions:
        amount = charged.get(what)
        if amount:
            part = amount * ONE // (weight * there)
            if part > most:
                most = part
    return most


def below(queue: Queue) -> bool:
    """Whether the queue has less than it is promised."""
    guarantee, charged = queue.guarantee, queue.charged
    if not guarantee:
        return False
    if "gpus" in guarantee:
        return any(charged.get(what, 0) < amount for what, amount in guarantee.items() if what.startswith("gpus"))
    return any(charged.get(what, 0) < guarantee[what] for what in AMOUNTS if what in guarantee)


def within(queue: Queue, asks: Charge) -> bool:
    """Whether the ask stands within what is promised to the queue and not used by it."""
    guarantee, charged = queue.guarantee, queue.charged
    if asks.get("gpus"):
        if "gpus" not in guarantee or not _of_a_promised_model(guarantee, asks):
            return False
    elif not any(what in guarantee and asks.get(what) for what in AMOUNTS):
        return False
    for what, amount in asks.items():
        if amount and what in guarantee and charged.get(what, 0) + amount > guarantee[what]:
            return False
    return True


def _of_a_promised_model(guarantee: Charge, asks: Charge) -> bool:
    """Where only certain models are promised, another is none of them."""
    models = {what: amount for what, amount in guarantee.items() if what.startswith("gpus/")}
    if not models or sum(models.values()) < guarantee["gpus"]:
        return True
    return all(what in models for what, amount in asks.items() if amount and what.startswith("gpus/"))


def borrowed(charged: Charge, guarantee: Charge, charge: Charge) -> bool:
    """Whether what is charged so is more than is promised, of what somebody charged with `charge` has."""
    if charge.get("gpus"):
        if charged.get("gpus", 0) > guarantee.get("gpus", 0):
            return True
        return any(
            amount and what in guarantee and charged.get(what, 0) > guarantee[what]
            for what, amount in charge.items()
            if what.startswith("gpus/")
        )
    return any(charge.get(what) and charged.get(what, 0) > guarantee.get(what, 0) for what in AMOUNTS)


class Asks:
    """What instances ask for at least, as far as it is known before they have places. Kept by gang."""

    __slots__ = ("_known", "tree")

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self._known: dict[tuple[str, int], Charge] = {}

    def of(self, gang: Gang) -> Charge:
        """What so many tasks as it needs at least are charged with. A share by memory is taken to be of the largest device."""
        key = gang.key, self.tree.largest_mib
        found = self._known.get(key)
        if found is None:
            if len(self._known) > 65_536:
                self._known.clear()
            found = self._known[key] = amounts(gang, gang.minima, self.tree.largest_mib)
        return found


def amounts(gang: Gang, counts: tuple[int, ...], largest_mib: int) -> Charge:
    """What so many tasks of each group are charged with, as far as it is known before they have places."""
    total: Charge = {"jobs": 1, "cpu": 0, "memory": 0}
    for shape, count in zip(gang.shapes, counts, strict=True):
        total["cpu"] += count * shape.cpu_milli
        total["memory"] += count * shape.memory_mib
        gpus = count * (shape.part * shape.gpus + 1000 * shape.gpu_milli)
        if not shape.gpus and not shape.gpu_milli and shape.gpu_memory_mib:
            gpus = count * (1_000_000 * shape.gpu_memory_mib // max(1, largest_mib))
        if gpus:
            total["gpus"] = total.get("gpus", 0) + gpus
            if len(shape.gpu_models) == 1:
                model = f"gpus/{shape.gpu_models[0]}"
                total[model] = total.get(model, 0) + gpus
    return total
