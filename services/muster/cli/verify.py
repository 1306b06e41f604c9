"""`muster verify LOG`: the second judge over a log. What it checks stands in `muster.verify.judge`."""

import typer

from muster.cli.output import FOUND, OK, Cell, Json, LogPlace, print_json
from muster.cli.records import admitted
from muster.events.codec import open_envelope
from muster.verify import Judge

app = typer.Typer(add_completion=False)

SHOWN = 20


@app.command()
def verify(log: LogPlace, json: Json = False, cell: Cell = None) -> int:
    """Judge whether every recorded decision was legal, with rules that share no code with the engine.

    Exit status: 0 all were legal; 1 one was not.

    Example: muster verify LOG
    """
    judge = Judge()
    for envelope, _ in admitted(log, cell):
        judge.judge(open_envelope(envelope))
    summary, violations = judge.summary, judge.violations
    if json:
        print_json({"summary": summary, "violations": violations})
        return FOUND if violations else OK
    for violation in violations[:SHOWN]:
        print(f"cycle {violation.cycle}, decision {violation.index}: {violation.rule}: {violation.text}")
    if len(violations) > SHOWN:
        print(f"and {len(violations) - SHOWN} more; --json gives all")
    counts = [f"{count} {kind}" for kind, count in sorted(summary.decisions.items())]
    print(f"{summary.decisions.total()} decisions of {summary.cycles} cycles judged: {', '.join(counts)}")
    print(f"{len(violations)} were not legal" if violations else "every decision was legal")
    return FOUND if violations else OK
