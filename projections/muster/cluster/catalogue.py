"""Which models a job may have that asks for what a GPU can do: the catalogue of the cell turns it into their names.

That is done once, when the job is submitted, so a job's models are as fixed as if it had named them, and no other rule knows
of the catalogue. They stand in the order of preference: the least capable that suffices first, then the least bandwidth,
the least memory, the name; where the job names models too, those of its own that suffice, in its own order.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from muster.events.base import MODELS_MAX
from muster.events.catalogue import DeviceModel
from muster.events.jobs import GroupRequest, JobRequest

NONE_SUFFICES: Final = ("(no model of the catalogue)",)
"""The models of a group for which none suffices. The gate rejects such a job."""


def resolved(catalogue: Sequence[DeviceModel], request: JobRequest) -> JobRequest:
    """The request with the models that suffice for it; itself where nothing of the kind is asked."""
    groups = request.groups
    if not any(asks(group) for group in groups):
        return request
    found = [msgspec.structs.replace(group, gpu_models=models(catalogue, group)) if asks(group) else group for group in groups]
    return msgspec.structs.replace(request, groups=tuple(found))


def asks(group: GroupRequest) -> bool:
    """Whether it asks for what a GPU can do."""
    return group.gpu_capability is not UNSET or group.gpu_bandwidth is not UNSET


def models(catalogue: Sequence[DeviceModel], group: GroupRequest) -> tuple[str, ...]:
    """The names of the models that suffice, the preferred first.

    Of a model with several sizes those count that have the memory that the group asks for; where none has, all of them: how
    much memory a device has its node says.
    """
    sizes: dict[str, list[DeviceModel]] = {}
    for each in catalogue:
        for name in (each.model, *each.names):
            sizes.setdefault(name, []).append(each)
    ranked = []
    for name, variants in sizes.items():
        fitting = large(variants, group.gpu_memory_mib)
        capability = min([each.capability for each in fitting])
        bandwidth = min([each.bandwidth_gbs for each in fitting])
        if capability >= (group.gpu_capability or 0) and bandwidth >= (group.gpu_bandwidth or 0):
            ranked.append(rank(capability, bandwidth, min([each.memory_mib for each in fitting]), name))
    if not group.gpu_models:
        return tuple([one[-1] for one in sorted(ranked)])[:MODELS_MAX] or NONE_SUFFICES
    names = dict.fromkeys([one[-1] for one in ranked])
    return tuple([name for name in group.gpu_models if name in names]) or NONE_SUFFICES


def large(sizes: list[DeviceModel], memory_mib: int) -> list[DeviceModel]:
    """Those of a model's sizes that have so much memory; all of them where none has."""
    return [each for each in sizes if each.memory_mib >= memory_mib] or sizes


def rank(capability: int, bandwidth_gbs: int, memory_mib: int, name: str) -> tuple[int, int, int, str]:
    """The order of preference."""
    return capability, bandwidth_gbs, memory_mib, name
