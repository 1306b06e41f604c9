"""A file of queues, for `muster apply`: a table `[queues.NAME]` for each, in TOML.

    [queues.research]
    guarantee = {gpus = 16, "gpus/H100" = 8, cpu = 128, memory = "1Ti"}
    limit = {gpus = 32, jobs = 100}
    weight = 2

    [queues.vision]
    parent = "research"
    order = "fair"
    max_time = "2d"

Its fields are those of `muster.events.queues.QueueSet`, with amounts and spans as job files write them.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

from muster.doors.quantities import read_cpu, read_memory, read_span
from muster.events.codec import Malformed, decode_input, encode_entry
from muster.events.queues import Amounts, QueueSet
from muster.reading.toml import parse_toml
from muster.reading.values import Value

AMOUNTS = ("guarantee", "limit", "user_limit", "borrow", "lend")


def read_queues(text: str, file: str) -> list[QueueSet]:
    """The queues of a file, each behind its parent.

    Raises:
        FileError: something makes no sense; names the key.
    """
    document = parse_toml(text, file)
    tables = document.known("a file of queues", ["queues"])
    found = {}
    for name, value in tables["queues"].mapping("queues").items() if "queues" in tables else ():
        found[name] = _queue(name, value)
    ordered: dict[str, QueueSet] = {}

    def place(name: str, way: tuple[str, ...]) -> None:
        if name in ordered or name not in found:
            return
        if name in way:
            raise document.error(f"has queues in a circle: {' below '.join([*way, name])}")
        place(found[name].parent, (*way, name))
        ordered[name] = found[name]

    for name in sorted(found):
        place(name, ())
    return list(ordered.values())


def _queue(name: str, value: Value) -> QueueSet:
    fields = value.known("a queue", list(FIELDS))
    said: dict[str, Any] = {"queue": name}
    for key, item in fields.items():
        target, read = FIELDS[key]
        said[target] = read(item)
    try:
        event, _ = decode_input(encode_entry(QueueSet(**said)))
    except (Malformed, msgspec.ValidationError) as error:
        raise value.error(f"cannot be: {error}") from None
    assert isinstance(event, QueueSet)
    return event


def _amounts(value: Value) -> Amounts:
    said: dict[str, Any] = {}
    models: dict[str, int] = {}
    for key, item in value.mapping("amounts").items():
        if key.startswith("gpus/") and len(key) > len("gpus/"):
            models[key.removeprefix("gpus/")] = _gpus(item)
        elif key in READERS:
            target, read = READERS[key]
            said[target] = read(item)
        else:
            raise item.error(f"is unknown: amounts are {', '.join(READERS)} and gpus/MODEL")
    return Amounts(gpu_milli_by_model=models, **said)


def _gpus(value: Value) -> int:
    """GPUs in thousandths."""
    if isinstance(value.data, bool) or not isinstance(value.data, int | Decimal):
        raise value.error(f"must be a number of GPUs such as 4 or 0.5, not {value.said()}")
    milli = Decimal(value.data) * 1000
    if milli < 0 or milli != milli.to_integral_value():
        raise value.error(f"must be GPUs from 0 in whole thousandths, not {value.said()}")
    return int(milli)


def _users(value: Value) -> tuple[str, ...]:
    return tuple(item.string() for item in value.items("users"))


READERS: dict[str, tuple[str, Callable[[Value], int]]] = {
    "gpus": ("gpu_milli", _gpus),
    "cpu": ("cpu_milli", read_cpu),
    "memory": ("memory_mib", read_memory),
    "jobs": ("jobs", Value.count),
}
FIELDS: dict[str, tuple[str, Callable[[Value], Any]]] = {
    "parent": ("parent", Value.string),
    **{name: (name, _amounts) for name in AMOUNTS},
    "weight": ("weight", Value.whole),
    "tier": ("tier", Value.whole),
    "order": ("order", lambda value: value.word(("fifo", "fair"))),
    "preemption": ("preemption", lambda value: value.word(("queue", "subtree", "off"))),
    "protected_from": ("protected_from", Value.whole),
    "max_time": ("max_time_us", read_span),
    "default_priority": ("default_priority", Value.whole),
    "users": ("users", _users),
}
