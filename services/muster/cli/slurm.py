"""`muster slurm install DIR`: puts srun, sbatch, squeue, scancel, sinfo, scontrol and module into a folder."""

import os
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.output import UNREADABLE, Failure, Json, errors, print_json
from muster.slurm.install import install as write

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def slurm() -> None:
    """Slurm's programs, for people and scripts that call them."""


@app.command()
def install(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the programs go; it is made.", show_default=False)],
    json: Json = False,
) -> None:
    """Write the programs into a folder of the PATH. They are small wrappers around this build of Muster.

    Inside of a job they are on the PATH anyway. A program of the same name that is there is replaced.

    Exit status: 0; 3 the folder cannot be written to.

    Example: muster slurm install ~/.local/bin
    """
    try:
        written = write(folder)
    except OSError as error:
        raise Failure(f"cannot write to {folder}: {error.strerror}", UNREADABLE) from None
    if json:
        print_json([str(path) for path in written])
        return
    for path in written:
        print(path)
    if str(folder.resolve()) not in [str(Path(part).resolve()) for part in os.get_exec_path()]:
        errors.print(f"muster: {folder} is not on your PATH", markup=False, highlight=False, soft_wrap=True)
