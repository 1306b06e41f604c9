"""Quantities as scenes write them: cores, memory with units, shares of one GPU.

Every reader returns an exact number in the unit of the events (milli-CPU, MiB, milli-GPU), a `Fraction` where the text
has more digits than the unit: a submission with more digits is an input that the scheduler refuses, not an error of
the file.
"""

import re
from decimal import Decimal
from fractions import Fraction

from muster.simulator.scenario.reading import Value

Exact = int | Fraction

_UNITS = {
    "Ki": Fraction(1, 1024),
    "Mi": Fraction(1),
    "Gi": Fraction(1024),
    "Ti": Fraction(1024**2),
    "Pi": Fraction(1024**3),
    "Ei": Fraction(1024**4),
    "K": Fraction(10**3, 2**20),
    "M": Fraction(10**6, 2**20),
    "G": Fraction(10**9, 2**20),
    "T": Fraction(10**12, 2**20),
}
_CPU = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(m?)$")
_MEMORY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|Pi|Ei|K|M|G|T)$")
_SHARE = re.compile(r"^[0-9]+(?:\.[0-9]+)?$")


def read_cpu(value: Value) -> Exact:
    """Cores (`0.5`, `500m`) in thousandths."""
    match = _CPU.match(value.scalar_text())
    if match is None or isinstance(value.data, bool):
        raise value.error(f"must be cores such as 0.5 or 500m, not {value.said()}")
    return exact(Fraction(Decimal(match[1])) * (1 if match[2] else 1000))


def read_memory(value: Value) -> Exact:
    """Memory with its unit (`64Gi`) in MiB; `0` needs none."""
    text = value.scalar_text()
    if text == "0":
        return 0
    match = _MEMORY.match(text)
    if match is None:
        raise value.error(f"must be memory with a unit such as 64Gi, not {value.said()}")
    return exact(Fraction(Decimal(match[1])) * _UNITS[match[2]])


def read_share(value: Value) -> Exact:
    """A decimal share of one GPU (`"0.5"`) in thousandths."""
    text = value.scalar_text()
    if not _SHARE.match(text) or isinstance(value.data, bool):
        raise value.error(f'must be a share of one GPU such as "0.5", not {value.said()}')
    return exact(Fraction(Decimal(text)) * 1000)


def read_gpus(value: Value) -> Exact:
    """How many GPUs are held, fractions allowed, in thousandths."""
    return read_share(value)


def whole(value: Value, amount: Exact) -> int:
    """An amount of the cluster, which has to be whole in its unit."""
    if isinstance(amount, Fraction):
        raise value.error(f"has more digits than can be kept: {value.said()}")
    return amount


def exact(amount: Fraction) -> Exact:
    """An integer where it is one."""
    return int(amount) if amount.denominator == 1 else amount
