"""`muster token create|list|revoke`: who may do what at a gateway. Tokens stand in its data folder, as hashes."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from muster.cli.output import FOUND, OK, Failure, Json, errors, instant, print_json, print_table
from muster.gateway.tokens import Tokens
from muster.up.places import default_data

app = typer.Typer(add_completion=False, no_args_is_help=True)

Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The data folder of `muster up`.")]


@app.callback()
def token() -> None:
    """Make, list and revoke tokens. A gateway that listens elsewhere than on loopback asks for one with every request."""


@app.command()
def create(
    role: Annotated[Literal["submit", "operate", "read", "agent"], typer.Option("--role", help="What it may do.")],
    name: Annotated[str, typer.Option("--name", help="Whose it is, for people.")] = "",
    user: Annotated[str, typer.Option("--user", help="With submit: as whom, and whose jobs it sees and cancels.")] = "",
    queue: Annotated[list[str] | None, typer.Option("--queue", help="With submit: only to this queue; may be repeated.")] = None,
    node: Annotated[list[str] | None, typer.Option("--node", help="With agent: only for this node; may be repeated.")] = None,
    priority_max: Annotated[int, typer.Option("--priority-max", help="With submit: no higher priority.")] = 100,
    jobs_max: Annotated[int, typer.Option("--jobs-max", help="With submit: so many jobs at a time.", min=1)] = 10_000,
    rate: Annotated[int, typer.Option("--rate", help="Requests a second.", min=1)] = 200,
    data: Data = None,
    json: Json = False,
) -> int:
    """Make a token and print it, once: only its hash is kept.

    Examples: muster token create --role submit --user ada --queue research

    muster token create --role agent --node gpu-17
    """
    if role == "submit" and not user:
        raise Failure("a token with the role submit needs --user: as whom it submits")
    if (queue or user) and role != "submit":
        raise Failure(f"--user and --queue are for the role submit, not for {role}")
    if node and role != "agent":
        raise Failure(f"--node is for the role agent, not for {role}")
    made, secret = Tokens(data or default_data()).create(
        role,
        name=name,
        user=user or None,
        queues=tuple(queue or ()),
        nodes=tuple(node or ()),
        priority_max=priority_max,
        jobs_max=jobs_max,
        rate=rate,
    )
    if json:
        print_json({"id": made.id, "token": secret})
        return OK
    errors.print(f"token {made.id}; keep what follows, it is shown this once", markup=False, highlight=False)
    print(secret)
    return OK


@app.command("list")
def list_tokens(data: Data = None, json: Json = False) -> int:
    """List the tokens. What they are is not kept."""
    tokens = Tokens(data or default_data()).all()
    if json:
        print_json(
            [
                {
                    "id": each.id,
                    "role": each.role,
                    "name": each.name,
                    "user": each.user,
                    "queues": each.queues,
                    "nodes": each.nodes,
                    "created_us": each.created_us,
                }
                for each in tokens
            ]
        )
        return OK
    rows = [
        (each.id, each.role, each.name, each.user or "", ",".join(each.queues or each.nodes), instant(each.created_us))
        for each in tokens
    ]
    print_table(("ID", "ROLE", "NAME", "USER", "ONLY", "CREATED"), rows)
    return OK


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `list` shows it.", show_default=False)],
    data: Data = None,
) -> int:
    """Take a token away. The gateway refuses it within a second.

    Exit status: 0 it is revoked; 1 there is no such token.
    """
    if not Tokens(data or default_data()).revoke(id):
        raise Failure(f"there is no token {id!r}", FOUND)
    return OK
