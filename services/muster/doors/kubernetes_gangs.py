"""Pods that start together: those of one pod group, and Volcano's Job, whose tasks become the groups of one gang.

The members of a gang may run different things (`JobRun.groups`). What holds for a job as a whole (priority, time limit,
grace, constraints) is the first member's; where another says something else it is named.
"""

from typing import Any, Final

import msgspec

from muster.doors.kubernetes_classes import Classes
from muster.doors.kubernetes_objects import GROUP_KEYS, Metadata, group, spec_of, submit, text_map, unknown
from muster.doors.kubernetes_places import NAMESPACE, settled
from muster.doors.kubernetes_pod import PodRun, read_pod
from muster.doors.names import DOOR
from muster.doors.origin import Notices, Origin, is_name, slug, submission
from muster.events.base import GROUPS_MAX, TASKS_MAX
from muster.events.jobs import Constraints, GroupRequest, GroupRun, JobRun, JobSubmitted
from muster.reading.values import Value

VOLCANO: Final = "batch.volcano.sh/v1alpha1"
RETRIES_USUAL: Final = 3
"""What Volcano takes where a Job says no `maxRetry`."""
_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
_AGENT_SETS: Final = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK", "LOCAL_RANK")
_JOB_KEYS: Final = ("minAvailable", "schedulerName", "queue", "priorityClassName", "maxRetry", "tasks", "policies")
_JOB_NOT: Final = {
    "plugins": "members meet at MASTER_ADDR, stand in MUSTER_HOSTFILE, and know MUSTER_GROUP and MUSTER_GROUP_RANK",
    "volumes": "a task sees the files of its node",
    "ttlSecondsAfterFinished": "the scheduler forgets an ended job after a time of its own; its history stays in the log",
    "runningEstimate": "say activeDeadlineSeconds in the pod",
    "minSuccess": "a job is finished when its tasks are",
    "networkTopology": "say it as kueue.x-k8s.io/podset-required-topology in the annotations",
}
_TASK_KEYS: Final = ("name", "replicas", "minAvailable", "template", "policies")
_ENDS: Final = ("AbortJob", "TerminateJob")
_FAILS: Final = ("PodFailed", "PodEvicted", "*")


class Gangs:
    """Collects the pods of pod groups while the objects of a file are read."""

    def __init__(self) -> None:
        self._members: dict[str, list[tuple[Value, JobSubmitted, dict[str, str]]]] = {}

    def add(self, item: Value, job: JobSubmitted, jobs: list[JobSubmitted]) -> None:
        """A pod's job: it stands where the first of its group stands."""
        metadata = item.mapping("an object")["metadata"].mapping("metadata")
        marks = text_map(metadata.get("annotations"), "annotations") | text_map(metadata.get("labels"), "labels")
        name = next((marks[key] for key in GROUP_KEYS if marks.get(key)), "")
        if not name:
            jobs.append(job)
            return
        members = self._members.setdefault(f"{job.request.labels.get(NAMESPACE, '')}/{name}", [])
        if not members:
            jobs.append(job)
        members.append((item, job, marks))

    def close(self, jobs: list[JobSubmitted], classes: Classes, notices: Notices) -> None:
        """Put a gang in the place of the first pod of each group."""
        for key, members in self._members.items():
            name = key.partition("/")[2]
            first = members[0][1]
            jobs[jobs.index(first)] = _gang(name, members, classes, notices)


def _gang(
    name: str, members: list[tuple[Value, JobSubmitted, dict[str, str]]], classes: Classes, notices: Notices
) -> JobSubmitted:
    item, first, marks = members[0]
    total = marks.get(_TOTAL, "")
    wanted = max(classes.minima.get(name, 0), int(total[:9]) if total.isdecimal() else 0)
    if wanted > len(members):
        notices.add(
            item.line,
            item.key,
            f"has {len(members)} of the {wanted} pods of the group {name[:63]}: they do not wait for the others",
        )
    if len(members) == 1:
        return first
    kinds: dict[tuple[bytes, bytes], tuple[GroupRequest, JobRun, str]] = {}
    for value, job, _ in members:
        group_, run = job.request.groups[0], job.run
        key = (msgspec.json.encode(group_), msgspec.json.encode(run))
        seen = kinds.get(key)
        kinds[key] = (
            msgspec.structs.replace(group_, count=seen[0].count + 1) if seen else group_,
            run,
            seen[2] if seen else job.name,
        )
        if msgspec.structs.replace(job.request, groups=first.request.groups) != first.request:
            notices.add(
                value.line,
                value.key,
                f"differs from the first pod of the group {name[:63]}: priority, labels and the like are that one's",
            )
    if len(kinds) > GROUPS_MAX:
        raise item.error(f"is one of {len(kinds)} different pods of the group {name[:63]}; at most {GROUPS_MAX} can be one gang")
    least = classes.minima.get(name, len(members))
    groups = []
    own: dict[str, GroupRun] = {}
    for group_, run, pod in kinds.values():
        called = "task" if len(kinds) == 1 else pod
        minimum = min(group_.count, least) if len(kinds) == 1 else group_.count
        groups.append(msgspec.structs.replace(group_, name=called, min=minimum))
        own[called] = group_run(run)
    if len(kinds) > 1 and least < len(members):
        notices.add(
            item.line, item.key, f"starts with all {len(members)} pods of the group {name[:63]}, not with {least}: they differ"
        )
    fields = msgspec.structs.asdict(first)
    run = first.run
    if len(kinds) > 1:
        run = JobRun(groups=own, environment={DOOR: "kubernetes"})
    queue = classes.queues.get(name, "")
    return submission(
        fields
        | {
            "name": name if is_name(name) else first.name,
            "queue": queue if is_name(queue) else first.queue,
            "request": msgspec.structs.replace(first.request, groups=tuple(groups)),
            "run": run,
        },
        item.file,
        item.line,
        item.key,
    )


def group_run(run: JobRun) -> GroupRun:
    """What one group runs, whole."""
    return GroupRun(command=run.command, image=run.image, environment=run.environment, directory=run.directory)


def read_volcano_job(item: Value, fields: dict[str, Value], origin: Origin, notices: Notices, classes: Classes) -> JobSubmitted:
    """A Job of Volcano's.

    Raises:
        DoorError: it makes no sense; with the place.
    """
    job = origin.new_id()
    metadata = Metadata(item, fields, job, notices)
    spec = spec_of(item, fields)
    body = spec.mapping("the spec of a Job")
    for key, value in body.items():
        if key in _JOB_NOT:
            notices.add(value.line, value.key, f"is not honoured: {_JOB_NOT[key]}")
    unknown(body, (*_JOB_KEYS, *_JOB_NOT), notices)
    tasks = body["tasks"].items("tasks") if "tasks" in body else []
    if not 1 <= len(tasks) <= GROUPS_MAX:
        raise spec.error(f"must have 1 to {GROUPS_MAX} tasks, not {len(tasks)}")
    said: dict[str, Any] = {"max_retries": min(1000, body["maxRetry"].whole(0)) if "maxRetry" in body else RETRIES_USUAL}
    if "priorityClassName" in body and (priority := classes.priority(body["priorityClassName"], notices)) is not None:
        said["priority"] = priority
    said |= _policies(body.get("policies"), notices, whole=True)
    read = [_task(task, index, metadata, notices, classes) for index, task in enumerate(tasks)]
    for _, _, _, more in read:
        said |= more
    groups = _minima([group_ for group_, _, _, _ in read], body, notices)
    pods = [pod for _, pod, _, _ in read]
    labels = read[0][2] | metadata.labels
    found = settled(pods[0].places, metadata.annotations, True, spec, notices)
    said["constraints"] = found
    for value, pod in zip(tasks[1:], pods[1:], strict=True):
        other = settled(pod.places, metadata.annotations, True, value, notices)
        if (other or Constraints()) != (found or Constraints()):
            notices.add(value.line, value.key, "says other constraints between pods than the first task, whose are taken for all")
    runs = [GroupRun(command=pod.command, image=pod.image, environment=pod.environment, directory=pod.directory) for pod in pods]
    own = {one.name: run for one, run in zip(groups, runs, strict=True)} if any(run != runs[0] for run in runs) else None
    base = pods[0]
    if own is not None:
        base = PodRun()
        base.request = pods[0].request
    base.environment = base.environment | {DOOR: "kubernetes"}
    queue = body["queue"].scalar_text() if "queue" in body and body["queue"].data else ""
    annotations = metadata.annotations
    return submit(item, job, metadata, labels, annotations, base, origin, said, *groups, queue=queue, own=own)


def _task(
    task: Value, index: int, metadata: Metadata, notices: Notices, classes: Classes
) -> tuple[GroupRequest, PodRun, dict[str, str], dict[str, Any]]:
    fields = task.mapping("a task")
    for key, value in fields.items():
        if key not in _TASK_KEYS:
            notices.add(value.line, value.key, "is not honoured: all tasks of the gang start together")
    if "template" not in fields:
        raise task.error("has no template: a task needs the pod that it runs")
    template = fields["template"].mapping("a pod template")
    inner = template["metadata"].mapping("metadata") if "metadata" in template else {}
    labels = text_map(inner.get("labels"), "labels")
    named = labels | metadata.named
    pod = read_pod(spec_of(fields["template"], template), notices, named, classes)
    for variable in _AGENT_SETS:
        if variable in pod.environment:
            line = pod.environment_lines[variable]
            notices.add(line, f"env {variable}", "is left out: the agent sets it, to where the members of the gang really are")
            del pod.environment[variable]
    name = slug(fields["name"].scalar_text()) if "name" in fields else ""
    name = name or f"task{index}"
    count = fields["replicas"].whole(1, TASKS_MAX) if "replicas" in fields else 1
    least = fields["minAvailable"].whole(0, TASKS_MAX) if "minAvailable" in fields else count
    more = _policies(fields.get("policies"), notices, whole=False, name=name)
    return group(pod, count, min(least, count), name), pod, labels, more


def _minima(groups: list[GroupRequest], body: dict[str, Value], notices: Notices) -> list[GroupRequest]:
    """The groups with the least that the job says, where that can be said of them."""
    if "minAvailable" not in body:
        return groups
    least = body["minAvailable"].whole(0, TASKS_MAX)
    if len(groups) == 1:
        return [msgspec.structs.replace(groups[0], min=max(1, min(least, groups[0].min)))]
    if least < sum(one.min for one in groups):
        value = body["minAvailable"]
        notices.add(value.line, value.key, f"{least} is not honoured: each task starts with its own minAvailable, else with all")
    return groups


def _policies(value: Value | None, notices: Notices, whole: bool, name: str = "") -> dict[str, Any]:
    """`TaskCompleted: CompleteJob` of one task says who decides the outcome; a failure that ends the job is not tried again."""
    said: dict[str, Any] = {}
    for item in value.items("policies") if value is not None else []:
        entry = item.mapping("a policy")
        events = [one.scalar_text() for one in entry["events"].items("events")] if "events" in entry else []
        events += [entry["event"].scalar_text()] if "event" in entry else []
        action = entry["action"].scalar_text() if "action" in entry else ""
        if action == "CompleteJob" and events == ["TaskCompleted"]:
            said |= {} if whole else {"success": name}
        elif action in _ENDS and any(event in _FAILS for event in events):
            said["max_retries"] = 0
        elif action != "RestartJob" or not all(event in _FAILS for event in events):
            notices.add(item.line, item.key, f"is not honoured: a gang that loses a member is run again, whole ({action[:40]})")
    return said
