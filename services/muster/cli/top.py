"""`muster top`: nodes and jobs, live."""

import time
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from muster.cli.gateway_client import Gateway, Unavailable, Where
from muster.cli.jobs import job_cells
from muster.cli.nodes import node_cells
from muster.cli.output import console, instant
from muster.gateway.shown import CellShown, JobList, NodeList, NodeRow

app = typer.Typer(add_completion=False)

JOBS_SHOWN = 20
NODES_SHOWN = 20
BUSY = ("running", "starting", "stopping", "pending")
BLOCKS = " ▁▂▃▄▅▆▇█"


@app.command()
def top(
    interval_s: Annotated[float, typer.Option("--interval", metavar="S", help="Seconds between two looks.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and print.")] = False,
    gateway: Where = "",
) -> None:
    """Show nodes, GPUs and jobs as they change, until interrupted.

    Each block is a GPU, as high as what is taken of it; ! is one that is not healthy.

    Exit status: 0; 4 no gateway answers; 5 not allowed.

    Example: muster top
    """
    with Gateway(gateway) as source:
        if once or not console.is_terminal:
            console.print(_look(source))
            return
        with Live(_look(source), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                try:
                    shown = _look(source)
                except Unavailable as away:
                    shown = Group(Text(str(away), style="red"))
                live.update(shown, refresh=True)


def _look(source: Gateway) -> Group:
    return picture(source.cell(), source.nodes(), source.jobs())


def picture(cell: CellShown, nodes: NodeList, jobs: JobList) -> Group:
    """All that is shown at one time."""
    states: dict[str, int] = {}
    for row in jobs.jobs:
        states[row.state] = states.get(row.state, 0) + 1
    head = Text(f"cell {cell.cell}  cycle {cell.cycle}  term {cell.term}  {instant(cell.at_us)}", style="bold")
    counts = Text(", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no jobs")
    upper = Table("node", "state", "GPUs", "cpu free", "memory free", "tasks", box=None, header_style="bold")
    for node in nodes.nodes[:NODES_SHOWN]:
        cells = node_cells(node)
        upper.add_row(
            node.node,
            Text(node.state, style="green" if node.state == "heard" else "yellow"),
            bar(node),
            *map(str, (cells[2], cells[3], cells[6])),
        )
    lower = Table(
        "job", "name", "user", "queue", "priority", "state", "instances", "GPUs", "nodes", box=None, header_style="bold"
    )
    busy = sorted([row for row in jobs.jobs if row.state in BUSY], key=lambda row: BUSY.index(row.state))
    for row in busy[:JOBS_SHOWN]:
        cells = job_cells(row)
        lower.add_row(*(Text(str(cells[index])) for index in (0, 1, 2, 3, 4, 5, 6, 7, 9)))
    more = [
        Text(f"and {left} more {what}")
        for left, what in ((len(nodes.nodes) - NODES_SHOWN, "nodes"), (len(busy) - JOBS_SHOWN, "jobs"))
        if left > 0
    ]
    return Group(head, counts, Text(), upper, Text(), lower, *more)


def bar(node: NodeRow) -> Text:
    """One block a GPU."""
    text = Text()
    for index, milli in enumerate(node.gpus_milli):
        if index in node.unhealthy:
            text.append("!", style="red")
        else:
            text.append(BLOCKS[-(-min(milli, 1000) * (len(BLOCKS) - 1) // 1000)] if milli else "·", style="cyan")
    return text
