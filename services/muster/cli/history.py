"""`muster history`: what ran, for whom, where and for how long, from PostgreSQL or folded from a log; and who writes it there.

What can be asked stands in `history_query`; the commands that write and check the tables in `history_tables`.
"""

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any

import msgspec
import typer

from muster.cli import history_query as words
from muster.cli.history_dsn import Dsn, find_dsn
from muster.cli.history_query import Query, Source, Sum
from muster.cli.history_tables import check, migrate, named_log, rebuild, worker
from muster.cli.output import OK, Cell, Failure, Json, errors, instant, print_json, print_table

app = typer.Typer(add_completion=False, invoke_without_command=True)
for command in (worker, migrate, rebuild, check):
    app.command()(command)

LIMIT = 1000
NAMES_MAX = 1000
"""So many values one filter takes."""
SUMMED = ("jobs", "attempts", "gpu_hours", "cpu_hours")
SUM_FIELDS = {"gpu_hours": "gpu_ns", "cpu_hours": "cpu_ns"}
PERCENT = 100
LARGEST = 2**63 - 1
"""What msgspec writes as a number."""

Log = Annotated[
    str | None,
    typer.Option("--log", metavar="LOG", help="Fold this log: its folder, its file, or kafka://HOST:PORT.", show_default=False),
]
Values = list[str] | None


@app.callback()
def history(
    context: typer.Context,
    job: Annotated[Values, typer.Option("--job", metavar="ID", help="Only these: ids, or their beginnings.")] = None,
    user: Annotated[Values, typer.Option("--user", metavar="NAME", help="Only of these users.")] = None,
    queue: Annotated[Values, typer.Option("--queue", metavar="NAME", help="Only in these queues.")] = None,
    state: Annotated[Values, typer.Option("--state", metavar="STATE", help="Only in these states.")] = None,
    name: Annotated[Values, typer.Option("--name", metavar="NAME", help="Only with these names.")] = None,
    node: Annotated[Values, typer.Option("--node", metavar="NAME", help="Only what was on one of these nodes.")] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="Only what was there then or later: 2026-11-30, 18h, yesterday.")
    ] = "",
    until: Annotated[str, typer.Option("--until", metavar="WHEN", help="Only what was there before.")] = "",
    each: Annotated[words.Each, typer.Option("--each", help="What a line is.")] = "job",
    by: Annotated[str, typer.Option("--by", metavar="WHAT", help=f"Sum GPU-hours by {', '.join(words.BY)}.")] = "",
    format: Annotated[str, typer.Option("--format", metavar="COLUMNS", help="Which columns; `help` lists them.")] = "",
    sort: Annotated[str, typer.Option("--sort", metavar="COLUMNS", help="In this order; -COLUMN has the largest first.")] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="So many lines; 0 shows all.", min=0)] = LIMIT,
    log: Log = None,
    dsn: Dsn = "",
    cell: Cell = None,
    json: Json = False,
) -> int:
    """List what ran, the newest first, and sum the GPU time it took.

    It is read from PostgreSQL where one is named, else folded from a log: --log, MUSTER_BUS, or that of this user's `muster up`.
    Several values of one filter are said by repeating it, or with commas between. WHEN is a date or an instant (UTC), a span
    before the newest cycle such as 90m or 1d12h, today, yesterday, or seconds since 1970. What runs counts until that cycle.

    Exit status: 0; 2 the command makes no sense; 3 the history cannot be read.

    Examples: muster history --user ada --since 7d

    muster history --by user,day --since 2026-11-01 --until 2026-12-01 --sort -gpu_hours

    muster history --log LOG --each attempt --state requeued --format job,attempt,nodes,stop_reason,by_job
    """
    if context.invoked_subcommand is not None:
        return OK
    if format == "help":
        shown = [(column.name, column.field, column.what) for column in words.columns(each)]
        print_table(("COLUMN", "IN JSON", "WHAT"), shown)
        return OK
    query = Query(
        each=each,
        jobs=_values("--job", job),
        users=_values("--user", user),
        queues=_values("--queue", queue),
        states=_values("--state", state),
        names=_values("--name", name),
        nodes=_values("--node", node),
        limit=limit,
    )
    _check_states(query)
    grouped = tuple(name.strip() for name in by.split(",") if name.strip())
    if grouped:
        _check_sums(grouped, each, format)
        order = _sum_order(grouped, sort)
    else:
        columns = words.columns(each) if json and not format else words.chosen(each, format)
        order = words.order(each, sort)
    with open_history(log, dsn, cell) as source:
        query = _in_range(query, since, until, source.head().at_us)
        if grouped:
            _print_sums(source, query, grouped, order, json)
        else:
            query = msgspec.structs.replace(query, sort=order, fields=tuple(column.field for column in columns))
            _print_lines(source, query, columns, json)
    return OK


@contextlib.contextmanager
def open_history(log: str | None, dsn: str, cell: str | None) -> Iterator[Source]:
    """The history that was named.

    Raises:
        Failure: none was, or two, or it cannot be read.
    """
    if log is not None and dsn:
        raise Failure("--log and --dsn name two histories: one of them is enough")
    found = "" if log is not None else find_dsn(dsn)
    if found:
        from muster.cli.history_database import Database  # its driver is needed for PostgreSQL alone

        with Database(found, cell) as database:
            yield database
        return
    from muster.cli.history_folded import Folded  # it loads NumPy

    yield Folded.of(named_log(log), cell)


def _values(option: str, told: Values) -> tuple[str, ...]:
    """All that was said of one filter."""
    values = tuple(dict.fromkeys(value.strip() for text in told or () for value in text.split(",") if value.strip()))
    if len(values) > NAMES_MAX:
        raise Failure(f"{option} has {len(values)} values; it takes {NAMES_MAX}")
    if told and not values:
        raise Failure(f"{option} is empty; without it everything is shown")
    for value in values:
        if "\0" in value:
            raise Failure(f"{option} {value!r} has a character that no name has")
    return values


def _check_states(query: Query) -> None:
    known = words.STATES[query.each]
    for state in query.states:
        if state not in known:
            raise Failure(f"no {query.each} is in the state {state!r}; there are {', '.join(known)}")


def _check_sums(by: tuple[str, ...], each: str, format: str) -> None:
    for name in by:
        if name not in words.BY:
            raise Failure(f"nothing can be summed by {name!r}: {', '.join(words.BY)} can")
    if len(set(by)) < len(by):
        raise Failure(f"--by {','.join(by)} names something twice")
    if each != "job" or format:
        raise Failure("--by has lines and columns of its own: it goes with neither --each nor --format")


def _sum_order(by: tuple[str, ...], told: str) -> tuple[tuple[str, bool], ...]:
    """What sums are sorted by: names of `by` and of `SUMMED`, each with whether the largest is first."""
    order: list[tuple[str, bool]] = []
    for text in [text.strip() for text in told.split(",") if text.strip()]:
        name = text.lstrip("-+").replace("-", "_")
        if name not in (*by, *SUMMED):
            raise Failure(f"sums cannot be sorted by {name!r}: {', '.join((*by, *SUMMED))} can")
        order.append((name, text.startswith("-")))
    return tuple(order)


def _in_range(query: Query, since: str, until: str, present_us: int) -> Query:
    since_us = words.moment(since, present_us) if since else None
    until_us = words.moment(until, present_us) if until else None
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise Failure(f"--since {since} is not before --until {until}")
    return msgspec.structs.replace(query, since_us=since_us, until_us=until_us)


def _print_lines(source: Source, query: Query, columns: list[words.Column], json: bool) -> None:
    head = source.head()
    lines = source.lines(query)
    more = bool(query.limit) and len(lines) > query.limit
    if more:
        lines = lines[: query.limit]
    if json:
        place = {"cell": head.cell, "cycle": head.cycle, "at_us": head.at_us}
        exact = [{field: _exact(value) for field, value in line.items()} for line in lines]
        print_json({**place, "each": query.each, "lines": exact, "more": more})
        return
    rows = [[words.printable(column.show(line[column.field])) for column in columns] for line in lines]
    print_table([column.head for column in columns], rows)
    _say(head, f"; there is more: --limit shows more than {query.limit}" if more else "")


def _print_sums(source: Source, query: Query, by: tuple[str, ...], order: tuple[tuple[str, bool], ...], json: bool) -> None:
    head = source.head()
    sums = sorted(source.sums(query, by), key=lambda each: tuple(each.by.values()))
    for name, backwards in reversed(order):
        sums.sort(key=lambda each: _sum_value(each, name), reverse=backwards)
    shown = sums[: query.limit] if query.limit else sums
    more = len(shown) < len(sums)
    if json:
        lines = [
            {
                **each.by,
                "jobs": each.jobs,
                "attempts": each.attempts,
                "gpu_ns": _exact(each.gpu_ns),
                "cpu_ns": _exact(each.cpu_ns),
            }
            for each in shown
        ]
        place = {"cell": head.cell, "cycle": head.cycle, "at_us": head.at_us}
        print_json({**place, "since_us": query.since_us, "until_us": query.until_us, "by": by, "sums": lines, "more": more})
        return
    total_ns = sum(each.gpu_ns for each in sums)
    rows = [
        (
            *each.by.values(),
            each.jobs,
            each.attempts,
            words.hours(each.gpu_ns),
            _percent(each.gpu_ns, total_ns),
            words.hours(each.cpu_ns),
        )
        for each in shown
    ]
    print_table([*(name.upper() for name in by), "JOBS", "ATTEMPTS", "GPU HOURS", "OF ALL", "CPU HOURS"], rows)
    cpu_hours = words.hours(sum(each.cpu_ns for each in sums))
    what = f"; {words.hours(total_ns)} GPU hours and {cpu_hours} CPU hours in all"
    _say(head, what + (f", in {len(sums)} lines: --limit shows more than {query.limit}" if more else ""))


def _sum_value(each: Sum, name: str) -> Any:
    return each.by[name] if name in each.by else getattr(each, SUM_FIELDS.get(name, name))


def _exact(value: Any) -> Any:
    """The value as JSON has it: a sum of a large cluster's year does not fit into 64 bits, and is a number all the same."""
    return msgspec.Raw(str(value).encode()) if isinstance(value, int) and value > LARGEST else value


def _percent(part: int, whole: int) -> str:
    return f"{words.decimal(Fraction(PERCENT * part, whole), 1)} %" if whole else ""


def _say(head: words.Head, more: str) -> None:
    sentence = f"up to cycle {head.cycle} of {head.cell}, at {instant(head.at_us)}{more}"
    errors.print(sentence, markup=False, highlight=False, soft_wrap=True)
