"""Amounts as people write them, in the units of the events: milli-CPU, MiB, thousandths of a GPU, microseconds.

Muster's own files say exactly what they mean: an amount with more digits than its unit keeps is an error. Kubernetes
rounds up, and so does its door. Digits are bounded before anything is computed.
"""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from muster.reading.values import Value

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {
    "Ki": Fraction(1024),
    "Mi": Fraction(1024**2),
    "Gi": Fraction(1024**3),
    "Ti": Fraction(1024**4),
    "Pi": Fraction(1024**5),
    "Ei": Fraction(1024**6),
    "k": Fraction(10**3),
    "K": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_SMALL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_MIB = 1024**2
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})"
_CPU = re.compile(_NUMBER + r"(m?)")
_MEMORY = re.compile(_NUMBER + r"(Ki|Mi|Gi|Ti|Pi|Ei|K|M|G|T)")
_SHARE = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,9})?")
_QUANTITY = re.compile(r"\+?" + _NUMBER + r"(?:([numkMGTPE]|[KMGTPE]i)|[eE]([-+]?[0-9]{1,2}))?")
_SPAN = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")


def read_cpu(value: Value) -> int:
    """Cores (`0.5`, `500m`) in thousandths."""
    match = None if isinstance(value.data, bool) else _CPU.fullmatch(value.scalar_text())
    if match is None:
        raise value.error(f"must be cores such as 0.5 or 500m, not {value.said()}")
    return _exact(value, Fraction(Decimal(match[1])) * (1 if match[2] else 1000), "thousandths of a core")


def read_memory(value: Value) -> int:
    """Memory with its unit (`64Gi`) in MiB; `0` needs none."""
    text = value.scalar_text()
    if text == "0":
        return 0
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise value.error(f"must be memory with a unit such as 64Gi, not {value.said()}")
    return _exact(value, Fraction(Decimal(match[1])) * _UNITS[match[2]] / _MIB, "MiB")


def read_share(value: Value) -> int:
    """A decimal share of one GPU (`"0.5"`) in thousandths."""
    text = "" if isinstance(value.data, bool) else value.scalar_text()
    if not _SHARE.fullmatch(text) or not 0 < Decimal(text) < 1:
        raise value.error(f'must be a share of one GPU such as "0.5", not {value.said()}; whole ones are asked for with gpus')
    return _exact(value, Fraction(Decimal(text)) * 1000, "thousandths of a GPU")


def read_span(value: Value) -> int:
    """A span (`90`, `1.5`: seconds; `90s`, `15m`, `24h`, `7d`, `1d12h`) in microseconds."""
    text = "" if isinstance(value.data, bool) else value.scalar_text()
    if _SECONDS.fullmatch(text):
        return int(Fraction(Decimal(text)) * 1_000_000)
    match = _SPAN.fullmatch(text)
    if match is None or not text:
        raise value.error(f"must be seconds, or a span such as 90s, 15m, 24h or 1d12h, not {value.said()}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000


def read_instant(value: Value) -> int:
    """An instant with its zone, as `2026-12-01T18:00:00Z` or `2026-12-01 19:00+01:00`, in microseconds since 1970."""
    try:
        instant = datetime.fromisoformat(value.string())
    except ValueError:
        instant = datetime.min
    if instant.tzinfo is None or instant.year < 1970:
        raise value.error(f"must be an instant with its zone, such as 2026-12-01T18:00:00Z, not {value.said()}")
    return (instant - EPOCH) // timedelta(microseconds=1)


def write_instant(micros: int) -> str:
    """The same, written: in UTC."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")


def kubernetes_cpu(value: Value) -> int:
    """A quantity of Kubernetes in milli-CPU, rounded up."""
    return _up(_quantity(value, "cores such as 2 or 500m") * 1000)


def kubernetes_memory(value: Value) -> int:
    """A quantity of Kubernetes, in bytes, as MiB, rounded up."""
    return _up(_quantity(value, "memory such as 64Gi") / _MIB)


def kubernetes_count(value: Value) -> int:
    """A quantity of Kubernetes that can only be whole."""
    amount = _quantity(value, "a whole number")
    if amount.denominator != 1:
        raise value.error(f"must be a whole number, not {value.said()}")
    return int(amount)


def _quantity(value: Value, what: str) -> Fraction:
    match = None if isinstance(value.data, bool) else _QUANTITY.fullmatch(value.scalar_text())
    if match is None:
        raise value.error(f"must be {what}, not {value.said()}")
    amount = Fraction(Decimal(match[1]))
    if match[2]:
        return amount * (_UNITS.get(match[2]) or _SMALL[match[2]])
    power = int(match[3] or 0)
    return amount * Fraction(10) ** power


def _exact(value: Value, amount: Fraction, unit: str) -> int:
    if amount.denominator != 1:
        raise value.error(f"must be whole {unit}: {value.said()} has more digits than are kept")
    return int(amount)


def _up(amount: Fraction) -> int:
    return -(-amount.numerator // amount.denominator)
