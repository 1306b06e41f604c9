"""What somebody asks of the history, and the words for it: columns, levels, instants.

Both sources (`history_database`, `history_folded`) answer the same `Query` with the same values; nothing here reads either.
A column's value is what `Column.field` says, in its unit: `Source` says from which row it is taken.
"""

import datetime
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from muster.cli.output import Failure, instant

Each = Literal["job", "instance", "attempt"]
"""What a line of the list is."""
EACH: Final[tuple[Each, ...]] = ("job", "instance", "attempt")
BY: Final = ("user", "queue", "model", "day", "node", "name", "job")
"""What GPU time is summed by."""
STATES: Final[dict[Each, tuple[str, ...]]] = {
    "job": ("pending", "running", "finished", "failed", "cancelled", "rejected"),
    "instance": ("pending", "starting", "running", "stopping", "finished", "failed", "cancelled", "rejected"),
    "attempt": ("starting", "running", "stopping", "requeued", "finished", "failed", "cancelled"),
}
DAY_US: Final = 86_400_000_000
HOUR_NS: Final = 3_600_000_000_000
LARGEST_US: Final = 2**62
UUID_LENGTH: Final = 36

UNITS: Final = {"w": 7 * DAY_US, "d": DAY_US, "h": DAY_US // 24, "m": 60_000_000, "s": 1_000_000}
_SPAN: Final = re.compile(r"-?((?:\d{1,9}[wdhms])+)(?: ago)?", re.ASCII)
_SECONDS: Final = re.compile(r"(\d{1,12})(?:\.(\d{1,6}))?", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-", re.ASCII)
"""How every date begins that is read; ISO 8601 has others, which look like numbers."""


class Head(NamedTuple):
    """How far a history goes: its newest cycle. That is its present."""

    cell: str
    cycle: int
    at_us: int


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. An empty filter lets everything through."""

    each: Each = "job"
    jobs: tuple[str, ...] = ()
    """Ids, or their beginnings."""
    users: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    since_us: int | None = None
    until_us: int | None = None
    """This instant is not part of the range."""
    fields: tuple[str, ...] = ()
    """Of the columns that are wanted."""
    sort: tuple[tuple[str, bool], ...] = ()
    """Fields, and whether the largest is first. Where nothing is known stands last either way."""
    limit: int = 0
    """0: all."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Of `jobs`, what must be the whole id."""
        return self.jobs if not self.beginnings else ()

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Of `jobs`, all of them if one is too short for a whole id: whole ids begin with themselves."""
        return self.jobs if any(len(job) < UUID_LENGTH for job in self.jobs) else ()


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """Time that was held. A nanosecond of a GPU is a microsecond of a thousandth of it, so these are exact."""

    by: dict[str, str]
    jobs: int
    attempts: int
    gpu_ns: int
    cpu_ns: int


class Source(Protocol):
    """A history."""

    def head(self) -> Head:
        """How far it goes."""

    def lines(self, query: Query) -> list[dict[str, Any]]:
        """The lines that fit, in order, and one more than `query.limit` if there are more."""

    def sums(self, query: Query, by: tuple[str, ...]) -> list[Sum]:
        """GPU time and processor time in the range, by the values of `by`, in no order."""


class Column(NamedTuple):
    """A column that can be asked for."""

    name: str
    field: str
    """In JSON, with its unit."""
    what: str
    origin: dict[Each, str]
    """By level, where it is taken from: `j.` the job's row, `i.` the instance's, `a.` the attempt's, else what `SUMS` names."""
    show: Callable[[Any], str]

    @property
    def head(self) -> str:
        """As a table has it."""
        return self.name.replace("_", " ").upper()


def text(value: Any) -> str:
    """As it is; nothing for what is not known."""
    return "" if value is None else str(value)


def printable(value: str) -> str:
    """What a person said, with what a terminal would take for an order as a question mark."""
    return value if value.isprintable() else "".join(char if char.isprintable() else "?" for char in value)


def flag(value: bool) -> str:
    """Yes or no."""
    return "yes" if value else "no"


def listed(value: list[str]) -> str:
    """With commas between."""
    return ",".join(value)


def words(value: list[str]) -> str:
    """A command on one line."""
    return " ".join(value)


def pairs(value: dict[str, str]) -> str:
    """`key=value`, with commas between."""
    return ",".join(f"{key}={label}" for key, label in value.items())


def milli(value: int | None) -> str:
    """Thousandths as a decimal number."""
    return "" if value is None else f"{value // 1000}.{value % 1000:03d}".rstrip("0").rstrip(".")


def when(value: int | None) -> str:
    """An instant, to the second where it is a date; JSON has all of it."""
    return "" if value is None else re.sub(r"\.\d{6}Z$", "Z", instant(value))


def span(value: int | None) -> str:
    """`[D-]HH:MM:SS`, as sacct has it."""
    if value is None:
        return ""
    seconds = value // 1_000_000
    days, rest = divmod(seconds, 86_400)
    return (f"{days}-" if days else "") + f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def hours(value: int | None) -> str:
    """Nanoseconds as hours with three decimals, the nearest, of two the even one."""
    return "" if value is None else decimal(Fraction(value, HOUR_NS), 3)


def decimal(value: Fraction, places: int) -> str:
    """The nearest decimal number with so many places."""
    whole = round(value * 10**places)
    return f"{whole // 10**places}.{whole % 10**places:0{places}d}"


def _everywhere(origin: str) -> dict[Each, str]:
    return dict.fromkeys(EACH, origin)


def _of(job: str = "", instance: str = "", attempt: str = "") -> dict[Each, str]:
    told: dict[Each, str] = {"job": job, "instance": instance, "attempt": attempt}
    return {each: origin for each, origin in told.items() if origin}


def _sized(name: str) -> dict[Each, str]:
    return _of(f"j.{name}", f"j.{name}", f"a.{name}")


CYCLE: Final = _of("j.entered_cycle", "j.entered_cycle", "a.bound_cycle")
COLUMNS: Final[tuple[Column, ...]] = (
    Column("job", "job", "the job's id", _everywhere("j.job"), text),
    Column("instance", "instance", "number of the instance, from 0", _of("", "i.instance", "a.instance"), text),
    Column("attempt", "attempt", "number of the attempt, from 1", _of("", "", "a.attempt"), text),
    Column("name", "name", "the job's name", _everywhere("j.name"), text),
    Column("user", "user", "whose it is", _everywhere("j.user_name"), text),
    Column("queue", "queue", "its queue", _everywhere("j.queue"), text),
    Column("priority", "priority", "as it is now", _everywhere("j.priority"), text),
    Column("state", "state", "what has become of it", _of("j.state", "i.state", "state"), text),
    Column("instances", "instances", "how many it has", _of("j.instances"), text),
    Column("pending", "pending", "instances that wait", _of("j.pending"), text),
    Column("running", "running", "instances that hold places", _of("j.running"), text),
    Column("finished", "finished", "instances that finished", _of("j.finished"), text),
    Column("failed", "failed", "instances that failed", _of("j.failed"), text),
    Column("cancelled", "cancelled", "instances that were cancelled", _of("j.cancelled"), text),
    Column("tasks", "tasks", "of one instance; of the attempt", _sized("tasks"), text),
    Column("cpus", "cpu_milli", "processors of one instance; of the attempt", _sized("cpu_milli"), milli),
    Column("memory", "memory_mib", "MiB of one instance; of the attempt", _sized("memory_mib"), text),
    Column("gpus", "gpu_milli", "GPUs of one instance; of the attempt", _sized("gpu_milli"), milli),
    Column("gpu_memory", "gpu_memory_mib", "MiB of shared GPUs, of one instance", _everywhere("j.gpu_memory_mib"), text),
    Column("models", "gpu_models", "models that it asks for", _everywhere("j.gpu_models"), listed),
    Column("attempts", "attempts", "bindings so far", _of("attempts", "i.attempts"), text),
    Column("retries", "retries", "attempts that failed by its own fault", _of("", "i.retries"), text),
    Column("preemptions", "preemptions", "attempts that gave way to others", _of("preemptions", "preemptions"), text),
    Column("submitted", "submitted_us", "when its producer made it, by that clock", _everywhere("j.submitted_us"), when),
    Column("entered", "entered_us", "when a cycle took it", _everywhere("j.entered_us"), when),
    Column("cycle", "cycle", "which cycle took it; which bound the attempt", CYCLE, text),
    Column("bound", "bound_us", "when it first had its places", _of("bound_us", "bound_us", "a.bound_us"), when),
    Column("started", "started_us", "when all of it first ran", _of("started_us", "started_us", "a.started_us"), when),
    Column("ended", "ended_us", "when it ended", _of("j.ended_us", "i.ended_us", "a.ended_us"), when),
    Column("waited", "waited_us", "from when a cycle took it until it first had its places", _of("waited_us", "waited_us"), span),
    Column("ran", "ran_us", "from the start to the end, of all attempts together", _everywhere("ran_us"), span),
    Column("gpu_hours", "gpu_ns", "GPU time that it held; in JSON in nanoseconds of a GPU", _everywhere("gpu_ns"), hours),
    Column("cpu_hours", "cpu_ns", "processor time that it held; in JSON in nanoseconds", _everywhere("cpu_ns"), hours),
    Column("nodes", "nodes", "where it was, ever", _everywhere("nodes"), listed),
    Column("stop_reason", "stop_reason", "why it was told to stop", _of("", "", "a.stop_reason"), text),
    Column("stop_node", "stop_node", "the node to blame", _of("", "", "a.stop_node"), text),
    Column("by_job", "by_job", "for whom it was preempted", _of("", "", "a.by_job"), text),
    Column("charged", "charged", "whether it counts as a retry", _of("", "", "a.charged"), flag),
    Column("code", "code", "exit code of what failed; -n for signal n", _of("code", "i.code", "a.code"), text),
    Column("reason", "reason", "why it ended so; of a job: what failed first", _of("reason", "i.reason", "a.reason"), text),
    Column("preemptible", "preemptible", "whether it may have to give way", _everywhere("j.preemptible"), flag),
    Column("time_limit", "time_limit_us", "of an attempt", _everywhere("j.time_limit_us"), span),
    Column("labels", "labels", "the job's", _everywhere("j.labels"), pairs),
    Column("command", "command", "what it runs", _everywhere("j.command"), words),
    Column("image", "image", "the job's image", _everywhere("j.image"), text),
    Column("directory", "directory", "where it runs", _everywhere("j.directory"), text),
    Column("shape", "shape", "what makes it equal to others for placement", _everywhere("j.shape"), text),
)  # fmt: skip

USUAL: Final[dict[Each, str]] = {
    "job": "job,name,user,queue,state,instances,gpus,attempts,entered,waited,ran,gpu_hours,code,reason",
    "instance": "job,instance,name,user,queue,state,gpus,attempts,retries,waited,ran,gpu_hours,code,reason",
    "attempt": "job,instance,attempt,name,user,state,gpus,nodes,bound,ran,gpu_hours,stop_reason,code,reason",
}
JSON_FIELDS: Final = ("gpu_models", "labels", "command")
"""They are JSON in the rows."""
NEWEST: Final[dict[Each, str]] = {"job": "entered", "instance": "entered", "attempt": "bound"}


def columns(each: Each) -> list[Column]:
    """Those that a line of this level has."""
    return [column for column in COLUMNS if each in column.origin]


def chosen(each: Each, told: str) -> list[Column]:
    """The columns of a `--format`.

    Raises:
        Failure: there is no such column.
    """
    names = [name.strip() for name in (told or USUAL[each]).split(",") if name.strip()]
    return [column(each, name) for name in names]


def column(each: Each, name: str) -> Column:
    """The column of this name, or of this field.

    Raises:
        Failure: there is none.
    """
    plain = name.lower().replace("-", "_")
    for found in columns(each):
        if plain in (found.name, found.field):
            return found
    raise Failure(f"there is no column {name!r} of {each}s: `muster history --each {each} --format help` lists them")


def order(each: Each, told: str) -> tuple[tuple[str, bool], ...]:
    """The fields of a `--sort`, each with whether the largest is first.

    Raises:
        Failure: there is no such column, or none that has an order.
    """
    found: list[tuple[str, bool]] = []
    for name in [name.strip() for name in (told or f"-{NEWEST[each]}").split(",") if name.strip()]:
        wanted = column(each, name.lstrip("-+"))
        if wanted.field in (*JSON_FIELDS, "nodes"):
            raise Failure(f"lines cannot be sorted by {wanted.name}: it is a list")
        found.append((wanted.field, name.startswith("-")))
    return tuple(found)


def moment(told: str, present_us: int) -> int:
    """An instant in microseconds since 1970.

    It is a date or an instant of ISO 8601 (UTC where no offset is said); a span before the newest cycle (`90m`, `1d12h`); `now`,
    `today` or `yesterday`, of the newest cycle; or seconds since 1970, which is how instants of virtual time are shown.

    Raises:
        Failure: it is none of these.
    """
    plain = told.strip().lower()
    if plain in ("now", "today", "yesterday"):
        midnight = present_us - present_us % DAY_US
        return {"now": present_us, "today": midnight, "yesterday": max(0, midnight - DAY_US)}[plain]
    if match := _SPAN.fullmatch(plain):
        parts = re.findall(r"(\d+)([wdhms])", match[1])
        return max(0, present_us - sum(int(count) * UNITS[unit] for count, unit in parts))
    if match := _SECONDS.fullmatch(plain):
        return int(match[1]) * 1_000_000 + int((match[2] or "").ljust(6, "0"))
    try:
        if not _DATE.match(plain):
            raise ValueError
        read = datetime.datetime.fromisoformat(told.strip())
    except ValueError:
        raise Failure(
            f"{told!r} is no instant: 2026-11-30, 2026-11-30T18:00:00Z, 90m, 1d12h (before the newest cycle), today, yesterday "
            "and 1764525600.5 (seconds since 1970) are"
        ) from None
    since = (read if read.tzinfo else read.replace(tzinfo=datetime.UTC)) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return max(0, since // datetime.timedelta(microseconds=1))


def day(at_us: int) -> str:
    """The day in UTC."""
    return f"{datetime.date(1970, 1, 1) + datetime.timedelta(days=at_us // DAY_US)}"
