"""`muster log LOG`: the entries of a log, one a line."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from muster.cli.entries import line
from muster.cli.output import Cell, Failure, Json, LogPlace, instant
from muster.events.codec import decode_entry
from muster.events.record import Envelope
from muster.events.registry import DECISIONS, KINDS
from muster.log.admit import Admitted, Halt, admit, genesis
from muster.log.errors import LogHalted
from muster.log.sqlite import SqliteFile

app = typer.Typer(add_completion=False)

FOLLOW_S = 0.2


@app.command()
def log(
    log: LogPlace,
    start: Annotated[int, typer.Option("--from", help="Begin at this cycle.", metavar="N")] = 1,
    kinds: Annotated[
        list[str] | None, typer.Option("--type", help="Only entries of this kind; may be repeated.", metavar="T")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on when the end is reached, until interrupted.")] = False,
    json: Json = False,
    cell: Cell = None,
) -> None:
    """Print the entries: inputs (<) and decisions (>), by cycle.

    Examples: muster log LOG --type InstanceBound --type InstancePreempted

    muster log LOG --from 100 --follow --json
    """
    wanted = frozenset(kinds or ())
    for kind in sorted(wanted):
        if kind not in KINDS and kind != "TermStarted":
            raise Failure(f"no entry is of the kind {kind!r}; there are {', '.join([*KINDS, 'TermStarted'])}")
    names: dict[str, str] = {}
    for envelope in _admitted(log, cell, follow):
        _print(envelope, names, wanted, shown=envelope.number >= start, json=json)


def _admitted(place: Path, cell: str | None, follow: bool) -> Iterator[Envelope]:
    """The admitted records to the tail, or for ever."""
    with SqliteFile.reader(place, cell) as file:
        head, after = genesis(file.path.stem), 0
        while True:
            records = file.read(after)
            for record in records:
                verdict = admit(head, record.data)
                if isinstance(verdict, Halt):
                    raise LogHalted(record.position, head.number, verdict.reason)
                if isinstance(verdict, Admitted):
                    head = verdict.head
                    yield verdict.envelope
                after = record.position
            if not records:
                if not follow:
                    return
                sys.stdout.flush()
                time.sleep(FOLLOW_S)


def _print(envelope: Envelope, names: dict[str, str], wanted: frozenset[str], shown: bool, json: bool) -> None:
    """Print a record's entries. Those before the first that is shown are read for the names of jobs alone."""
    head = f"{envelope.number} {instant(envelope.at_us)}"
    if envelope.started is not None and shown and (not wanted or "TermStarted" in wanted):
        if json:
            _print_json(envelope, "term", "TermStarted", envelope.started)
        else:
            print(f"{head} = TermStarted term={envelope.term} host={envelope.started.host} build={envelope.started.build}")
    for raw in (*envelope.inputs, *envelope.decisions):
        event = decode_entry(raw)
        kind = type(event).__name__
        text = line(event, names)
        if shown and (not wanted or kind in wanted):
            if json:
                _print_json(envelope, "decision" if kind in DECISIONS else "input", kind, event)
            else:
                print(f"{head} {'>' if kind in DECISIONS else '<'} {text}")


def _print_json(envelope: Envelope, side: str, kind: str, body: msgspec.Struct) -> None:
    entry = {"number": envelope.number, "term": envelope.term, "at_us": envelope.at_us, "side": side, "kind": kind, "body": body}
    print(msgspec.json.encode(entry).decode())
