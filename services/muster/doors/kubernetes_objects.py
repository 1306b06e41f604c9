"""What every object of Kubernetes has: a name, labels, annotations, a spec; and how a job is made of one."""

import re
from typing import Any

from msgspec import UNSET

from muster.doors.kubernetes_pod import PodRun
from muster.doors.origin import Notices, Origin, is_name, submission
from muster.events.jobs import GroupRequest, GroupRun, JobRequest, JobRun, JobSubmitted
from muster.reading.values import Value

QUEUE_LABELS = ("muster.io/queue", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "kai.scheduler/queue")
GROUP_KEYS = (
    "scheduling.k8s.io/group-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "scheduling.volcano.sh/group-name",
    "kueue.x-k8s.io/pod-group-name",
)
"""Labels and annotations that name the group of a pod."""
_METADATA = ("name", "generateName", "namespace", "labels", "annotations", "creationTimestamp", "uid", "resourceVersion")


class Metadata:
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
        self.labels = text_map(self.fields.get("labels"), "labels")
        self.annotations = text_map(self.fields.get("annotations"), "annotations")
        self.namespace = self.fields["namespace"].scalar_text() if "namespace" in self.fields else ""
        self.named = self.labels | ({"namespace": self.namespace} if self.namespace else {})
        """The labels of the job."""


def text_map(value: Value | None, what: str) -> dict[str, str]:
    """A mapping of text to text; nothing at all is an empty one."""
    if value is None:
        return {}
    return {key: "" if item.data is None else item.scalar_text() for key, item in value.mapping(what).items()}


def group(pod: PodRun, count: int | None, least: int | None = None, name: str = "task") -> GroupRequest:
    """So many tasks of what this pod asks for."""
    return GroupRequest(
        name=name,
        count=count or 1,
        min=count or 1 if least is None else least,
        cpu_milli=pod.cpu_milli,
        memory_mib=pod.memory_mib,
        disk_mib=pod.disk_mib,
        gpus=pod.gpus,
        gpu_profile=pod.profile or UNSET,
        **(pod.places.of_group() | ({"gpu_memory_mib": 0} if pod.profile else {})),
    )


def submit(
    item: Value,
    job: str,
    metadata: Metadata,
    labels: dict[str, str],
    annotations: dict[str, str],
    pod: PodRun,
    origin: Origin,
    said: dict[str, Any],
    *groups: GroupRequest,
    queue: str = "",
    own: dict[str, GroupRun] | None = None,
) -> JobSubmitted:
    """The job, once it is certain that it will be taken. `own` is what groups run that do not run what the pod does."""
    said = pod.request | said
    marks = annotations | labels
    all_labels = labels | ({"namespace": metadata.namespace} if metadata.namespace else {})
    queue = next((marks[key] for key in QUEUE_LABELS if key in marks), queue or origin.queue)
    if not is_name(queue):
        raise item.error(f"names the queue {queue[:80]!r} in a label, and that is no name of a queue")
    run = JobRun(command=pod.command, image=pod.image, environment=pod.environment, directory=pod.directory, groups=own or UNSET)
    fields = {
        "job": job,
        "name": metadata.name,
        "user": origin.user,
        "queue": queue,
        "submitted_us": origin.submitted_us,
        "request": JobRequest(groups=groups, labels=all_labels, **said),
        "run": run,
    }
    return submission(fields, item.file, item.line, f"{metadata.name}:")


def spec_of(item: Value, fields: dict[str, Value]) -> Value:
    """The spec of an object."""
    if "spec" not in fields:
        raise item.error("has no spec")
    return fields["spec"]


def unknown(fields: dict[str, Value], known: tuple[str, ...], notices: Notices) -> None:
    """Name what is not known."""
    for key, value in fields.items():
        if key not in known:
            notices.add(value.line, value.key, "is not known to this door and not honoured")
