"""`muster apply FILE.toml`: the tree of queues as a file has it; shows the difference before anything is sent."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from muster.cli.gateway_client import Gateway, Where
from muster.cli.output import UNREADABLE, USAGE, Failure, print_json
from muster.doors.queue_file import read_queues
from muster.events.queues import QueueSet
from muster.reading.errors import FileError

app = typer.Typer(add_completion=False)

TAKEN_S: Final = 30.0
"""So long a queue may take until the gateway has read of it: then those below it can be set."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One queue that is to be set or removed, and what changes by that."""

    queue: str
    sign: str
    """`+` a new queue, `~` another one, `-` one that goes."""
    changes: dict[str, tuple[Any, Any]]
    """By field, what it is and what it is to be."""
    event: QueueSet | None


@app.command()
def apply(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Queues in TOML; - is standard input.", show_default=False)],
    prune: Annotated[bool, typer.Option("--prune", help="Remove queues that the file does not name.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference, and send nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the difference as one JSON document.")] = False,
    gateway: Where = "",
) -> None:
    """Make the queues what a file says they are. Nothing that runs ends by that.

    Exit status: 0; 1 you said no; 2 the file makes no sense, or the queues cannot be so; 3 it cannot be read; 4 no gateway
    answers; 5 not allowed.

    Examples: muster apply queues.toml

    muster apply queues.toml --dry-run
    """
    wanted = _read(file)
    with Gateway(gateway) as to:
        present = said(to)
        steps = difference(present, wanted, prune)
        if json:
            print_json([{"queue": step.queue, "sign": step.sign, "changes": step.changes} for step in steps])
        else:
            for step in steps:
                print(line(step))
        if not steps or dry_run:
            if not json and not steps:
                print("the queues are as the file says")
            return
        if not yes:
            if file == "-" or not sys.stdin.isatty():
                raise Failure("nobody can be asked here: say --yes to send it, or --dry-run to see it", USAGE)
            if not typer.confirm("Send this?"):
                raise typer.Exit(1)
        for step in steps:
            _send(to, step)


def said(gateway: Gateway) -> dict[str, QueueSet | None]:
    """The queues that there are, as they were set; None for one that nobody set."""
    found: dict[str, QueueSet | None] = {}
    for row in gateway.queues().queues:
        if row.tree is not None and not row.tree.closed:
            found[row.queue] = None if row.tree.said is None else msgspec.convert(row.tree.said, QueueSet)
    return found


def difference(present: dict[str, QueueSet | None], wanted: list[QueueSet], prune: bool) -> list[Step]:
    """What has to be said, in an order in which it can be: parents first, and those that go from the leaves up."""
    steps = []
    for event in wanted:
        now = present.get(event.queue)
        before = now or QueueSet(queue=event.queue)
        changes = {
            field: (getattr(before, field), getattr(event, field))
            for field in QueueSet.__struct_fields__
            if field not in ("queue", "by") and getattr(before, field) != getattr(event, field)
        }
        if now is None or changes:
            steps.append(Step(queue=event.queue, sign="+" if now is None else "~", changes=changes, event=event))
    if prune:
        named = {event.queue for event in wanted} | {"default"}
        going = {name: now for name, now in present.items() if name not in named and now is not None}
        while going:
            parents = {now.parent for now in going.values()}
            leaves = sorted([name for name in going if name not in parents]) or sorted(going)
            steps += [Step(queue=name, sign="-", changes={}, event=None) for name in leaves]
            going = {name: now for name, now in going.items() if name not in leaves}
    return steps


def line(step: Step) -> str:
    """One line for a person."""
    parts = []
    for field, (before, after) in step.changes.items():
        said = _said(after) if step.sign == "+" else f"{_said(before)} -> {_said(after)}"
        parts.append(f"{field} {said}")
    return f"{step.sign} {step.queue}" + (f": {', '.join(parts)}" if parts else "")


def _said(value: Any) -> str:
    plain = msgspec.to_builtins(value)
    if isinstance(plain, dict):
        plain = {key: item for key, item in plain.items() if item not in (None, {})}
    return msgspec.json.encode(plain).decode() if plain not in (None, "", {}, []) else "none"


def _send(to: Gateway, step: Step) -> None:
    """Say it, and wait until the gateway has read of it."""
    if step.event is None:
        to.remove_queue(step.queue)
        return
    to.set_queue(step.event)
    end = time.monotonic() + TAKEN_S
    wanted = msgspec.structs.replace(step.event, by="")
    while time.monotonic() < end:
        now = said(to).get(step.queue)
        if now is not None and msgspec.structs.replace(now, by="") == wanted:
            return
        time.sleep(0.1)
    raise Failure(f"the queue {step.queue} was sent and is not there after {TAKEN_S:.0f} s: see `muster log --type InputRefused`")


def _read(file: str) -> list[QueueSet]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{file} cannot be read: {error}", UNREADABLE) from None
    try:
        return read_queues(text, file)
    except FileError as wrong:
        raise Failure(str(wrong), USAGE) from None
