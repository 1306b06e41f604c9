"""For tests of `muster up`: the real thing in a process of its own, what /proc knows of its parts, and what is left of it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from muster.agent.cgroup import Groups
from muster.agent.processes import Process, process, processes
from muster.up.places import running

PATIENCE_S = 60.0


def until(what: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait until it is true, and return it. That nobody answers is not true yet."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            if found := what():
                return found
        time.sleep(0.05)
    raise AssertionError(f"not so after {patience_s} s: {what}")


def words(pid: int) -> list[str]:
    """The command line of a process; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


class Up:
    """`muster up` on a folder. It may be killed and started again, at the same address."""

    def __init__(self, folder: Path, *options: str, said: Path | None = None) -> None:
        """What it says is appended to the file `said`, beside the folder unless another is named."""
        self.folder = folder
        self.options = options
        self.said = said if said is not None else folder.with_suffix(".said")
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is not ready yet."""
        command = [sys.executable, "-m", "muster.cli", "up", "--data", str(self.folder), "--port", str(self.port), *self.options]
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.said.open("ab") as said:  # in its folder, so that all that comes of it is found there
            self.process = subprocess.Popen(command, cwd=self.folder, stderr=said, stdin=subprocess.DEVNULL)

    def ready(self) -> httpx.Client:
        """A client, once the gateway answers; whoever asked closes it."""
        started = self.process
        assert started is not None

        def answers() -> bool:
            assert started.poll() is None, self.said.read_text()
            told = running(self.folder)
            if told is None or told.pid != started.pid:
                return False
            self.port = int(told.url.rpartition(":")[2])
            return httpx.get(f"{self.url}/schema/openapi.json", timeout=5, trust_env=False).status_code == 200

        until(answers)
        return self.client()

    @property
    def url(self) -> str:
        """Of the API."""
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self, timeout_s: float = 30.0) -> httpx.Client:
        """A client of the gateway."""
        return httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(60)
        self.process = None
        return status

    def kill(self) -> None:
        """SIGKILL for the parent alone, and wait until its children have followed it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        self.process = None
        until(lambda: not [*self.schedulers(), *self.agents()])

    def schedulers(self) -> list[Process]:
        """Processes of scheduler and gateway of this folder."""
        found = []
        for item in _alive():
            said = words(item.pid)
            if "muster.up.stack" in said and any(str(self.folder) in word for word in said):
                found.append(item)
        return found

    def agents(self) -> list[Process]:
        """Agents of this folder."""
        found = []
        for item in _alive():
            said = words(item.pid)
            if "agent" in said and any(word.startswith(f"{self.folder}/agents/") for word in said):
                found.append(item)
        return found

    def supervisors(self) -> list[Process]:
        """Supervisors of this folder that have a task."""
        found = []
        for item in _alive():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{item.pid}/comm").read_text() == "muster-task\n" and _place(item).startswith(
                    f"{self.folder}/agents/"
                ):
                    found.append(item)
        return found

    def left(self) -> list[str]:
        """What lives of all that anybody of this folder started, and cgroups that are there."""
        found = [f"{pid}: {' '.join(words(pid))}" for pid in self._everything()]
        for path in self.folder.glob("agents/*/uid"):
            groups = Groups(path.read_text().strip())
            if groups.root is not None:
                found += [str(folder) for folder in groups.root.glob("*/")]
                groups.close()
        return found

    def wake(self) -> None:
        """SIGCONT for all that is stopped."""
        for item in [*self.schedulers(), *self.agents(), *self.supervisors()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(item.pid, signal.SIGCONT)

    def end(self) -> None:
        """Leave nothing, whatever the test did."""
        self.wake()
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
        deadline = time.monotonic() + 20
        while (found := self._everything()) and time.monotonic() < deadline:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for path in self.folder.glob("agents/*/uid"):
            groups = Groups(path.read_text().strip())
            if groups.root is not None:
                for folder in groups.root.glob("*/"):
                    until(partial(_removed, groups, folder))
                groups.close()

    def _everything(self) -> list[int]:
        """Processes in this folder, and those that carry the mark of a task of its nodes."""
        marks = [path.read_bytes().strip() for path in self.folder.glob("agents/*/uid")]
        found = []
        for item in _alive():
            with contextlib.suppress(OSError):
                place = _place(item)
                environment = Path(f"/proc/{item.pid}/environ").read_bytes()
                here = place == str(self.folder) or place.startswith(f"{self.folder}/")
                if here or any(mark and mark in environment for mark in marks):
                    found.append(item.pid)
        return found


@contextlib.contextmanager
def up(folder: Path, *options: str, said: Path | None = None) -> Iterator[Up]:
    """A `muster up` that was started, and of which nothing is left afterwards. What it said is printed if the test fails."""
    begun = Up(folder, *options, said=said)
    begun.start()
    try:
        yield begun
    except BaseException:
        print(begun.said.read_text()[-20_000:])
        raise
    finally:
        begun.end()


def lives(item: Process) -> bool:
    """Whether exactly this process is there still; a zombie is not."""
    now = process(item.pid)
    return now is not None and now.started == item.started and now.state not in ("Z", "X")


def _alive() -> list[Process]:
    return [item for item in processes() if item.state not in ("Z", "X")]


def _place(item: Process) -> str:
    return os.readlink(f"/proc/{item.pid}/cwd")


def _removed(groups: Groups, folder: Path) -> bool:
    groups.remove(folder.name)
    return not folder.exists()
