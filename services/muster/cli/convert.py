"""`muster convert FILE`: the Muster job that a file would be submitted as. Submits nothing and needs no scheduler."""

import itertools
import os
import platform
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.output import FOUND, UNREADABLE, USAGE, Failure, errors
from muster.cli.who import user_here
from muster.doors import DoorError, Origin, open_file
from muster.doors.muster_file import job_document
from muster.doors.origin import is_name
from muster.doors.writing import as_json, as_yaml
from muster.reading.values import BYTES_MAX

app = typer.Typer(add_completion=False)


@app.command()
def convert(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A job file, a manifest or a script; - for standard input.")],
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML; this is usual.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="What cannot be honoured is an error.")] = False,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Whose job it is; usually you.")] = "",
    queue: Annotated[str, typer.Option("--queue", metavar="NAME", help="For jobs that name none.")] = "default",
) -> None:
    """Print a Slurm script, a Kubernetes manifest or a job file as Muster's own job file.

    What Muster does not do is named on standard error. The variables of your shell, which sbatch would export, are not printed.

    Exit status: 1 with --strict if something cannot be honoured; 2 the file makes no sense; 3 it cannot be read.

    Example: muster convert train.sbatch
    """
    if json and yaml:
        raise Failure("--json and --yaml exclude each other")
    if not is_name(queue):
        raise Failure(f"--queue {queue!r} is no name of a queue")
    numbers = itertools.count()
    origin = Origin(
        new_id=lambda: f"convert-{next(numbers)}",
        user=user or submitter(),
        queue=queue,
        submitted_us=time.time_ns() // 1000,
        directory=os.getcwd(),
        host=platform.node(),
    )
    try:
        opened = open_file(read_bytes(file), "stdin" if file == "-" else file, origin)
    except DoorError as error:
        raise Failure(str(error), USAGE) from None
    for notice in opened.notices:
        errors.print(str(notice), style="yellow", markup=False, highlight=False, soft_wrap=True)
    if strict and opened.notices:
        raise Failure(f"{len(opened.notices)} of what the file asks for cannot be honoured, and --strict was given", FOUND)
    documents = [job_document(job) for job in opened.jobs]
    sys.stdout.write(as_json(documents) if json else as_yaml(documents))


def submitter() -> str:
    """Who runs this, as the name of a user."""
    name = user_here()
    return name if is_name(name) else "user"


def read_bytes(file: str) -> bytes:
    """The file's bytes, or one more than a door takes."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(BYTES_MAX + 1)
        with Path(file).open("rb") as stream:
            return stream.read(BYTES_MAX + 1)
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}", UNREADABLE) from None
