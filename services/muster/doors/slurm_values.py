"""The values of sbatch's options: times, memory, counts, GPUs. Each reader takes text and raises `BadValue`, one sentence."""

import re
from datetime import datetime, timedelta

import msgspec

from muster.reading.catalogue import find_model

GPUS_MAX = 64
COUNT_MAX = 100_000

_COUNT = re.compile(r"([0-9]{1,9})([kKmM]?)")
_MEMORY = re.compile(r"([0-9]{1,15})([kmgtKMGT]?)[bB]?")
_TIME = re.compile(
    r"(?:([0-9]{1,6})-([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?)|(?:([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?)"
)
_NOW = re.compile(r"now(?:\+([0-9]{1,9})(seconds|minutes|hours|days|weeks)?)?")
_NOW_UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800}
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")
_UNLIMITED = ("UNLIMITED", "INFINITE", "-1")


class BadValue(ValueError):
    """The value makes no sense: one sentence that says what would be right."""


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """So many GPUs of one type ("" for any)."""

    count: int
    model: str = ""


def read_time_us(text: str) -> int | None:
    """`minutes`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; None for UNLIMITED and for 0."""
    if text.upper() in _UNLIMITED:
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise BadValue("must be minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS or UNLIMITED")
    if match[1] is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    else:
        parts = [int(part) for part in match.groups()[4:] if part is not None]
        days, hours = 0, (parts[0] if len(parts) == 3 else 0)
        minutes = parts[1] if len(parts) == 3 else parts[0]
        seconds = parts[-1] if len(parts) > 1 else 0
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return total * 1_000_000 or None


def read_deadline_us(text: str, now_us: int) -> int:
    """`HH:MM[:SS]` today or tomorrow, `YYYY-MM-DD[THH:MM[:SS]]`, `now+COUNT[UNIT]`; in the zone of this machine."""
    match = _NOW.fullmatch(text)
    if match is not None:
        return now_us + int(match[1] or 0) * _NOW_UNITS[match[2] or "seconds"] * 1_000_000
    now = datetime.fromtimestamp(now_us // 1_000_000).astimezone()
    try:
        if _CLOCK.fullmatch(text):
            hours, minutes, *seconds = [int(part) for part in text.split(":")]
            when = now.replace(hour=hours, minute=minutes, second=seconds[0] if seconds else 0, microsecond=0, tzinfo=None)
            if when < now.replace(tzinfo=None):
                when += timedelta(days=1)
        elif _DAY.fullmatch(text):
            when = datetime.fromisoformat(text)
        else:
            raise ValueError(text)
    except ValueError:
        raise BadValue("must be HH:MM[:SS], YYYY-MM-DD[THH:MM[:SS]] or now+COUNT[seconds|minutes|hours|days|weeks]") from None
    return int(when.astimezone().timestamp()) * 1_000_000


def read_memory_mib(text: str) -> int:
    """Whole megabytes, or a number with K, M, G or T (of 1024), rounded up; 0 means all memory of the node."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise BadValue("must be a whole number of megabytes, or one with K, M, G or T such as 64G")
    power = {"k": -1, "": 0, "m": 0, "g": 1, "t": 2}[match[2].lower()]
    number = int(match[1])
    return -(-number // 1024) if power < 0 else number * 1024**power


def read_count(text: str) -> int:
    """A whole number from 1; `2k` is 2048."""
    match = _COUNT.fullmatch(text)
    number = int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()] if match else 0
    if not 1 <= number <= COUNT_MAX:
        raise BadValue(f"must be a whole number from 1 to {COUNT_MAX}")
    return number


def read_nodes(text: str) -> tuple[int, int]:
    """`4`, `2-4`, `2,4,8`: the least and the most nodes."""
    numbers = []
    for part in text.split(","):
        least, dash, most = part.partition(":")[0].partition("-")
        numbers.extend([read_count(least), read_count(most) if dash else read_count(least)])
    if numbers[0] > numbers[1]:
        raise BadValue("must not have a least number of nodes above the most")
    return min(numbers), max(numbers)


def read_gpus(text: str) -> Gpus:
    """`4`, `a30:4`, `a30` (one of them), `0`."""
    parts = text.split(":")
    if len(parts) > 2 or not all(parts):
        raise BadValue("must be a number of GPUs such as 4, or one with a type such as a30:4")
    model, number = (parts[0], parts[1]) if len(parts) == 2 else ("", parts[0])
    if not model and not re.fullmatch(r"[0-9]{1,9}", number):
        model, number = number, "1"
    if not re.fullmatch(r"[0-9]{1,9}", number) or not re.fullmatch(r"[A-Za-z0-9_.+-]{0,64}", model):
        raise BadValue("must be a number of GPUs such as 4, or one with a type such as a30:4")
    return Gpus(count=int(number), model=model if int(number) else "")


def read_several_gpus(text: str) -> Gpus:
    """As `read_gpus`; of several types separated by commas there may be only one."""
    kinds = [read_gpus(part) for part in text.split(",") if part]
    if not kinds:
        raise BadValue("must be a number of GPUs such as 4")
    return _one(kinds)


def read_gres(text: str) -> tuple[Gpus | None, list[str]]:
    """The GPUs of a list of generic resources (`gpu`, `gpu:4`, `gpu:a30:3`, `gpu:4(S:0-1)`), and the other resources."""
    kinds: list[Gpus] = []
    others: list[str] = []
    for part in re.sub(r"\([^()]{0,256}\)", "", text).split(","):
        part = re.sub(r"^gres[:/]", "", part.strip())
        name, colon, rest = part.partition(":")
        if name == "gpu":
            kinds.append(read_gpus(rest if colon else "1"))
        elif name and part.lower() not in ("none", "0"):
            others.append(part)
    return (_one(kinds) if kinds else None), others


def gpu_models(model: str) -> tuple[str, ...]:
    """A type of GPU as nodes may call it: Slurm's are mostly lower case, models are mostly not."""
    found = find_model(model) if model else None
    return tuple(dict.fromkeys((model, model.upper(), *([found[0]] if found else [])))) if model else ()


def _one(kinds: list[Gpus]) -> Gpus:
    asked = [kind for kind in kinds if kind.count]
    if len(asked) > 1 and len(dict.fromkeys(kind.model for kind in asked)) > 1:
        raise BadValue("asks for GPUs of several types: a task has one type")
    return Gpus(count=sum(kind.count for kind in asked), model=asked[0].model if asked else "")
