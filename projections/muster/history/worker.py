"""The worker on a bus: a Faust application that follows `muster.log` and writes its history.

Faust says which worker has the partition, and brings what comes. Where to begin is PostgreSQL's to say, not Kafka's: the group's
offset may be behind what was written (then what comes is known, and ignored) or ahead of it (Faust can commit past a message that
is still in flight; a database may come back from a copy), and a seek of ours would be undone by Faust's own after a rebalance.
So what is missing between the position and what comes is read by a consumer of our own (`KafkaLog`), when the partition is
given to this worker and wherever there is a gap: every record passes `admit` in order, whoever brought it. Two workers that
both believe to have the partition, in a rebalance, change no row twice: the position is moved by comparing, and who finds it
elsewhere starts again from where it is.

Any other error is a crash of the application: the process ends, its supervisor starts it again.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn, Protocol

import asyncpg
import msgspec

from muster.history.follow import FileSource, follow
from muster.history.rebuild import LogSource
from muster.history.schema import READER, HistoryError, connect, hang_up, migrate
from muster.history.sink import COMMAND_S, Outrun, Sink
from muster.history.writer import Writer, Wrote
from muster.log.bus import Bus
from muster.log.errors import LogUnreachable, OperatingError
from muster.log.kafka import LOG_TOPIC, KafkaLog
from muster.log.port import Record
from muster.log.reader import is_bus
from muster.log.stopping import told_to_stop
from muster.metrics import BadPlace, Endpoint, Metrics
from muster.metrics import serve as serve_metrics

GROUP: Final = "muster-history"
PARTITION: Final = 0
AT_ONCE: Final = 64
"""Records in a batch, each of which may have 16 MiB."""
WITHIN_S: Final = 0.1
"""A batch that is not full waits so long for more."""
WAIT_S: Final = 1.0

logger = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told. It prints without its secrets."""

    dsn: str
    """Of the database; it may hold a password."""
    log: str
    """What is followed: a bus (`kafka://…`), or the folder or the file of a log on this machine."""
    cell: str = "main"
    bus_config: str | None = None
    """The file that says how the bus is reached."""
    group: str = GROUP
    """With a bus: workers of one group share the work."""
    instance: str = ""
    """With a bus: the name of this worker in its group. See `muster.log.streams.make_app`."""
    topic: str = LOG_TOPIC
    """With a bus: where the log stands."""
    reader: str | None = READER
    """The role that may read the views."""
    metrics: str = ""
    """HOST:PORT where Prometheus reads this worker's metrics; empty for none."""

    def __repr__(self) -> str:
        return f"Options(log={self.log!r}, cell={self.cell!r}, group={self.group!r})"


def main(options: Options) -> NoReturn:
    """Run a worker until it is told to stop, and end the process: with status 0, or with 1 and a sentence that says why."""
    asyncio.run(_run_and_end(options))
    raise AssertionError("it ended the process")


async def _run_and_end(options: Options) -> None:
    """Nothing that the stream processor may have left, no thread and no task, is waited for."""
    status = 1
    try:
        await run(options)
        status = 0
    except OperatingError as error:
        print(f"muster history: {error}", file=sys.stderr)
    except Exception:
        logger.exception("the history worker ends")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def run(options: Options) -> None:
    """Write the history until SIGINT or SIGTERM.

    Raises:
        OperatingError: it cannot go on; another start goes on from where the rows end.
    """
    schema = await _prepare(options)
    figures = Figures(options.cell)
    endpoint = await _endpoint(options, figures)
    try:
        async with _pool(options.dsn) as pool:
            writer = Writer(Sink(pool, schema, options.cell), options.cell)
            writer.wrote = figures.wrote
            if is_bus(options.log):
                await _run_on_bus(options, writer, figures)
            else:
                await _run_on_file(options, writer, figures)
    finally:
        if endpoint is not None:
            await endpoint.close()


class Figures:
    """What a worker tells Prometheus."""

    def __init__(self, cell: str) -> None:
        self.metrics = Metrics("history", cell=cell)
        self.metrics.before(self._ask)
        self._source: LogSource | None = None
        self._writer: Writer | None = None

    def follow(self, source: LogSource, writer: Writer) -> None:
        """This is what is followed, and who follows it."""
        self._source, self._writer = source, writer

    def wrote(self, more: Wrote) -> None:
        """A transaction was written."""
        self.metrics.add("muster_history_entries_total", more.entries)
        for table, rows in more.rows.items():
            self.metrics.add("muster_history_rows_total", rows, table=table)
        self.metrics.observe("muster_history_batch_seconds", more.seconds)
        self.metrics.set("muster_history_cycle", more.number)

    async def _ask(self) -> None:
        """How far the log is ahead: asked when somebody wants to know."""
        if self._source is None or self._writer is None:
            return
        with contextlib.suppress(LogUnreachable):
            lag = max(0, await self._source.end() - self._writer.seen)
            self.metrics.set("muster_follower_lag_records", lag, follower="history")
        self.metrics.set("muster_head_cycle", self._writer.number)


class WaitingSource(LogSource, Protocol):
    """A log that says when more comes."""

    async def wait(self, after: int, timeout_s: float) -> None:
        """See `muster.log.port.Log.wait`."""
        ...


class Tail:
    """What a worker does with the partition that it was given."""

    def __init__(self, log: WaitingSource, writer: Writer) -> None:
        self._log = log
        self._writer = writer
        self._lock = asyncio.Lock()
        """One after the other: what Faust brings, and what is read when the partition is given to us."""
        self._started = False

    async def begin(self) -> None:
        """The partition is ours: read what stands in it, from where the rows end."""
        async with self._lock:
            await self._fill(await self._log.end())

    async def take(self, records: Sequence[Record]) -> None:
        """Write what has come, and first what is missing before it."""
        async with self._lock:
            new = [record for record in records if record.position > self._writer.seen] if self._started else []
            if self._started and not new:
                return
            if new and new[-1].position == self._writer.seen + len(new):
                await self._write(new)
            # What is missing before it or in it, and all of it where somebody else has written meanwhile:
            await self._fill(records[-1].position)

    async def _fill(self, upto: int) -> None:
        """Bring the writer to this position, from the rows' own."""
        while True:
            if not self._started:
                await self._writer.start(self._log)
                self._started = True
            if self._writer.seen >= upto:
                return
            records = await self._log.read(self._writer.seen, AT_ONCE)
            if records:
                await self._write(records)
            else:
                await self._log.wait(self._writer.seen, WAIT_S)

    async def _write(self, records: Sequence[Record]) -> None:
        try:
            await self._writer.take(records)
        except Outrun as error:
            logger.info("%s: this one starts again from there", error)
            self._started = False


async def _run_on_bus(options: Options, writer: Writer, figures: Figures) -> None:
    from muster.log.streams import make_app, serve  # who follows a file needs no stream processor

    for name in ("faust", "mode"):  # what they do all day is no news
        logging.getLogger(name).setLevel(logging.ERROR)
    bus = Bus.parse(options.log, options.bus_config)
    log = await KafkaLog.open(bus, options.topic, PARTITION, writer=False)
    try:
        figures.follow(log, writer)
        tail = Tail(log, writer)
        app = make_app(bus, options.group, options.instance)
        topic = app.topic(options.topic, key_serializer="raw", value_serializer="raw")

        async def begin() -> None:
            try:
                await tail.begin()
            except Exception as error:
                await app.crash(error)

        async def assigned(_: Any, partitions: set[Any], **__: Any) -> None:
            # Not awaited: a rebalance waits for this, and a long log takes long.
            if any(each.topic == options.topic and each.partition == PARTITION for each in partitions):
                app.add_future(begin())

        async def history(stream: Any) -> None:
            try:
                async for events in stream.take_events(AT_ONCE, WITHIN_S):
                    messages = [each.message for each in events if each.message.partition == PARTITION]
                    if messages:
                        await tail.take([Record(each.offset + 1, each.value or b"") for each in messages])
            except Exception as error:
                await app.crash(error)

        connect_signal: Any = app.on_partitions_assigned.connect
        connect_signal(assigned)
        app.agent(topic, name="history", concurrency=1)(history)
        await serve(app)
    finally:
        await log.close()


async def _run_on_file(options: Options, writer: Writer, figures: Figures) -> None:
    source = await FileSource.open(options.log, options.cell)
    try:
        figures.follow(source, writer)
        with told_to_stop() as stopped:
            await writer.start(source)
            await follow(source, writer, stopped=stopped)
    finally:
        await source.close()


async def _endpoint(options: Options, figures: Figures) -> Endpoint | None:
    if not options.metrics:
        return None
    try:
        return await serve_metrics(figures.metrics, options.metrics)
    except (BadPlace, OSError) as error:
        raise HistoryError(f"the metrics cannot be served at {options.metrics}: {error}") from error


async def _prepare(options: Options) -> str:
    """The build to write, made where it is missing."""
    connection = await connect(options.dsn)
    try:
        return await migrate(connection, options.reader)
    finally:
        await hang_up(connection)


def _pool(dsn: str) -> Any:
    """A pool, made in the loop that uses it."""
    settings = {"application_name": "muster-history"}
    return asyncpg.create_pool(dsn, min_size=1, max_size=2, command_timeout=COMMAND_S, server_settings=settings)
