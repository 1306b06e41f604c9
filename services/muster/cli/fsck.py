"""`muster fsck LOG`: whether the chain of records is whole. Whether the decisions were right is for audit and verify."""

import typer

from muster.cli.output import FOUND, OK, Cell, Json, LogPlace, instant, print_json, print_table
from muster.cli.records import every
from muster.log.fsck import check_records
from muster.log.reader import open_log

app = typer.Typer(add_completion=False)


@app.command()
def fsck(log: LogPlace, json: Json = False, cell: Cell = None) -> int:
    """Check the numbers, digests and terms of a log.

    Void records (delivered twice, written by a scheduler that was replaced) are counted; they are no damage.

    Exit status: 0 the log is whole; 1 it was cut or altered.

    Example: muster fsck LOG
    """
    with open_log(log, cell) as opened:
        name = opened.cell
    found = check_records(name, every(log, cell))
    if json:
        print_json(found)
        return OK if found.halt is None else FOUND
    print_table(
        ("TERM", "FIRST CYCLE", "LAST CYCLE", "FROM", "HOST", "BUILD"),
        [(term.term, term.first, term.last, instant(term.at_us), term.host, term.build) for term in found.terms],
    )
    voids = ", ".join(f"{count} {reason}" for reason, count in sorted(found.voids.items())) or "none"
    print(f"cell {found.cell}: {found.admitted} cycles in {found.bytes} bytes; void: {voids}")
    if found.refused:
        print("refused inputs: " + ", ".join(f"{count} of {topic}" for topic, count in sorted(found.refused.items())))
    print(f"head: cycle {found.head.number}, term {found.head.term}, digest {found.head.digest}")
    if found.halt is None:
        print("the log is whole")
        return OK
    print(f"the log halts at position {found.halt.position}, after cycle {found.halt.number}: {found.halt.reason}")
    print(f"{found.unread} records from there on were not read")
    return FOUND
