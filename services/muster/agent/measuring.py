"""What a node's GPUs measure: from NVML for real ones, made up for simulated ones.

What NVML does not tell of a device is null. What is made up depends on the device's uuid and the time alone, so that it is the
same whoever asks, and looks as a device that idles; where somebody said so, `Fault.measured` and `Fault.xids` take its place.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from muster.agent.home import Fault
from muster.events.telemetry import THROTTLES, XIDS_MAX, GpuSample, XidCount

REASONS: Final = (
    "nvmlClocksThrottleReasonGpuIdle",
    "nvmlClocksThrottleReasonApplicationsClocksSetting",
    "nvmlClocksThrottleReasonSwPowerCap",
    "nvmlClocksThrottleReasonHwSlowdown",
    "nvmlClocksThrottleReasonSyncBoost",
    "nvmlClocksThrottleReasonSwThermalSlowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "nvmlClocksThrottleReasonDisplayClockSetting",
    "nvmlClocksThrottleReasonBoardLimit",
    "nvmlClocksThrottleReasonReliability",
)
"""NVML's names of the bits of `THROTTLES`, in the same order."""
VALUES: Final = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""By NVML's type of a field's value, where it stands."""
HOUR_US: Final = 3_600_000_000
MEASURED: Final = tuple(
    field.name for field in msgspec.structs.fields(GpuSample) if field.name not in ("device", "at_us", "throttle", "xids")
)
"""The fields of a sample that are a number or a flag."""


def measure(nvml: Any, handle: Any, device: str, at_us: int) -> GpuSample:
    """What a GPU measures now."""
    told: dict[str, Any] = {
        "temperature_millicelsius": _scaled(_ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU), 1000),
        "power_mw": _ask(nvml, "nvmlDeviceGetPowerUsage", handle),
        "pcie_replays": _ask(nvml, "nvmlDeviceGetPcieReplayCounter", handle),
    }
    bits = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if bits is not None:
        told["throttle"] = tuple(label for label, name in zip(THROTTLES, REASONS, strict=True) if bits & getattr(nvml, name))
    for name, kind, counter in (
        ("ecc_volatile_single", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
        ("ecc_volatile_double", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        ("ecc_aggregate_single", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_AGGREGATE_ECC),
        ("ecc_aggregate_double", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC),
    ):
        told[name] = _ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, kind, counter)
    rows = _ask(nvml, "nvmlDeviceGetRemappedRows", handle)
    if rows is not None:
        told["remapped_correctable"], told["remapped_uncorrectable"] = rows[0], rows[1]
        told["remap_pending"], told["remap_failed"] = bool(rows[2]), bool(rows[3])
    fields = {
        nvml.NVML_FI_DEV_MEMORY_TEMP: ("memory_temperature_millicelsius", 1000),
        nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: ("nvlink_replays", 1),
        nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: ("nvlink_recoveries", 1),
    }
    for found in _ask(nvml, "nvmlDeviceGetFieldValues", handle, list(fields)) or ():
        if found.nvmlReturn == 0 and found.valueType in VALUES and found.fieldId in fields:
            name, units = fields[found.fieldId]
            told[name] = _scaled(max(0, int(getattr(found.value, VALUES[found.valueType]))), units)
    return GpuSample(device=device, at_us=at_us, **told)


def simulate(device: str, at_us: int, fault: Fault | None) -> GpuSample:
    """What a simulated GPU would measure."""
    seed = int.from_bytes(hashlib.blake2b(device.encode(), digest_size=4).digest(), "big")
    wave = abs((at_us // 1_000_000 + seed) % 600 - 300)  # up and down in ten minutes
    told: dict[str, Any] = {
        "temperature_millicelsius": 34_000 + 1_000 * (seed % 8) + 10 * wave,
        "memory_temperature_millicelsius": 40_000 + 1_000 * (seed % 8) + 10 * wave,
        "power_mw": 68_000 + 500 * (seed % 16) + 10 * wave,
        "ecc_volatile_single": 0,
        "ecc_volatile_double": 0,
        "ecc_aggregate_single": seed % 3,
        "ecc_aggregate_double": 0,
        "remap_pending": False,
        "remap_failed": False,
        "remapped_correctable": 0,
        "remapped_uncorrectable": 0,
        "pcie_replays": at_us // HOUR_US % 1_000_000 // (1 + seed % 5),
        "nvlink_replays": 0,
        "nvlink_recoveries": 0,
    }
    if fault is not None:
        for name, value in fault.measured.items():
            if name in told:
                told[name] = bool(value) if isinstance(told[name], bool) else value
    xids = counted(fault.xids if fault is not None else {})
    return GpuSample(device=device, at_us=at_us, throttle=("gpu_idle",), xids=xids, **told)


def counted(xids: Mapping[int, int]) -> tuple[XidCount, ...]:
    """Xids as a sample has them."""
    return tuple(XidCount(code=code, count=xids[code]) for code in sorted(xids)[:XIDS_MAX])


def with_xids(samples: Iterable[GpuSample], xids: Mapping[str, Mapping[int, int]]) -> tuple[GpuSample, ...]:
    """The samples, with what was heard of each device."""
    return tuple(msgspec.structs.replace(each, xids=counted(xids.get(each.device, {}))) for each in samples)


def _ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """What NVML answers; None where it does not know that of this device, or is too old to be asked."""
    try:
        return getattr(nvml, name)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _scaled(value: int | None, units: int) -> int | None:
    return None if value is None else max(0, value) * units
