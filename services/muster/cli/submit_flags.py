"""The flags of `muster submit`: one for each field of a job. What they say is read as a job file says it."""

from pathlib import Path
from typing import Annotated, Any

import typer

_TASK = "What each task gets"
_JOB = "The job"
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
Kind = Annotated[str | None, _option("kind", "KIND", "What it is owed: batch, best-effort, headroom.", _JOB)]
Budget = Annotated[int | None, _option("budget", "N", "So many of its tasks may be disrupted at once.", _JOB)]
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
Selector = Annotated[
    list[str] | None, _option("selector", "KEY=VALUE", "A label that a node must have; or {key: .., op: ..}; repeat.", _TASK)
]
Tolerations = Annotated[
    list[str] | None, _option("toleration", "KEY=VALUE:EFFECT", "A taint that is put up with; repeat.", _TASK)
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
