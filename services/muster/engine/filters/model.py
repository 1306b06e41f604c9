"""Only nodes that have enough devices of a model and profile that the job takes, each with enough memory."""

from typing import Final

from muster.cluster.shapes import Shape
from muster.engine.nodeindex import NodeIndex
from muster.engine.room import fitting

NAMED_MAX: Final = 6


class ModelFilter:
    """Passes a node if it has so many fitting devices, free or not."""

    code = "model"

    def passes(self, index: NodeIndex, shape: Shape, among: int) -> int:
        """The rows of `among` that have them."""
        if not shape.needs_device:
            return among
        needed = shape.gpus or 1
        one_kind = 0
        some = several = 0
        for (model, memory_mib, profile), by_count in index.kinds.items():
            if profile != shape.profile:
                continue
            if (shape.gpu_models and model not in shape.gpu_models) or memory_mib < shape.gpu_memory_mib:
                continue
            have = 0
            for count, bits in by_count.items():
                have |= bits
                if count >= needed:
                    one_kind |= bits
            several |= some & have
            some |= have
        passing = among & one_kind
        if needed > 1:
            passing |= self._mixed(index, shape, among & several & ~one_kind)
        return passing

    def _mixed(self, index: NodeIndex, shape: Shape, some: int) -> int:
        """Nodes of `some`, which have several fitting kinds, that have enough when these are added up."""
        found = 0
        while some:
            low = some & -some
            some ^= low
            node = index.ledger.node(low.bit_length() - 1)
            present = [index for index, device in enumerate(node.devices) if device.present]
            if sum([fitting(node, shape, index) for index in present]) >= shape.gpus:
                found |= low
        return found

    def sentence(self, shape: Shape) -> str:
        """What a person is told."""
        of = f" of {named(shape)}" if shape.gpu_models else ""
        memory = f" with {shape.gpu_memory_mib} MiB" if shape.gpu_memory_mib else ""
        return f"do not have {shape.gpus or 1} {devices_named(shape)}{of}{memory}"


def devices_named(shape: Shape) -> str:
    """What devices it asks for, in words."""
    return f"slices {shape.profile}" if shape.profile else "GPUs"


def named(shape: Shape) -> str:
    """The models that a task takes; where it asks for what they can do, that, and the first of them."""
    if not shape.asks:
        return " or ".join(shape.gpu_models)
    more = f" and {len(shape.gpu_models) - NAMED_MAX} others" if len(shape.gpu_models) > NAMED_MAX else ""
    return f"{shape.asks} at least ({', '.join(shape.gpu_models[:NAMED_MAX])}{more})"
