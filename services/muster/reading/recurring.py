"""What recurs by the calendar, as instants: `daily@02:00` in a time zone.

The tables of time zones are those of the package tzdata and no others, so that who expands it can say by which version. Where
clocks are put forward over the time, it is as much later as they are (02:00 in Berlin on 2026-03-29 is 03:00, which is the
instant that would have been 02:00); where they are put back and it comes twice, the first one is meant. A window lasts as long
as it was said to, whatever the clocks do in it.
"""

import re
from datetime import UTC, date, datetime, timedelta
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
import tzdata  # type: ignore[import-untyped]  # nothing but tables and their version

from muster.events.reservations import WINDOWS_MAX, Window

DAY_US: Final = 86_400_000_000
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NAMED: Final = {"daily": DAYS, "weekdays": DAYS[:5], "weekends": DAYS[5:]}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SPAN: Final = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,6})h)?(?:(\d{1,8})m)?(?:(\d{1,9})s)?")
_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


class Every(msgspec.Struct, frozen=True):
    """On these days of the week (0 is Monday), at this time of the day."""

    days: tuple[int, ...]
    hour: int
    minute: int


def tables() -> str:
    """The name and the version of the tables of time zones."""
    return f"tzdata {tzdata.IANA_VERSION}"


def every_of(text: str) -> Every:
    """`daily@02:00`, `weekdays@22:30`, `weekends@00:00`, `mon,thu@06:00`.

    Raises:
        ValueError: it is none of these.
    """
    days, at, time = text.partition("@")
    found = _TIME.fullmatch(time)
    named = _NAMED.get(days, tuple(days.split(",")))
    if not at or found is None or any(day not in DAYS for day in named):
        raise ValueError(f"{text!r} is not like daily@02:00, weekdays@22:30 or mon,thu@06:00")
    return Every(tuple(sorted({DAYS.index(day) for day in named})), int(found[1]), int(found[2]))


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this name.

    Raises:
        ValueError: there is none.
    """
    if _ZONE.fullmatch(name) is not None:
        file = resources.files(tzdata).joinpath("zoneinfo", *name.split("/"))
        if file.is_file():
            with file.open("rb") as data:
                return ZoneInfo.from_file(data, key=name)
    raise ValueError(f"there is no time zone {name!r} in {tables()}; they are named as Europe/Berlin")


def date_of(text: str) -> date:
    """A date as 2026-03-28.

    Raises:
        ValueError: it is none.
    """
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no date such as 2026-03-28") from None


def instant_of(day: date, hour: int, minute: int, zone: ZoneInfo) -> int:
    """When the clocks of the zone show this, in microseconds since 1970."""
    local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
    return micros_of(local)


def micros_of(moment: datetime) -> int:
    """Microseconds since 1970; the moment says in which zone it is."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def recurring(every: Every, zone: ZoneInfo, since_us: int, length_us: int, times: int) -> tuple[Window, ...]:
    """The first windows that begin at or after an instant, so many.

    Raises:
        ValueError: one would not be over when the next begins, or there would be too many.
    """
    if not 1 <= times <= WINDOWS_MAX:
        raise ValueError(f"{times} windows are asked for; 1 to {WINDOWS_MAX} can be")
    day = (_EPOCH + timedelta(microseconds=since_us)).astimezone(zone).date()
    found: list[Window] = []
    while len(found) < times:
        if day.weekday() in every.days:
            from_us = instant_of(day, every.hour, every.minute, zone)
            if from_us >= since_us:
                if found and from_us < found[-1].until_us:
                    raise ValueError("a window would not be over when the next begins")
                found.append(Window(from_us=from_us, until_us=from_us + length_us))
        day += timedelta(days=1)
    return tuple(found)


def repeated(first: Window, every_us: int, times: int) -> tuple[Window, ...]:
    """The window again and again, so long after the one before.

    Raises:
        ValueError: one would not be over when the next begins.
    """
    if every_us < first.until_us - first.from_us:
        raise ValueError("a window would not be over when the next begins")
    return tuple([Window(from_us=first.from_us + at * every_us, until_us=first.until_us + at * every_us) for at in range(times)])


def length_of(text: str) -> int | None:
    """A span such as 90s, 15m, 12h, 7d or 1d12h in microseconds; None if it is none."""
    found = _SPAN.fullmatch(text)
    if not text or found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000


def begin_of(text: str, zone: ZoneInfo) -> int:
    """An instant by the clocks of the zone, or with its own offset.

    Raises:
        ValueError: it is none.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"begin: {text!r} is no instant such as 2026-12-05T08:00") from None
    found = micros_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=zone))
    if found < 0:
        raise ValueError(f"begin: {text!r} lies before 1970")
    return found


def expanded(begin: str, length_us: int, every: str, zone: str, times: int, now_us: int) -> tuple[tuple[Window, ...], str]:
    """All windows as instants, and the zone by whose clocks they were read; empty if no clock was asked.

    Raises:
        ValueError: naming the field.
    """
    if length_us <= 0:
        raise ValueError("for_us: how long it is to last must be said, and be more than 0")
    span_us = length_of(every)
    by_clock = bool(every and span_us is None) or bool(begin)
    try:
        clocks = zone_of(zone or "UTC")
    except ValueError as error:
        raise ValueError(f"zone: {error}") from None
    since_us = begin_of(begin, clocks) if begin else now_us
    first = Window(from_us=since_us, until_us=since_us + length_us)
    if not every:
        if times > 1:
            raise ValueError("times: it is said once, so every must be said too")
        return (first,), zone or "UTC" if by_clock else ""
    try:
        if span_us is not None:
            found = repeated(first, span_us, times or WINDOWS_MAX)
        else:
            found = recurring(every_of(every), clocks, since_us, length_us, times or WINDOWS_MAX)
    except ValueError as error:
        raise ValueError(f"every: {error}") from None
    return found, (zone or "UTC") if by_clock else ""
