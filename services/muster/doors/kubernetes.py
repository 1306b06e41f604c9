"""Kubernetes manifests: `v1/Pod` and `batch/v1/Job`, in several documents or a `List`.

A Pod becomes a job of one task. A Job becomes an array with one element a completion, each of which has its own retries,
as in Kubernetes; an indexed Job whose pods all run at once and know each other by a subdomain becomes a gang. What a
manifest says and Muster does not do is named, never dropped in silence; docs/kubernetes.md says what is what.
"""

import re
from typing import Any

from muster.doors.kubernetes_pod import PodRun, read_pod
from muster.doors.names import DOOR
from muster.doors.origin import Notices, Origin, is_name, submission
from muster.events.base import TASKS_MAX
from muster.events.jobs import GroupRequest, JobRequest, JobRun, JobSubmitted
from muster.reading.values import Value

DOCUMENTS_MAX = 1000
BACKOFF_USUAL = 6
"""What Kubernetes takes where a Job says no `backoffLimit`."""
RETRIES_MAX = 1000
QUEUE_LABELS = ("muster.io/queue", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "kai.scheduler/queue")
GANG_KEYS = (
    "muster.io/gang",
    "scheduling.k8s.io/group-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "scheduling.volcano.sh/group-name",
)

_POD_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")
_METADATA = ("name", "generateName", "namespace", "labels", "annotations", "creationTimestamp", "uid", "resourceVersion")
_JOB_HARMLESS = ("template", "selector", "manualSelector", "podReplacementPolicy")
_JOB_DONE = (
    "parallelism",
    "completions",
    "completionMode",
    "backoffLimit",
    "backoffLimitPerIndex",
    "activeDeadlineSeconds",
    "suspend",
)
_JOB_NOT = {
    "ttlSecondsAfterFinished": "the scheduler forgets an ended job after a time of its own; its history stays in the log",
    "podFailurePolicy": "every exit other than 0 is a failure",
    "successPolicy": "a job is finished when all its elements are",
    "maxFailedIndexes": "each element has its own retries",
    "managedBy": "Muster runs the job",
}


def read_manifests(documents: list[Value], origin: Origin, notices: Notices) -> list[JobSubmitted]:
    """The jobs of these documents, in order. Documents of other kinds are named.

    Raises:
        DoorError: one makes no sense, or none is a Pod or a Job.
    """
    objects = [item for document in documents for item in _objects(document)]
    if len(objects) > DOCUMENTS_MAX:
        raise objects[DOCUMENTS_MAX].error(f"is beyond the {DOCUMENTS_MAX} objects that one file may hold")
    jobs = []
    others: list[tuple[Value, str]] = []
    for item in objects:
        fields = item.mapping("an object of Kubernetes")
        for key in ("apiVersion", "kind"):
            if key not in fields:
                raise item.error(f"has no {key}: a manifest needs apiVersion and kind")
        kind, version = fields["kind"].string(), fields["apiVersion"].string()
        if (kind, version) == ("Pod", "v1"):
            jobs.append(_pod(item, fields, origin, notices))
        elif (kind, version) == ("Job", "batch/v1"):
            jobs.append(_job(item, fields, origin, notices))
        elif kind in ("Pod", "Job"):
            right = "v1" if kind == "Pod" else "batch/v1"
            raise fields["apiVersion"].error(f"must be {right} for a {kind}, not {fields['apiVersion'].said()}")
        else:
            others.append((fields["kind"], f"{version}/{kind}"))
    for value, what in others:
        sentence = f"{what[:80]} is not taken: Muster takes v1/Pod and batch/v1/Job"
        if not jobs:
            raise value.error(sentence)
        notices.add(value.line, value.key, sentence)
    if not jobs:
        raise documents[0].error("holds no object: it must hold a v1/Pod or a batch/v1/Job")
    return jobs


def _objects(document: Value) -> list[Value]:
    fields = document.mapping("an object of Kubernetes")
    if "kind" in fields and fields["kind"].data == "List":
        return fields["items"].items("objects") if "items" in fields else []
    return [document]


class _Metadata:
    """What a manifest calls itself, and its labels."""

    def __init__(self, item: Value, fields: dict[str, Value], job: str, notices: Notices) -> None:
        if "metadata" not in fields:
            raise item.error("has no metadata: it needs a metadata.name")
        value = fields["metadata"]
        self.fields = value.mapping("metadata")
        for key, inner in self.fields.items():
            if key not in _METADATA:
                notices.add(inner.line, inner.key, "is not honoured")
        if "name" in self.fields:
            self.name = self.fields["name"].scalar_text()
            place = self.fields["name"]
        elif "generateName" in self.fields:
            place = self.fields["generateName"]
            self.name = place.string() + re.sub("[^a-z0-9]", "", job.lower())[-5:]
        else:
            raise value.error("has neither a name nor a generateName")
        if not is_name(self.name):
            raise place.error(
                "must be lower-case letters, digits, - and ., at most 63 of them, beginning and ending with a letter or a digit, "
                f"not {place.said()}"
            )
        self.labels = _text_map(self.fields.get("labels"), "labels")
        self.annotations = _text_map(self.fields.get("annotations"), "annotations")
        self.namespace = self.fields["namespace"].scalar_text() if "namespace" in self.fields else ""


def _text_map(value: Value | None, what: str) -> dict[str, str]:
    if value is None:
        return {}
    return {key: "" if item.data is None else item.scalar_text() for key, item in value.mapping(what).items()}


def _pod(item: Value, fields: dict[str, Value], origin: Origin, notices: Notices) -> JobSubmitted:
    job = origin.new_id()
    metadata = _Metadata(item, fields, job, notices)
    _unknown(fields, _POD_KEYS, notices)
    pod = read_pod(_spec(item, fields), notices, metadata.name, metadata.labels)
    if pod.restart == "Always":
        notices.add(pod.restart_line, "spec.restartPolicy", "Always is not honoured: a pod runs once, to its end")
    retries = BACKOFF_USUAL if pod.restart == "OnFailure" else 0
    return _submit(
        item, job, metadata, metadata.labels, metadata.annotations, pod, origin, {"max_retries": retries}, _group(pod, 1)
    )


def _job(item: Value, fields: dict[str, Value], origin: Origin, notices: Notices) -> JobSubmitted:
    job = origin.new_id()
    metadata = _Metadata(item, fields, job, notices)
    _unknown(fields, _POD_KEYS, notices)
    spec = _spec(item, fields)
    body = spec.mapping("the spec of a Job")
    for key, value in body.items():
        if key in _JOB_NOT:
            notices.add(value.line, value.key, f"is not honoured: {_JOB_NOT[key]}")
    _unknown(body, (*_JOB_HARMLESS, *_JOB_DONE, *_JOB_NOT), notices)
    if "template" not in body:
        raise spec.error("has no template: a Job needs the pod that it runs")
    template = body["template"].mapping("a pod template")
    _unknown(template, ("metadata", "spec"), notices)
    inner = template["metadata"].mapping("metadata") if "metadata" in template else {}
    labels = _text_map(inner.get("labels"), "labels") | metadata.labels
    annotations = _text_map(inner.get("annotations"), "annotations") | metadata.annotations
    if "suspend" in body and body["suspend"].boolean() and not any(key in labels | annotations for key in QUEUE_LABELS):
        notices.add(body["suspend"].line, body["suspend"].key, "is not honoured: the job may start at once")
    pod = read_pod(_spec(body["template"], template), notices, metadata.name, labels)
    if pod.restart == "Always":
        raise item.error("has a pod with the restartPolicy Always: a Job needs Never or OnFailure")
    said: dict[str, Any] = {"max_retries": _retries(body, notices)}
    if "activeDeadlineSeconds" in body:
        said["time_limit_us"] = body["activeDeadlineSeconds"].whole(1, 10**9) * 1_000_000
    count, gang = _completions(body, pod, labels | annotations, notices)
    if gang:
        for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK", "LOCAL_RANK"):
            if name in pod.environment:
                line = pod.environment_lines[name]
                notices.add(line, f"env {name}", "is left out: the agent sets it, to where the members of the gang really are")
                del pod.environment[name]
        group = _group(pod, count)
    else:
        group = _group(pod, 1)
        if count is not None:
            said["array"] = count
    if count is not None:
        pod.environment.setdefault(DOOR, "kubernetes")
    return _submit(item, job, metadata, labels, annotations, pod, origin, said, group)


def _completions(body: dict[str, Value], pod: PodRun, marks: dict[str, str], notices: Notices) -> tuple[int | None, bool]:
    """How many pods have to succeed (None: one, as a job without an array), and whether they are one gang."""
    mode = body["completionMode"].word(("NonIndexed", "Indexed")) if "completionMode" in body else "NonIndexed"
    parallelism = body["parallelism"].whole(0, TASKS_MAX) if "parallelism" in body else 1
    if parallelism == 0:
        raise body["parallelism"].error("must be at least 1: a job that is handed in may start at once")
    if "completions" in body and body["completions"].data is not None:
        completions = body["completions"].whole(1, TASKS_MAX)
    elif mode == "Indexed":
        raise body["completionMode"].error("needs completions: an indexed Job has one index for each")
    else:
        completions = parallelism
    gang = completions > 1 and parallelism >= completions and (pod.subdomain or any(key in marks for key in GANG_KEYS))
    if not gang and "parallelism" in body and parallelism < completions:
        notices.add(
            body["parallelism"].line, body["parallelism"].key, f"{parallelism} is not honoured: all {completions} may run at once"
        )
    return (completions if completions > 1 or mode == "Indexed" else None), bool(gang)


def _retries(body: dict[str, Value], notices: Notices) -> int:
    for key in ("backoffLimitPerIndex", "backoffLimit"):
        if key in body and body[key].data is not None:
            limit = body[key].whole(0, 2**31 - 1)
            if limit > RETRIES_MAX:
                notices.add(body[key].line, body[key].key, f"{limit} is not honoured: {RETRIES_MAX} retries are the most")
            return min(limit, RETRIES_MAX)
    return BACKOFF_USUAL


def _group(pod: PodRun, count: int | None) -> GroupRequest:
    return GroupRequest(
        count=count or 1,
        min=count or 1,
        cpu_milli=pod.cpu_milli,
        memory_mib=pod.memory_mib,
        disk_mib=pod.disk_mib,
        gpus=pod.gpus,
        selector=pod.selector,
        tolerations=pod.tolerations,
    )


def _submit(
    item: Value,
    job: str,
    metadata: _Metadata,
    labels: dict[str, str],
    annotations: dict[str, str],
    pod: PodRun,
    origin: Origin,
    said: dict[str, Any],
    group: GroupRequest,
) -> JobSubmitted:
    said = pod.request | said
    marks = annotations | labels
    all_labels = labels | ({"namespace": metadata.namespace} if metadata.namespace else {})
    queue = next((marks[key] for key in QUEUE_LABELS if key in marks), origin.queue)
    if not is_name(queue):
        raise item.error(f"names the queue {queue[:80]!r} in a label, and that is no name of a queue")
    run = JobRun(command=pod.command, image=pod.image, environment=pod.environment, directory=pod.directory)
    fields = {
        "job": job,
        "name": metadata.name,
        "user": origin.user,
        "queue": queue,
        "submitted_us": origin.submitted_us,
        "request": JobRequest(groups=(group,), labels=all_labels, **said),
        "run": run,
    }
    return submission(fields, item.file, item.line, f"{metadata.name}:")


def _spec(item: Value, fields: dict[str, Value]) -> Value:
    if "spec" not in fields:
        raise item.error("has no spec")
    return fields["spec"]


def _unknown(fields: dict[str, Value], known: tuple[str, ...], notices: Notices) -> None:
    for key, value in fields.items():
        if key not in known:
            notices.add(value.line, value.key, "is not known to this door and not honoured")
