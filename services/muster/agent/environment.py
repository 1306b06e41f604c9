"""The environment of a task: its devices, its place among its peers, and where they meet.

What binds a task to its devices and its rank wins over what the job's own environment says; Slurm's names do not, because
the door that read a Slurm script may know better. Further names come from functions in `EXTENSIONS`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from muster.agent import credentials
from muster.agent.protocol import AgentTask
from muster.agent.slurm_names import slurm_names
from muster.doors.names import door_names
from muster.events.jobs import GroupRequest

INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "TMPDIR")
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MEMBERS: Final = "MUSTER_MEMBERS"
"""Where a task of an elastic gang reads who its members are."""
MARK: Final = "MUSTER_TASK"
"""Set for every process of a task: by it they are found when nothing else is left of it."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent knows that the assignment does not say."""

    node: str
    cell: str = ""
    gateway: str = ""
    address: str = "127.0.0.1"
    mark: str
    port: int
    """Chosen for this task, if it is rank 0; used where the assignment does not say where the members meet."""
    visible: tuple[str, ...] = ()
    """What CUDA calls the task's devices."""
    devices: tuple[str, ...] = ()
    """The uuids of the task's devices."""
    folder: Path
    """Of this task alone; it is gone after the task."""
    credentials: Path | None = None
    """Where the task finds what proves that it belongs to its attempt."""


EXTENSIONS: list[Callable[[AgentTask, Place], dict[str, str]]] = [slurm_names]
"""Each gives names that the job's own environment may replace."""


def environment(task: AgentTask, place: Place, inherited: dict[str, str] | None = None) -> dict[str, str]:
    """All names of the task's environment. `inherited` stands for the agent's own, of which little is passed on."""
    own = dict(os.environ) if inherited is None else inherited
    names: dict[str, str] = {name: own[name] for name in INHERITED if name in own}
    names.setdefault("PATH", DEFAULT_PATH)
    if cpu_milli := group_of(task).cpu_milli:
        names["OMP_NUM_THREADS"] = str(max(1, cpu_milli // 1000))
    for extension in EXTENSIONS:
        names.update(extension(task, place))
    names.update(task.run.environment)
    names.update(binding(task, place))
    names.update(door_names(task.run.environment, task.rank, task.instance, task.request.array))
    return {name: value for name, value in names.items() if name and "=" not in name and "\0" not in name + value}


def binding(task: AgentTask, place: Place) -> dict[str, str]:
    """The names by which a task finds its devices and its peers."""
    ranks = task.ranks
    here = ranks.nodes.index(place.node) if place.node in ranks.nodes else 0
    addr = task.master.addr if task.master is not None else place.address
    port = task.master.port if task.master is not None else place.port
    group = group_of(task)
    names = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(place.visible),
        "NVIDIA_VISIBLE_DEVICES": ",".join(place.devices) or "void",
        "RANK": str(task.rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_RANK": str(task.local_rank),
        "LOCAL_WORLD_SIZE": str(ranks.ranks_per_node[here] if ranks.ranks_per_node else 1),
        "NODE_RANK": str(here),
        "GROUP_RANK": str(here),
        "MASTER_ADDR": addr,
        "MASTER_PORT": str(port),
        "MUSTER_CELL": place.cell,
        "MUSTER_GATEWAY": place.gateway,
        "MUSTER_JOB_ID": task.job,
        "MUSTER_JOB_NAME": task.name,
        "MUSTER_USER": task.user,
        "MUSTER_QUEUE": task.queue,
        "MUSTER_INSTANCE": str(task.instance),
        "MUSTER_ATTEMPT": str(task.attempt),
        "MUSTER_RESTARTS": str(task.attempt - 1),
        "MUSTER_RETRIES": str(task.retries),
        "MUSTER_RANK": str(task.rank),
        "MUSTER_GROUP": task.group,
        "MUSTER_GROUP_RANK": str(task.group_rank),
        "MUSTER_GROUP_SIZE": str(group.count),
        "MUSTER_NODE": place.node,
        "MUSTER_NODES": ",".join(ranks.nodes),
        "MUSTER_RANKS_PER_NODE": ",".join(map(str, ranks.ranks_per_node)),
        "MUSTER_HOSTFILE": str(place.folder / "hostfile"),
        "MUSTER_GPU_UUIDS": ",".join(place.devices),
        MARK: place.mark,
    }
    if task.request.elastic is True:
        names[MEMBERS] = str(place.folder / "members.json")
    if place.credentials is not None:
        names[credentials.NAME] = str(place.credentials)
    if group.gpu_milli:
        names["MUSTER_GPU_MILLI"] = str(group.gpu_milli)
    return names


def group_of(task: AgentTask) -> GroupRequest:
    """The group that the task belongs to."""
    return next((group for group in task.request.groups if group.name == task.group), task.request.groups[0])


def write_members(folder: Path, task: AgentTask) -> None:
    """Write down who the members of the attempt are. In place: a container has the very files.

    Raises:
        OSError: the files cannot be written.
    """
    (folder / "hostfile").write_text(hostfile(task))
    if task.request.elastic is True:
        ranks = task.ranks
        said = {
            "changed": ranks.changed,
            "world_size": ranks.world_size,
            "ranks": ranks.ranks or tuple(range(ranks.world_size)),
            "nodes": ranks.nodes,
            "ranks_per_node": ranks.ranks_per_node,
        }
        (folder / "members.json").write_bytes(msgspec.json.encode(said))


def hostfile(task: AgentTask) -> str:
    """The nodes of the attempt with their numbers of members, as MPI programs and launchers read them."""
    pairs = zip(task.ranks.nodes, task.ranks.ranks_per_node, strict=False)
    return "".join(f"{node} slots={count}\n" for node, count in pairs)
