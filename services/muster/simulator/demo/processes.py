"""The demo's real processes: `muster up`, the agents, and whatever these started. They can be killed, and none is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from muster.simulator.demo.scene import DEVICES, QUEUE

MUSTER = (sys.executable, "-m", "muster.cli")
READY_S = 60
END_S = 20
COMMAND_S = 90
MARK = "MUSTER_DEMO_RUN"
"""In the environment of all that this process starts, so that it is found again."""


class Stuck(Exception):
    """Something that must happen did not."""


class Processes:
    """All processes of one performance."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder = folder
        self.work = work
        self.url = ""
        self.scheduler = 0
        self._mark = uuid.uuid4().hex
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "SLURM_"))}
        path = f"{Path(sys.executable).parent}:{own.get('PATH', '/usr/bin:/bin')}"
        self._environment = {**own, "PATH": path, MARK: self._mark}
        self._up: subprocess.Popen[bytes] | None = None
        self._agents: dict[str, subprocess.Popen[bytes]] = {}

    def start_up(self) -> None:
        """Start scheduler and gateway: at the same port as before, if there was one."""
        command = [*MUSTER, "up", "--no-agent", "--queue", QUEUE, "--data", str(self.folder)]
        command += ["--port", self.url.rpartition(":")[2] or "0"]
        self._up = self._start("up", command)
        end = time.monotonic() + READY_S
        while not self._is_ready(self._up.pid):
            if self._up.poll() is not None or time.monotonic() > end:
                raise Stuck(f"muster up is not ready: see {self.folder}/up.txt")
            time.sleep(0.02)

    def start_agent(self, node: str) -> None:
        """Start an agent, in the folder of the one before it."""
        command = [*MUSTER, "agent", "--gateway", self.url, "--node", node, "--data", str(self.folder / node)]
        self._agents[node] = self._start(node, [*command, "--devices", DEVICES, "--address", "127.0.0.1"])

    def agent_starts(self, node: str) -> int:
        """How often the agents of this node have found out what it has and what runs there."""
        return (self.folder / f"{node}.txt").read_text().count("tasks found again")

    def kill_up(self) -> int:
        """SIGKILL for scheduler and gateway, and for what would start them again; its exit status: -9."""
        assert self._up is not None
        self._up.send_signal(signal.SIGSTOP)
        os.kill(self.scheduler, signal.SIGKILL)
        self._up.kill()
        return self._up.wait(END_S)

    def kill_agent(self, node: str) -> int:
        """SIGKILL for an agent; its exit status: -9."""
        self._agents[node].kill()
        return self._agents[node].wait(END_S)

    def stop(self) -> list[int]:
        """Tell the agents to end, and then the scheduler; the exit statuses, -9 of those that did not and were killed."""
        for agent in self._agents.values():
            agent.terminate()
        statuses = [_ended(agent) for agent in self._agents.values()]
        assert self._up is not None
        self._up.terminate()
        return [*statuses, _ended(self._up)]

    def muster(self, *arguments: str) -> str:
        """What a command prints. Raises `Stuck` if it does not succeed, or does not end."""
        environment = {**self._environment, "MUSTER_GATEWAY": self.url}
        try:
            result = subprocess.run(
                [*MUSTER, *arguments],
                cwd=self.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Stuck(f"muster {' '.join(arguments)} did not end within {COMMAND_S} s") from error
        if result.returncode:
            raise Stuck(f"muster {' '.join(arguments)} ended with {result.returncode}: {result.stderr.strip()}")
        return result.stdout

    def run(self, command: list[str], environment: dict[str, str]) -> None:
        """Run something in the people's folder, to its end, with these variables."""
        subprocess.run(
            command, cwd=self.work, env={**self._environment, **environment}, capture_output=True, timeout=COMMAND_S, check=False
        )

    def left(self, patience_s: float = 5.0) -> list[str]:
        """What still runs of all that was started, after so long."""
        end = time.monotonic() + patience_s
        while (found := self._ours()) and time.monotonic() < end:
            time.sleep(0.05)
        return [f"process {pid} still runs: {said}" for pid, said in found.items()]

    def end_all(self) -> None:
        """Kill whatever is left."""
        for process in [*self._agents.values(), *([self._up] if self._up is not None else [])]:
            if process.poll() is None:
                process.kill()
                process.wait()
        for _ in range(20):
            found = self._ours()
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                return
            time.sleep(0.05)

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.txt").open("ab") as said:
            return subprocess.Popen(
                command,
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def _is_ready(self, pid: int) -> bool:
        try:
            told = json.loads((self.folder / "up.json").read_bytes())
        except (OSError, ValueError):
            return False
        if told["pid"] != pid:
            return False
        self.url, self.scheduler = told["url"], told["scheduler"]
        return True

    def _ours(self) -> dict[int, str]:
        """Command lines by id of the processes that carry our mark, and of tasks that the agents here started."""
        found = {}
        mark, hostfile = f"{MARK}={self._mark}".encode(), f"MUSTER_HOSTFILE={self.folder}/".encode()
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it is gone, or somebody else's
                names = (place / "environ").read_bytes().split(b"\0")
                if any(name == mark or name.startswith(hostfile) for name in names):
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
        return found


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
