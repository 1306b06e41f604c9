"""`muster history migrate|worker|rebuild|check`: the tables in PostgreSQL. What each does: `muster.history`."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from muster.cli.history_dsn import Dsn, need_dsn, place
from muster.cli.metrics import Metrics, checked_metrics
from muster.cli.output import FOUND, OK, Cell, Failure, Json, errors, print_json
from muster.cli.scheduler import BusCell, BusConfig
from muster.up.places import CELL, default_data

if TYPE_CHECKING:
    from muster.history.follow import FileSource
    from muster.history.rebuild import Progress as Told
    from muster.history.rebuild import Tell

BUS = "MUSTER_BUS"
READER = "muster_history_reader"
GROUP = "muster-history"

Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="LOG",
        help=f"The log: its folder, its file, or kafka://HOST:PORT; else {BUS}, else that of this user's `muster up`.",
        show_default=False,
    ),
]
Reader = Annotated[
    str,
    typer.Option(
        "--reader", metavar="ROLE", help="Who may read the views, and nothing else; made if need be. Empty: nobody is told."
    ),
]
Answer = TypeVar("Answer")


def migrate(dsn: Dsn = "", reader: Reader = READER) -> int:
    """Make the tables, or bring them to this build's. The worker does it too, if its user may.

    Exit status: 0; 2 the command makes no sense; 3 PostgreSQL does not do it.

    Example: muster history migrate --dsn postgresql://muster@db.example:5432/muster
    """
    from muster.history.schema import connect, hang_up
    from muster.history.schema import migrate as run

    where = need_dsn(dsn)

    async def work() -> str:
        connection = await connect(where)
        try:
            return await run(connection, reader or None)
        finally:
            await hang_up(connection)

    print(f"the history in {place(where)} is ready: the views in the schema history show {asyncio.run(work())}")
    return OK


def rebuild(log: Log = None, dsn: Dsn = "", cell: Cell = None, reader: Reader = READER, json: Json = False) -> int:
    """Make the history anew from the log, beside the one that people query, and then show that one.

    Whoever queries notices nothing; a worker goes on with the new one.

    Exit status: 0; 2 the command makes no sense; 3 the log or PostgreSQL fails.

    Example: muster history rebuild --log /var/lib/muster/up
    """
    from muster.history.rebuild import rebuild as run

    where = need_dsn(dsn)
    done = _with_log(log, cell, lambda source, tell: run(source, where, source.cell, tell=tell, reader=reader or None))
    if json:
        print_json(done)
        return OK
    print(f"{done.schema}: {done.number} cycles with {done.entries} entries made {done.rows} rows")
    for schema in done.dropped:
        print(f"dropped {schema}")
    return OK


def check(log: Log = None, dsn: Dsn = "", cell: Cell = None, json: Json = False) -> int:
    """Compare every row with what the log says, table by table.

    A worker may go on meanwhile: what is compared is one moment.

    Exit status: 0 every row is as the log says; 1 one is not; 2 the command makes no sense; 3 one of both cannot be read.

    Example: muster history check --log kafka://10.0.0.1:9092
    """
    from muster.history.check import check as run
    from muster.history.check import lines

    where = need_dsn(dsn)
    checked = _with_log(log, cell, lambda source, tell: run(source, where, source.cell, tell=tell))
    if json:
        print_json(checked)
    else:
        print("\n".join(lines(checked)))
        said = "every row is as the log says" if checked.right else "not every row is as the log says"
        print(f"{checked.schema}, up to cycle {checked.number} of {checked.cell}: {said}")
    return OK if checked.right else FOUND


def worker(
    log: Log = None,
    dsn: Dsn = "",
    bus_config: BusConfig = None,
    cell: BusCell = CELL,
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="Workers on a bus that share the work.")] = GROUP,
    reader: Reader = READER,
    metrics: Metrics = "",
) -> int:
    """Write the history as it happens, until stopped. On a bus any number of workers may run; one of them writes.

    An error ends it. Whoever looks after it (systemd, Compose) starts it again, and it goes on from where the rows end.

    Exit status: 0 told to stop; 1 it cannot go on; 2 the command makes no sense; 3 PostgreSQL is not told where.

    Example: muster history worker --log kafka://10.0.0.1:9092
    """
    where, followed = need_dsn(dsn), named_log(log)
    from muster.history.worker import Options, main

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="muster: %(message)s")
    for name in ("aiokafka", "faust", "mode"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what they say of each try, our own sentences say once
    config = str(bus_config.absolute()) if bus_config is not None else None
    options = Options(
        dsn=where,
        log=followed,
        cell=cell,
        bus_config=config,
        group=group,
        reader=reader or None,
        metrics=checked_metrics(metrics),
    )
    return main(options)


def named_log(told: str | None) -> str:
    """The log that is meant.

    Raises:
        Failure: there is none.
    """
    if told is not None:
        return told
    if bus := os.environ.get(BUS):
        return bus
    if not default_data().exists():
        raise Failure(f"which log? --log or {BUS} names one, and {default_data()} is not there")
    return str(default_data())


def _with_log(log: str | None, cell: str | None, run: Callable[["FileSource", "Tell"], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run this on the log, with a progress bar on standard error while it is a terminal."""
    from muster.history.follow import FileSource

    named = named_log(log)

    async def work() -> Answer:
        source = await FileSource.open(named, cell)
        try:
            with _bar() as tell:
                return await run(source, tell)
        finally:
            await source.close()

    return asyncio.run(work())


@contextmanager
def _bar() -> Iterator["Tell"]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        shown = progress.add_task("records", total=None)

        def tell(told: "Told") -> None:
            description = f"cycle {told.number}, {told.entries} entries, {told.rows} rows; records"
            progress.update(shown, completed=told.position, total=told.end, description=description)

        yield tell
