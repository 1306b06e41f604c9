"""The history that a worker writes to PostgreSQL, read: one connection, which may change nothing, one look at one moment.

Answers as `history_folded` does. What a person says reaches PostgreSQL as parameters alone: the text of a statement is put
together from what stands in this file and in the tables of `history_query`.
"""

import asyncio
import re
from collections.abc import Coroutine
from decimal import Decimal
from typing import Any, Final, Self, TypeVar

import asyncpg

from muster.cli.history_dsn import place
from muster.cli.history_folded import KEYS, decoded
from muster.cli.history_query import DAY_US, LARGEST_US, Each, Head, Query, Sum, columns, day
from muster.cli.output import UNREADABLE, Failure

SCHEMA: Final = "history"
CONNECT_S: Final = 30.0
ANSWER_S: Final = 600.0

Answer = TypeVar("Answer")

TEXTS: Final = frozenset(
    ("job", "name", "user", "queue", "state", "stop_reason", "stop_node", "by_job", "reason", "image", "directory", "shape")
)
"""Fields that are text: they are ordered by their code points, whatever the database's own order is."""
PRESENT: Final = "$2::bigint"
"""The instant of the newest cycle; `$1` is the cell."""

FROM: Final[dict[Each, str]] = {
    "job": "{s}.jobs j",
    "instance": "{s}.jobs j join {s}.instances i using (cell, job)",
    "attempt": "{s}.jobs j join {s}.attempts a using (cell, job)",
}
BELOW: Final[dict[Each, str]] = {
    "job": "{t}.cell = j.cell and {t}.job = j.job",
    "instance": "{t}.cell = j.cell and {t}.job = j.job and {t}.instance = i.instance",
    "attempt": "{t}.cell = j.cell and {t}.job = j.job and {t}.instance = a.instance and {t}.attempt = a.attempt",
}
"""What hangs below a line, in the table `t`."""
LATERALS: Final[dict[str, str]] = {
    "b": """left join lateral (
        select count(*) as attempts, count(*) filter (where x.stop_reason = 'preempted') as preemptions,
            min(x.bound_us) as bound_us, min(x.started_us) as started_us,
            coalesce(sum(coalesce(x.ended_us, {now}) - x.started_us), 0) as ran_us
        from {s}.attempts x where {below}) b on true""",
    "h": """left join lateral (
        select coalesce(sum(x.gpu_milli::numeric * (coalesce(x.released_us, {now}) - x.placed_us)), 0) as gpu_ns,
            coalesce(sum(x.cpu_milli::numeric * (coalesce(x.released_us, {now}) - x.placed_us)), 0) as cpu_ns
        from {s}.placements x where {below}) h on true""",
    "n": """left join lateral (
        select coalesce(array_agg(distinct x.node collate "C" order by x.node collate "C"), '{{}}') as nodes
        from {s}.placements x where {below}) n on true""",
    "t": """left join lateral (
        select x.code, x.reason from {s}.instances x where {below}
        order by (x.state = 'failed') desc, (x.state = 'cancelled') desc, x.instance limit 1) t on true""",
}
"""What is put together for a line, by the letter that its values have."""
STATE: Final = """case a.phase when 'prepare' then 'starting' when 'run' then 'running' when 'stop' then 'stopping'
    else case a.outcome when 'pending' then 'requeued' else a.outcome end end"""
SUMS: Final[dict[Each, dict[str, str]]] = {
    "job": {
        "bound_us": "b.bound_us",
        "started_us": "b.started_us",
        "waited_us": f"coalesce(b.bound_us, j.ended_us, {PRESENT}) - j.entered_us",
        "code": "t.code",
        "reason": "case when j.reason <> '' then j.reason else t.reason end",
    },
    "instance": {"waited_us": f"coalesce(b.bound_us, i.ended_us, {PRESENT}) - j.entered_us"},
    "attempt": {"state": STATE},
}
ANYWHERE: Final = {
    "attempts": "b.attempts",
    "preemptions": "b.preemptions",
    "bound_us": "b.bound_us",
    "started_us": "b.started_us",
    "ran_us": "b.ran_us",
    "gpu_ns": "h.gpu_ns",
    "cpu_ns": "h.cpu_ns",
    "nodes": "n.nodes",
}
BY: Final = {
    "user": "j.user_name",
    "queue": "j.queue",
    "name": "j.name",
    "job": "j.job",
    "model": "p.gpu_model",
    "node": "p.node",
    "day": "d.number",
}


class Statement:
    """A statement and its parameters."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def given(self, value: Any, kind: str) -> str:
        """How a parameter is named in the text."""
        self.values.append(value)
        return f"${len(self.values)}::{kind}"


class Database:
    """The tables of one database, as `Source` has them, all of one moment: what is written meanwhile is not looked at."""

    def __init__(self, dsn: str, cell: str | None) -> None:
        """Connect, and find the cell.

        Raises:
            Failure: PostgreSQL cannot be reached, has no history, or that of several cells.
        """
        self._dsn = dsn
        self._runner = asyncio.Runner()
        self._connection: Any = None
        try:
            self._do(self._open())
            self._head: Head = self._do(self._find(cell))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.terminate()  # it has nothing to end in order, and `close` may wait for ever
            self._connection = None
        self._runner.close()

    def head(self) -> Head:
        """How far it goes."""
        return self._head

    def lines(self, query: Query) -> list[dict[str, Any]]:
        """See `Source.lines`."""
        text, values = lines_statement(query, self._head)
        rows = self._do(self._fetch(text, values))
        return [{field: _plain(field, row[field]) for field in query.fields} for row in rows]

    def sums(self, query: Query, by: tuple[str, ...]) -> list[Sum]:
        """See `Source.sums`."""
        text, values = sums_statement(query, by, self._head)
        return [
            Sum(
                by={name: day(row[name] * DAY_US) if name == "day" else row[name] for name in by},
                jobs=row["jobs"],
                attempts=row["attempts"],
                gpu_ns=int(row["gpu_ns"]),
                cpu_ns=int(row["cpu_ns"]),
            )
            for row in self._do(self._fetch(text, values))
        ]

    async def _open(self) -> None:
        settings = {"default_transaction_read_only": "on", "application_name": "muster history"}
        self._connection = await asyncpg.connect(
            self._dsn, timeout=CONNECT_S, command_timeout=ANSWER_S, server_settings=settings, statement_cache_size=0
        )
        await self._connection.execute("begin isolation level repeatable read, read only")

    async def _find(self, cell: str | None) -> Head:
        """The newest cycle of this cell, or of the only one."""
        rows = await self._fetch(
            f"""select distinct on (cell collate "C") cell, number, at_us from {SCHEMA}.cycles
                where $1::text is null or cell = $1 order by cell collate "C", number desc""",
            [cell],
        )
        if not rows:
            what = f"of the cell {cell!r}" if cell else "yet: `muster history worker` writes it"
            raise Failure(f"there is no history {what}, in {place(self._dsn)}", UNREADABLE)
        if len(rows) > 1:
            cells = ", ".join(row["cell"] for row in rows)
            cells = ", ".join(row["cell"] for row in rows)
            raise Failure(f"{place(self._dsn)} has the history of several cells, {cells}: --cell says whose")
        return Head(rows[0]["cell"], rows[0]["number"], rows[0]["at_us"])

    async def _fetch(self, text: str, values: list[Any]) -> list[Any]:
        rows: list[Any] = await self._connection.fetch(text, *values)
        return rows

    def _do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run it.

        Raises:
            Failure: PostgreSQL does not answer, or refuses.
        """
        try:
            return self._runner.run(work)
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            raise Failure(f"{place(self._dsn)} has no history: `muster history migrate` makes its tables", UNREADABLE) from None
        except TimeoutError:
            raise Failure(f"PostgreSQL at {place(self._dsn)} does not answer", UNREADABLE) from None
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise Failure(f"PostgreSQL at {place(self._dsn)}: {error}", UNREADABLE) from None


def lines_statement(query: Query, head: Head) -> tuple[str, list[Any]]:
    """The text and the parameters that bring the lines: a page of keys in order, and then what is wanted of these alone."""
    each = query.each
    statement = Statement(head.cell, head.at_us)
    fields = {column.field: _expression(each, column.origin[each]) for column in columns(each)}
    rows = FROM[each].format(s=SCHEMA)
    keys = [(f"k{index}", origin, origin == "j.job", False) for index, origin in enumerate(KEYS[each])]
    sorts = [(f"s{index}", fields[field], field in TEXTS, backwards) for index, (field, backwards) in enumerate(query.sort)]
    page = ", ".join(f"{_ordered(value, is_text)} as {name}" for name, value, is_text, _ in (*sorts, *keys))
    order = ", ".join(f"page.{name} {'desc' if backwards else 'asc'} nulls last" for name, _, _, backwards in (*sorts, *keys))
    where = " and ".join(_conditions(query, fields, statement))
    limit = f"limit {statement.given(query.limit + 1, 'bigint')}" if query.limit else ""
    wanted = [fields[field] for field in query.fields]
    text = f"""
        with page as (
            select {page} from {rows} {_laterals(each, [value for _, value, _, _ in sorts])}
            where {where} order by {order.replace("page.", "")} {limit}
        )
        select {", ".join(f'{value} as "{field}"' for field, value in zip(query.fields, wanted, strict=True))}
        from page, {rows} {_laterals(each, wanted)}
        where j.cell = $1::text and {" and ".join(f"{value} = page.{name}" for name, value, _, _ in keys)}
        order by {order}"""
    return text, statement.values


def sums_statement(query: Query, by: tuple[str, ...], head: Head) -> tuple[str, list[Any]]:
    """The text and the parameters that bring the sums. Products are `numeric`: a large gang overflows a `bigint` in a year."""
    statement = Statement(head.cell, head.at_us)
    since = statement.given(query.since_us or 0, "bigint")
    until = statement.given(LARGEST_US if query.until_us is None else query.until_us, "bigint")
    where = [*_filters(query, "j.state", statement), "r.end_us > r.start_us"]
    if query.nodes:
        where.append(f"p.node = any({statement.given(list(query.nodes), 'text[]')})")
    days, held = "", "r.end_us - r.start_us"
    if "day" in by:
        days = f"cross join lateral generate_series(r.start_us / {DAY_US}, (r.end_us - 1) / {DAY_US}) as d(number)"
        held = f"least(r.end_us, (d.number + 1) * {DAY_US}) - greatest(r.start_us, d.number * {DAY_US})"
    # First by attempt: that many are hashed faster than counted as rows that differ.
    text = f"""
        select {", ".join(f'"{name}"' for name in by)}, count(distinct of_job) as jobs, count(*) as attempts,
            sum(gpu_ns) as gpu_ns, sum(cpu_ns) as cpu_ns
        from (
            select {", ".join(f'{BY[name]} as "{name}"' for name in by)}, p.job as of_job, p.instance, p.attempt,
                sum(p.gpu_milli::numeric * ({held})) as gpu_ns, sum(p.cpu_milli::numeric * ({held})) as cpu_ns
            from {SCHEMA}.jobs j join {SCHEMA}.placements p using (cell, job)
            cross join lateral (
                select greatest(p.placed_us, {since}) as start_us, least(coalesce(p.released_us, {PRESENT}), {until}) as end_us
            ) r {days}
            where {" and ".join(where)} group by {", ".join(BY[name] for name in by)}, p.job, p.instance, p.attempt
        ) each_attempt
        group by {", ".join(f'"{name}"' for name in by)}"""
    return text, statement.values


def _expression(each: Each, origin: str) -> str:
    """What stands in a statement for it."""
    return origin if "." in origin else SUMS[each].get(origin) or ANYWHERE[origin]


def _ordered(value: str, is_text: bool) -> str:
    return f'({value}) collate "C"' if is_text else value


def _laterals(each: Each, values: list[str]) -> str:
    """The joins without which these values cannot be put together."""
    needed = [letter for letter in LATERALS if any(re.search(rf"\b{letter}\.", value) for value in values)]
    below = BELOW[each].format(t="x")
    return " ".join(LATERALS[letter].format(s=SCHEMA, now=PRESENT, below=below) for letter in needed)


def _conditions(query: Query, fields: dict[str, str], statement: Statement) -> list[str]:
    """Which lines are wanted."""
    each = query.each
    found = _filters(query, fields["state"], statement)
    if query.nodes:
        nodes = statement.given(list(query.nodes), "text[]")
        below = BELOW[each].format(t="p")
        found.append(f"exists (select 1 from {SCHEMA}.placements p where {below} and p.node = any({nodes}))")
    began, ended = ("a.bound_us" if each == "attempt" else "j.entered_us"), fields["ended_us"]
    if query.until_us is not None:
        found.append(f"{began} < {statement.given(query.until_us, 'bigint')}")
    if query.since_us is not None:
        since = statement.given(query.since_us, "bigint")
        found.append(f"({ended} is null or {ended} > {since} or {began} >= {since})")
    return found


def _filters(query: Query, state: str, statement: Statement) -> list[str]:
    """What asks of a job, or of the state of a line."""
    found = ["j.cell = $1::text", f"{PRESENT} is not null"]  # every parameter has to stand somewhere
    for value, wanted in (
        ("j.user_name", query.users),
        ("j.queue", query.queues),
        ("j.name", query.names),
        (state, query.states),
        ("j.job", query.ids),
    ):
        if wanted:
            found.append(f"{value} = any({statement.given(list(wanted), 'text[]')})")
    if query.beginnings:
        begins = statement.given(list(query.beginnings), "text[]")
        found.append(f"exists (select 1 from unnest({begins}) as one(id) where starts_with(j.job, one.id))")
    return found


def _plain(field: str, value: Any) -> Any:
    """As `history_folded` has it: sums are `Decimal` here, and what is JSON is text."""
    value = decoded(field, value)
    return int(value) if isinstance(value, Decimal) else value
