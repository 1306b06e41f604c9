"""What is said to a person about reservations that keep a job off nodes. Nothing here decides."""

from typing import Final

import msgspec

from muster.cluster.jobs import Instance
from muster.cluster.reservations import Reservation
from muster.cluster.state import State
from muster.engine.nodeindex import rows_of
from muster.engine.place import Placer
from muster.events.reservations import Window

_UNITS: Final = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1))


class KeptOff(msgspec.Struct, frozen=True):
    """What is reserved of a node, and what is said of it."""

    amounts: list[int] | None
    """CPU, memory, disk, tasks, devices; None for the whole node."""
    text: str


def reserved_from(state: State, placer: Placer, instance: Instance) -> dict[int, KeptOff]:
    """By row: what is reserved there for others while the instance, started now, would be there."""
    if placer.backfill is None:
        return {}
    placer.backfill.ask_for(instance)
    reserved = placer.backfill.reserved
    found: dict[int, KeptOff] = {}
    for held, window in reserved.because:
        text = f"are reserved for {whom(held.reservation)} {when(window, state.at_us)}"
        for row in rows_of(held.bits):
            found.setdefault(row, KeptOff(None, text))
        for row in held.devices:
            node = state.ledger.node(row)
            free = [node.cpu_free, node.memory_free, node.disk_free, node.tasks_free, *node.device_free]
            found.setdefault(row, KeptOff(reserved.kept(node, free), text))
    return found


def whom(reservation: Reservation) -> str:
    """For whom it is, and its name."""
    spec = reservation.spec
    for what, name in (("queue", spec.queue), ("user", spec.user), ("job", spec.job)):
        if name:
            return f"{what} {name} by {spec.reservation}"
    return f"maintenance {spec.reservation}"


def when(window: Window, now_us: int) -> str:
    """From when, if it is not yet; else until when."""
    if window.from_us > now_us:
        return f"from {clock(window.from_us)} (in {span(window.from_us - now_us)})"
    return f"until {clock(window.until_us)} (for {span(window.until_us - now_us)} more)"


def clock(at_us: int) -> str:
    """An instant for a person, by the calendar: days since 1970 as a date, with years that begin in March."""
    days, seconds = divmod(at_us // 1_000_000, 86_400)
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day_of_month, late = day - (153 * month + 2) // 5 + 1, month >= 10
    date = f"{year + 400 * era + late:04d}-{month - 9 if late else month + 3:02d}-{day_of_month:02d}"
    return f"{date} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d} UTC"


def span(micros: int) -> str:
    """A span for a person: two units."""
    seconds = -(-micros // 1_000_000)
    for unit, size, below, each in _UNITS:
        if seconds >= size:
            rest = seconds % size // each
            return f"{seconds // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{seconds} s"
