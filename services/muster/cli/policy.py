"""`muster policy list|show|use`: the policies that are shipped, and which of them decides."""

from typing import Annotated

import msgspec
import typer

from muster.cli.gateway_client import Gateway, Where
from muster.cli.output import USAGE, Failure, Json, console, print_json, print_table
from muster.scheduler.shipped import STEERING, Shipped, named, shipped

app = typer.Typer(add_completion=False, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A shipped policy: NAME, or NAME/VERSION.", show_default=False)]


@app.callback()
def policy() -> None:
    """See which policies are shipped, and switch to one. What steers a decision stands in the log before it."""


@app.command("list")
def list_policies(json: Json = False) -> None:
    """List the policies that are shipped.

    Example: muster policy list
    """
    if json:
        print_json([{"name": each.name, "version": each.version, "about": each.about} for each in shipped()])
        return
    print_table(("NAME", "VERSION", "WHAT IT DOES"), [(each.name, each.version, each.about) for each in shipped()])


@app.command()
def show(name: Name, json: Json = False) -> None:
    """Show what a policy sets, and what its numbers were tuned on.

    Exit status: 0; 2 no such policy.

    Examples: muster policy show default

    muster policy show default/1 --json
    """
    found = _named(name)
    sets = {key: value for key, value in msgspec.to_builtins(found.policy).items() if key in STEERING}
    if json:
        print_json({"about": found.about, "tuned_on": found.tuned_on, **sets})
        return
    console.print(f"{found.about}\nTuned on {found.tuned_on}.", markup=False, highlight=False, soft_wrap=True)
    print_table(("FIELD", "VALUE"), [(key, msgspec.json.encode(value).decode()) for key, value in sets.items()])


@app.command()
def use(name: Name, json: Json = False, gateway: Where = "") -> None:
    """Decide by this policy from the next cycle on. The cell's queues, spans and bounds stay; nothing that runs ends by it.

    Exit status: 0; 2 no such policy; 4 no gateway answers; 5 not allowed.

    Example: muster policy use backfill-easy
    """
    found = _named(name)
    with Gateway(gateway) as to:
        before = to.cell().policy
        cycle = to.set_policy(found.onto(before)).cycle
    if json:
        print_json({"policy": found.name, "version": found.version, "before": f"{before.name}/{before.version}", "cycle": cycle})
        return
    said = f"{found.name}/{found.version} decides from now on; before it was {before.name}/{before.version}"
    console.print(said, markup=False, highlight=False)


def _named(name: str) -> Shipped:
    found = named(name)
    if found is None:
        names = ", ".join(dict.fromkeys([each.name for each in shipped()]))
        raise Failure(f"no policy {name[:64]!r} is shipped; there are {names}", USAGE)
    return found
