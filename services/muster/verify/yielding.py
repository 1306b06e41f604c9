"""Who makes way for others by what it is, as the second judge sees it, and whether that would have been enough."""

from collections.abc import Iterator

from muster.events.jobs import GroupRequest
from muster.verify.places import Gone, device_fault, held, node_fault
from muster.verify.world import Attempt, Instance, Job, Node, Use, World


def makes_way(victim: Job, asker: Job) -> bool:
    """Whether the victim is owed nothing that the asker is not, or keeps room for it."""
    if victim.request.kind == "headroom":
        return not asker.request.kind and victim.queue == asker.queue and victim.priority <= asker.priority
    return victim.request.kind == "best-effort" and asker.request.kind != "best-effort"


def all_that_make_way(world: World, asker: Job) -> Gone:
    """Every attempt that would make way for the asker."""
    live = [i.attempt for job in world.jobs.values() if makes_way(job, asker) for i in job.instances]
    return {attempt.key: None for attempt in live if attempt is not None and attempt.phase != "stopping"}


def spots(world: World, asker: Instance, gone: Gone) -> Iterator[tuple[Node, Use]]:
    """Where the only task of an instance may stand, by the devices that are free on each node once those are gone."""
    group = asker.job.request.groups[0]
    for node in world.rows.values():
        if not node_fault(world, asker.job, node, group):
            for devices in _devices(node, group, gone):
                if not device_fault(node, group, devices):
                    yield node, (group, devices)


def _devices(node: Node, group: GroupRequest, gone: Gone) -> Iterator[tuple[int, ...]]:
    if group.gpus:
        used = [index for _, indices in held(node, gone) for index in indices]
        well = [i for i, device in enumerate(node.devices) if i not in used and device.health == "healthy"]
        right = [i for i in well if not group.gpu_models or node.devices[i].model in group.gpu_models]
        right = [i for i in right if node.devices[i].profile == group.gpu_profile]
        yield tuple([i for i in right if node.devices[i].memory_mib >= group.gpu_memory_mib][: group.gpus])
    elif group.gpu_milli or group.gpu_memory_mib:
        yield from [(index,) for index in range(len(node.devices))]
    else:
        yield ()


def lone(job: Job) -> bool:
    """Whether an instance of the job is one task that asks for amounts alone."""
    groups = job.request.groups
    return len(groups) == 1 and groups[0].count == 1 and not job.request.constraints


def unwilling(told: list[Attempt], asker: Job) -> list[Attempt]:
    """Of those told to stop, who does not make way by what he is."""
    return [attempt for attempt in told if not makes_way(attempt.instance.job, asker)]
