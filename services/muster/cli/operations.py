"""`muster cordon|uncordon|drain|fence NODE ...`: what an operator says of nodes."""

from typing import Annotated

import typer

from muster.cli.gateway_client import Gateway, Where
from muster.cli.output import Failure, Json, print_json

Nodes = Annotated[list[str], typer.Argument(metavar="NODE...", help="Names of nodes.", show_default=False)]

cordon_app = typer.Typer(add_completion=False)
uncordon_app = typer.Typer(add_completion=False)
drain_app = typer.Typer(add_completion=False)
fence_app = typer.Typer(add_completion=False)


@cordon_app.command()
def cordon(nodes: Nodes, json: Json = False, gateway: Where = "") -> None:
    """Let no new work onto nodes. What runs there goes on.

    Exit status: 0; 2 no such node; 4 no gateway answers; 5 not allowed.

    Example: muster cordon gpu-7
    """
    _operate(nodes, "cordon", json, gateway)


@uncordon_app.command()
def uncordon(nodes: Nodes, json: Json = False, gateway: Where = "") -> None:
    """Let new work onto nodes again. Ends a drain and a quarantine too.

    Exit status: 0; 2 no such node; 4 no gateway answers; 5 not allowed.

    Example: muster uncordon gpu-7
    """
    _operate(nodes, "uncordon", json, gateway)


@drain_app.command()
def drain(nodes: Nodes, json: Json = False, gateway: Where = "") -> None:
    """Let no new work onto nodes, and make what runs there leave with its grace and run elsewhere.

    Exit status: 0; 2 no such node; 4 no gateway answers; 5 not allowed.

    Example: muster drain gpu-7
    """
    _operate(nodes, "drain", json, gateway)


@fence_app.command()
def fence(
    nodes: Nodes,
    yes: Annotated[bool, typer.Option("--yes", help="You have made sure that nothing runs there.")] = False,
    json: Json = False,
    gateway: Where = "",
) -> None:
    """Say that nothing runs on nodes any more: their power is off, or their network is cut. Their work starts elsewhere.

    Exit status: 0; 2 no such node, or --yes was not said; 4 no gateway answers; 5 not allowed.

    Example: muster fence gpu-7 --yes
    """
    if not yes:
        raise Failure("a fence lets the node's work start elsewhere at once: make sure that nothing runs there, and say --yes")
    _operate(nodes, "fence", json, gateway)


def _operate(nodes: list[str], verb: str, json: bool, gateway: str) -> None:
    with Gateway(gateway) as to:
        told = [{"node": node, "cycle": to.operate(node, verb).cycle} for node in nodes]
    if json:
        print_json(told)
