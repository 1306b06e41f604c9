"""`muster nodes`: the nodes, and what is free on each; with a name, one node with its devices and tasks."""

from typing import Annotated

import typer

from muster.cli.gateway_client import Where
from muster.cli.output import Cell, Json, instant, print_json, print_table
from muster.cli.source import At, Log, open_source
from muster.gateway.shown import NodeRow, NodeShown

app = typer.Typer(add_completion=False)

COLUMNS = ("NODE", "STATE", "CPU FREE", "MEMORY FREE", "GPUS FREE", "MODEL", "TASKS", "UNHEALTHY")


@app.command()
def nodes(
    name: Annotated[
        str, typer.Argument(metavar="[NODE]", help="Show this one, with all it has and holds.", show_default=False)
    ] = "",
    at: At = 0,
    log: Log = None,
    json: Json = False,
    gateway: Where = "",
    cell: Cell = None,
) -> None:
    """List the nodes, or show one.

    Exit status: 0; 2 no such node or cycle; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster nodes

    muster nodes gpu-7 --json
    """
    with open_source(gateway, log, at, cell) as source:
        if name:
            shown = source.node(name, at)
            print_json(shown) if json else _print(shown)
            return
        found = source.nodes(at)
    if json:
        print_json(found)
        return
    print_table(COLUMNS, [node_cells(row) for row in found.nodes])


def node_cells(row: NodeRow) -> tuple[object, ...]:
    """What a line of the list shows. GPUs of which something is taken count for what is left of them."""
    free = max(0, 1000 * row.gpus - sum(row.gpus_milli[: row.gpus]))
    gpus = f"{free // 1000}.{free % 1000:03d}".rstrip("0").rstrip(".")
    return (
        row.node,
        row.state,
        f"{row.cpu_free / 1000:g} of {row.cpu_milli / 1000:g}",
        f"{_gib(row.memory_free)} of {_gib(row.memory_mib)} GiB",
        f"{gpus} of {row.gpus}" if row.gpus else "",
        row.model,
        row.tasks,
        ",".join(map(str, row.unhealthy)),
    )


def _print(shown: NodeShown) -> None:
    print_table(COLUMNS, [node_cells(shown.node)])
    print(f"uid {shown.uid}, boot {shown.boot}, heard {instant(shown.heard_us)}")
    if shown.quarantined_until_us:
        print(f"quarantined until {instant(shown.quarantined_until_us)}")
    if shown.spec.labels:
        print("labels " + ", ".join(f"{key}={value}" for key, value in sorted(shown.spec.labels.items())))
    if shown.devices:
        print_table(
            ("DEVICE", "MODEL", "MEMORY", "HEALTH", "UUID"),
            [
                (each.index, each.model, f"{each.memory_mib} MiB", _health(each.health, each.present, each.foreign), each.uuid)
                for each in shown.devices
            ],
        )
    if shown.held:
        print_table(
            ("JOB", "NAME", "USER", "INSTANCE", "ATTEMPT", "RANK", "PHASE", "DEVICES"),
            [
                (
                    each.job,
                    each.name,
                    each.user,
                    each.instance,
                    each.attempt,
                    each.rank,
                    each.phase,
                    ",".join(map(str, each.devices)),
                )
                for each in shown.held
            ],
        )


def _health(health: str, present: bool, foreign: bool) -> str:
    return " ".join([health if present else "absent", *(["used by others"] if foreign else [])])


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}".removesuffix(".0")
