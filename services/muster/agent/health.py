"""The health of the node's devices, and what they measure: from NVML of real ones, as somebody said of simulated ones.

Only what is fatal by itself is judged here, and at once, by those of telemetry's rules that one sample tells (`at_once` in
`rules.toml`): an Xid after which a GPU has to be reset, memory that cannot be mended. Trends are telemetry's. An Xid stays with
its device until the agent is started anew, or somebody mends it; what is measured counts as long as it is measured.

Of a GPU in MIG mode all slices are what the GPU is.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from muster.agent.home import read_faults
from muster.agent.inventory import Inventory
from muster.agent.measuring import measure, simulate, with_xids
from muster.events.base import DeviceHealth
from muster.events.levels import DeviceReport
from muster.events.telemetry import GpuSample
from muster.telemetry.rules import Finding, judge, usual

LOGGER = logging.getLogger(__name__)

WAIT_MS: Final = 1000
MEASURE_S: Final = 10.0
XIDS_MAX: Final = 64
"""So many numbers of Xids are counted of a device."""
WORSE: Final[dict[DeviceHealth, int]] = {"healthy": 0, "degraded": 1, "failed": 2}


class Health:
    """By device, healthy or not, and what it measured. `changed` is called from a thread of its own where NVML says something."""

    def __init__(self, inventory: Inventory, data: Path, changed: Callable[[], object], measure_s: float = MEASURE_S) -> None:
        self._devices = [device.uuid for device in inventory.spec.devices]
        self._simulated = inventory.simulated
        self._data = data
        self._changed = changed
        self._measure_s = measure_s
        self._rules = usual()
        self._xids: dict[str, dict[int, int]] = {}
        self._measured: tuple[GpuSample, ...] = ()
        """The last samples of real devices; replaced as a whole."""
        self._gpus: dict[str, tuple[Any, list[str]]] = {}
        """By uuid of a GPU its handle, and the devices that it is, or whose it is."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: tuple[DeviceReport, ...] = ()
        if self._devices and not inventory.simulated:
            self._thread = threading.Thread(target=self._watch, name="gpu-health", daemon=True)
            self._thread.start()

    def reports(self) -> tuple[DeviceReport, ...]:
        """Every device, as it is now."""
        faults = read_faults(self._data) if self._simulated else {}
        found = {sample.device: judge(self._rules, sample) for sample in self.samples()}
        said = []
        for uuid in self._devices:
            finding = found.get(uuid)
            if uuid in faults:
                broken = Finding(rule="", health=faults[uuid].health, reason=faults[uuid].reason)
                finding = max(broken, finding or broken, key=lambda each: WORSE[each.health])
            if finding is None:
                said.append(DeviceReport(uuid=uuid, health="healthy"))
            else:
                said.append(DeviceReport(uuid=uuid, health=finding.health, reason=finding.reason))
        self._reported = tuple(said)
        return self._reported

    @property
    def last(self) -> tuple[DeviceReport, ...]:
        """What was reported last."""
        return self._reported

    def samples(self) -> tuple[GpuSample, ...]:
        """What every device measured last; of simulated ones now. Those are left out of which nothing is known yet."""
        if self._simulated:
            faults, at_us = read_faults(self._data), time.time_ns() // 1000
            return tuple(simulate(uuid, at_us, faults.get(uuid)) for uuid in self._devices)
        known = self._measured
        if not known and self._xids:  # an Xid came before anything was measured
            known = tuple(GpuSample(device=uuid, at_us=time.time_ns() // 1000) for uuid in self._xids)
        return with_xids(known, self._xids)

    def news(self) -> bool:
        """Whether it is not what was reported last."""
        before = self._reported
        return before != self.reports()

    def close(self) -> None:
        """Listen no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * WAIT_MS / 1000)

    def _watch(self) -> None:
        """Wait for NVML's events, and measure every so often, until told to stop."""
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]  # optional, and without types

        pynvml.nvmlInit()
        try:
            self._gpus = self._find(pynvml)
            events = pynvml.nvmlEventSetCreate()
            for uuid, (handle, _) in self._gpus.items():
                try:
                    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
                except pynvml.NVMLError as error:
                    LOGGER.warning("faults of %s will not be heard: %s", uuid, error)
            due_s = time.monotonic()
            while not self._stop.is_set():
                if time.monotonic() >= due_s:
                    due_s = time.monotonic() + self._measure_s
                    self._measure(pynvml)
                try:
                    event = pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
                except pynvml.NVMLError_Timeout:
                    continue
                except pynvml.NVMLError as error:  # without any device that tells events, it is said at once, for ever
                    LOGGER.debug("no events: %s", error)
                    self._stop.wait(WAIT_MS / 1000)
                    continue
                self._hear(pynvml, event)
        finally:
            pynvml.nvmlShutdown()

    def _find(self, nvml: Any) -> dict[str, tuple[Any, list[str]]]:
        """The GPUs that the node's devices are, or are slices of."""
        found: dict[str, tuple[Any, list[str]]] = {}
        for device in self._devices:
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(device.encode())
                if device.startswith("MIG"):
                    handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
                found.setdefault(_uuid(nvml, handle), (handle, []))[1].append(device)
            except nvml.NVMLError as error:
                LOGGER.warning("nothing will be known of %s: %s", device, error)
        return found

    def _measure(self, nvml: Any) -> None:
        at_us = time.time_ns() // 1000
        before = self._measured
        self._measured = tuple(
            measure(nvml, handle, device, at_us) for handle, devices in self._gpus.values() for device in devices
        )
        if [judge(self._rules, each) for each in before] != [judge(self._rules, each) for each in self._measured]:
            self._changed()

    def _hear(self, nvml: Any, event: Any) -> None:
        """Count an Xid, and say so where it makes the device another one."""
        xid = int(event.eventData)
        for device in self._gpus.get(_uuid(nvml, event.device), (None, []))[1]:
            counts = self._xids.get(device, {})
            if xid in counts or len(counts) < XIDS_MAX:
                self._xids[device] = {**counts, xid: counts.get(xid, 0) + 1}  # others may be reading the one before
        LOGGER.warning("Xid %d on %s", xid, _uuid(nvml, event.device))
        if self._rules.xids().get(xid, "healthy") != "healthy":
            self._changed()


def _uuid(nvml: Any, handle: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)
