"""What a node has: processors and memory from /proc and /sys, GPUs and their links through NVML, or simulated devices.

NVML comes with the optional package nvidia-ml-py; without it, or without a driver, the node has no GPUs, and `Inventory.notes`
says which of the two it was. Devices stand in the order of their PCI addresses, the order in which CUDA counts them
(`CUDA_DEVICE_ORDER=PCI_BUS_ID`). Nothing here changes anything on the node.
"""

import os
import platform
import re
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET

from muster.events.nodes import Device, NodeSpec
from muster.reading.catalogue import package_catalogue

SIMULATED = re.compile(r"^(?P<count>[0-9]+)x(?P<model>[A-Za-z0-9._]+(?:-[A-Za-z0-9._]+)*?)(?:-(?P<memory>[0-9]+)GB)?$")
SIMULATED_MEMORY_GB: Final = 80
SIMULATED_CPUS: Final = 14
SIMULATED_MEMORY_MIB: Final = 256 * 1024
"""What a simulated node has for each of its devices: about what nodes of that kind have."""
NOISE = re.compile(
    r"^(NVIDIA|Tesla|GeForce|Quadro|Graphics|Generation|Device|PCIe?|SXM[0-9]*|HBM[0-9a-z]*|[0-9]+GB|NVL)$", re.IGNORECASE
)
PROFILE = re.compile(r" MIG ([1-7]g\.[1-9][0-9]*gb(?:\+[a-z.]+)?)$")
"""How NVML names a slice; parts of slices (1c.3g.40gb) are not told apart."""
TREE_SWITCH: Final = 20
"""NVML's NVML_TOPOLOGY_MULTIPLE: two devices have only PCIe switches between them."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What the node has, and what could not be found out."""

    spec: NodeSpec
    simulated: bool = False
    numa_nodes: int = 1
    visible: tuple[str, ...] = ()
    """By device, what `CUDA_VISIBLE_DEVICES` calls it."""
    notes: tuple[str, ...] = ()


class BadDevices(ValueError):
    """The description of simulated devices makes no sense."""


def take(data: Path, uid: str, devices: str = "", labels: dict[str, str] | None = None) -> Inventory:
    """Look at this machine. `devices`, as in `8xH100-80GB`, stands in for the GPUs, and for a node that goes with them.

    Raises `BadDevices`.
    """
    filesystem = os.statvfs(data)
    disk_mib = filesystem.f_blocks * filesystem.f_frsize >> 20
    cpu_milli = 1000 * len(os.sched_getaffinity(0))
    memory_mib = memory_total_mib()
    notes: list[str] = []
    if devices:
        found = simulated(devices, uid)
        visible = [str(index) for index in range(len(found))]
        cpu_milli = max(cpu_milli, 1000 * SIMULATED_CPUS * len(found))
        memory_mib = max(memory_mib, SIMULATED_MEMORY_MIB * len(found))
    else:
        found, visible = gpus(notes)
    named = {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        **(gpu_labels(found) if found else {}),
        **(labels or {}),
    }
    return Inventory(
        spec=NodeSpec(cpu_milli=cpu_milli, memory_mib=memory_mib, disk_mib=disk_mib, labels=named, devices=tuple(found)),
        simulated=bool(devices),
        numa_nodes=numa_nodes(),
        visible=tuple(visible),
        notes=tuple(notes),
    )


def gpu_labels(found: list[Device]) -> dict[str, str]:
    """What a node says of its GPUs, by the names that NVIDIA's feature discovery gives it."""
    model = found[0].model
    named = {"nvidia.com/gpu.product": model, "nvidia.com/gpu.count": str(len(found))}
    known = [each.capability for each in package_catalogue() if model in (each.model, *each.names)]
    if known:
        named |= {"nvidia.com/gpu.compute.major": str(known[0] // 10), "nvidia.com/gpu.compute.minor": str(known[0] % 10)}
    return named | {"nvidia.com/gpu.memory": str(min(device.memory_mib for device in found))}


def simulated(devices: str, uid: str) -> list[Device]:
    """Devices that are not there. They are spread over two processors, and all reach each other. Raises `BadDevices`."""
    match = SIMULATED.match(devices)
    if match is None or not 0 < int(match["count"]) <= 64:
        raise BadDevices(
            f"{devices} is no description of devices: COUNTxMODEL-MEMORYGB with at most 64, as in 8xH100-80GB, would be"
        )
    count = int(match["count"])
    return [
        Device(
            uuid=device_uuid(uid, index),
            model=match["model"],
            memory_mib=1024 * int(match["memory"] or SIMULATED_MEMORY_GB),
            numa=2 * index // count,
        )
        for index in range(count)
    ]


def device_uuid(uid: str, index: int) -> str:
    """The identity of a simulated device: the same each time the node's agent is started."""
    return f"GPU-{uid[:24]}-{index}"


def gpus(notes: list[str]) -> tuple[list[Device], list[str]]:
    """The GPUs that NVML knows, and what CUDA calls each. Slices (MIG) stand in the place of their GPU."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]  # optional, and without types
    except ImportError:
        notes.append("no GPUs: the package nvidia-ml-py is not installed")
        return [], []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        notes.append(f"no GPUs: {error}")
        return [], []
    try:
        return _gpus(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _gpus(nvml: Any) -> tuple[list[Device], list[str]]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    handles.sort(key=lambda handle: _pci(nvml, handle))
    islands = _islands(nvml, handles)
    devices: list[Device] = []
    visible: list[str] = []
    for index, handle in enumerate(handles):
        model = model_name(_text(nvml.nvmlDeviceGetName(handle)))
        numa = numa_of(_pci(nvml, handle))
        slices = _slices(nvml, handle)
        for part in slices or [handle]:
            uuid = _text(nvml.nvmlDeviceGetUUID(part))
            memory_mib = nvml.nvmlDeviceGetMemoryInfo(part).total >> 20
            found = PROFILE.search(_text(nvml.nvmlDeviceGetName(part))) if slices else None
            devices.append(
                Device(
                    uuid=uuid,
                    model=f"{model}-mig" if slices and found is None else model,
                    memory_mib=memory_mib,
                    numa=numa,
                    island=islands[index],
                    profile=found[1] if found else UNSET,
                    card=_text(nvml.nvmlDeviceGetUUID(handle)) if found else UNSET,
                )
            )
            visible.append(uuid if slices else str(index))
    return devices, visible


def _slices(nvml: Any, handle: Any) -> list[Any]:
    """The slices of a GPU that is in MIG mode; of another, none."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return []
    found = []
    for index in range(most):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:
            continue
    return found


def _islands(nvml: Any, handles: list[Any]) -> list[int]:
    """By GPU, the number of its island: those that NVLink or a PCIe switch joins, directly or through others."""
    island = list(range(len(handles)))
    for one in range(len(handles)):
        for other in range(one):
            if island[one] != island[other] and _near(nvml, handles[one], handles[other]):
                low, high = sorted((island[one], island[other]))
                island = [low if number == high else number for number in island]
    numbers = sorted(set(island))
    return [numbers.index(number) for number in island]


def _near(nvml: Any, one: Any, other: Any) -> bool:
    try:
        if nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
            return True
        return bool(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other) <= TREE_SWITCH)
    except nvml.NVMLError:
        return False


def _pci(nvml: Any, handle: Any) -> str:
    """As /sys writes it: four digits of domain, lower case."""
    domain, _, rest = _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def model_name(product: str) -> str:
    """The short name of a GPU's product: H100 of "NVIDIA H100 80GB HBM3", RTX6000Ada of "NVIDIA RTX 6000 Ada Generation"."""
    return "".join(word for word in re.split(r"[ -]+", product) if word and not NOISE.match(word)) or product


def memory_total_mib() -> int:
    """The memory of the machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) >> 10
    return 0


def numa_nodes() -> int:
    """How many memory domains the machine has."""
    folder = Path("/sys/devices/system/node")
    return max(1, sum(1 for path in folder.glob("node[0-9]*")) if folder.exists() else 1)


def numa_of(pci: str) -> int:
    """The memory domain that a PCI device belongs to; 0 where the machine does not say."""
    try:
        return max(0, int(Path(f"/sys/bus/pci/devices/{pci}/numa_node").read_text()))
    except (OSError, ValueError):
        return 0
