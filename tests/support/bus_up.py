"""For tests in which everything dies on Kafka: two schedulers, two gateways and agents, in processes of their own, as one.

It may be asked, struck and stopped as a `muster up` may (`tests.support.up.Up`), so that one load and one trouble serve both.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from muster.agent.processes import Process, processes
from tests.support.cell import START
from tests.support.three import Turns
from tests.support.up import Up, until, words

PARTS = ("muster.up.bus_scheduler", "muster.up.bus_gateway")


class BusUp(Up):
    """All of it, on this bus. Who keeps a scheduler or a gateway alive is its own parent; agents are kept alive here."""

    def __init__(self, folder: Path, bus: str, ports: tuple[int, int], agents: int = 0, devices: str = "8xH100-80GB") -> None:
        super().__init__(folder)
        self.bus = bus
        self.ports = ports
        self.parents: list[subprocess.Popen[bytes]] = []
        self._commands = [
            *[["scheduler", "--bus", bus, "--data", str(folder / name)] for name in ("first", "second")],
            *[
                ["gateway", "--bus", bus, "--port", str(port), "--data", str(folder / name)]
                for name, port in zip(("left", "right"), ports, strict=True)
            ],
        ]
        urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
        self._agents = {
            name: ["agent", "--gateway", urls, "--node", name, "--devices", devices, "--data", str(folder / "agents" / name)]
            for name in [f"n{number}" for number in range(1, agents + 1)]
        }
        self._kept: dict[str, subprocess.Popen[bytes]] = {}
        self._ended = threading.Event()
        self._keeping: threading.Thread | None = None

    def start(self) -> None:
        """Start it; it is not ready yet."""
        (self.folder / "agents").mkdir(parents=True, exist_ok=True)
        self.parents = [self._begin(command) for command in self._commands]
        self._ended.clear()
        self._keeping = threading.Thread(target=self._keep)
        self._keeping.start()

    def ready(self) -> httpx.Client:
        """A client, once each gateway answers; whoever asked closes it."""
        for port in self.ports:
            until(lambda: httpx.get(f"http://127.0.0.1:{port}/v1/state", timeout=5, trust_env=False).status_code == 200)  # noqa: B023
        return self.client()

    @property
    def url(self) -> str:
        """Of the API, at one of the gateways."""
        return f"http://127.0.0.1:{self.ports[0]}/v1"

    def client(self, timeout_s: float = 30.0) -> httpx.Client:
        """A client of both gateways, of which either may answer."""
        return httpx.Client(base_url="http://127.0.0.1/v1", timeout=timeout_s, transport=Turns(list(self.ports)))

    def stop(self) -> int:
        """SIGTERM for all; the worst exit status."""
        self._leave()
        everybody = [*self.parents, *self._kept.values()]
        for process in everybody:
            process.terminate()
        status = max(abs(process.wait(60)) for process in everybody)
        self.parents = []
        return status

    def kill(self) -> None:
        """SIGKILL for all, and wait until their children have followed them."""
        self._leave()
        for process in [*self.parents, *self._kept.values()]:
            process.kill()
            process.wait(10)
        self.parents = []
        until(lambda: not [*self.schedulers(), *self.agents()])

    def close(self) -> None:
        """Leave nothing, whatever the test did."""
        self.wake()
        if self.parents:
            self.kill()
        self.end()

    def schedulers(self) -> list[Process]:
        """Processes of schedulers and gateways of this folder."""
        found = []
        for item in processes():
            said = words(item.pid)
            if item.state not in ("Z", "X") and len(said) > 2 and said[2] in PARTS and str(self.folder) in said[-1]:
                found.append(item)
        return found

    def _begin(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.said.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-c", START, *command],
                cwd=self.folder,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                env=dict(os.environ),
                start_new_session=True,
            )

    def _keep(self) -> None:
        """Start each agent, and start it again when it has ended, as systemd would."""
        while not self._ended.wait(0.2):
            for name, command in self._agents.items():
                if name not in self._kept or self._kept[name].poll() is not None:
                    self._kept[name] = self._begin(command)

    def _leave(self) -> None:
        """Keep nobody alive any more."""
        if self._keeping is not None:
            self._ended.set()
            self._keeping.join()
            self._keeping = None
