"""`muster audit LOG`: decides every cycle of a log again and finds the first that differs. Whether it was legal is for verify."""

from functools import partial

import msgspec
import typer

from muster.cli.output import FOUND, OK, Cell, Json, LogPlace, print_json
from muster.cli.records import admitted
from muster.events.codec import encode_entry
from muster.replay.audit import audit as audit_records

app = typer.Typer(add_completion=False)


@app.command()
def audit(log: LogPlace, json: Json = False, cell: Cell = None) -> int:
    """Decide every cycle again from its recorded inputs, and compare.

    The first cycle that differs is printed with both sides. The state before it: muster at LOG N-1 jobs.

    Exit status: 0 all agree; 1 one differs.

    Example: muster audit LOG
    """
    audited = audit_records(partial(admitted, log, cell))
    difference = audited.difference
    if json:
        found = None
        if difference is not None:
            sides = {
                side: [msgspec.Raw(encode_entry(event)) for event in getattr(difference, side)]
                for side in ("recorded", "decided")
            }
            found = {
                "number": difference.number,
                "at_us": difference.at_us,
                "what": difference.what,
                "index": difference.index,
                **sides,
            }
        counts = {name: getattr(audited, name) for name in ("cycles", "terms", "inputs", "decisions")}
        print_json({**counts, "difference": found})
    elif difference is not None:
        print("\n".join(difference.lines()))
    else:
        print(audited)
    return OK if difference is None else FOUND
