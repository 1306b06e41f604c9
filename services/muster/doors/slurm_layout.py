"""How many nodes a script asks for, and how much of each.

One group has one shape, so each node's part is as large as the largest: five tasks on two nodes book three tasks' worth on
both. Where a script does not say how many nodes, and it does not follow from what it says of one node, it is one.
"""

from collections.abc import Callable
from typing import Any

from muster.doors.errors import quoted
from muster.doors.origin import Notices
from muster.doors.slurm_options import Said
from muster.doors.slurm_values import (
    GPUS_MAX,
    BadValue,
    Gpus,
    read_count,
    read_gpus,
    read_gres,
    read_memory_mib,
    read_nodes,
    read_several_gpus,
)

CPUS_NAMED = 256
GPUS_NAMED = 16
"""A node with more than that is rare: who asks for one without saying `--nodes` most likely means several."""


class Layout:
    """What each of the nodes has to have, and what the environment says of it."""

    __slots__ = ("cpus", "disk_mib", "environment", "gpus", "memory_mib", "model", "nodes", "nodes_min")

    def __init__(self, nodes_min: int, nodes: int) -> None:
        self.nodes_min = nodes_min
        self.nodes = nodes
        self.cpus = 1
        self.memory_mib = self.disk_mib = self.gpus = 0
        self.model = ""
        self.environment: dict[str, str] = {}


class _Asked:
    """The options that bear on the layout, read."""

    def __init__(self, said: dict[str, Said], notices: Notices) -> None:
        self._said = said
        self.nodes: tuple[int, int] | None = self._one("nodes", read_nodes)
        self.tasks: int | None = self._one("ntasks", read_count)
        self.tasks_per_node: int | None = self._one("ntasks-per-node", read_count)
        self.tasks_per_gpu: int | None = self._one("ntasks-per-gpu", read_count)
        self.cpus_per_task: int | None = self._one("cpus-per-task", read_count)
        self.cpus_per_gpu: int | None = self._one("cpus-per-gpu", read_count)
        self.gpus: Gpus | None = self._one("gpus", read_several_gpus)
        self.gpus_per_node: Gpus | None = self._one("gpus-per-node", read_several_gpus)
        self.gpus_per_task: Gpus | None = self._one("gpus-per-task", read_gpus)
        self.memory: int | None = self._one("mem", read_memory_mib)
        self.memory_per_cpu: int | None = self._one("mem-per-cpu", read_memory_mib)
        self.memory_per_gpu: int | None = self._one("mem-per-gpu", read_memory_mib)
        self.disk: int | None = self._one("tmp", read_memory_mib)
        self.cpus_least: int | None = self._one("mincpus", read_count)
        gres = self._one("gres", read_gres)
        self.gres: Gpus | None = gres[0] if gres else None
        for other in gres[1] if gres else []:
            notices.add(said["gres"].line, said["gres"].spelled, f"{quoted(other)} is not honoured: nodes have no such resource")
        for key in ("mem", "mem-per-cpu", "mem-per-gpu"):
            if self._one(key, read_memory_mib) == 0:
                notices.add(
                    said[key].line,
                    said[key].spelled,
                    "0, all memory of the node, is not honoured: no memory is booked",
                )

    def place(self, *keys: str) -> Said:
        """The first of these options that was said."""
        return next(self._said[key] for key in keys if key in self._said)

    def _one(self, key: str, reader: Callable[[str], Any]) -> Any:
        if key not in self._said:
            return None
        said = self._said[key]
        try:
            return reader(said.value)
        except BadValue as error:
            hint = f": {said.spelled} {said.value[1:40]}, a short option takes no =" if said.value.startswith("=") else ""
            raise said.error(f"{error}, not {quoted(said.value)}{hint}") from None


def read_layout(said: dict[str, Said], notices: Notices) -> Layout:
    """The nodes of a script.

    Raises:
        DoorError: a value makes no sense, or two contradict each other.
    """
    asked = _Asked(said, notices)
    nodes_min, nodes, tasks = _counts(asked)
    if tasks is not None and tasks < nodes:
        nodes = tasks  # sbatch, too, takes no more nodes than there are tasks
        nodes_min = min(nodes_min, nodes)
    per_node = asked.tasks_per_node if tasks is None else None
    if per_node is None:
        per_node = 1 if tasks is None else -(-tasks // nodes_min)
    layout = Layout(nodes_min, nodes)
    all_tasks = tasks if tasks is not None else per_node * nodes
    layout.gpus, layout.model = _gpus(asked, nodes_min, per_node)
    layout.cpus = max(per_node * (asked.cpus_per_task or 1), (asked.cpus_per_gpu or 0) * layout.gpus, asked.cpus_least or 0)
    layout.memory_mib = max(
        asked.memory or 0, (asked.memory_per_cpu or 0) * layout.cpus, (asked.memory_per_gpu or 0) * layout.gpus
    )
    layout.disk_mib = asked.disk or 0
    layout.environment = _environment(asked, layout, all_tasks, per_node)
    apart = "spread-job" in said or ("exclusive" in said and not said["exclusive"].value)
    _name(asked, layout, notices, apart)
    return layout


def _counts(asked: _Asked) -> tuple[int, int, int | None]:
    """The least and the most nodes, and the tasks where they are said or follow."""
    tasks = asked.tasks
    if tasks is None and asked.gpus is not None and asked.gpus.count:
        if asked.gpus_per_task is not None and asked.gpus_per_task.count:
            tasks = max(1, asked.gpus.count // asked.gpus_per_task.count)
        elif asked.tasks_per_gpu is not None:
            tasks = asked.gpus.count * asked.tasks_per_gpu
    if asked.nodes is not None:
        if tasks is None and asked.tasks_per_node is not None and asked.nodes[0] == asked.nodes[1]:
            tasks = asked.nodes[0] * asked.tasks_per_node
        return (*asked.nodes, tasks)
    per_node = asked.gpus_per_node or asked.gres
    if tasks is not None and asked.tasks_per_node is not None:
        nodes = -(-tasks // asked.tasks_per_node)
    elif asked.gpus is not None and per_node is not None and per_node.count:
        nodes = max(1, -(-asked.gpus.count // per_node.count))
    else:
        nodes = 1
    return nodes, nodes, tasks


def _gpus(asked: _Asked, nodes: int, per_node: int) -> tuple[int, str]:
    """GPUs of each node and their type: whatever asks for the most."""
    model = ""
    most = 0
    for kind, times, key in (
        (asked.gres, 1, "gres"),
        (asked.gpus_per_node, 1, "gpus-per-node"),
        (asked.gpus_per_task, per_node, "gpus-per-task"),
    ):
        if kind is not None:
            most = max(most, kind.count * times)
            model = _same_model(asked, model, kind, key)
    if asked.gpus is not None:
        most = max(most, -(-asked.gpus.count // nodes))
        model = _same_model(asked, model, asked.gpus, "gpus")
    if most > GPUS_MAX:
        place = asked.place("gpus", "gres", "gpus-per-task", "gpus-per-node")
        raise place.error(f"comes to {most} GPUs on one node; at most {GPUS_MAX} can be asked for: say --nodes")
    return most, model


def _same_model(asked: _Asked, model: str, kind: Gpus, key: str) -> str:
    if model and kind.model and model != kind.model:
        raise asked.place(key).error(f"asks for the type {kind.model}, and another option for {model}: a task has one type")
    return model or kind.model


def _environment(asked: _Asked, layout: Layout, tasks: int, per_node: int) -> dict[str, str]:
    """What Slurm says of the request: some of it always, some only where the option was given."""
    found = {
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_CPUS_ON_NODE": str(layout.cpus),
    }
    if layout.nodes == layout.nodes_min:
        found["SLURM_JOB_NUM_NODES"] = found["SLURM_NNODES"] = str(layout.nodes)
        found["SLURM_JOB_CPUS_PER_NODE"] = _repeated([layout.cpus] * layout.nodes)
        found["SLURM_TASKS_PER_NODE"] = _repeated(spread_tasks(tasks, layout.nodes))
    for value, name in (
        (asked.tasks_per_node, "SLURM_NTASKS_PER_NODE"),
        (asked.tasks_per_gpu, "SLURM_NTASKS_PER_GPU"),
        (asked.cpus_per_task, "SLURM_CPUS_PER_TASK"),
        (asked.cpus_per_gpu, "SLURM_CPUS_PER_GPU"),
        (asked.memory, "SLURM_MEM_PER_NODE"),
        (asked.memory_per_cpu, "SLURM_MEM_PER_CPU"),
        (asked.memory_per_gpu, "SLURM_MEM_PER_GPU"),
    ):
        if value:
            found[name] = str(value)
    for kind, name in (
        (asked.gpus, "SLURM_GPUS"),
        (asked.gpus_per_node or asked.gres, "SLURM_GPUS_PER_NODE"),
        (asked.gpus_per_task, "SLURM_GPUS_PER_TASK"),
    ):
        if kind is not None:
            found[name] = f"{kind.model}:{kind.count}" if kind.model else str(kind.count)
    return found


def spread_tasks(tasks: int, nodes: int) -> list[int]:
    """Tasks over nodes as evenly as they go, the first nodes having one more: 5 over 2 is 3, 2."""
    each, more = divmod(tasks, nodes)
    return [each + 1] * more + [each] * (nodes - more)


def _repeated(numbers: list[int]) -> str:
    """As Slurm writes numbers by node: `4(x2),3`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][0] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in runs)


def _name(asked: _Asked, layout: Layout, notices: Notices, apart: bool) -> None:
    """Name where Muster's nodes are not quite Slurm's."""
    if asked.nodes is None and layout.nodes == 1:
        if layout.cpus > CPUS_NAMED and asked.tasks is not None:
            place = asked.place("ntasks")
            notices.add(place.line, place.spelled, f"is taken as one node with {layout.cpus} cores: say --nodes for several")
        if layout.gpus > GPUS_NAMED:
            place = asked.place("gpus", "gres", "gpus-per-task", "gpus-per-node")
            notices.add(place.line, place.spelled, f"is taken as one node with {layout.gpus} GPUs: say --nodes for several")
    elif layout.nodes > 1 and not apart:
        place = asked.place("nodes", "ntasks-per-node", "gpus")
        notices.add(
            place.line,
            place.spelled,
            "are parts of nodes, and two may be on one: --spread-job or --exclusive keeps them apart",
        )
