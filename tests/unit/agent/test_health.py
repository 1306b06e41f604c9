"""What is fatal by itself an agent reports at once, by the rules that judge trends too; the rest it only measures."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]  # it has no types
import pytest

from muster.agent.health import Health
from muster.agent.home import read_faults, write_fault, write_measured
from muster.agent.inventory import Inventory
from muster.agent.measuring import MEASURED, REASONS, measure, simulate
from muster.events.nodes import Device, NodeSpec
from muster.events.telemetry import THROTTLES
from muster.telemetry.rules import judge, usual

AT_US = 1_760_000_000_000_000


class Nvml:
    """As much of NVML as measuring asks for. GPU-0 tells everything, GPU-1 is cut in two slices and knows little."""

    NVMLError = RuntimeError
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_AGGREGATE_ECC = 1
    NVML_FI_DEV_MEMORY_TEMP = 82
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59

    def __init__(self) -> None:
        for name in REASONS:
            setattr(self, name, getattr(pynvml, name))
        self.rows = (1, 2, 0, 0)
        self.double = 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        if uuid.decode() not in ("GPU-0", "GPU-1", "MIG-a", "MIG-b"):
            raise RuntimeError("Not Found")
        return uuid.decode()

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        return "GPU-1"

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        if handle == "GPU-1":
            raise RuntimeError("Not Supported")
        return 409_692

    def nvmlDeviceGetPcieReplayCounter(self, handle: str) -> int:
        return 3

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x40 | 0x4

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        return (10 if counter else self.double) if kind else 20 + counter

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, ...]:
        return self.rows

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, field in zip(values, fields, strict=True):
            value.fieldId = field
            value.nvmlReturn = 3 if field == 59 else 0
            value.valueType = 1 if field == 82 else 3
            if field == 82:
                value.value.uiVal = 69
            else:
                value.value.ullVal = 2**40
        return list(values)


@pytest.fixture
def nvml() -> Any:
    return Nvml()


def health(folder: Path, *uuids: str, simulated: bool = False) -> Health:
    """A health that nothing watches."""
    inventory = Inventory(spec=NodeSpec(devices=tuple(Device(uuid=uuid) for uuid in uuids)), simulated=True)
    made = Health(inventory, folder, lambda: CHANGED.append(None))
    made._simulated = simulated
    CHANGED.clear()
    return made


CHANGED: list[None] = []


def told(made: Health) -> dict[str, tuple[str, str]]:
    return {report.uuid: (report.health, report.reason) for report in made.reports()}


def test_what_nvml_tells_is_a_sample_in_its_units_and_what_it_does_not_is_null(nvml: Any) -> None:
    sample = measure(nvml, "GPU-0", "GPU-0", AT_US)
    assert (sample.temperature_millicelsius, sample.memory_temperature_millicelsius) == (61_000, 69_000)
    assert (sample.power_mw, sample.pcie_replays, sample.nvlink_replays) == (409_692, 3, 2**40)
    assert sample.nvlink_recoveries is None, "its value has an error"
    assert sample.throttle == ("sw_power_cap", "hw_thermal")
    assert (sample.ecc_volatile_single, sample.ecc_aggregate_single) == (20, 21)
    assert (sample.ecc_volatile_double, sample.ecc_aggregate_double) == (0, 10)
    assert (sample.remapped_correctable, sample.remapped_uncorrectable) == (1, 2)
    assert (sample.remap_pending, sample.remap_failed) == (False, False)
    assert measure(nvml, "GPU-1", "MIG-a", AT_US).power_mw is None


def test_what_is_called_of_nvml_is_there_and_means_the_same() -> None:
    called = [name for name in dir(Nvml) if name.startswith(("nvml", "NVML"))]
    assert len(called) == 19
    assert [name for name in (*called, *REASONS) if not hasattr(pynvml, name)] == []
    assert [name for name in called if name.startswith("NVML_") and getattr(pynvml, name) != getattr(Nvml, name)] == []
    assert [getattr(pynvml, name) for name in REASONS] == [1 << bit for bit in range(len(THROTTLES))]
    fields = dict(pynvml.c_nvmlValue_t._fields_)
    assert (fields["uiVal"], fields["ullVal"], fields["sllVal"]) == (ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_longlong)


def test_a_fatal_xid_fails_its_device_at_once_and_a_programs_does_not(tmp_path: Path, nvml: Any) -> None:
    made = health(tmp_path, "GPU-0")
    made._gpus = made._find(nvml)
    made._hear(nvml, SimpleNamespace(device="GPU-0", eventData=13))
    assert CHANGED == []
    assert told(made) == {"GPU-0": ("healthy", "")}
    made._hear(nvml, SimpleNamespace(device="GPU-0", eventData=79))
    assert CHANGED == [None]
    assert made.news()
    assert told(made) == {"GPU-0": ("failed", "Xid 79: the GPU has fallen off the bus")}
    assert not made.news()
    (sample,) = made.samples()
    assert [(each.code, each.count) for each in sample.xids or ()] == [(13, 1), (79, 1)]


def test_an_xid_that_is_to_be_looked_at_degrades_its_device_until_a_worse_one_comes(tmp_path: Path, nvml: Any) -> None:
    made = health(tmp_path, "GPU-0")
    made._gpus = made._find(nvml)
    made._hear(nvml, SimpleNamespace(device="GPU-0", eventData=48))
    assert told(made)["GPU-0"] == ("degraded", "Xid 48: double bit ECC error")
    made._hear(nvml, SimpleNamespace(device="GPU-0", eventData=95))
    assert told(made)["GPU-0"] == ("failed", "Xid 95: uncontained memory error")


def test_memory_that_cannot_be_mended_fails_a_device_and_errors_in_it_degrade_it(tmp_path: Path, nvml: Any) -> None:
    made = health(tmp_path, "GPU-0")
    made._gpus = made._find(nvml)
    made._measure(nvml)
    assert told(made)["GPU-0"][0] == "healthy"
    CHANGED.clear()
    nvml.double = 2
    made._measure(nvml)
    assert CHANGED == [None]
    assert told(made)["GPU-0"][0] == "degraded"
    assert "ecc_volatile_double is 2" in told(made)["GPU-0"][1]
    nvml.rows = (1, 2, 0, 1)
    made._measure(nvml)
    assert told(made)["GPU-0"] == ("failed", "a row of its memory could not be replaced (remap_failed is 1)")
    nvml.double, nvml.rows = 0, (1, 2, 0, 0)
    made._measure(nvml)
    assert told(made)["GPU-0"][0] == "healthy", "it was reset"


def test_what_happens_to_a_gpu_happens_to_its_slices(tmp_path: Path, nvml: Any) -> None:
    made = health(tmp_path, "GPU-0", "MIG-a", "MIG-b", "GPU-unknown")
    made._gpus = made._find(nvml)
    made._measure(nvml)
    assert [sample.device for sample in made.samples()] == ["GPU-0", "MIG-a", "MIG-b"]
    made._hear(nvml, SimpleNamespace(device="GPU-1", eventData=119))
    assert {uuid: said[0] for uuid, said in told(made).items()} == {
        "GPU-0": "healthy",
        "MIG-a": "failed",
        "MIG-b": "failed",
        "GPU-unknown": "healthy",
    }


def test_a_simulated_device_measures_what_a_healthy_one_might_the_same_whoever_asks(tmp_path: Path) -> None:
    for number in range(50):
        sample = simulate(f"GPU-{number}", AT_US + number * 7_000_000, None)
        assert sample == simulate(f"GPU-{number}", AT_US + number * 7_000_000, None)
        assert judge(usual(), sample) is None
        assert 30_000 < (sample.temperature_millicelsius or 0) < 60_000
    assert simulate("GPU-1", AT_US, None) != simulate("GPU-2", AT_US, None)


def test_a_simulated_device_is_made_sick_and_mended(tmp_path: Path) -> None:
    made = health(tmp_path, "GPU-0", "GPU-1", simulated=True)
    assert told(made) == {"GPU-0": ("healthy", ""), "GPU-1": ("healthy", "")}
    write_measured(tmp_path, "GPU-0", {13: 1}, {"temperature_millicelsius": 96_000})
    assert not made.news()
    write_measured(tmp_path, "GPU-0", {79: 2}, {})
    write_measured(tmp_path, "GPU-0", {79: 1}, {"pcie_replays": 7, "remap_pending": 1})
    assert made.news()
    assert told(made)["GPU-0"] == ("failed", "Xid 79: the GPU has fallen off the bus")
    sample = made.samples()[0]
    assert [(each.code, each.count) for each in sample.xids or ()] == [(13, 1), (79, 3)]
    assert (sample.temperature_millicelsius, sample.pcie_replays, sample.remap_pending) == (96_000, 7, True)
    write_fault(tmp_path, "GPU-0", "degraded", "by hand")
    assert told(made)["GPU-0"][0] == "failed", "the worse counts"
    write_fault(tmp_path, "GPU-0", "healthy", "")
    assert read_faults(tmp_path) == {}
    assert told(made)["GPU-0"] == ("healthy", "")
    write_fault(tmp_path, "GPU-1", "degraded", "by hand")
    assert told(made)["GPU-1"] == ("degraded", "by hand")


def test_every_number_of_a_sample_can_be_said() -> None:
    sample = simulate("GPU-0", AT_US, None)
    assert [name for name in MEASURED if getattr(sample, name) is None] == []
