"""The names that Slurm sets for a task, for programs that look for them (Slurm 22 to 25, `sbatch` and `srun`)."""

from typing import TYPE_CHECKING

from muster.agent.protocol import AgentTask
from muster.doors.hostlist import compress
from muster.doors.names import element_index

if TYPE_CHECKING:
    from muster.agent.environment import Place


def slurm_names(task: AgentTask, place: "Place") -> dict[str, str]:
    """By name. `SLURM_JOB_ID` is the job's id unless the job's environment has another."""
    ranks = task.ranks
    here = ranks.nodes.index(place.node) if place.node in ranks.nodes else 0
    per_node = ranks.ranks_per_node or (1,)
    group = next((group for group in task.request.groups if group.name == task.group), task.request.groups[0])
    job = task.run.environment.get("SLURM_JOB_ID", task.job)
    nodes = compress(ranks.nodes)
    names = {
        "SLURM_CLUSTER_NAME": place.cell or "muster",
        "SLURM_CPUS_ON_NODE": str(max(1, group.cpu_milli * per_node[here] // 1000)),
        "SLURM_CPUS_PER_TASK": str(max(1, group.cpu_milli // 1000)),
        "SLURM_GTIDS": str(task.rank),
        "SLURM_JOB_ACCOUNT": task.queue,
        "SLURM_JOB_CPUS_PER_NODE": _counts([max(1, group.cpu_milli * count // 1000) for count in per_node]),
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_JOB_NAME": task.name,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(len(ranks.nodes)),
        "SLURM_JOB_PARTITION": task.queue,
        "SLURM_JOB_USER": task.user,
        "SLURM_LAUNCH_NODE_IPADDR": task.master.addr if task.master is not None else place.address,
        "SLURM_LOCALID": str(task.local_rank),
        "SLURM_NNODES": str(len(ranks.nodes)),
        "SLURM_NODEID": str(here),
        "SLURM_NODELIST": nodes,
        "SLURM_NPROCS": str(ranks.world_size),
        "SLURM_NTASKS": str(ranks.world_size),
        "SLURM_NTASKS_PER_NODE": str(max(per_node)),
        "SLURM_PROCID": str(task.rank),
        "SLURM_RESTART_COUNT": str(task.attempt - 1),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_SUBMIT_DIR": task.run.directory,
        "SLURM_TASK_PID": "",
        "SLURM_TASKS_PER_NODE": _counts(per_node),
        "SLURMD_NODENAME": place.node,
    }
    if place.visible:
        names["SLURM_JOB_GPUS"] = names["SLURM_STEP_GPUS"] = ",".join(place.visible)
        names["SLURM_GPUS_ON_NODE"] = str(group.gpus * per_node[here])
    if group.memory_mib:
        names["SLURM_MEM_PER_NODE"] = str(group.memory_mib * per_node[here])
    if task.request.array is not None:
        names["SLURM_ARRAY_JOB_ID"] = job
        names["SLURM_ARRAY_TASK_ID"] = str(element_index(task.run.environment, task.instance))
        names["SLURM_ARRAY_TASK_COUNT"] = str(task.request.array)
        names["SLURM_ARRAY_TASK_MIN"] = "0"
        names["SLURM_ARRAY_TASK_MAX"] = str(task.request.array - 1)
    return {name: value for name, value in names.items() if value}


def _counts(counts: tuple[int, ...] | list[int]) -> str:
    """Counts as Slurm writes them: `4(x2),1`."""
    parts: list[tuple[int, int]] = []
    for count in counts:
        if parts and parts[-1][0] == count:
            parts[-1] = (count, parts[-1][1] + 1)
        else:
            parts.append((count, 1))
    return ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in parts)
