"""Which of a node's GPUs the tasks of a step see. What the job has on the node stands in CUDA_VISIBLE_DEVICES."""

from collections.abc import Mapping

from muster.slurm.say import Refused


def bind(environment: Mapping[str, str], node: str, tasks: int, per_task: int, per_node: int) -> list[dict[str, str]]:
    """For each task of the node the variables that name its GPUs.

    As Slurm does it, every task sees all GPUs of the step on the node, unless it is given some of its own (`per_task`).

    Raises:
        Refused: the job has not so many here.
    """
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if per_node >= 0:
        if per_node > len(visible):
            raise Refused(f"the step asks for {per_node} GPUs on {node}, and the job has {len(visible)} there")
        visible = visible[:per_node]
    if per_task * tasks > len(visible):
        raise Refused(f"{tasks} tasks with {per_task} GPUs each do not fit on {node}, where the job has {len(visible)}")
    found = []
    for index in range(tasks):
        mine = visible[index * per_task : (index + 1) * per_task] if per_task else visible
        names = {"CUDA_VISIBLE_DEVICES": ",".join(mine), "SLURM_STEP_GPUS": ",".join(visible)}
        if visible:
            names["SLURM_GPUS_ON_NODE"] = str(len(visible))
        found.append(names)
    return found
