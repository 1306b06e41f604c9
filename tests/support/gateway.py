"""For tests of the gateway: a real stack in a process of its own, clients, and simulated agents over real HTTP."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from muster.agent.protocol import AgentAssignment
from muster.events.levels import Assignment, TaskAssignment
from muster.events.nodes import NodeSpec
from muster.simulator.agents import Agent, Behaviour, Fleet
from muster.up.places import Options

READY_S = 60
SPEAK_S = 5.0


def job_id() -> str:
    """A UUIDv7."""
    stamp = f"{time.time_ns() // 1_000_000:012x}"
    rest = os.urandom(10).hex()
    return f"{stamp[:8]}-{stamp[8:]}-7{rest[:3]}-8{rest[3:6]}-{rest[6:18]}"


def job(
    name: str = "train", *, id: str = "", user: str = "ada", command: tuple[str, ...] = ("true",), **fields: Any
) -> dict[str, Any]:
    """The body of a submission: one task of one GPU unless `groups` says otherwise."""
    request: dict[str, Any] = {"groups": fields.pop("groups", [{"gpus": 1}])}
    for key in ("priority", "array", "after"):
        if key in fields:
            request[key] = fields.pop(key)
    return {"job": id or job_id(), "name": name, "user": user, "request": request, "run": {"command": list(command)}, **fields}


class Stack:
    """Scheduler and gateway as a process."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        told = msgspec.json.encode(Options(folder=str(folder), **{"port": 0, **options})).decode()
        self.process = subprocess.Popen([sys.executable, "-m", "muster.up.stack", told], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode().split()
        assert line[:1] == ["ready"], f"the stack ended with status {self.process.wait(5)}"
        self.url = line[1]

    def client(self, token: str = "") -> httpx.Client:
        """A client of the gateway."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=f"{self.url}/v1", headers=headers, timeout=40, trust_env=False)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(10)
        self._close()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(20)
        self._close()
        return status

    def _close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def running(folder: Path, **options: Any) -> Iterator[Stack]:
    """A stack that is gone afterwards."""
    stack = Stack(folder, **options)
    try:
        yield stack
    finally:
        if stack.process.poll() is None:
            stack.stop()


def events(response: httpx.Response, count: int) -> list[dict[str, Any]]:
    """The first so many server-sent events, with their ids as `id`."""
    found: list[dict[str, Any]] = []
    place = ""
    for line in response.iter_lines():
        if line.startswith("id: "):
            place = line[4:]
        elif line.startswith("data: "):
            found.append({"id": place, **msgspec.json.decode(line[6:])})
            if len(found) == count:
                break
    return found


class Simulated:
    """Simulated agents that speak HTTP; their time is ours."""

    def __init__(self, client: httpx.Client, nodes: int, gpus: int = 8, behaviour: Behaviour | None = None) -> None:
        self.client = client
        told = behaviour if behaviour is not None else Behaviour(runtime_us=0)
        self.fleet = Fleet(lambda job: told)
        self.ran: list[tuple[str, int, int, int]] = []
        """Every task that was seen running, once for each time it began to."""
        for number in range(nodes):
            agent = Agent(f"n{number}", f"uid-{number}")
            agent.describe(NodeSpec(cpu_milli=64_000, memory_mib=256_000, disk_mib=1_000_000), gpus, "H100", 80_000)
            self.fleet.agents[agent.name] = agent

    def turn(self) -> None:
        """Each agent reports if it has something to say, and obeys what is new, without waiting for it."""
        now_us = time.monotonic_ns() // 1000
        for agent in self.fleet.agents.values():
            if agent.changed or agent.announce:
                answer = self.client.post(f"/nodes/{agent.name}/reports", content=agent.report(now_us))
                assert answer.status_code == 202, answer.text
            found = self.client.get(
                f"/nodes/{agent.name}/assignment", params={"after": agent.applied, "uid": agent.uid, "wait": 0}
            )
            if found.status_code == 200:
                level = msgspec.json.decode(found.content, type=AgentAssignment)
                self.fleet.epoch_us = level.now_us - now_us
                self.fleet.obey(agent, _level(agent.name, level), now_us)
        self.fleet.fire(time.monotonic_ns() // 1000)

    def run(self, ending: threading.Event) -> None:
        """Go on until this is set; agents that have nothing to say are heard nevertheless."""
        spoke = time.monotonic()
        while not ending.is_set():
            if time.monotonic() - spoke > SPEAK_S:
                spoke = time.monotonic()
                for agent in self.fleet.agents.values():
                    agent.changed = True
            self.turn()
            time.sleep(0.02)

    def until(self, done: Callable[[], Any], patience_s: float = 30) -> Any:
        """Go on until it is true, and return it."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if found := done():
                return found
            self.turn()
        raise AssertionError(f"not so after {patience_s} s")


def _level(node: str, told: AgentAssignment) -> Assignment:
    tasks = [
        TaskAssignment(
            job=task.job,
            instance=task.instance,
            attempt=task.attempt,
            rank=task.rank,
            phase=task.phase,
            kill_at_us=task.kill_at_us,
            devices=task.devices,
            since=task.since,
        )
        for task in told.tasks
    ]
    return Assignment(node=node, uid=told.uid, boot=told.boot, number=told.number, at_us=told.at_us, tasks=tuple(tasks))
