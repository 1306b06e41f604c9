"""A supervisor without an agent: its folder is all it knows, and all it leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent.processes import descendants, kill_below, process, send
from muster.agent.slots import make_slot, now_us, poke, read_slot, write_slot
from tests.support.agents import lives, sleepers, until


class Supervised:
    """A task's folder, made as an agent makes it."""

    def __init__(self, folder: Path, lease_us: int = 30_000_000, **spec: Any) -> None:
        self.folder = folder
        folder.mkdir()
        self.lease = str(folder.parent / "lease")
        make_slot(self.lease, {"until_us": now_us() + lease_us})
        os.mkfifo(folder / "poke")
        make_slot(str(folder / "control"), {})
        given = {"lease": self.lease, "notify": str(folder / "nobody"), "grace_us": 300_000, "time_limit_us": None}
        words = {**given, "output_max_bytes": 1 << 20, "cleanup": [], **spec}
        (folder / "spec.json").write_text(json.dumps(words))
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "muster.agent.supervisor", str(self.folder)]
        return subprocess.Popen(command, start_new_session=True)

    def run(self, *command: str, **more: Any) -> None:
        out, directory = str(self.folder / "out"), str(self.folder)
        names = {"PATH": os.environ["PATH"]}
        launch = {"argv": command, "environment": names, "directory": directory, "stdout": out, "stderr": out, **more}
        (self.folder / "launch.json").write_text(json.dumps(launch))
        self.say({"run": True})

    def say(self, word: dict[str, Any]) -> None:
        write_slot(str(self.folder / "control"), word)
        poke(str(self.folder / "poke"), b"x")

    def is_in(self, phase: str) -> None:
        until(lambda: (read_slot(str(self.folder / "status")) or {}).get("phase") == phase)

    def end(self) -> dict[str, Any]:
        until((self.folder / "exit.json").exists)
        assert self.process.wait(5) == 0
        found: dict[str, Any] = json.loads((self.folder / "exit.json").read_text())
        return found

    @property
    def output(self) -> str:
        return (self.folder / "out").read_text()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Supervised]]:
    """Supervisors that a test makes; none is left."""
    found: list[Supervised] = []
    yield found
    for each in found:
        kill_below(each.process.pid)
        each.process.kill()
        each.process.wait()


def test_it_waits_runs_and_writes_the_end(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t"))
    task.is_in("waiting")
    assert not (task.folder / "started").exists()
    task.run("sh", "-c", "echo out; echo err >&2; exit 3")
    end = task.end()
    assert (end["code"], end["reason"], end["blame"]) == (3, "", "")
    assert task.output == "out\nerr\n"
    assert (task.folder / "started").exists()


def test_it_may_be_told_before_it_is_there(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t"))
    task.run("true")
    assert task.end()["code"] == 0


def test_a_second_supervisor_does_nothing(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t"))
    task.is_in("waiting")
    task.run("sh", "-c", "echo once >> count; sleep 0.2")
    assert task.start().wait(10) == 3
    task.end()
    assert task.start().wait(10) == 3
    assert (task.folder / "count").read_text() == "once\n"


def test_what_was_started_is_not_started_again(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t"))
    task.run("sh", "-c", "echo once >> count; sleep 1201")
    task.is_in("running")
    until(lambda: sleepers("1201"))
    task.process.kill()
    task.process.wait()
    assert task.start().wait(10) == 3
    until(lambda: (task.folder / "count").read_text() == "once\n")
    for pid in sleepers("1201"):
        os.kill(pid, signal.SIGKILL)


def test_the_first_process_dies_with_its_supervisor(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t"))
    task.run("sleep", "1202")
    until(lambda: sleepers("1202"))
    task.process.kill()
    until(lambda: not sleepers("1202"))


def test_the_lease_is_read_again_when_it_is_over(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t", lease_us=1_000_000))
    task.run("sleep", "1203")
    task.is_in("running")
    write_slot(task.lease, {"until_us": now_us() + 2_000_000})
    begun = time.monotonic()
    end = task.end()
    assert time.monotonic() - begun > 1.5
    assert end["code"] == -9
    assert end["reason"].startswith("the lease ended")
    assert sleepers("1203") == []


def test_without_a_lease_nothing_begins(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t", lease_us=-1))
    task.run("touch", "ran")
    assert task.end()["code"] == -9
    assert not (task.folder / "ran").exists()


def test_the_time_limit_is_a_notice_then_a_kill(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t", time_limit_us=300_000))
    task.run("sh", "-c", "trap 'echo noticed' TERM; while :; do sleep 0.05; done")
    end = task.end()
    assert (end["code"], end["reason"]) == (-9, "the time limit has passed")
    assert "noticed" in task.output


def test_a_kill_is_never_put_off(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t"))
    task.run("sh", "-c", "trap '' TERM; sleep 1204; sleep 1204; sleep 1204")
    task.is_in("running")
    until(lambda: sleepers("1204"))
    begun = now_us()
    task.say({"run": True, "stop": True, "kill_at_us": begun + 400_000})
    time.sleep(0.1)
    task.say({"run": True, "stop": True, "kill_at_us": begun + 60_000_000})
    assert task.end()["code"] == -9
    assert now_us() - begun < 3_000_000
    assert sleepers("1204") == []


def test_sigterm_to_the_supervisor_ends_the_task_with_its_grace(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t", grace_us=5_000_000))
    task.run("sh", "-c", "trap 'exit 8' TERM; sleep 1205 & wait")
    until(lambda: sleepers("1205"))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
        task.process.send_signal(number)  # not meant for it
    task.process.terminate()
    assert task.end()["code"] == 8
    assert sleepers("1205") == []


def test_a_stopped_task_is_ended_all_the_same(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t"))
    task.run("sh", "-c", "trap 'exit 6' TERM; kill -STOP $$; sleep 1206")
    task.is_in("running")
    main = (read_slot(str(task.folder / "status")) or {})["main"]
    until(lambda: (now := process(main)) is not None and now.state == "T")
    task.say({"run": True, "stop": True, "kill_at_us": now_us() + 5_000_000})
    assert task.end()["code"] == 6


def test_a_fork_bomb_is_ended(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t"))
    bomb = (
        "import os, time\n"
        "end = time.time() + 1.0\n"
        "while time.time() < end:\n"
        "    if len(os.listdir('/proc')) < 400 and os.fork() == 0:\n"
        "        os.setsid()\n"
        "    time.sleep(0.01)\n"
        "os.execvp('sleep', ['sleep', '1207'])\n"
    )
    task.run("python3", "-c", bomb)
    until(lambda: len(descendants(task.process.pid)) > 20)
    task.say({"run": True, "stop": True, "kill_at_us": now_us()})
    assert task.end()["code"] in (-9, -15)
    assert sleepers("1207") == []


def test_what_the_runtime_wants_is_run_at_the_end(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t", cleanup=[["touch", str(tmp_path / "cleaned")], ["no-such-command"]]))
    task.run("true")
    assert task.end()["code"] == 0
    assert (tmp_path / "cleaned").exists()


def test_an_end_for_want_of_memory_is_named(tmp_path: Path, made: list[Supervised]) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.events").write_text("low 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n")
    made.append(task := Supervised(tmp_path / "t", cgroup=str(group)))
    task.run("sh", "-c", "kill -KILL $$")
    assert task.end()["reason"] == "out of memory: it took more than it asked for"
    (group / "memory.events").write_text("oom_kill 0\n")
    made.append(other := Supervised(tmp_path / "u", cgroup=str(group)))
    other.run("sh", "-c", "kill -KILL $$")
    assert other.end()["reason"] == ""


def test_a_launch_that_cannot_be_read_is_blamed_on_the_node(tmp_path: Path, made: list[Supervised]) -> None:
    made.append(task := Supervised(tmp_path / "t"))
    (task.folder / "launch.json").write_text("{")
    task.say({"run": True})
    end = task.end()
    assert (end["code"], end["blame"]) == (127, "node")


def test_a_signal_reaches_only_the_process_it_is_meant_for() -> None:
    child = subprocess.Popen(["sleep", "1208"])
    now = process(child.pid)
    assert now is not None
    assert now.parent == os.getpid()
    assert not send(now._replace(started=now.started + 1), signal.SIGKILL)
    assert lives(child.pid)
    assert send(now, signal.SIGKILL)
    assert child.wait() == -9
    assert not send(now, signal.SIGKILL)
    assert process(child.pid) is None
