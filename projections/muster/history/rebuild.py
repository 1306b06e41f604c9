"""Making the history anew from the log: another build beside the one that people query, and then a switch of the views.

Nobody who queries notices but by the rows being right; who writes the old build is told to start again, and goes on with the new
one from where it ends. A rebuild that was broken off leaves a build that no view shows; the next one drops it.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import asyncpg
import msgspec

from muster.history.follow import follow
from muster.history.schema import READER, HistoryError, connect, drop_others, hang_up, make_build, said, switch, there
from muster.history.sink import COMMAND_S, Sink
from muster.history.writer import Source, Writer, Wrote

_LOCK: Final = 0x4D75_7374_5265_6275
NEAR: Final = 100
"""Records: when no more are missing, the views are switched and whoever follows the log takes the rest."""


class LogSource(Source, Protocol):
    """A log of which the end is known."""

    async def end(self) -> int:
        """See `muster.log.port.Log.end`."""
        ...


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rebuild or a check is."""

    position: int
    end: int
    """Where the log ended when it was last asked."""
    number: int
    """The cycle that was folded last."""
    entries: int
    """Folded so far."""
    rows: int
    """Written or compared so far."""


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild came to."""

    schema: str
    number: int
    """Up to which cycle it goes."""
    entries: int
    """How many entries it has."""
    rows: int
    """How many rows were written, those too that took the place of others."""
    dropped: tuple[str, ...]
    """The builds that were there before."""


Tell = Callable[[Progress], None]


async def rebuild(
    source: LogSource, dsn: str, cell: str, *, tell: Tell = lambda progress: None, reader: str | None = READER
) -> Rebuilt:
    """Make the history of this log anew, and show it.

    Args:
        source: the log of `cell`, which may grow meanwhile.
        dsn: of the database.
        cell: whose log it is.
        tell: told now and then how far it is.
        reader: the role that may read the views.

    Raises:
        HistoryError: another rebuild runs, the history of other cells would be lost, or PostgreSQL does not do it.
        LogError: the log cannot be read.
    """
    connection = await connect(dsn, "muster-history-rebuild")
    try:
        if not await connection.fetchval("select pg_try_advisory_lock($1)", _LOCK):
            raise HistoryError("another rebuild of this history runs")
        await _refuse_other_cells(connection, cell)
        if await there(connection, "builds"):
            await drop_others(connection)
        schema = await make_build(connection)
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1, command_timeout=COMMAND_S) as pool:
            done = await _fill(source, Writer(Sink(pool, schema, cell, current=False), cell), tell)
        await connection.execute(f"analyze {', '.join(f'{schema}.{name}' for name in ('jobs', 'attempts', 'placements'))}")
        async with connection.transaction():
            await switch(connection, schema, reader)
        dropped = await drop_others(connection)
        return Rebuilt(schema=schema, number=done.number, entries=done.entries, rows=done.rows, dropped=tuple(dropped))
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise HistoryError(f"the history could not be made anew: {said(error)}") from error
    finally:
        await hang_up(connection)


async def _fill(source: LogSource, writer: Writer, tell: Tell) -> Progress:
    """Write all that the log holds, until next to nothing is missing; how far that came."""
    end = await source.end()
    done = Progress(position=0, end=end, number=0, entries=0, rows=0)

    def wrote(more: Wrote) -> None:
        nonlocal done
        done = Progress(
            position=writer.seen,
            end=max(end, writer.seen),
            number=more.number,
            entries=done.entries + more.entries,
            rows=done.rows + sum(more.rows.values()),
        )
        tell(done)

    writer.wrote = wrote
    await writer.start(source)
    while True:
        await follow(source, writer, until=end)
        behind, end = end, await source.end()
        if end - behind < NEAR:
            await follow(source, writer, until=end)
            return done
        await asyncio.sleep(0)


async def _refuse_other_cells(connection: Any, cell: str) -> None:
    """One build has all cells, and a rebuild has the log of one."""
    if not await there(connection, "positions"):
        return
    others = [row["cell"] for row in await connection.fetch("select cell from history.positions where cell <> $1", cell)]
    if others:
        raise HistoryError(
            f"this database has the history of {', '.join(sorted(others))} too, which a rebuild of {cell} would lose: "
            "each cell whose history is to be made anew has a database of its own"
        )
