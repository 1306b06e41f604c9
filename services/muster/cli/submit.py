"""`muster submit FILE ... | -- COMMAND`: hands jobs in, and waits for them where asked."""

import json as json_text
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import typer
import yaml
from typer.core import TyperCommand

from muster.cli import submit_flags as flags
from muster.cli.gateway_client import Gateway, Submission, Where
from muster.cli.output import UNREADABLE, USAGE, Failure, Json, errors, print_json
from muster.cli.waiting import follow, recorded, wait
from muster.cli.who import user_here
from muster.client.ids import new_id
from muster.doors import DoorError, Notice, Origin, open_file
from muster.doors.images import Images, NoCommand, read_images
from muster.doors.muster_file import ALL_GROUP_KEYS, job_document, read_job_file
from muster.doors.origin import slug
from muster.doors.quantities import read_span, write_instant
from muster.doors.terms import (
    BadTerm,
    read_licence,
    read_preference,
    read_selector_text,
    read_spread,
    read_term,
    read_within,
)
from muster.events.jobs import JobRun, JobSubmitted
from muster.reading.values import Value, read_documents

FILE_MAX_BYTES = 64 * 1024 * 1024
COMMAND_LINE = "command line"
PATIENCE_S = 60.0
SECRET = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY")
"""A variable with one of these in its name is not handed in unless `--export` names it: a log keeps what it is given."""
LEFT_OUT = ("_", "SHLVL", "PWD", "OLDPWD", "TERM", "DISPLAY", "COLUMNS", "LINES", "LS_COLORS", "PS1")
LEFT_OUT_BEGINNINGS = ("SLURM_", "MUSTER_", "SSH_", "DBUS_", "XDG_", "BASH_FUNC_")
VALUE_MAX = 16_384


class Command(TyperCommand):
    """Keeps apart what stands behind `--`: that is a command, and what stands before are files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the command off."""
        if "--" in args:
            place = args.index("--")
            ctx.meta["muster.command"] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)


app = typer.Typer(add_completion=False)


PLAIN = {
    key: key
    for key in (
        "name",
        "user",
        "queue",
        "priority",
        "preemptible",
        "kind",
        "budget",
        "elastic",
        "checkpoint_every",
        "array",
        "at_once",
        "max_retries",
        "time_limit",
        "grace",
        "degraded_grace",
        "success",
        "count",
        "cpu",
        "memory",
        "disk",
        "gpus",
        "gpu_share",
        "gpu_memory",
        "gpu_capability",
        "gpu_bandwidth",
        "mig",
        "numa",
        "ports",
        "datasets",
        "exclusive",
        "image",
        "directory",
        "output",
        "error",
    )
} | {"min": "minimum"}
"""Fields of a job file by the flags that say them as they are."""
EACH_GROUP = tuple(key for key in ALL_GROUP_KEYS if key not in ("name", "count", "min"))


@app.command(cls=Command)
def submit(
    ctx: typer.Context,
    files: flags.Files = None,
    name: flags.Name = None,
    user: flags.User = None,
    queue: flags.Queue = None,
    priority: flags.Priority = None,
    preemptible: flags.Preemptible = None,
    kind: flags.Kind = None,
    budget: flags.Budget = None,
    elastic: flags.Elastic = None,
    checkpoint_every: flags.CheckpointEvery = None,
    deadline: flags.Deadline = None,
    array: flags.Array = None,
    at_once: flags.AtOnce = None,
    replicas: flags.Replicas = None,
    after: flags.After = None,
    max_retries: flags.MaxRetries = None,
    time_limit: flags.TimeLimit = None,
    grace: flags.Grace = None,
    degraded_grace: flags.DegradedGrace = None,
    success: flags.Success = None,
    labels: flags.Labels = None,
    groups: flags.Groups = None,
    count: flags.Count = None,
    minimum: flags.Minimum = None,
    cpu: flags.Cpu = None,
    memory: flags.Memory = None,
    disk: flags.Disk = None,
    gpus: flags.Gpus = None,
    gpu_share: flags.GpuShare = None,
    gpu_memory: flags.GpuMemory = None,
    gpu_model: flags.GpuModel = None,
    gpu_capability: flags.GpuCapability = None,
    gpu_bandwidth: flags.GpuBandwidth = None,
    mig: flags.Mig = None,
    selector: flags.Selector = None,
    any_of: flags.AnyOf = None,
    prefers: flags.Prefers = None,
    tolerations: flags.Tolerations = None,
    numa: flags.Numa = None,
    ports: flags.Ports = None,
    datasets: flags.Datasets = None,
    within: flags.Within = None,
    spread: flags.Spread = None,
    affinity: flags.Affinity = None,
    anti_affinity: flags.AntiAffinity = None,
    exclusive: flags.Exclusive = None,
    licences: flags.Licences = None,
    image: flags.Image = None,
    environment: flags.Environment = None,
    directory: flags.Directory = None,
    output: flags.Output = None,
    error: flags.Error = None,
    images: flags.Images = None,
    strict: flags.Strict = False,
    waits: flags.Waits = False,
    follows: flags.Follows = False,
    json: Json = False,
    gateway: Where = "",
) -> int:
    """Submit jobs and print their ids.

    A flag that names a field goes before what a file says of it.

    Exit status: 0 submitted; 2 a job makes no sense; 3 a file cannot be read; 4 no gateway answers; 5 not allowed. With
    --wait and --follow: 0 all finished, else the worst job's own exit status (128 + n for signal n; 1 where it has none).

    Examples: muster submit train.yaml pod.yaml script.sbatch

    muster submit --name train --count 4 --gpus 2 --follow -- python train.py

    kubectl create --dry-run=client -o yaml -f job.yaml | muster submit -
    """
    said = _said(ctx.params, ctx.meta.get("muster.command", []))
    try:
        jobs, notices = read_jobs(files or [], said, images)
    except DoorError as wrong:
        raise Failure(str(wrong), USAGE) from None
    for notice in notices:
        errors.print(f"muster: {notice}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if strict and notices:
        raise Failure(f"nothing is submitted: {len(notices)} things cannot be honoured, and --strict was said")
    with Gateway(gateway, patience_s=PATIENCE_S) as to:
        taken = hand_in(to, jobs, notices, json)
        if follows or waits:
            recorded(to, taken)
        if follows and len(taken) == 1:
            return follow(to, taken[0].job)
        if waits or follows:
            return wait(to, [submission.job for submission in taken])
    return 0


def _said(flags: Mapping[str, Any], command: list[str]) -> dict[str, Any]:
    """The fields that flags set, as a job file has them; those that nobody gave are left out."""
    said = {key: flags[flag] for key, flag in PLAIN.items()}
    said |= {
        "deadline": _deadline(flags["deadline"]),
        "labels": _pairs(flags["labels"], "--label"),
        "groups": _flow(flags["groups"], "--group"),
        "after": list(flags["after"] or ()),
        "service": {"replicas": flags["replicas"]} if flags["replicas"] is not None else None,
        "gpu_model": list(flags["gpu_model"] or ()),
        "tolerations": list(flags["tolerations"] or ()),
        **_places(flags),
        "environment": _variables(flags["environment"]),
        "command": command,
    }
    return {key: value for key, value in said.items() if value not in (None, [], {})}


def _deadline(text: str | None) -> str | None:
    """An instant as it is; `+SPAN` counts from now."""
    if text is None or not text.startswith("+"):
        return text
    span = Value(text[1:], text[1:], COMMAND_LINE, 1, "--deadline")
    return write_instant(time.time_ns() // 1000 + read_span(span))


def hand_in(gateway: Gateway, jobs: list[JobSubmitted], notices: tuple[Notice, ...], json: bool) -> list[Submission]:
    """Submit, and print the ids as they are taken.

    Raises:
        Failure: one is refused; what stands before it was taken.
    """
    taken: list[Submission] = []
    for job, submission in zip(jobs, gateway.submit(jobs), strict=True):
        if submission.state == "refused":
            raise Failure(f"{job.name} ({job.job}) is refused: {submission.reason}")
        taken.append(submission)
        if not json:
            print(submission.job, flush=True)
    if json:
        rows = [{"job": one.job, "name": job.name, "cycle": one.cycle} for one, job in zip(taken, jobs, strict=True)]
        print_json({"jobs": rows, "notices": [str(notice) for notice in notices]})
        sys.stdout.flush()
    return taken


def read_jobs(files: list[str], said: Mapping[str, Any], images: Path | None) -> tuple[list[JobSubmitted], tuple[Notice, ...]]:
    """The jobs of these files, with the fields that were said; without files, the one job that the fields are.

    Raises:
        DoorError: something makes no sense.
        Failure: a file cannot be read, or there is nothing to submit.
    """
    origin = here()
    jobs: list[JobSubmitted] = []
    notices: list[Notice] = []
    if not files:
        if "command" not in said and "image" not in said:
            raise Failure(
                "nothing to submit: give a FILE, or a command behind `--` as in `muster submit --gpus 1 -- python train.py`"
            )
        first = Path(said["command"][0]).name if "command" in said else said["image"].rpartition("/")[2].partition(":")[0]
        document = {"name": slug(first) or "job", "directory": origin.directory, **said}
        jobs.extend(_read(document, COMMAND_LINE, origin))
    for file in files:
        opened = open_file(_bytes(file), file, origin)
        notices.extend(opened.notices)
        jobs.extend(_changed(job, said, file, origin) if said else job for job in opened.jobs)
    known = {path: commands for path in _image_files(files, images) if (commands := _images(path, images)) is not None}
    return [completed(job, list(known.values())) for job in jobs], tuple(notices)


def here() -> Origin:
    """Who submits, where, and with which variables."""
    return Origin(
        new_id=new_id,
        user=user_here() or "nobody",
        submitted_us=time.time_ns() // 1000,
        directory=os.getcwd(),
        host=socket.gethostname(),
        environment=Exported(os.environ),
    )


class Exported(Mapping[str, str]):
    """The variables that a Slurm script is given: all but those of this session, of another job, and secrets.

    What `--export` names is found even so.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._all = {name: value for name, value in environment.items() if value.isprintable() and len(value) <= VALUE_MAX}

    def __getitem__(self, name: str) -> str:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._all if _is_exported(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._all


def _is_exported(name: str) -> bool:
    upper = name.upper()
    return name not in LEFT_OUT and not name.startswith(LEFT_OUT_BEGINNINGS) and not any(word in upper for word in SECRET)


def _bytes(file: str) -> bytes:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(FILE_MAX_BYTES + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        hint = "; a command stands behind `--`" if isinstance(error, FileNotFoundError) else ""
        raise Failure(f"{file} cannot be read: {error.strerror}{hint}", UNREADABLE) from None
    if len(data) > FILE_MAX_BYTES:
        raise Failure(f"{file} is larger than {FILE_MAX_BYTES // 1024**2} MiB", UNREADABLE)
    return data


def _read(document: dict[str, Any], file: str, origin: Origin) -> list[JobSubmitted]:
    return read_job_file(read_documents(json_text.dumps(document), file), origin)


def _changed(job: JobSubmitted, said: Mapping[str, Any], file: str, origin: Origin) -> JobSubmitted:
    """The job with these fields in place of its own; variables and labels are added. Each group gets what is said of tasks."""
    document = job_document(job)
    for key, value in said.items():
        parts = document["groups"] if "groups" in document and "groups" not in said and key in EACH_GROUP else [document]
        for part in parts:
            part[key] = {**old, **value} if isinstance(value, dict) and isinstance(old := part.get(key, {}), dict) else value
    (changed,) = _read(document, f"{file}, with the flags", origin)
    return msgspec.structs.replace(changed, job=job.job)


def _image_files(files: list[str], images: Path | None) -> list[Path]:
    if images is not None:
        return [images]
    folders = [Path(file).parent for file in files if file != "-"] + [Path()]
    return list(dict.fromkeys(folder / "images.toml" for folder in folders))


def _images(path: Path, named: Path | None) -> Images | None:
    try:
        return read_images(path.read_bytes(), str(path))
    except FileNotFoundError:
        if named is None:
            return None
        raise Failure(f"{path} cannot be read: no such file", UNREADABLE) from None
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", UNREADABLE) from None


def completed(job: JobSubmitted, known: list[Images] | None = None) -> JobSubmitted:
    """The job as it is submitted: with the command that stands for its image.

    An image without a command stays: a node with a container runtime can run it.
    """
    run = job.run
    for images in known or ():
        if run.image and images.find(run.image) is not None:
            run = _with_command(job, run, images)
        for name in run.groups or ():
            own = run.of(name)
            if run.groups and run.groups[name].image and images.find(own.image) is not None:
                own = _with_command(job, own, images)
                group = msgspec.structs.replace(run.groups[name], command=own.command, image="", directory=own.directory)
                run = msgspec.structs.replace(run, groups={**run.groups, name: group})
    return job if run is job.run else msgspec.structs.replace(job, run=run)


def _with_command(job: JobSubmitted, run: JobRun, images: Images) -> JobRun:
    try:
        return msgspec.structs.replace(run, command=images.command(run), image="", directory=run.directory or os.getcwd())
    except NoCommand as error:
        raise Failure(f"{job.name}: {error}") from None


def _pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Failure(f"{option} must be KEY=VALUE, not {text!r}")
        found[key] = value
    return found


def _variables(texts: list[str] | None) -> dict[str, str]:
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise Failure(f"--env {name}: it is not set here; say {name}=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def _flow(texts: list[str] | None, option: str) -> list[Any]:
    found = []
    for text in texts or ():
        try:
            found.append(yaml.safe_load(text))
        except (yaml.YAMLError, ValueError):
            raise Failure(f"{option} must be a mapping such as {{name: worker, count: 4}}, not {text!r}") from None
    return found


def _places(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The constraints that flags set."""
    found: dict[str, Any] = {"selector": _selector(flags["selector"])}
    readers: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
        ("any_of", "any-of", read_selector_text),
        ("prefers", "prefer", read_preference),
        ("within", "within", read_within),
        ("spread", "spread", read_spread),
        ("affinity", "affinity", read_term),
        ("anti_affinity", "anti-affinity", read_term),
        ("licences", "licence", read_licence),
    )
    for key, option, reader in readers:
        try:
            read = [reader(text) for text in flags[key] or ()]
        except BadTerm as error:
            raise Failure(f"--{option} {error}", USAGE) from None
        found[key] = dict(read) if key in ("within", "spread", "licences") else read
    return found


def _selector(texts: list[str] | None) -> Any:
    """A mapping where each requirement is one label with its value, which goes beside a file's own; else a list."""
    found = _flow([text for text in texts or () if text.lstrip().startswith("{")], "--selector")
    for text in texts or ():
        if not text.lstrip().startswith("{"):
            try:
                found.extend(read_selector_text(text))
            except BadTerm as error:
                raise Failure(f"--selector {error}", USAGE) from None
    plain = all(isinstance(one, dict) and one.get("op") == "In" and len(one.get("values", ())) == 1 for one in found)
    return (
        {one["key"]: one["values"][0] for one in found} if plain and len({one["key"] for one in found}) == len(found) else found
    )
