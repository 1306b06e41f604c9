"""What a rule may look at: by name, the number that a sample tells of it, or None where the sample does not tell.

A flag is 0 or 1. `xid_failed` and `xid_degraded` count the Xids since the boot after which a device is that.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from muster.events.base import DeviceHealth
from muster.events.telemetry import THROTTLES, GpuSample

_FIELDS: Final = {
    "temperature": "temperature_millicelsius",
    "memory_temperature": "memory_temperature_millicelsius",
    "power": "power_mw",
    "ecc_volatile_single": "ecc_volatile_single",
    "ecc_volatile_double": "ecc_volatile_double",
    "ecc_aggregate_single": "ecc_aggregate_single",
    "ecc_aggregate_double": "ecc_aggregate_double",
    "remap_pending": "remap_pending",
    "remap_failed": "remap_failed",
    "remapped_correctable": "remapped_correctable",
    "remapped_uncorrectable": "remapped_uncorrectable",
    "pcie_replays": "pcie_replays",
    "nvlink_replays": "nvlink_replays",
    "nvlink_recoveries": "nvlink_recoveries",
}
"""By signal, the field of a sample."""
_XIDS: Final = ("failed", "degraded")

SIGNALS: Final = (*_FIELDS, *(f"throttle_{reason}" for reason in THROTTLES), *(f"xid_{health}" for health in _XIDS))


Reader = Callable[[GpuSample], int | None]


def reader(signal: str, xids: Mapping[int, DeviceHealth]) -> Reader:
    """What tells this signal of a sample. `xids`: by number, what an Xid makes of its device."""
    if signal in _FIELDS:
        return partial(_field, _FIELDS[signal])
    kind, _, rest = signal.partition("_")
    if kind == "throttle":
        return partial(_throttle, rest)
    codes = {code: None for code, health in xids.items() if health == rest}
    return partial(_xids, codes)


def value_of(signal: str, sample: GpuSample, xids: Mapping[int, DeviceHealth]) -> int | None:
    """The signal of this sample."""
    return reader(signal, xids)(sample)


def _field(name: str, sample: GpuSample) -> int | None:
    value: int | None = getattr(sample, name)
    return value if value is None else int(value)


def _throttle(reason: str, sample: GpuSample) -> int | None:
    return None if sample.throttle is None else int(reason in sample.throttle)


def _xids(codes: Mapping[int, None], sample: GpuSample) -> int | None:
    return None if sample.xids is None else sum(each.count for each in sample.xids if each.code in codes)
