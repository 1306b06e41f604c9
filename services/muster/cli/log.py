"""`muster log [LOG]`: the entries of a log, one a line; without LOG as the gateway tells them."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from muster.cli.entries import line
from muster.cli.gateway_client import Gateway, Where
from muster.cli.output import Cell, Failure, Json, instant, print_json
from muster.events.codec import decode_entry
from muster.events.record import Envelope
from muster.events.registry import DECISIONS, KINDS
from muster.log.admit import Admitted, Halt, admit, genesis
from muster.log.errors import LogHalted, LogUnreachable
from muster.log.reader import open_log

app = typer.Typer(add_completion=False)

FOLLOW_S = 0.2


@app.command()
def log(
    log: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOG]",
            help="A log: its folder, its file, or kafka://HOST:PORT; else the gateway is asked.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[int, typer.Option("--from", help="Begin at this cycle.", metavar="N")] = 1,
    kinds: Annotated[
        list[str] | None, typer.Option("--type", help="Only entries of this kind; may be repeated.", metavar="T")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on when the end is reached, until interrupted.")] = False,
    json: Json = False,
    gateway: Where = "",
    cell: Cell = None,
) -> None:
    """Print the entries: inputs (<) and decisions (>), by cycle.

    Exit status: 0; 2 no such kind; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster log --follow

    muster log LOG --type InstanceBound --type InstancePreempted

    muster log LOG --from 100 --follow --json
    """
    wanted = frozenset(kinds or ())
    for kind in sorted(wanted):
        if kind not in KINDS and kind != "TermStarted":
            raise Failure(f"no entry is of the kind {kind!r}; there are {', '.join([*KINDS, 'TermStarted'])}")
    names: dict[str, str] = {}
    if log is None:
        with Gateway(gateway) as source:
            _print_told(source, wanted, start, follow, json)
        return
    for envelope in _admitted(log, cell, follow):
        _print(envelope, names, wanted, shown=envelope.number >= start, json=json)


def _admitted(place: str, cell: str | None, follow: bool) -> Iterator[Envelope]:
    """The admitted records to the tail, or for ever."""
    with open_log(place, cell) as opened:
        head, after = genesis(opened.cell), 0
        while True:
            try:
                records = opened.read(after)
            except LogUnreachable:
                if not follow:
                    raise
                records = []
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


def _print_told(source: Gateway, wanted: frozenset[str], start: int, follow: bool, json: bool) -> None:
    """What the gateway tells, to the last cycle that there is now, or for ever. Jobs that came before have no names."""
    names: dict[str, str] = {}
    last = 0 if follow else source.cell().cycle
    if last and last < start:
        return
    for told in source.events(start=start, until=last):
        if wanted and told.kind not in wanted:
            continue
        if json:
            print_json(told)
        elif told.kind in KINDS:
            event = msgspec.json.decode(told.body, type=KINDS[told.kind])
            print(f"{told.cycle} {instant(told.at_us)} {'>' if told.kind in DECISIONS else '<'} {line(event, names)}")
        else:
            print(f"{told.cycle} {instant(told.at_us)} = {told.kind} {bytes(told.body).decode()}")
        sys.stdout.flush()


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
