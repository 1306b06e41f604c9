"""For tests of agents: a gateway that is a real HTTP server and says what the test wants said, agents, and what /proc knows."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from muster.agent.cgroup import Groups
from muster.agent.protocol import AgentAssignment, AgentTask, Master, Ranks, ReportAnswer, Wanted
from muster.agent.slots import now_us
from muster.events.codec import encode
from muster.events.jobs import GroupRequest, JobRequest, JobRun
from muster.events.levels import NodeReport, TaskReport

PATIENCE_S = 15.0
LOG_EPOCH_US = 1_700_000_000_000_000
"""Log time is nobody's clock: here it is this, and the time since the boot."""


def until(what: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait until it is true, and return it."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not so after {patience_s} s: {what}")


def task(*command: str, job: str = "j1", rank: int = 0, attempt: int = 1, phase: str = "run", **more: Any) -> AgentTask:
    """A task that runs this, alone unless `ranks` says otherwise."""
    request = {key: more.pop(key) for key in ("grace_us", "time_limit_us", "array", "elastic") if key in more}
    run = {key: more.pop(key) for key in ("environment", "directory", "output", "error", "image") if key in more}
    group = more.pop("group_request", GroupRequest())
    values: dict[str, Any] = {
        "job": job,
        "name": "test",
        "user": "ada",
        "instance": 0,
        "attempt": attempt,
        "rank": rank,
        "phase": phase,
        "ranks": Ranks(world_size=1, nodes=("n1",), ranks_per_node=(1,)),
        "master": Master(addr="127.0.0.1", port=23_456),
        "run": JobRun(command=command, **run),
        "request": JobRequest(groups=(group,), **request),
        **more,
    }
    return AgentTask(**values)


class Gateway:
    """Says what it is told to say; remembers what it was told."""

    def __init__(self, lease_us: int = 60_000_000) -> None:
        self.lease_us = lease_us
        self.away = False
        self.refuse: tuple[int, str] | None = None
        self.known = True
        self.boot = ""
        """Instead of the boot of the node's reports."""
        self.reports: list[NodeReport] = []
        self.spec: NodeReport | None = None
        self.pieces: dict[str, list[tuple[int, bytes]]] = {}
        """By request for output: each piece, and where in the output it belongs."""
        self.ended: set[str] = set()
        self.number = 0
        self.tasks: tuple[AgentTask, ...] = ()
        self.wanted: tuple[Wanted, ...] = ()
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.away = True
        with self._news:
            self._news.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def assign(self, *tasks: AgentTask, number: int = 0, wanted: tuple[Wanted, ...] = ()) -> None:
        """From now on the node is to hold these."""
        with self._news:
            self.number = number or self.number + 1
            self.tasks = tasks
            self.wanted = wanted
            self._news.notify_all()

    def level(self, job: str = "j1", rank: int = 0, attempt: int = 0) -> TaskReport | None:
        """The newest word on a task."""
        if not self.reports:
            return None
        for found in self.reports[-1].tasks:
            if found.job == job and found.rank == rank and attempt in (0, found.attempt):
                return found
        return None

    def reaches(self, phase: str, job: str = "j1", rank: int = 0, attempt: int = 0) -> TaskReport:
        """Wait for a task to be reported in this phase."""

        def there() -> TaskReport | None:
            level = self.level(job, rank, attempt)
            return level if level is not None and level.phase == phase else None

        found: TaskReport = until(there)
        return found

    def reported(self, phase: str, job: str = "j1") -> TaskReport:
        """Wait for a task to be or to have been reported in this phase."""

        def there() -> TaskReport | None:
            found = [task for report in self.reports for task in report.tasks if (task.job, task.phase) == (job, phase)]
            return found[-1] if found else None

        found: TaskReport = until(there)
        return found

    def stay(self) -> str:
        """From now on know the node by the boot that it has now, as a gateway does that is behind. The boot."""
        self.boot = self.reports[-1].boot
        return self.boot

    def applied_after(self, reports: int) -> bool:
        """Whether an agent, since it was heard so often, has obeyed the newest assignment."""
        return len(self.reports) > reports and self.reports[-1].applied == self.number

    def output(self, key: str) -> bytes:
        """What was sent for a request, whose pieces must fit to each other."""
        offset = self.pieces[key][0][0]
        whole = b""
        for place, data in self.pieces[key]:
            assert place == offset + len(whole)
            whole += data
        return whole

    def take(self, data: bytes) -> ReportAnswer:
        report = msgspec.json.decode(data, type=NodeReport)
        assert not self.reports or report.uid != self.reports[-1].uid or report.sequence > self.reports[-1].sequence
        self.reports.append(report)
        if report.spec is not None:
            self.spec = report
        return ReportAnswer(lease_us=self.lease_us, known=self.known or self.spec is not None)

    def answer(self, after: int, uid: str) -> AgentAssignment | None:
        with self._news:
            self._news.wait_for(lambda: self.number > after or self.away, timeout=2)
            if self.number <= after or self.away:
                return None
            return AgentAssignment(
                cell="main",
                uid=uid,
                boot=self.boot or self.reports[-1].boot,
                number=self.number,
                at_us=LOG_EPOCH_US,
                now_us=log_now_us(),
                tasks=self.tasks,
                wanted=self.wanted,
            )


def log_now_us() -> int:
    return LOG_EPOCH_US + now_us()


def _handler(gateway: Gateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            place = urlsplit(self.path)
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self._turned_away():
                return
            if place.path.endswith("/reports"):
                self._say(202, encode(gateway.take(data)))
                return
            key = place.path.rsplit("/", 1)[1]
            query = parse_qs(place.query)
            gateway.pieces.setdefault(key, []).append((int(query["offset"][0]), data))
            if query["end"] == ["true"]:
                gateway.ended.add(key)
            self._say(202, b"{}")

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            if self._turned_away():
                return
            found = gateway.answer(int(query["after"][0]), query["uid"][0])
            if found is None:
                self._say(204, b"")
            else:
                self._say(200, msgspec.json.encode(found))

        def _turned_away(self) -> bool:
            if gateway.away:
                self._say(503, b"")
            elif gateway.refuse is not None:
                self._say(gateway.refuse[0], json.dumps({"detail": gateway.refuse[1]}).encode())
            return gateway.away or gateway.refuse is not None

        def _say(self, status: int, data: bytes) -> None:
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


class Node:
    """An agent process, which may be killed and started again on the same folder."""

    def __init__(
        self,
        gateway: Gateway | str,
        data: Path,
        *more: str,
        name: str = "n1",
        path: str = "",
        start: str = "from muster.cli.main import main; main()",
    ) -> None:
        """`gateway` is one of these, or the URL of another; `start` is what Python is told to run."""
        self.data = data
        self._command = [
            sys.executable,
            "-c",
            start,
            "agent",
            "--gateway",
            gateway if isinstance(gateway, str) else gateway.url,
            "--node",
            name,
            "--data",
            str(data),
            *more,
        ]
        self._environment = {**os.environ, "PATH": path + os.environ["PATH"]}
        self.said = data.with_suffix(".err")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(self._command, stderr=said, env=self._environment, start_new_session=True)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(10)
        self.process = None
        return code

    def supervisors(self) -> list[int]:
        """The ids of the supervisors that live."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    place = os.readlink(f"/proc/{name}/cwd")
                    if Path(f"/proc/{name}/comm").read_text() == "muster-task\n" and place.startswith(f"{self.data}/tasks/"):
                        found.append(int(name))
        return found

    def left(self) -> list[int]:
        """Processes of this node's tasks that live."""
        uid = (self.data / "uid").read_text()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if uid.encode() in Path(f"/proc/{name}/environ").read_bytes():
                        found.append(int(name))
        return found

    def end(self) -> None:
        """Leave nothing, whatever the test did."""
        self.kill()
        for pid in self.supervisors():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        for pid in self.left():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        groups = Groups((self.data / "uid").read_text())
        if groups.root is not None:
            for folder in groups.root.glob("*/"):
                until(partial(_removed, groups, folder))
            groups.close()


@contextlib.contextmanager
def node(tmp_path: Path, *more: str, lease_us: int = 60_000_000, path: str = "") -> Iterator[tuple[Gateway, Node]]:
    """A gateway and an agent that has registered there."""
    gateway = Gateway(lease_us)
    agent = Node(gateway, tmp_path / "agent", *more, path=path)
    agent.start()
    try:
        until(lambda: gateway.spec)
        yield gateway, agent
    except BaseException:
        print(agent.said.read_text(), agent.process and agent.process.poll())  # pytest shows it
        print(gateway.reports[-1] if gateway.reports else "no report")
        raise
    finally:
        agent.end()
        gateway.close()


def _removed(groups: Groups, folder: Path) -> bool:
    groups.remove(folder.name)
    return not folder.exists()


def lives(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def sleepers(seconds: str) -> list[int]:
    """Processes `sleep SECONDS`: tests give each sleep a length of its own, so that /proc tells them apart."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{name}/cmdline").read_bytes() == b"sleep\0" + seconds.encode() + b"\0" and lives(int(name)):
                    found.append(int(name))
    return found
