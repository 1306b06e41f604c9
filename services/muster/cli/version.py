"""`muster version`: which build this is."""

import importlib.metadata
import platform

import typer

from muster.cli.output import Json, print_json

app = typer.Typer(add_completion=False)


@app.command()
def version(json: Json = False) -> None:
    """Say which build this is.

    Example: muster version --json
    """
    facts = {
        name: importlib.metadata.version(package)
        for name, package in (("muster", "muster-scheduler"), ("numpy", "numpy"), ("msgspec", "msgspec"))
    }
    facts["python"] = platform.python_version()
    if json:
        print_json(facts)
    else:
        print(", ".join(f"{name} {number}" for name, number in facts.items()))
