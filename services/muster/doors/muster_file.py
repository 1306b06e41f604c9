"""Muster's own job files: YAML or JSON, one job a document, or a list of jobs.

The fields stand in `muster.doors.fields` and in `docs/job-file.md`. Nothing in such a file is ignored: what is not known is
an error. `job_document` is the way back, and what it makes is read as the same job.
"""

from pathlib import PurePosixPath
from typing import Any

from msgspec import UNSET

from muster.doors.fields import (
    GROUP_KEYS,
    GROUPS_AT_MOST,
    JOB_FIELDS,
    JOB_KEYS,
    REQUEST_FIELDS,
    RUN_FIELDS,
    TASK_FIELDS,
    Field,
)
from muster.doors.origin import Origin, is_name, submission
from muster.doors.placing import CONSTRAINT_FIELDS, PLACE_FIELDS
from muster.events.jobs import Constraints, GroupRequest, GroupRun, JobRequest, JobRun, JobSubmitted
from muster.reading.values import Value

JOBS_MAX = 10_000
_PLACE_KEYS = tuple(field.key for field in PLACE_FIELDS)
_OWN_RUN = tuple(field for field in RUN_FIELDS if field.key in ("command", "image", "environment"))
ALL_GROUP_KEYS = (*GROUP_KEYS, *_PLACE_KEYS)
ALL_JOB_KEYS = (*JOB_KEYS, *_PLACE_KEYS, *(field.key for field in CONSTRAINT_FIELDS))


def read_job_file(documents: list[Value], origin: Origin) -> list[JobSubmitted]:
    """The jobs of a file.

    Raises:
        DoorError: with the place of what is wrong.
    """
    entries = [entry for document in documents for entry in document.several()]
    if not entries:
        raise documents[0].error("holds no job: a list of jobs must have one")
    if len(entries) > JOBS_MAX:
        raise entries[JOBS_MAX].error(f"is beyond the {JOBS_MAX} jobs that one file may hold")
    return [_job(entry, origin) for entry in entries]


def job_document(job: JobSubmitted) -> dict[str, Any]:
    """The job as a document of a job file; what holds anyway is left out."""
    document: dict[str, Any] = {field.key: field.write(getattr(job, field.target)) for field in JOB_FIELDS}
    document |= _written(REQUEST_FIELDS, job.request)
    document |= _written(CONSTRAINT_FIELDS, job.request.constraints or Constraints())
    groups = job.request.groups
    if len(groups) == 1 and groups[0].name == "task":
        document |= _written_group(groups[0])
    else:
        own = job.run.groups or {}
        document["groups"] = [
            {"name": group.name} | _written_group(group) | _written(_OWN_RUN, own.get(group.name, GroupRun())) for group in groups
        ]
    document |= _written(RUN_FIELDS, job.run)
    if not job.run.directory:
        del document["directory"]
        if not job.run.image and not any(each.image for each in (job.run.groups or {}).values()):
            document["directory"] = None
    return document


def _job(entry: Value, origin: Origin) -> JobSubmitted:
    if not isinstance(entry.data, dict):
        raise entry.error(f"must be a job (a mapping such as {{name: train, gpus: 1, command: ...}}), not {entry.said()}")
    fields = entry.known("a job", ALL_JOB_KEYS)
    if "name" not in fields:
        raise entry.error("has no name: a job needs one")
    for key in ("name", "user", "queue"):
        if key in fields and not is_name(fields[key].string()):
            raise fields[key].error(
                "must be lower-case letters, digits, - and ., at most 63 of them, beginning and ending with a letter or a digit, "
                f"not {fields[key].said()}"
            )
    if "groups" in fields:
        for field in (*TASK_FIELDS, *PLACE_FIELDS):
            if field.key in fields:
                raise fields[field.key].error("must stand in the groups: a job with groups has none of its own")
        items = fields["groups"].items("groups")
        if not 1 <= len(items) <= GROUPS_AT_MOST:
            raise fields["groups"].error(f"must be 1 to {GROUPS_AT_MOST} groups, not {len(items)}")
        keys = (*ALL_GROUP_KEYS, *(field.key for field in _OWN_RUN))
        groups = tuple(_group(item, item.known("a group", keys), True) for item in items)
        own = {group.name: GroupRun(**_read(_OWN_RUN, item.mapping(""))) for group, item in zip(groups, items, strict=True)}
    else:
        groups = (_group(entry, fields, False),)
        own = {}
    said = {"job": origin.new_id(), "user": origin.user, "queue": origin.queue, "submitted_us": origin.submitted_us}
    said |= _read(JOB_FIELDS, fields)
    constraints = Constraints(**_read(CONSTRAINT_FIELDS, fields))
    asked = constraints if constraints != Constraints() else UNSET
    said["request"] = JobRequest(groups=groups, constraints=asked, **_read(REQUEST_FIELDS, fields))
    run = _read(RUN_FIELDS, fields)
    own = {name: each for name, each in own.items() if each != GroupRun()}
    images = run.get("image") or any(each.image for each in own.values())
    said["run"] = JobRun(**run | {"directory": _directory(run | {"image": images}, origin), "groups": own or UNSET})
    return submission(said, entry.file, entry.line, entry.key)


def _directory(run: dict[str, Any], origin: Origin) -> str:
    """Where it starts: from where it is submitted, unless an image says that or it is to be a folder of its own."""
    said: str = run.get("directory", "" if run.get("image") else ".")
    return str(PurePosixPath(origin.directory, said)) if said and origin.directory else said if "directory" in run else ""


def _group(item: Value, fields: dict[str, Value], named: bool) -> GroupRequest:
    said = _read((*TASK_FIELDS, *PLACE_FIELDS), fields)
    if named:
        if "name" not in fields:
            raise item.error("has a group without a name")
        said["name"] = fields["name"].string()
        if not is_name(said["name"]):
            raise fields["name"].error(f"is no name of a group: {fields['name'].said()}")
    count = said.get("count", 1)
    said.setdefault("min", count)
    said.setdefault("cpu_milli", 100)
    said.setdefault("memory_mib", 100)
    if said["min"] > count:
        raise fields["min"].error(f"must be at most the count, {count}, not {said['min']}")
    if "gpu_profile" in said:
        if said.get("gpu_milli") or not said.get("gpus", 1):
            raise fields["mig"].error("needs gpus, the number of slices, and no gpu_share: a slice is not shared")
        said.setdefault("gpus", 1)
    if said.get("gpus") and said.get("gpu_milli"):
        raise fields["gpu_share"].error("and gpus exclude each other: a task has whole GPUs or a share of one")
    return GroupRequest(**said)


def _read(table: tuple[Field, ...], fields: dict[str, Value]) -> dict[str, Any]:
    return {field.target: field.read(fields[field.key]) for field in table if field.key in fields}


def _written(table: tuple[Field, ...], part: Any) -> dict[str, Any]:
    return {field.key: field.write(value) for field in table if (value := getattr(part, field.target)) != field.usual()}


def _written_group(group: GroupRequest) -> dict[str, Any]:
    document = _written((*TASK_FIELDS, *PLACE_FIELDS), group)
    document.pop("min", None)
    return document if group.min == group.count else document | {"min": group.min}
