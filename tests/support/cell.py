"""A cell on Kafka of real processes, for tests: schedulers, gateways and an agent, each of which may be killed or stopped.

What they say goes to files beside their data; who leads is read from there. Whether all went well is read from the log.
"""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from muster.client.ids import new_id
from muster.events.codec import open_envelope
from muster.log.fsck import Fsck, fsck
from muster.log.reader import read_admitted
from muster.replay.audit import audit
from muster.verify import Judge

Started = TypeVar("Started", bound="Program")

PATIENCE_S = 120.0
START = "from muster.cli.main import main; main()"
STARTED = re.compile(r"term (\d+) starts at cycle (\d+)")


def until(what: Callable[[], Any], patience_s: float = PATIENCE_S, say: str = "") -> Any:
    """Wait until it is true, and return it."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not so after {patience_s} s: {say or what}")


class Program:
    """One `muster COMMAND` that runs until it is ended."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.said = folder.with_suffix(".said")
        self.words = words
        self.environment: Mapping[str, str] = {}
        """Added to this process's own."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.said.open("ab") as said:
            command = [sys.executable, "-c", START, *self.words]
            environment = {**os.environ, **self.environment}
            self.process = subprocess.Popen(
                command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
            )

    @property
    def text(self) -> str:
        """All that it said."""
        return self.said.read_text(errors="replace") if self.said.exists() else ""

    @property
    def child(self) -> int:
        """The process that does the work; 0 where there is none now."""
        assert self.process is not None
        with contextlib.suppress(OSError, ValueError):
            listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            return int(listed[0]) if listed else 0
        return 0

    def signal(self, number: int) -> None:
        """To the process that does the work."""
        os.kill(until(lambda: self.child), number)

    def kill(self) -> None:
        """As when its machine loses its power: it is not started again."""
        if self.process is None:
            return
        child = self.child
        self.process.kill()
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.wait(20)
        self.process = None

    def stop(self) -> int:
        """As told. Its exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(60)
        self.process = None
        return status


class Scheduler(Program):
    """One scheduler."""

    def led(self) -> int:
        """The highest term that it started; 0 for none."""
        return max((int(term) for term, _ in STARTED.findall(self.text)), default=0)


class Gateway(Program):
    """One gateway, and a client of it."""

    def __init__(self, folder: Path, bus: str, port: int) -> None:
        super().__init__(folder, "gateway", "--bus", bus, "--port", str(port), "--data", str(folder))
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=f"{self.url}/v1", timeout=30, trust_env=False)

    def get(self, path: str, **params: Any) -> Any:
        """What it answers, decoded; None where it does not, or knows nothing of that."""
        try:
            response = self.http.get(path, params=params)
        except httpx.HTTPError:
            return None
        return response.json() if response.status_code == 200 else None


class Cell:
    """All of it."""

    def __init__(self, folder: Path, bus: str, log: str) -> None:
        """`bus` is where programs are told that the bus is; `log` is where the log is read from."""
        self.folder = folder
        self.bus = bus
        self.log = log
        self.programs: list[Program] = []
        self.ran = folder / "ran"
        self.ran.touch()
        self.node = f"n{secrets.token_hex(3)}"
        self.jobs: list[str] = []

    def scheduler(
        self, name: str, bus: str = "", takeover_s: float = 3.0, environment: Mapping[str, str] | None = None
    ) -> Scheduler:
        """Start a scheduler, by another way to the bus if one is named."""
        folder = self.folder / name
        words = ("scheduler", "--bus", bus or self.bus, "--data", str(folder), "--takeover-after", str(takeover_s))
        return self._begin(Scheduler(folder, *words), environment)

    def gateway(self, name: str = "gateway", bus: str = "", environment: Mapping[str, str] | None = None) -> Gateway:
        """Start a gateway; returns when it answers."""
        made = self._begin(Gateway(self.folder / name, bus or self.bus, free_port()), environment)
        until(lambda: made.get("/state"), say=f"{name} answers")
        return made

    def agent(self, *gateways: Gateway) -> Program:
        """Start the agent of the cell's node; returns when the node is known."""
        folder = self.folder / "agent"
        urls = ",".join(each.url for each in gateways)
        words = ("agent", "--gateway", urls, "--node", self.node, "--devices", "8xH100-80GB", "--data", str(folder))
        made = self._begin(Program(folder, *words))
        until(lambda: gateways[0].get(f"/nodes/{self.node}"), say="the node is known")
        return made

    def leader(self, *schedulers: Scheduler, above: int = 0) -> Scheduler:
        """Wait for one of these to start a term above this one; the one with the highest."""

        def found() -> Scheduler | None:
            best = max(schedulers, key=lambda each: each.led())
            return best if best.led() > above else None

        return until(found, say=f"a term above {above} starts")  # type: ignore[no-any-return]

    def submit(self, *gateways: Gateway, count: int = 1) -> None:
        """Submit jobs that write down that they ran, each until some gateway takes it."""
        for _ in range(count):
            job = new_id()
            command = ["sh", "-c", f"echo {job} >> {self.ran}"]
            body = {
                "job": job,
                "name": f"job-{len(self.jobs)}",
                "user": "ada",
                "submitted_us": time.time_ns() // 1000,
                "request": {"groups": [{"gpus": 1, "selector": [{"key": "kubernetes.io/hostname", "values": [self.node]}]}]},
                "run": {"command": command},
            }
            self.jobs.append(job)
            until(partial(self._taken, gateways, msgspec.json.encode(body)), say=f"{job} is taken")

    def finished(self, gateway: Gateway) -> None:
        """Wait for every job to be over, each having run once."""

        def over() -> bool:
            listed = gateway.get("/jobs", limit=10_000) or {"jobs": []}
            states = {each["job"]: each["state"] for each in listed["jobs"]}
            return all(states.get(job) == "finished" for job in self.jobs)

        until(over, say="every job is over")
        assert sorted(self.ran.read_text().split()) == sorted(self.jobs), "each job ran once"

    def check(self) -> Fsck:
        """The log is one whole history, in which everything was decided as this build decides, and legal."""
        found = fsck(self.log)
        assert found.halt is None, found.halt
        judge = Judge()
        for envelope, _ in read_admitted(self.log):
            judge.judge(open_envelope(envelope))
        assert judge.violations == []
        difference = audit(self.log).difference
        assert difference is None, difference.lines()
        terms = ", ".join(f"{term.term}: {term.first}-{term.last}" for term in found.terms)
        print(f"terms {terms}; void: {found.voids}")
        return found

    def close(self) -> None:
        for program in self.programs:
            program.kill()
            if isinstance(program, Gateway):
                program.http.close()

    def _begin(self, program: Started, environment: Mapping[str, str] | None = None) -> Started:
        program.environment = environment or {}
        program.start()
        self.programs.append(program)
        return program

    def _taken(self, gateways: tuple[Gateway, ...], body: bytes) -> bool:
        for each in gateways:
            with contextlib.suppress(httpx.HTTPError):
                response = each.http.post("/jobs", content=body)
                if response.status_code == 202:
                    return True
                assert response.status_code >= 500, response.text
        return False


@contextlib.contextmanager
def cell(folder: Path, bus: str, log: str = "") -> Iterator[Cell]:
    """A cell whose programs end with the test, and what they said where it failed."""
    made = Cell(folder, bus, log or bus)
    try:
        yield made
    except BaseException:
        for program in made.programs:
            print(f"--- {' '.join(program.words[:1])} {program.folder.name}\n{program.text[-4000:]}")  # pytest shows it
        raise
    finally:
        made.close()


def free_port() -> int:
    """One on which nobody listens on 127.0.0.1."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
