"""Short ways to write inputs. All devices have 1000 MiB and are H100s if nothing else is said."""

from collections.abc import Sequence
from typing import Any

from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.events.nodes import Device, NodeRegistered, NodeSpec, TaskExited, TaskMissing, TaskReady, TaskStarted

S = 1_000_000
"""A second."""


def device(
    uuid: str, model: str = "H100", memory_mib: int = 1000, island: int = 0, health: Any = "healthy", numa: int = 0
) -> Device:
    """One GPU."""
    return Device(uuid=uuid, model=model, memory_mib=memory_mib, island=island, health=health, numa=numa)


def devices(
    node: str, count: int, model: str = "H100", memory_mib: int = 1000, islands: Sequence[int] | None = None
) -> tuple[Device, ...]:
    """The GPUs of a node, named after it."""
    where = islands or [0] * count
    return tuple([device(f"{node}-{index}", model, memory_mib, where[index]) for index in range(count)])


def node(
    name: str, gpus: int = 2, *, uid: str = "", boot: str = "b1", model: str = "H100", memory: int = 1000, **spec: Any
) -> NodeRegistered:
    """A node with 64 CPUs and so many GPUs; any field of `NodeSpec` can be given."""
    fields: dict[str, Any] = {
        "cpu_milli": 64_000,
        "memory_mib": 64_000,
        "disk_mib": 64_000,
        "devices": devices(name, gpus, model, memory),
    }
    fields.update(spec)
    return NodeRegistered(node=name, uid=uid or f"uid-{name}", boot=boot, spec=NodeSpec(**fields))


def group(name: str = "task", count: int = 1, least: int | None = None, **asked: Any) -> GroupRequest:
    """So many tasks of one GPU each, all of them needed, if nothing else is said."""
    fields: dict[str, Any] = {"gpus": 0 if {"gpu_milli", "gpu_memory_mib", "cpu_milli"} & set(asked) else 1}
    fields.update(asked)
    return GroupRequest(name=name, count=count, min=count if least is None else least, **fields)


def job(id: str, *groups: GroupRequest, queue: str = "default", user: str = "u", **request: Any) -> JobSubmitted:
    """A job; one task of one GPU if no group is given. Keywords are fields of `JobRequest`."""
    asked = JobRequest(groups=groups or (group(),), **request)
    return JobSubmitted(job=id, name="n", user=user, queue=queue, request=asked)


def ready(id: str, rank: int = 0, attempt: int = 1, instance: int = 0, port: int = 0) -> TaskReady:
    """The task waits for the start."""
    return TaskReady(job=id, instance=instance, attempt=attempt, rank=rank, port=port)


def started(id: str, rank: int = 0, attempt: int = 1, instance: int = 0) -> TaskStarted:
    """The task runs."""
    return TaskStarted(job=id, instance=instance, attempt=attempt, rank=rank)


def exited(id: str, rank: int = 0, attempt: int = 1, instance: int = 0, code: int = 0, blame: Any = "") -> TaskExited:
    """The task is gone."""
    return TaskExited(job=id, instance=instance, attempt=attempt, rank=rank, code=code, blame=blame)


def missing(id: str, rank: int = 0, attempt: int = 1, instance: int = 0) -> TaskMissing:
    """The node knows nothing of the task."""
    return TaskMissing(job=id, instance=instance, attempt=attempt, rank=rank)
