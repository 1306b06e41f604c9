"""The agent's data folder: who the node is, what it has obeyed, its lease, and where its tasks and outputs are.

    uid          the node's identity, made once
    lock         held by the agent as long as it lives: one agent a folder
    state        boot, sequence of the last report, number of the assignment that was obeyed (a slot file)
    lease        until when tasks may run without news (a slot file); supervisors read it
    poke         a pipe on which supervisors and commands wake the agent
    broken.json  simulated faults of devices, by uuid: see `Fault`
    tasks/       one folder a task, see `muster.agent.tasks`
    output/      JOB/INSTANCE.ATTEMPT.RANK.STREAM, a file or a link to where the job wanted it

What must survive is written before it is relied on. The state of another boot is worth nothing: all that ran has ended.
"""

import contextlib
import fcntl
import os
import shutil
import uuid
from pathlib import Path
from typing import Literal

import msgspec

from muster.agent.slots import make_slot, now_us, read_slot, write_slot, write_whole
from muster.events.base import DeviceHealth

BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")


class HomeTaken(Exception):
    """Another agent lives in this data folder."""


class Fault(msgspec.Struct, frozen=True):
    """What somebody said of a simulated device."""

    health: Literal["healthy", "degraded", "failed"] = "failed"
    reason: str = ""
    xids: dict[int, int] = {}
    """How often each happened."""
    measured: dict[str, int] = {}
    """Fields of its samples, instead of what is made up."""


class Home:
    """The data folder, held by this agent. Raises `HomeTaken` where another holds it, OSError where it cannot be used."""

    def __init__(self, folder: Path, boot: str | None = None) -> None:
        self.folder = folder.absolute()
        self.tasks = self.folder / "tasks"
        self.output = self.folder / "output"
        for path in (self.folder, self.tasks, self.output):
            path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise HomeTaken(f"another agent runs in {self.folder}") from None
        self.uid = self._identity()
        self.machine_boot = boot or BOOT_FILE.read_text().strip()
        """From one start of the machine to the next: what `now_us` counts from."""
        self._open_pipe()
        self._state_path = str(self.folder / "state")
        self.lease_path = str(self.folder / "lease")
        kept = read_slot(self._state_path) or {}
        self.same_boot = kept.get("machine_boot", kept.get("boot")) == self.machine_boot
        self._life = kept.get("life", 0) if self.same_boot else 0
        """How often the node began anew in this boot of the machine."""
        self.sequence = kept["sequence"] if self.same_boot else 0
        self.applied = kept["applied"] if self.same_boot else 0
        self.boots = kept.get("boots", 0) + (not self.same_boot)
        """Which boot of this machine it is, as this folder counts them."""
        self.lease_until_us = 0
        if self.same_boot:
            self.lease_until_us = (read_slot(self.lease_path) or {}).get("until_us", 0)
        else:
            shutil.rmtree(self.tasks)
            self.tasks.mkdir()
            make_slot(self.lease_path, {"until_us": 0})
        if not kept:
            make_slot(self._state_path, {})
        self._keep()

    def next_sequence(self) -> int:
        """The number of the next report: never one that was used in this boot."""
        self.sequence += 1
        self._keep()
        return self.sequence

    def obeyed(self, number: int) -> None:
        """The assignment of this cycle is obeyed: no older one will be."""
        if number > self.applied:
            self.applied = number
            self._keep()

    def extend_lease(self, until_us: int) -> None:
        """Tasks may run until then. A lease is never made shorter."""
        if until_us > self.lease_until_us:
            self.lease_until_us = until_us
            write_slot(self.lease_path, {"until_us": until_us})

    def has_lease(self) -> bool:
        """Whether tasks may run now."""
        return now_us() < self.lease_until_us

    def lease_ended(self) -> bool:
        """Whether there was a lease, and it has ended: this boot is over, and nothing makes it go on."""
        return 0 < self.lease_until_us <= now_us()

    @property
    def boot(self) -> str:
        """Who the node is between two instants at which nothing of it ran: the machine's boot, or a later beginning in it."""
        return f"{self.machine_boot}.{self._life}" if self._life else self.machine_boot

    def begin_boot(self) -> None:
        """Nothing runs here: what was said to this node before means it no more. It has no lease until it is heard."""
        self._life += 1
        self.boots += 1
        self.lease_until_us = 0
        self._keep()
        write_slot(self.lease_path, {"until_us": 0})

    def close(self) -> None:
        """Leave the folder to another agent. What runs goes on."""
        os.close(self.pipe)
        os.close(self._lock)

    def _keep(self) -> None:
        state = {
            "boot": self.boot,
            "machine_boot": self.machine_boot,
            "life": self._life,
            "boots": self.boots,
            "sequence": self.sequence,
            "applied": self.applied,
        }
        write_slot(self._state_path, state)

    def _identity(self) -> str:
        path = self.folder / "uid"
        with contextlib.suppress(FileNotFoundError):
            if uid := path.read_text().strip():
                return uid
        write_whole(str(path), uuid.uuid4().hex.encode())
        return path.read_text()

    def _open_pipe(self) -> None:
        self.pipe_path = str(self.folder / "poke")
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.pipe_path, 0o600)
        self.pipe = os.open(self.pipe_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def read_faults(folder: Path) -> dict[str, Fault]:
    """The simulated faults, by device. What cannot be read says nothing."""
    try:
        return msgspec.json.decode((folder / "broken.json").read_bytes(), type=dict[str, Fault])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def write_fault(folder: Path, uuid: str, health: DeviceHealth, reason: str) -> None:
    """Say that a simulated device is in this health from now on. Raises OSError."""
    faults = read_faults(folder)
    if health == "healthy":
        faults.pop(uuid, None)
    else:
        faults[uuid] = msgspec.structs.replace(faults.get(uuid, Fault()), health=health, reason=reason)
    write_whole(str(folder / "broken.json"), msgspec.json.encode(faults))


def write_measured(folder: Path, uuid: str, xids: dict[int, int], measured: dict[str, int]) -> None:
    """Say that these Xids happened on a simulated device too, and that it measures this from now on. Raises OSError."""
    faults = read_faults(folder)
    before = faults.get(uuid, Fault(health="healthy"))
    counts = {code: before.xids.get(code, 0) + xids.get(code, 0) for code in dict.fromkeys([*before.xids, *xids])}
    faults[uuid] = msgspec.structs.replace(before, xids=counts, measured={**before.measured, **measured})
    write_whole(str(folder / "broken.json"), msgspec.json.encode(faults))
