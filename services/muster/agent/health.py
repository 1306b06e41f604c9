"""The health of the node's devices: what NVML reports of real ones, what somebody said of simulated ones.

Only what is fatal by itself is judged here, and at once: an Xid after which a GPU does no more work until it is reset. Trends
are telemetry's. A device that has failed stays so until the agent starts anew, or somebody mends it.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from muster.agent.home import read_faults
from muster.agent.inventory import Inventory
from muster.events.levels import DeviceReport

LOGGER = logging.getLogger(__name__)

FATAL_XIDS: Final = {
    48: "double bit ECC error",
    62: "the controller on the device has halted",
    64: "a row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "unrecovered ECC error",
}
"""NVIDIA's numbers of errors, those after which the vendor's guide says to reset or replace (XID Errors, section "Listing")."""
WAIT_MS: Final = 1000


class Health:
    """By device, healthy or not. `changed` is called from a thread of its own where NVML says something."""

    def __init__(self, inventory: Inventory, data: Path, changed: Callable[[], object]) -> None:
        self._devices = [device.uuid for device in inventory.spec.devices]
        self._simulated = inventory.simulated
        self._data = data
        self._changed = changed
        self._found: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: tuple[DeviceReport, ...] = ()
        if self._devices and not inventory.simulated:
            self._thread = threading.Thread(target=self._watch, name="gpu-health", daemon=True)
            self._thread.start()

    def reports(self) -> tuple[DeviceReport, ...]:
        """Every device, as it is now."""
        faults = read_faults(self._data) if self._simulated else {}
        said = []
        for uuid in self._devices:
            if uuid in faults:
                said.append(DeviceReport(uuid=uuid, health=faults[uuid].health, reason=faults[uuid].reason))
            elif uuid in self._found:
                said.append(DeviceReport(uuid=uuid, health="failed", reason=self._found[uuid]))
            else:
                said.append(DeviceReport(uuid=uuid, health="healthy"))
        self._reported = tuple(said)
        return self._reported

    @property
    def last(self) -> tuple[DeviceReport, ...]:
        """What was reported last."""
        return self._reported

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
        """Wait for NVML's events until told to stop."""
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]  # optional, and without types

        pynvml.nvmlInit()
        try:
            events = pynvml.nvmlEventSetCreate()
            for uuid in self._devices:
                try:
                    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
                    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
                except pynvml.NVMLError as error:
                    LOGGER.warning("faults of %s will not be heard: %s", uuid, error)
            while not self._stop.is_set():
                try:
                    event = pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
                except pynvml.NVMLError_Timeout:
                    continue
                self._judge(pynvml, event)
        finally:
            pynvml.nvmlShutdown()

    def _judge(self, nvml: Any, event: Any) -> None:
        xid = int(event.eventData)
        if xid not in FATAL_XIDS:
            return
        uuid = nvml.nvmlDeviceGetUUID(event.device)
        self._found.setdefault(uuid.decode() if isinstance(uuid, bytes) else uuid, f"Xid {xid}: {FATAL_XIDS[xid]}")
        self._changed()
