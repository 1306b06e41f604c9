"""The variables that a door promises and that only the agent can give: they differ from task to task.

Pure: from what stands in the job's environment and where the task stands, to names. The agent adds them last, because they
are truer than what it would say of any job.
"""

from collections.abc import Mapping, Sequence

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
    indices = element_indices(environment)
    return indices[instance] if instance < len(indices) else instance


def element_indices(environment: Mapping[str, str]) -> Sequence[int]:
    """The indices that a script's `--array` gives to the elements; empty where it gives none."""
    try:
        return read_array(environment[ARRAY])[0]
    except (KeyError, BadArray):
        return ()
