"""What a node's GPUs measured: samples, as they stand on `muster.telemetry`.

A sample is a level and no event: it says what is true of one device at one time, its counters since they were last at zero, so
that a late or doubled sample says nothing new. What a source cannot tell is null, which is not zero. No scheduler reads
these, and none of it stands in the log: `muster.telemetry` makes proposals of it for `muster.gpu-health`.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from muster.events.base import Micros, Name, Part, Quantity, Uid
from muster.events.edge import Malformed, sentence, unique
from muster.events.entries import BAD_BYTES, encode
from muster.events.patterns import checker

SAMPLES_MAX: Final = 512
"""So many samples of one node in one message: 64 devices, some times each."""
SAMPLED_MAX_BYTES: Final = 1024 * 1024
XIDS_MAX: Final = 64

Throttle = Literal[
    "gpu_idle",
    "applications_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clock",
    "board_limit",
    "reliability",
]
"""Why clocks are lower than they might be: NVML's reasons, the first of them its lowest bit."""
THROTTLES: Final[tuple[Throttle, ...]] = Throttle.__args__  # type: ignore[attr-defined]  # the texts of a Literal, in order


class XidCount(Part, frozen=True, kw_only=True):
    """So many Xids of this number since the node's boot, or since the agent was started."""

    code: Annotated[int, Meta(ge=0, le=65_535)]
    count: Annotated[int, Meta(ge=1, le=2**53)] = 1


class GpuSample(Part, frozen=True, kw_only=True):
    """One device at one time. Null is what the source did not tell."""

    device: Uid
    at_us: Micros
    """By the source's clock."""
    temperature_millicelsius: Quantity | None = None
    memory_temperature_millicelsius: Quantity | None = None
    power_mw: Quantity | None = None
    throttle: Annotated[tuple[Throttle, ...], Meta(max_length=16)] | None = None
    ecc_volatile_single: Quantity | None = None
    """Errors that were corrected, since the driver was loaded."""
    ecc_volatile_double: Quantity | None = None
    """Errors that were not."""
    ecc_aggregate_single: Quantity | None = None
    """The same in the device's whole life."""
    ecc_aggregate_double: Quantity | None = None
    remap_pending: bool | None = None
    """A row of its memory is replaced at the next reset."""
    remap_failed: bool | None = None
    """A row could not be replaced."""
    remapped_correctable: Quantity | None = None
    remapped_uncorrectable: Quantity | None = None
    pcie_replays: Quantity | None = None
    nvlink_replays: Quantity | None = None
    nvlink_recoveries: Quantity | None = None
    xids: Annotated[tuple[XidCount, ...], Meta(max_length=XIDS_MAX)] | None = None


class GpusSampled(Part, frozen=True, kw_only=True):
    """What devices of one node measured."""

    node: Name
    uid: Uid
    boot: Annotated[str, Meta(max_length=64)] = ""
    """The node's boot, where the source knows it: with another one, counters have begun anew."""
    samples: Annotated[tuple[GpuSample, ...], Meta(max_length=SAMPLES_MAX)]


_decode = msgspec.json.Decoder(GpusSampled).decode
_check = checker(GpusSampled)


def decode_sampled(data: bytes) -> GpusSampled:
    """Samples from outside.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    if len(data) > SAMPLED_MAX_BYTES:
        raise Malformed(f"the samples have {len(data)} bytes; at most {SAMPLED_MAX_BYTES} are taken")
    try:
        sampled = _decode(data)
    except BAD_BYTES as error:
        raise Malformed(sentence("samples", error)) from None
    if _check is not None and (bad := _check(sampled)) is not None:
        raise Malformed(f"{bad[0].removeprefix('.')}: {bad[1]}")
    if encode(sampled) != data:
        unique(data)
    return sampled
