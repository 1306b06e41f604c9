"""`muster queues`: the queues, what each is promised and has, and how much waits in it."""

import typer

from muster.cli.gateway_client import Where
from muster.cli.output import Cell, Json, console, print_json, print_table
from muster.cli.source import At, Log, open_source
from muster.gateway.shown import QueueList, QueueShown

app = typer.Typer(add_completion=False)

AMOUNTS = ("GUARANTEE", "LIMIT", "CHARGED", "HELD", "BEST-EFFORT")
COLUMNS = ("QUEUE", "WEIGHT", "TIER", *AMOUNTS, "SHARE", "USED", "PENDING", "RUNNING")


@app.command()
def queues(at: At = 0, log: Log = None, json: Json = False, gateway: Where = "", cell: Cell = None) -> None:
    """List the queues: each below its parent, with what it is promised, may have, is charged with and holds.

    Exit status: 0; 2 no such cycle; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster queues

    muster queues --json
    """
    with open_source(gateway, log, at, cell) as source:
        found = source.queues(at)
    if json:
        print_json(found)
        return
    print_table(COLUMNS, [queue_cells(row) for row in found.queues])
    for line in scaled(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def queue_cells(row: QueueShown) -> tuple[object, ...]:
    """What a line of the list shows."""
    pending, running = row.instances.get("pending", 0), row.instances.get("running", 0)
    tree = row.tree
    if tree is None:
        return row.queue, "", "", "", "", "", "", "", "", "", pending, running
    return (
        "  " * tree.depth + row.queue + (" (removed)" if tree.closed else ""),
        tree.weight,
        tree.tier,
        amounts(tree.guarantee),
        amounts(tree.limit),
        amounts(tree.charged),
        amounts(tree.held),
        amounts(tree.best_effort),
        f"{tree.share_ppm / 10_000:.2f} %",
        f"{tree.used_ppm / 10_000:.2f} %" if tree.used_ppm else "",
        pending,
        running,
    )


def amounts(shown: dict[str, int]) -> str:
    """Amounts in one cell: GPUs, cores, GiB."""
    parts = []
    for what, amount in shown.items():
        if what.startswith("gpu_milli"):
            parts.append(f"{amount / 1000:g} {what.removeprefix('gpu_milli').removeprefix('/') or 'GPUs'}")
        elif what == "cpu_milli":
            parts.append(f"{amount / 1000:g} cores")
        elif what == "memory_mib":
            parts.append(f"{amount / 1024:g} GiB")
        else:
            parts.append(f"{amount} {what}")
    return ", ".join(parts)


def scaled(found: QueueList) -> list[str]:
    """One sentence for each queue that is promised more than there is for it."""
    rows = [(row.queue, row.tree) for row in found.queues if row.tree is not None]
    return [
        f"{name} is promised {amounts(tree.promised)}; more is promised than is well, so it counts for {amounts(tree.guarantee)}"
        for name, tree in rows
        if tree.promised != tree.guarantee
    ]
