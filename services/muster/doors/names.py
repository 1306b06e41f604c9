"""The variables that a door promises and that only the agent can give: they differ from task to task.

Pure: from what stands in the job's environment and where the task stands, to names. The agent adds them last, because they
are truer than what it would say of any job.
"""

from collections.abc import Mapping

from muster.doors.arrays import BadArray, read_array

DOOR = "MUSTER_DOOR"
ARRAY = "MUSTER_ARRAY"


def door_names(environment: Mapping[str, str], rank: int, instance: int, array: int | None) -> dict[str, str]:
    """Names for the task of this rank of this instance; empty for a job that came through no door of others.

    `array` is how many elements the job has, None for no array.
    """
    door = environment.get(DOOR)
    if door == "kubernetes":
        return {"JOB_COMPLETION_INDEX": str(instance if array is not None else rank)}
    if door != "slurm":
        return {}
    names = {"SLURM_NODEID": str(rank), "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    if array is not None:
        names["SLURM_ARRAY_TASK_ID"] = str(element_index(environment, instance))
    return names


def element_index(environment: Mapping[str, str], instance: int) -> int:
    """The index that a script's `--array` gives to an element; the element's own number where it gives none."""
    try:
        indices, _ = read_array(environment[ARRAY])
    except (KeyError, BadArray):
        return instance
    return indices[instance] if instance < len(indices) else instance
