"""Which models of GPU a request may have: those of the catalogue, as it was at the submission, that can do what it asks for."""

import msgspec

from muster.events.catalogue import DeviceModel
from muster.events.jobs import GroupRequest, JobRequest


def capable(catalogue: tuple[DeviceModel, ...], request: JobRequest) -> JobRequest:
    """The request, with `gpu_models` as those that may be given to it."""
    if all(not group.gpu_capability and not group.gpu_bandwidth for group in request.groups):
        return request
    return msgspec.structs.replace(request, groups=tuple(_narrowed(catalogue, group) for group in request.groups))


def _narrowed(catalogue: tuple[DeviceModel, ...], group: GroupRequest) -> GroupRequest:
    if not group.gpu_capability and not group.gpu_bandwidth:
        return group
    names = dict.fromkeys(name for each in catalogue for name in (each.model, *each.names))
    able = [name for name in names if _able(catalogue, name, group) and (not group.gpu_models or name in group.gpu_models)]
    return msgspec.structs.replace(group, gpu_models=tuple(able) or ("no model",))


def _able(catalogue: tuple[DeviceModel, ...], name: str, group: GroupRequest) -> bool:
    """Every size of the model that the memory allows can do it; where none is large enough, every size."""
    sizes = [each for each in catalogue if name == each.model or name in each.names]
    sizes = [each for each in sizes if each.memory_mib >= group.gpu_memory_mib] or sizes
    return all(
        each.capability >= (group.gpu_capability or 0) and each.bandwidth_gbs >= (group.gpu_bandwidth or 0) for each in sizes
    )
