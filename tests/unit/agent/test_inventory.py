"""What a node says it has, who it is, and which limits it can keep."""

from pathlib import Path
from types import SimpleNamespace

import pynvml  # type: ignore[import-untyped]  # it has no types
import pytest
from msgspec import UNSET

from muster.agent.cgroup import Groups
from muster.agent.home import Fault, Home, HomeTaken, read_faults, write_fault
from muster.agent.inventory import BadDevices, _gpus, model_name, numa_of, simulated, take
from muster.agent.slots import now_us, read_slot


def test_simulated_devices_have_identities_that_stay() -> None:
    devices = simulated("8xH100-80GB", "f" * 32)
    assert devices == simulated("8xH100-80GB", "f" * 32)
    assert len({device.uuid for device in devices}) == 8
    assert [device.numa for device in devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {(device.model, device.memory_mib, device.island) for device in devices} == {("H100", 81_920, 0)}
    assert {device.uuid for device in devices}.isdisjoint(device.uuid for device in simulated("8xH100-80GB", "e" * 32))


@pytest.mark.parametrize(
    ("text", "model", "memory_mib"),
    [
        ("1xA100-40GB", "A100", 40_960),
        ("2xT4-16GB", "T4", 16_384),
        ("4xRTX-6000-48GB", "RTX-6000", 49_152),
        ("1xH100", "H100", 81_920),
    ],
)
def test_devices_are_described_by_count_model_and_memory(text: str, model: str, memory_mib: int) -> None:
    device = simulated(text, "u")[0]
    assert (device.model, device.memory_mib) == (model, memory_mib)


@pytest.mark.parametrize("text", ["", "H100", "0xH100", "65xH100", "8x", "xH100", "8 x H100", "8xH100-80GB,2xA100"])
def test_what_describes_no_devices_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadDevices, match="is no description of devices"):
        simulated(text, "u")


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA Graphics Device", "NVIDIA Graphics Device"),
    ],
)
def test_a_product_has_a_short_name(product: str, model: str) -> None:
    assert model_name(product) == model


class Nvml:
    """As much of NVML as an inventory asks for: eight GPUs, of which each four are joined by NVLink, the last one cut in two."""

    NVMLError = RuntimeError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def nvmlDeviceGetCount(self) -> int:
        return 8

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return (index + 3) % 8  # not in the order of their addresses

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0".encode())

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H100 80GB HBM3" + (b" MIG 3g.40gb" if handle == 100 else b" MIG 1c.3g.40gb" if handle > 100 else b"")

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"MIG-{handle}" if handle >= 100 else f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=(40 if handle >= 100 else 80) << 30)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if handle < 7:
            raise RuntimeError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> int:
        if index > 1:
            raise RuntimeError("Not Found")
        return 100 + index

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, capability: int) -> int:
        return 0 if one // 4 == other // 4 else 1

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return 40


def test_gpus_are_listed_as_cuda_counts_them_with_their_islands_and_slices() -> None:
    devices, visible = _gpus(Nvml())
    assert [device.uuid for device in devices] == [*(f"GPU-{index}" for index in range(7)), "MIG-100", "MIG-101"]
    assert visible == ["0", "1", "2", "3", "4", "5", "6", "MIG-100", "MIG-101"]
    assert [device.island for device in devices] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert [device.model for device in devices] == ["H100"] * 8 + ["H100-mig"]
    assert [(device.profile, device.card) for device in devices[7:]] == [("3g.40gb", "GPU-7"), (UNSET, UNSET)]
    assert [device.memory_mib for device in devices] == [81_920] * 7 + [40_960] * 2


def test_what_is_called_of_nvml_is_there() -> None:
    called = [name for name in dir(Nvml) if name.startswith(("nvml", "NVML"))]
    assert len(called) == 15
    more = ["nvmlInit", "nvmlShutdown", "nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents"]
    more += ["nvmlDeviceGetHandleByUUID", "nvmlEventTypeXidCriticalError", "NVMLError_Timeout"]
    assert [name for name in called + more if not hasattr(pynvml, name)] == []


def test_this_machine_has_something(tmp_path: Path) -> None:
    found = take(tmp_path, "u")
    assert found.spec.cpu_milli >= 1000
    assert found.spec.memory_mib > 100
    assert found.spec.disk_mib > 0
    assert found.numa_nodes >= 1
    assert found.spec.labels["kubernetes.io/os"] == "linux"
    assert found.spec.devices or found.notes  # GPUs, or why there are none
    assert numa_of("0000:ff:1f.7") == 0


def test_a_home_keeps_who_the_node_is_and_what_it_obeyed(tmp_path: Path) -> None:
    home = Home(tmp_path, "boot-1")
    uid = home.uid
    assert [home.next_sequence() for _ in range(3)] == [1, 2, 3]
    home.obeyed(40)
    home.obeyed(39)
    assert not home.has_lease()
    home.extend_lease(now_us() + 60_000_000)
    home.extend_lease(now_us())
    assert home.has_lease()
    (home.tasks / "j.0.1.0").mkdir()
    with pytest.raises(HomeTaken, match="another agent runs in"):
        Home(tmp_path, "boot-1")
    home.close()
    again = Home(tmp_path, "boot-1")
    assert again.boots == 1
    assert (again.uid, again.sequence, again.applied, again.has_lease()) == (uid, 3, 40, True)
    assert (again.tasks / "j.0.1.0").exists()
    again.close()
    later = Home(tmp_path, "boot-2")
    assert later.boots == 2, "a report of the boot before is late, whatever its number"
    assert (later.uid, later.sequence, later.applied, later.has_lease()) == (uid, 0, 0, False)
    assert not list(later.tasks.iterdir())  # all that ran has ended with its boot
    assert read_slot(later.lease_path) == {"until_us": 0}
    later.close()


def test_faults_of_devices_are_said_and_taken_back(tmp_path: Path) -> None:
    assert read_faults(tmp_path) == {}
    write_fault(tmp_path, "GPU-1", "failed", "smoke")
    write_fault(tmp_path, "GPU-2", "degraded", "slow")
    assert read_faults(tmp_path) == {"GPU-1": Fault("failed", "smoke"), "GPU-2": Fault("degraded", "slow")}
    write_fault(tmp_path, "GPU-1", "healthy", "")
    assert read_faults(tmp_path) == {"GPU-2": Fault("degraded", "slow")}
    (tmp_path / "broken.json").write_text("nonsense")
    assert read_faults(tmp_path) == {}


def mounted(tmp_path: Path, own: str = "/") -> tuple[Path, Groups]:
    """A folder that looks like cgroup v2, and the groups of an agent in it. What a kernel would do is not done."""
    base = tmp_path / "cgroup"
    parent = base / own.lstrip("/")
    root = parent / "muster-u"
    root.mkdir(parents=True)
    for folder in (parent, root):
        (folder / "cgroup.subtree_control").write_text("")
        (folder / "cgroup.procs").write_text("")
    (tmp_path / "mounts").write_text(f"30 23 0:26 / {base} rw shared:9 - cgroup2 cgroup2 rw\n")
    (tmp_path / "own").write_text(f"12:cpu:/old\n0::{own}\n")
    return root, Groups("u", str(tmp_path / "mounts"), str(tmp_path / "own"))


def test_limits_are_written_where_the_controllers_are(tmp_path: Path) -> None:
    root, groups = mounted(tmp_path, "/system.slice/muster.service")
    assert groups.root == root
    groups.controllers = ("cpu", "memory")
    assert groups.missing == ()
    folder = Path(groups.make("t", 2500, 512))
    assert (folder / "cpu.max").read_text() == "250000 100000"
    assert (folder / "memory.max").read_text() == str(512 << 20)


def test_groups_of_tasks_that_nobody_knows_are_emptied_and_go(tmp_path: Path) -> None:
    root, groups = mounted(tmp_path)
    for name in ("known", "left", "full"):
        groups.make(name, 0, 0)
    (root / "full" / "cgroup.kill").write_text("")  # here it makes the folder one that cannot be removed
    groups.sweep({"known"})
    assert sorted(path.name for path in root.glob("*/")) == ["full", "known"]
    assert (root / "full" / "cgroup.kill").read_text() == "1"


def test_what_cannot_be_limited_is_named(tmp_path: Path) -> None:
    _, groups = mounted(tmp_path)
    groups.controllers = ("memory",)
    assert groups.missing == ("cpu",)
    folder = Path(groups.make("t", 2500, 512))
    assert not (folder / "cpu.max").exists()
    none = Groups("u", str(tmp_path / "nothing"), str(tmp_path / "nothing"))
    assert (none.root, none.missing, none.make("t", 1000, 10), none.members("t")) == (None, ("cpu", "memory"), "", 0)
    none.remove("t")
    none.close()
