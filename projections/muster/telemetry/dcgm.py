"""Samples from what DCGM's exporter prints for Prometheus: its metrics are named after DCGM's fields, `DCGM_FI_DEV_…`.

What a page does not tell stays null, and so does what DCGM marks as not known (a value near 2^63, or 2^47 of a fraction). Of a
GPU in MIG mode the exporter tells values of the whole GPU for each slice; those are left out, as its slices, which are the
devices, have other uuids. Xids are told as the last one that there was, so one is known of at most, and that it happened once.

The text format is that of Prometheus, 0.0.4. Numbers are read exactly, not as floating point.
"""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from muster.events.base import INT_MAX
from muster.events.telemetry import THROTTLES, XIDS_MAX, GpuSample, XidCount
from muster.log.errors import OperatingError

PAGE_MAX_BYTES: Final = 16 * 1024 * 1024
BLANK: Final = 2**63 - 16
"""DCGM's blank integers are this and what follows."""
BLANK_FRACTION: Final = Decimal(2**47)
"""And its blank floating point numbers."""

FIELDS: Final[dict[str, tuple[str, int]]] = {
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_millicelsius", 1000),
    "DCGM_FI_DEV_MEMORY_TEMP": ("memory_temperature_millicelsius", 1000),
    "DCGM_FI_DEV_POWER_USAGE": ("power_mw", 1000),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_volatile_single", 1),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_volatile_double", 1),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": ("ecc_aggregate_single", 1),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": ("ecc_aggregate_double", 1),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("remapped_correctable", 1),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("remapped_uncorrectable", 1),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("pcie_replays", 1),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("nvlink_replays", 1),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("nvlink_recoveries", 1),
}
"""By metric, the field of a sample, and how many of its units one of DCGM's is."""
FLAGS: Final = {
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "remap_pending",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failed",
}
REASONS: Final = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
"""NVML's bits; the second is the older name."""
LAST_XID: Final = "DCGM_FI_DEV_XID_ERRORS"
COUNTED_XIDS: Final = "DCGM_EXP_XID_ERRORS_COUNT"
"""The exporter's own: how often each happened lately, with the number as a label."""

_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+(-?[0-9]+))?\s*")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPED: Final = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


class NotText(OperatingError):
    """The page is not in Prometheus' text format. Its text names the line."""


class Measured(msgspec.Struct, frozen=True):
    """A sample of a device, and what the page calls its machine."""

    host: str
    sample: GpuSample


def samples(page: str, at_us: int, host_label: str = "Hostname") -> list[Measured]:
    """What a page tells of each GPU, in the order in which it names them. `at_us` is when it was read.

    Raises:
        NotText: it is no such page.
    """
    found: dict[str, tuple[str, dict[str, Any], dict[int, int]]] = {}
    for number, line in enumerate(page.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise NotText(f'line {number} is no metric: it must read NAME{{LABEL="…"}} VALUE, not {line.strip()[:80]!r}')
        name, labelled, text, _ = match.groups()
        if not name.startswith(("DCGM_FI_DEV_", "DCGM_EXP_")):
            continue
        labels = _labels(labelled or "", number)
        uuid = labels.get("UUID", "")
        if not uuid or labels.get("GPU_I_ID"):
            continue
        _, told, xids = found.setdefault(uuid, (labels.get(host_label, ""), {}, {}))
        _tell(name, labels, _number(text, number), told, xids)
    made = []
    for uuid, (host, told, xids) in found.items():
        if xids or "xids" in told:
            told["xids"] = tuple(XidCount(code=code, count=xids[code]) for code in sorted(xids)[:XIDS_MAX])
        made.append(Measured(host, GpuSample(device=uuid, at_us=at_us, **told)))
    return made


def _tell(name: str, labels: Mapping[str, str], value: Decimal | None, told: dict[str, Any], xids: dict[int, int]) -> None:
    """Put down what one line says."""
    if value is None or value < 0:
        return
    whole = int(value)
    if name in FIELDS:
        field, units = FIELDS[name]
        told[field] = min(int(value * units), INT_MAX)
    elif name in FLAGS:
        told[FLAGS[name]] = whole != 0
    elif name in REASONS:
        told["throttle"] = tuple(reason for bit, reason in enumerate(THROTTLES) if whole >> bit & 1)
    elif name == LAST_XID:
        told["xids"] = None
        if 0 < whole < 65_536:
            xids[whole] = max(1, xids.get(whole, 0))
    elif name == COUNTED_XIDS:
        told["xids"] = None
        code = labels.get("xid", "")
        if whole and code.isdigit() and 0 < int(code) < 65_536:
            xids[int(code)] = max(whole, xids.get(int(code), 0))


def _labels(text: str, number: int) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text.rstrip()):
        match = _LABEL.match(text, at)
        if match is None:
            raise NotText(f"line {number} has labels that are none: {text[at : at + 80]!r}")
        labels[match[1]] = re.sub(r'\\[n"\\]', lambda each: _ESCAPED[each[0]], match[2])
        at = match.end()
    return labels


def _number(text: str, number: int) -> Decimal | None:
    """The value; None where it is not known."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise NotText(f"line {number} has the value {text[:40]!r}, which is no number") from None
    if not value.is_finite() or value >= BLANK or value == BLANK_FRACTION:
        return None
    return value
