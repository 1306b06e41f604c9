"""Kubernetes manifests: Pods, Jobs, Volcano's Job, Deployments and StatefulSets, in several documents or a `List`.

A Pod becomes a job of one task. A Job becomes an array with one element a completion, each of which has its own retries,
as in Kubernetes; an indexed Job whose pods all run at once and know each other by a subdomain becomes a gang. A Deployment and a
StatefulSet become services. What a manifest says and Muster does not do is named, never dropped in silence; docs/kubernetes.md
says what is what.
"""

from typing import Any

from msgspec import UNSET

from muster.doors.kubernetes_budgets import Budgets
from muster.doors.kubernetes_classes import Classes
from muster.doors.kubernetes_gangs import VOLCANO, Gangs, read_volcano_job
from muster.doors.kubernetes_kept import KEYS as KEPT
from muster.doors.kubernetes_kept import VERSION, read_kept
from muster.doors.kubernetes_objects import GROUP_KEYS, QUEUE_LABELS, Metadata, group, spec_of, submit, text_map, unknown
from muster.doors.kubernetes_places import NAMESPACE, TOPOLOGY, settled
from muster.doors.kubernetes_pod import PodRun, read_pod
from muster.doors.names import DOOR
from muster.doors.origin import Notices, Origin
from muster.events.base import TASKS_MAX
from muster.events.jobs import JobSubmitted
from muster.reading.values import Value

DOCUMENTS_MAX = 1000
TAKEN = "v1/Pod, batch/v1/Job, Volcano's Job, apps/v1/Deployment, apps/v1/StatefulSet"
BACKOFF_USUAL = 6
"""What Kubernetes takes where a Job says no `backoffLimit`."""
RETRIES_MAX = 1000
GANG_KEYS = ("muster.io/gang", *GROUP_KEYS, *TOPOLOGY)
"""Marks of a Job whose pods start together."""
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
TIME_LIMIT = "kueue.x-k8s.io/max-exec-time-seconds"

_POD_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")
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
    jobs: list[JobSubmitted] = []
    gangs = Gangs()
    classes = Classes()
    others: list[tuple[Value, str]] = []
    budgets = Budgets()
    rest = [
        item
        for item in objects
        if not classes.read(_kind(item), item.mapping(""), notices) and not budgets.read(_kind(item), item.mapping(""), notices)
    ]
    for item in rest:
        fields = item.mapping("an object of Kubernetes")
        kind, version = fields["kind"].string(), fields["apiVersion"].string()
        if (kind, version) == ("Pod", "v1"):
            gangs.add(item, _pod(item, fields, origin, notices, classes), jobs)
        elif (kind, version) == ("Job", "batch/v1"):
            jobs.append(_job(item, fields, origin, notices, classes))
        elif (kind, version) == ("Job", VOLCANO):
            jobs.append(read_volcano_job(item, fields, origin, notices, classes))
        elif kind in KEPT and version == VERSION:
            jobs.append(_kept(kind, item, fields, origin, notices, classes))
        elif kind in ("Pod", "Job", *KEPT):
            right = {"Pod": "v1", "Job": f"batch/v1 or {VOLCANO}"}.get(kind, VERSION)
            raise fields["apiVersion"].error(f"must be {right} for a {kind}, not {fields['apiVersion'].said()}")
        else:
            others.append((fields["kind"], f"{version}/{kind}"))
    gangs.close(jobs, classes, notices)
    budgets.close(jobs, notices)
    for value, what in others:
        sentence = f"{what[:80]} is not taken: Muster takes {TAKEN}"
        if not jobs:
            raise value.error(sentence)
        notices.add(value.line, value.key, sentence)
    if not jobs:
        raise documents[0].error(f"holds no job: it must hold one of {TAKEN}")
    return jobs


def _objects(document: Value) -> list[Value]:
    fields = document.mapping("an object of Kubernetes")
    if "kind" in fields and fields["kind"].data == "List":
        return fields["items"].items("objects") if "items" in fields else []
    return [document]


def _kind(item: Value) -> str:
    fields = item.mapping("an object of Kubernetes")
    for key in ("apiVersion", "kind"):
        if key not in fields:
            raise item.error(f"has no {key}: a manifest needs apiVersion and kind")
    return fields["kind"].string()


def _pod(item: Value, fields: dict[str, Value], origin: Origin, notices: Notices, classes: Classes) -> JobSubmitted:
    job = origin.new_id()
    metadata = Metadata(item, fields, job, notices)
    unknown(fields, _POD_KEYS, notices)
    pod = read_pod(spec_of(item, fields), notices, metadata.named, classes)
    if pod.restart == "Always":
        notices.add(pod.restart_line, "spec.restartPolicy", "Always is not honoured: a pod runs once, to its end")
    retries = BACKOFF_USUAL if pod.restart == "OnFailure" else 0
    said: dict[str, Any] = {"max_retries": retries, "constraints": settled(pod.places, {}, False, item, notices)}
    said |= _marked(metadata, notices, classes)
    return submit(item, job, metadata, metadata.labels, metadata.annotations, pod, origin, said, group(pod, 1))


def _job(item: Value, fields: dict[str, Value], origin: Origin, notices: Notices, classes: Classes) -> JobSubmitted:
    job = origin.new_id()
    metadata = Metadata(item, fields, job, notices)
    unknown(fields, _POD_KEYS, notices)
    spec = spec_of(item, fields)
    body = spec.mapping("the spec of a Job")
    for key, value in body.items():
        if key in _JOB_NOT:
            notices.add(value.line, value.key, f"is not honoured: {_JOB_NOT[key]}")
    unknown(body, (*_JOB_HARMLESS, *_JOB_DONE, *_JOB_NOT), notices)
    if "template" not in body:
        raise spec.error("has no template: a Job needs the pod that it runs")
    template = body["template"].mapping("a pod template")
    unknown(template, ("metadata", "spec"), notices)
    inner = template["metadata"].mapping("metadata") if "metadata" in template else {}
    labels = text_map(inner.get("labels"), "labels") | metadata.labels
    annotations = text_map(inner.get("annotations"), "annotations") | metadata.annotations
    if "suspend" in body and body["suspend"].boolean() and not any(key in labels | annotations for key in QUEUE_LABELS):
        notices.add(body["suspend"].line, body["suspend"].key, "is not honoured: the job may start at once")
    named = labels | {key: value for key, value in metadata.named.items() if key == NAMESPACE}
    pod = read_pod(spec_of(body["template"], template), notices, named, classes)
    if pod.restart == "Always":
        raise item.error("has a pod with the restartPolicy Always: a Job needs Never or OnFailure")
    said: dict[str, Any] = {"max_retries": _retries(body, notices)} | _marked(metadata, notices, classes)
    if "activeDeadlineSeconds" in body:
        said["time_limit_us"] = body["activeDeadlineSeconds"].whole(1, 10**9) * 1_000_000
    count, at_once, gang = _completions(body, pod, labels | annotations)
    said["constraints"] = settled(pod.places, annotations, gang, body["template"], notices)
    if gang:
        for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK", "LOCAL_RANK"):
            if name in pod.environment:
                line = pod.environment_lines[name]
                notices.add(line, f"env {name}", "is left out: the agent sets it, to where the members of the gang really are")
                del pod.environment[name]
        tasks = group(pod, count, _least(count or 1, labels | annotations, classes))
    else:
        tasks = group(pod, 1)
        if count is not None:
            said |= {"array": count, "at_once": at_once or UNSET}
    if count is not None:
        pod.environment.setdefault(DOOR, "kubernetes")
    return submit(item, job, metadata, labels, annotations, pod, origin, said, tasks)


def _kept(kind: str, item: Value, fields: dict[str, Value], origin: Origin, notices: Notices, classes: Classes) -> JobSubmitted:
    """A Deployment or a StatefulSet: its pods are replicas."""
    job = origin.new_id()
    metadata = Metadata(item, fields, job, notices)
    unknown(fields, _POD_KEYS, notices)
    spec = spec_of(item, fields)
    body = spec.mapping(f"the spec of a {kind}")
    if "template" not in body:
        raise spec.error(f"has no template: a {kind} needs the pod that it keeps")
    service = read_kept(kind, body, notices)
    template = body["template"].mapping("a pod template")
    unknown(template, ("metadata", "spec"), notices)
    inner = template["metadata"].mapping("metadata") if "metadata" in template else {}
    labels = text_map(inner.get("labels"), "labels") | metadata.labels
    annotations = text_map(inner.get("annotations"), "annotations") | metadata.annotations
    named = labels | {key: value for key, value in metadata.named.items() if key == NAMESPACE}
    pod = read_pod(spec_of(body["template"], template), notices, named, classes)
    if pod.restart not in ("", "Always"):
        raise item.error(f"has a pod with the restartPolicy {pod.restart}: a {kind} needs Always")
    said: dict[str, Any] = {"service": service} | _marked(metadata, notices, classes)
    said["constraints"] = settled(pod.places, annotations, False, body["template"], notices)
    return submit(item, job, metadata, labels, annotations, pod, origin, said, group(pod, 1))


def _completions(body: dict[str, Value], pod: PodRun, marks: dict[str, str]) -> tuple[int | None, int, bool]:
    """How many pods have to succeed (None: one, no array), how many of them at once (0: all), and whether they are one gang."""
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
    at_once = parallelism if parallelism < completions else 0
    return (completions if completions > 1 or mode == "Indexed" else None), at_once, bool(gang)


def _least(count: int, marks: dict[str, str], classes: Classes) -> int | None:
    """With how many of its pods a gang may start, where a mark or its pod group says it."""
    said = [classes.minima[marks[key]] for key in GROUP_KEYS if marks.get(key) in classes.minima]
    if marks.get(MIN_PARALLELISM, "").isdecimal():
        said.append(int(marks[MIN_PARALLELISM][:9]))
    return max(1, min([count, *said])) if said else None


def _marked(metadata: Metadata, notices: Notices, classes: Classes) -> dict[str, Any]:
    """What Kueue's labels say of a job."""
    labels = metadata.fields["labels"].mapping("labels") if "labels" in metadata.fields else {}
    said: dict[str, Any] = {}
    if PRIORITY_CLASS in labels and (priority := classes.priority(labels[PRIORITY_CLASS], notices)) is not None:
        said["priority"] = priority
    if TIME_LIMIT in labels:
        text = labels[TIME_LIMIT].scalar_text()
        if not text.isdecimal() or not 0 < len(text) < 10:
            raise labels[TIME_LIMIT].error(f"must be a whole number of seconds in quotes, not {labels[TIME_LIMIT].said()}")
        said["time_limit_us"] = int(text) * 1_000_000 or None
    return said


def _retries(body: dict[str, Value], notices: Notices) -> int:
    for key in ("backoffLimitPerIndex", "backoffLimit"):
        if key in body and body[key].data is not None:
            limit = body[key].whole(0, 2**31 - 1)
            if limit > RETRIES_MAX:
                notices.add(body[key].line, body[key].key, f"{limit} is not honoured: {RETRIES_MAX} retries are the most")
            return min(limit, RETRIES_MAX)
    return BACKOFF_USUAL
