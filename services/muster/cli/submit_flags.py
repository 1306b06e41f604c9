"""The flags of `muster submit`: one for each field of a job. What they say is read as a job file says it."""

from pathlib import Path
from typing import Annotated, Any

import typer

_TASK = "What each task gets"
_JOB = "The job"
_PLACE = "Where it may run"
_RUN = "What runs"


def _option(name: str, metavar: str, about: str, panel: str) -> Any:
    return typer.Option(f"--{name}", metavar=metavar, help=about, show_default=False, rich_help_panel=panel)


Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE...]",
        help="Muster job files, Kubernetes manifests, Slurm scripts; - is standard input.",
        show_default=False,
    ),
]
Name = Annotated[str | None, _option("name", "NAME", "What the job is called.", _JOB)]
User = Annotated[str | None, _option("user", "NAME", "Whose job it is; else yours.", _JOB)]
Queue = Annotated[str | None, _option("queue", "NAME", "Where it waits.", _JOB)]
Priority = Annotated[int | None, _option("priority", "N", "Higher goes first, in its queue.", _JOB)]
Preemptible = Annotated[
    bool | None,
    typer.Option(
        "--preemptible/--not-preemptible",
        help="Whether a higher job may take its place.",
        show_default=False,
        rich_help_panel=_JOB,
    ),
]
Array = Annotated[int | None, _option("array", "N", "So many elements, each a whole instance.", _JOB)]
Replicas = Annotated[int | None, _option("replicas", "N", "A service: so many replicas are kept.", _JOB)]
Kind = Annotated[str | None, _option("kind", "KIND", "What it is owed: batch, best-effort, headroom.", _JOB)]
Budget = Annotated[int | None, _option("budget", "N", "So many of its tasks may be disrupted at once.", _JOB)]
Elastic = Annotated[
    bool | None,
    typer.Option(
        "--elastic/--rigid",
        help="Whether it grows up to --count while it runs, and gives up what is above --min.",
        show_default=False,
        rich_help_panel=_JOB,
    ),
]
CheckpointEvery = Annotated[str | None, _option("checkpoint-every", "SPAN", "How often it says that it saved its work.", _JOB)]
Deadline = Annotated[
    str | None, _option("deadline", "INSTANT", "By when it should have finished: 2026-12-01T18:00:00Z, or +2h from now.", _JOB)
]
AtOnce = Annotated[int | None, _option("at-once", "N", "So many elements of the array at once.", _JOB)]
After = Annotated[
    list[str] | None,
    _option("after", "[WHEN:]JOB", "Wait until JOB has finished, ended, failed or started (WHEN; else finished); repeat.", _JOB),
]
MaxRetries = Annotated[int | None, _option("max-retries", "N", "How often a failed attempt is tried again.", _JOB)]
TimeLimit = Annotated[str | None, _option("time-limit", "SPAN", "From the start of an attempt: 90, 30m, 12h, 2d.", _JOB)]
Grace = Annotated[str | None, _option("grace", "SPAN", "From SIGTERM to SIGKILL.", _JOB)]
DegradedGrace = Annotated[str | None, _option("degraded-grace", "SPAN", "How long a gang may run below its minimum.", _JOB)]
Success = Annotated[str | None, _option("success", "GROUP", "The group whose tasks decide the outcome.", _JOB)]
Labels = Annotated[list[str] | None, _option("label", "KEY=VALUE", "Whatever helps to find it again; repeat.", _JOB)]
Groups = Annotated[list[str] | None, _option("group", "{name: ..}", "Tasks of one shape, as in a job file; repeat.", _JOB)]
Count = Annotated[int | None, _option("count", "N", "How many tasks: a gang.", _TASK)]
Minimum = Annotated[int | None, _option("min", "N", "With how many of them it may start.", _TASK)]
Cpu = Annotated[str | None, _option("cpu", "CORES", "Cores: 4, 500m.", _TASK)]
Memory = Annotated[str | None, _option("memory", "SIZE", "Memory: 16Gi.", _TASK)]
Disk = Annotated[str | None, _option("disk", "SIZE", "Space on the node's own disk.", _TASK)]
Gpus = Annotated[int | None, _option("gpus", "N", "Whole GPUs.", _TASK)]
GpuShare = Annotated[str | None, _option("gpu-share", "SHARE", "A share of one GPU: 0.25.", _TASK)]
GpuMemory = Annotated[str | None, _option("gpu-memory", "SIZE", "The least memory of each GPU, or so much of one.", _TASK)]
GpuModel = Annotated[list[str] | None, _option("gpu-model", "MODEL", "The model; repeat in order of preference.", _TASK)]
GpuCapability = Annotated[str | None, _option("gpu-capability", "X.Y", "The least compute capability: 8.0.", _TASK)]
Mig = Annotated[str | None, _option("mig", "PROFILE", "Slices (MIG) instead of whole GPUs, --gpus of them: 3g.40gb.", _TASK)]
GpuBandwidth = Annotated[str | None, _option("gpu-bandwidth", "GB/S", "The least memory bandwidth: 2000, 3.35TB/s.", _TASK)]
Selector = Annotated[
    list[str] | None,
    _option(
        "selector", "SELECTOR", "Labels that a node must have: zone=a, 'zone in (a, b)', !spot, generation>3; repeat.", _PLACE
    ),
]
AnyOf = Annotated[list[str] | None, _option("any-of", "SELECTOR", "Repeat: one of these must be met too.", _PLACE)]
Prefers = Annotated[
    list[str] | None, _option("prefer", "[WEIGHT:]SELECTOR", "Nodes that are taken first: 10:disk=ssd; repeat.", _PLACE)
]
Tolerations = Annotated[
    list[str] | None,
    _option(
        "toleration", "KEY=VALUE:EFFECT", "A taint that is put up with; ' for 300' at its end: so many seconds; repeat.", _PLACE
    ),
]
Numa = Annotated[
    str | None, _option("numa", "required|preferred", "Devices, CPU and memory of a task are of one NUMA node.", _PLACE)
]
Ports = Annotated[list[int] | None, _option("port", "PORT", "A port of its node that a task takes for itself; repeat.", _PLACE)]
Datasets = Annotated[list[str] | None, _option("dataset", "NAME", "A data set that should be near; repeat.", _PLACE)]
Within = Annotated[
    list[str] | None,
    _option("within", "LEVEL[:preferred]", "All tasks in one rack, zone, block ...: rack, block:preferred.", _PLACE),
]
Spread = Annotated[
    list[str] | None, _option("spread", "LEVEL:MOST", "At most so many tasks in one: node:1, rack:skew=1; repeat.", _PLACE)
]
Affinity = Annotated[
    list[str] | None,
    _option(
        "affinity", "SELECTOR[@LEVEL]", "Near a job with these labels: app=cache@rack, app=cache@rack:preferred; repeat.", _PLACE
    ),
]
AntiAffinity = Annotated[
    list[str] | None, _option("anti-affinity", "SELECTOR[@LEVEL]", "Away from jobs with these labels, likewise; repeat.", _PLACE)
]
Exclusive = Annotated[
    bool | None,
    typer.Option(
        "--exclusive/--not-exclusive",
        help="Whether nothing of another job may share its nodes.",
        show_default=False,
        rich_help_panel=_PLACE,
    ),
]
Licences = Annotated[
    list[str] | None,
    typer.Option(
        "--licence",
        "--license",
        metavar="NAME[:N]",
        help="So many of a consumable of the cell; repeat.",
        show_default=False,
        rich_help_panel=_PLACE,
    ),
]
Image = Annotated[str | None, _option("image", "IMAGE", "The container image.", _RUN)]
Environment = Annotated[list[str] | None, _option("env", "NAME=VALUE", "A variable; NAME alone takes yours; repeat.", _RUN)]
Directory = Annotated[str | None, _option("directory", "PATH", "Where each task starts.", _RUN)]
Output = Annotated[str | None, _option("output", "PATH", "Where standard output goes, with %j, %x, %t ...", _RUN)]
Error = Annotated[str | None, _option("error", "PATH", "Where standard error goes.", _RUN)]
Images = Annotated[
    Path | None,
    typer.Option(
        "--images", metavar="FILE", help="Commands that stand for images; else images.toml beside FILE.", rich_help_panel=_RUN
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="What cannot be honoured is an error.")]
Waits = Annotated[bool, typer.Option("--wait", help="Wait for the end; return the job's exit status.")]
Follows = Annotated[bool, typer.Option("--follow", help="Print rank 0's output as it comes, and wait.")]
