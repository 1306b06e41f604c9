"""The spec of a pod: which container runs, with what, and where it may run.

A task runs one program, so of several containers one is taken: the only one that asks for GPUs, else the first. The
others are named.
"""

import re
from typing import Any

from muster.doors.kubernetes_classes import Classes
from muster.doors.kubernetes_places import Places, read_places, read_ports
from muster.doors.origin import Notices
from muster.doors.quantities import kubernetes_count, kubernetes_cpu, kubernetes_memory
from muster.events.base import ENVIRONMENT_MAX_BYTES
from muster.reading.catalogue import PROFILE
from muster.reading.values import Value

SLICES = "nvidia.com/mig-"
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
GRACE_USUAL_S = 30
"""What Kubernetes takes where a pod says no `terminationGracePeriodSeconds`."""
GPUS_MAX = 64
_COMMAND_MAX = 131_072

_HARMLESS = frozenset(
    [
        "automountServiceAccountToken",
        "dnsPolicy",
        "enableServiceLinks",
        "hostNetwork",
        "hostname",
        "imagePullSecrets",
        "schedulerName",
        "setHostnameAsFQDN",
        "serviceAccount",
        "serviceAccountName",
        "shareProcessNamespace",
    ]
)
"""What makes no difference to a process on a node, or says how Kubernetes itself does it."""
_DONE = frozenset(
    [
        "activeDeadlineSeconds",
        "affinity",
        "containers",
        "nodeName",
        "nodeSelector",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "restartPolicy",
        "subdomain",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    ]
)
_NOT = {
    "dnsConfig": "names are looked up as on the node",
    "ephemeralContainers": "a task runs one container",
    "hostAliases": "names are looked up as on the node",
    "hostIPC": "a task runs on its node as the agent's runtime runs it",
    "hostPID": "a task runs on its node as the agent's runtime runs it",
    "hostUsers": "a task runs as the agent's runtime runs it",
    "initContainers": "a task runs one container; what they prepare must be there already",
    "os": "a task runs on what its node has",
    "overhead": "a task is charged for what it asks for",
    "readinessGates": "a job is finished when its tasks have exited",
    "resourceClaims": "GPUs are asked for by number",
    "runtimeClassName": "the agent's own runtime runs the task",
    "schedulingGates": "a job that is handed in may start at once",
    "securityContext": "a task runs as the agent's runtime runs it",
}
_CONTAINER_HARMLESS = frozenset(
    [
        "imagePullPolicy",
        "name",
        "resizePolicy",
        "stdin",
        "stdinOnce",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "tty",
    ]
)
_CONTAINER_DONE = frozenset(["args", "command", "env", "envFrom", "image", "ports", "resources", "volumeMounts", "workingDir"])
_CONTAINER_NOT = {
    "lifecycle": "a task runs its command and nothing else",
    "livenessProbe": "a task lives as long as its process",
    "readinessProbe": "a task is ready when its node is",
    "restartPolicy": "the pod's own says what is tried again",
    "securityContext": "a task runs as the agent's runtime runs it",
    "startupProbe": "a task is started when its process runs",
    "volumeDevices": "a task sees the node's own files",
}
_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_.-][A-Za-z0-9_.-]{0,255})\))")


class PodRun:
    """What a pod asks for and runs."""

    def __init__(self) -> None:
        self.command: tuple[str, ...] = ()
        self.image = ""
        self.directory = ""
        self.environment: dict[str, str] = {}
        self.environment_lines: dict[str, int] = {}
        self.cpu_milli = self.memory_mib = self.disk_mib = self.gpus = 0
        self.profile = ""
        """Where `gpus` counts slices: their profile."""
        self.places = Places()
        self.restart = ""
        self.restart_line = 0
        self.subdomain = False
        self.request: dict[str, Any] = {}
        """Fields of `JobRequest`."""


def read_pod(spec: Value, notices: Notices, labels: dict[str, str], classes: Classes) -> PodRun:
    """A pod's spec. `labels` are its own, and `classes` the priority classes that stand in the file.

    Raises:
        DoorError: it makes no sense; with the place.
    """
    fields = spec.mapping("the spec of a pod")
    pod = PodRun()
    for key, value in fields.items():
        if key in _NOT:
            notices.add(value.line, value.key, f"is not honoured: {_NOT[key]}")
        elif key not in _DONE and key not in _HARMLESS:
            notices.add(value.line, value.key, "is not known to this door and not honoured")
    if "restartPolicy" in fields:
        pod.restart = fields["restartPolicy"].word(("Always", "OnFailure", "Never"))
        pod.restart_line = fields["restartPolicy"].line
    grace = (
        fields["terminationGracePeriodSeconds"].whole(0, 10**9) if "terminationGracePeriodSeconds" in fields else GRACE_USUAL_S
    )
    pod.request["grace_us"] = grace * 1_000_000
    if "activeDeadlineSeconds" in fields:
        pod.request["time_limit_us"] = fields["activeDeadlineSeconds"].whole(1, 10**9) * 1_000_000
    _read_priority(fields, pod, notices, classes)
    pod.subdomain = "subdomain" in fields
    pod.places = read_places(fields, notices, labels)
    container = _choose(spec, fields, notices)
    _read_container(container, pod, notices)
    if pod.gpus:
        pod.places.take_models()
    host_network = "hostNetwork" in fields and fields["hostNetwork"].data is True
    pod.places.ports = read_ports(container.mapping("a container"), host_network)[:16]
    _name_volumes(container, fields, notices)
    return pod


def _read_priority(fields: dict[str, Value], pod: PodRun, notices: Notices, classes: Classes) -> None:
    if "priority" in fields:
        pod.request["priority"] = fields["priority"].whole(-1_000_000_000, 1_000_000_000)
    elif "priorityClassName" in fields:
        priority = classes.priority(fields["priorityClassName"], notices)
        if priority is not None:
            pod.request["priority"] = priority
    if "preemptionPolicy" in fields and fields["preemptionPolicy"].data == "Never":
        value = fields["preemptionPolicy"]
        notices.add(value.line, value.key, "Never is not honoured: a job of higher priority may preempt")


def _choose(spec: Value, fields: dict[str, Value], notices: Notices) -> Value:
    containers = fields["containers"].items("containers") if "containers" in fields else []
    if not containers:
        raise spec.error("has no containers: a pod needs one")
    chosen = containers[0]
    if len(containers) > 1:
        with_gpus = [container for container in containers if _asks_for_gpus(container)]
        chosen = with_gpus[0] if len(with_gpus) == 1 else containers[0]
        for container in containers:
            if container is not chosen:
                notices.add(container.line, container.key, "is not run: a task runs one container, and another one was taken")
    return chosen


def _asks_for_gpus(container: Value) -> bool:
    fields = container.mapping("a container")
    resources = fields["resources"].mapping("resources") if "resources" in fields else {}
    asked = [
        key
        for part in ("limits", "requests")
        if part in resources
        for key in resources[part].mapping(part)
        if "gpu" in key or key.startswith(SLICES)
    ]
    return bool(asked)


def _read_container(container: Value, pod: PodRun, notices: Notices) -> None:
    fields = container.mapping("a container")
    for key, value in fields.items():
        if key in _CONTAINER_NOT:
            notices.add(value.line, value.key, f"is not honoured: {_CONTAINER_NOT[key]}")
        elif key not in _CONTAINER_DONE and key not in _CONTAINER_HARMLESS:
            notices.add(value.line, value.key, "is not known to this door and not honoured")
    if "image" in fields:
        pod.image = fields["image"].string()
    if "workingDir" in fields:
        pod.directory = fields["workingDir"].string()
    _read_environment(fields, pod, notices)
    command = [item.scalar_text() for item in fields["command"].items("words")] if "command" in fields else []
    arguments = [item.scalar_text() for item in fields["args"].items("words")] if "args" in fields else []
    if not command and not pod.image:
        raise container.error("has neither an image nor a command")
    words = [*command, *arguments]
    pod.command = tuple(_expanded(word, pod.environment, container) for word in words)
    if sum(len(word) for word in pod.command) > _COMMAND_MAX:
        raise container.error(f"has a command of more than {_COMMAND_MAX} characters")
    if pod.command and not command:
        pod.environment["MUSTER_ENTRYPOINT"] = "image"
    if "resources" in fields:
        _read_resources(fields["resources"], pod, notices)


def _read_environment(fields: dict[str, Value], pod: PodRun, notices: Notices) -> None:
    size = 0
    for item in fields["env"].items("variables") if "env" in fields else []:
        entry = item.mapping("a variable")
        if "name" not in entry:
            raise item.error("has a variable without a name")
        name = entry["name"].scalar_text()
        if not name or "=" in name or "\0" in name:
            raise entry["name"].error(f"is no name of a variable: {entry['name'].said()}")
        if "valueFrom" in entry:
            notices.add(
                entry["valueFrom"].line, entry["valueFrom"].key, f"is not honoured: {name[:80]} is not set; say its value"
            )
            continue
        value = entry.get("value")
        text = "" if value is None or value.data is None else value.scalar_text()
        pod.environment[name] = _expanded(text, pod.environment, item)
        size += len(name) + len(pod.environment[name])
        if size > ENVIRONMENT_MAX_BYTES:
            raise item.error(f"is beyond the {ENVIRONMENT_MAX_BYTES} characters that all variables may have")
        pod.environment_lines[name] = item.line
    if "envFrom" in fields:
        value = fields["envFrom"]
        notices.add(value.line, value.key, "is not honoured: there are no config maps and no secrets; say the variables in env")


def _expanded(text: str, environment: dict[str, str], place: Value) -> str:
    """`$(NAME)` for a variable that is set, `$$` for a dollar; other references stay as they are, as in Kubernetes."""
    if sum(len(environment.get(match[1] or "", "")) for match in _REFERENCE.finditer(text)) > _COMMAND_MAX:
        raise place.error(f"is more than {_COMMAND_MAX} characters once its variables are put in")

    def one(match: re.Match[str]) -> str:
        return "$" if match[1] is None else environment.get(match[1], match[0])

    return _REFERENCE.sub(one, text)


def _read_resources(value: Value, pod: PodRun, notices: Notices) -> None:
    """CPU is booked as requested, memory at its limit (what the agent lets the task have), GPUs as asked for."""
    resources = value.mapping("resources")
    if "claims" in resources:
        notices.add(resources["claims"].line, resources["claims"].key, "is not honoured: GPUs are asked for by number")
    requests = resources["requests"].mapping("requests") if "requests" in resources else {}
    limits = resources["limits"].mapping("limits") if "limits" in resources else {}
    if (cpu := requests.get("cpu") or limits.get("cpu")) is not None:
        pod.cpu_milli = kubernetes_cpu(cpu)
    if (memory := limits.get("memory") or requests.get("memory")) is not None:
        pod.memory_mib = kubernetes_memory(memory)
    if (disk := requests.get("ephemeral-storage") or limits.get("ephemeral-storage")) is not None:
        pod.disk_mib = kubernetes_memory(disk)
    for key, item in (requests | limits).items():
        if key in GPU_RESOURCES or key.startswith(SLICES):
            if key in requests and key in limits and kubernetes_count(requests[key]) != kubernetes_count(limits[key]):
                raise limits[key].error(f"must be what is requested, {requests[key].said()}: GPUs cannot be overcommitted")
            count = kubernetes_count(item)
            if pod.gpus and count:
                raise item.error("asks for a second kind of GPU: a task has one")
            if count > GPUS_MAX:
                raise item.error(f"must be at most {GPUS_MAX}, not {item.said()}")
            if count and key.startswith(SLICES):
                pod.profile = slice_profile(item, key)
            pod.gpus = pod.gpus or count
        elif key not in ("cpu", "memory", "ephemeral-storage"):
            notices.add(item.line, item.key, "is not honoured: tasks are given cores, memory, disk and GPUs")


def slice_profile(item: Value, key: str) -> str:
    """The profile that a resource names: `nvidia.com/mig-3g.40gb`, with `.` for the `+` of 1g.10gb+me."""
    name, dot, media = key.removeprefix(SLICES).partition("gb.")
    profile = f"{name}gb+{media}" if dot else name
    if not PROFILE.fullmatch(profile):
        raise item.error("must name a profile of slices, such as nvidia.com/mig-3g.40gb")
    return profile


def _name_volumes(container: Value, fields: dict[str, Value], notices: Notices) -> None:
    """Volumes are not mounted. Memory at /dev/shm is there anyway, so it is not named."""
    shared = {}
    for mount in container.mapping("a container").get("volumeMounts", Value(None, "", "", 0, "")).items("mounts"):
        entry = mount.mapping("a mount")
        path = entry["mountPath"].scalar_text() if "mountPath" in entry else ""
        if path == "/dev/shm" and "name" in entry:
            shared[entry["name"].scalar_text()] = mount
    for volume in fields["volumes"].items("volumes") if "volumes" in fields else []:
        entry = volume.mapping("a volume")
        name = entry["name"].scalar_text() if "name" in entry else ""
        if not (name in shared and "emptyDir" in entry):
            notices.add(volume.line, volume.key, f"{name[:80]!r} is not mounted: a task sees the files of its node")
