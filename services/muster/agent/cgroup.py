"""Limits of processor and memory by cgroup v2, where the agent may set them; and where not, what is missing.

The agent makes a group `muster-UID` below its own, or at the root of the hierarchy, and in it one for each task. A group
without controllers still keeps a task's processes together, so that one write ends them all. Version 1 is not used.
"""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from muster.agent.processes import kill_group

PERIOD_US = 100_000
CONTROLLERS = ("cpu", "memory")


class Groups:
    """Where tasks get their groups. `root` is None where there can be none."""

    def __init__(self, uid: str, mounts: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> None:
        self.root: Path | None = None
        self.controllers: tuple[str, ...] = ()
        base = _mount(mounts)
        if base is None:
            return
        for parent in dict.fromkeys((base / _own(own).lstrip("/"), base)):
            if self._make(parent, uid):
                return

    @property
    def missing(self) -> tuple[str, ...]:
        """The limits that are not kept on this node."""
        return tuple(name for name in CONTROLLERS if name not in self.controllers)

    def make(self, name: str, cpu_milli: int, memory_mib: int) -> str:
        """A group for a task, with its limits as far as they can be set. An empty string where there is none."""
        if self.root is None:
            return ""
        folder = self.root / name
        try:
            folder.mkdir(exist_ok=True)
            if cpu_milli and "cpu" in self.controllers:
                (folder / "cpu.max").write_text(f"{max(1000, cpu_milli * PERIOD_US // 1000)} {PERIOD_US}")
            if memory_mib and "memory" in self.controllers:
                (folder / "memory.max").write_text(str(memory_mib << 20))
                with contextlib.suppress(OSError):
                    (folder / "memory.swap.max").write_text("0")
                with contextlib.suppress(OSError):
                    (folder / "memory.oom.group").write_text("1")
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            return ""
        return str(folder)

    def remove(self, name: str) -> None:
        """The task's group is not needed any more. One that is not empty stays."""
        if self.root is not None:
            folder = self.root / name
            with contextlib.suppress(OSError):
                for inner in sorted(folder.rglob("*/"), reverse=True):
                    inner.rmdir()
                folder.rmdir()

    def sweep(self, known: Collection[str]) -> None:
        """Leave the groups of these tasks only. An agent that died may have left others, with nothing in them that is wanted."""
        if self.root is not None:
            for folder in sorted(self.root.glob("*/")):
                if folder.name not in known:
                    kill_group(str(folder))
                    self.remove(folder.name)

    def members(self, name: str) -> int:
        """How many processes are in the task's group."""
        if self.root is None:
            return 0
        try:
            return sum(len(path.read_text().split()) for path in (self.root / name).rglob("cgroup.procs"))
        except OSError:
            return 0

    def close(self) -> None:
        """Leave nothing behind, unless tasks are still there."""
        if self.root is not None:
            with contextlib.suppress(OSError):
                self.root.rmdir()

    def _make(self, parent: Path, uid: str) -> bool:
        root = parent / f"muster-{uid}"
        try:
            root.mkdir(exist_ok=True)
        except OSError:
            return False
        if not os.access(root / "cgroup.procs", os.W_OK):
            return False
        for name in CONTROLLERS:
            with contextlib.suppress(OSError):
                (parent / "cgroup.subtree_control").write_text(f"+{name}")
            with contextlib.suppress(OSError):
                (root / "cgroup.subtree_control").write_text(f"+{name}")
        with contextlib.suppress(OSError):
            enabled = (root / "cgroup.subtree_control").read_text().split()
            self.controllers = tuple(name for name in CONTROLLERS if name in enabled)
        self.root = root
        return True


def _mount(mounts: str) -> Path | None:
    """Where cgroup v2 is mounted."""
    with contextlib.suppress(OSError):
        for line in Path(mounts).read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            if rest.startswith("cgroup2 "):
                return Path(fields.split()[4])
    return None


def _own(own: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path(own).read_text().splitlines():
            if line.startswith("0::"):
                return line[3:]
    return ""
