"""`muster catalogue show|set`: what the cell knows of models of GPU, for jobs that ask for what they can do."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.gateway_client import Gateway, Where
from muster.cli.output import UNREADABLE, USAGE, Failure, Json, print_json, print_table
from muster.events.catalogue import DeviceModel
from muster.reading.catalogue import package_catalogue, read_catalogue, write_capability
from muster.reading.errors import FileError

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command()
def show(json: Json = False, gateway: Where = "") -> None:
    """The models that the cell knows, the least capable first."""
    with Gateway(gateway) as to:
        models = to.catalogue()
    if json:
        print_json({"models": models})
        return
    print_table(
        ("model", "capability", "memory", "bandwidth", "nvlink", "slices"),
        [
            (
                each.model,
                write_capability(each.capability),
                f"{each.memory_mib} MiB",
                f"{each.bandwidth_gbs} GB/s",
                f"{each.nvlink_gbs} GB/s" if each.nvlink_gbs else "-",
                " ".join(each.mig) or "-",
            )
            for each in sorted(models, key=lambda one: (one.capability, one.bandwidth_gbs, one.memory_mib, one.model))
        ],
    )


@app.command(name="set")
def set_(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="Models in TOML; - is standard input.", show_default=False)] = "",
    package: Annotated[bool, typer.Option("--package", help="Those that come with Muster.")] = False,
    gateway: Where = "",
) -> None:
    """From here on the cell knows the models of a file, and no others. Jobs keep the models that they were given.

    Exit status: 0; 2 the file makes no sense; 3 it cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster catalogue set gpus.toml

    muster catalogue set --package
    """
    if bool(file) == package:
        raise Failure("say a FILE, or --package for the catalogue that comes with Muster", USAGE)
    models = package_catalogue() if package else _read(file)
    with Gateway(gateway) as to:
        to.set_catalogue(models)
    print(f"{len(models)} models")


def _read(file: str) -> tuple[DeviceModel, ...]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{file} cannot be read: {error}", UNREADABLE) from None
    try:
        return read_catalogue(text, file)
    except FileError as wrong:
        raise Failure(str(wrong), USAGE) from None
