"""The tasks of a node: what is assigned becomes folders and supervisors, and their files become what is reported.

One folder a task, `tasks/JOB.INSTANCE.ATTEMPT.RANK`, is all that is known of it; an agent that starts anew reads the folders
and goes on. The folder appears whole (it is made beside its place and renamed) before its supervisor is started, a
supervisor holds the folder's lock, and the mark `started` is never taken back: so a task is started at most once, whoever
dies when. The folder goes when the task has ended and no assignment names it any more.

Nothing here speaks to the gateway, and nothing here waits: `muster.agent.agent` does.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

import muster.agent as package
from muster.agent import credentials, outputs
from muster.agent.cgroup import Groups
from muster.agent.environment import Place, environment, group_of, write_members
from muster.agent.home import Home
from muster.agent.inventory import Inventory
from muster.agent.ports import free_port
from muster.agent.processes import Process, kill_group, kill_marked, process, processes, send
from muster.agent.protocol import AgentTask
from muster.agent.runtimes import CannotRun, Runtime
from muster.agent.slots import make_slot, now_us, poke, read_slot, write_slot
from muster.agent.supervisor import KILL_CODE, SPARE, TERM_CODE, write_end
from muster.events.levels import TaskReport

TaskKey = tuple[str, int, int, int]
"""Job, instance, attempt, rank."""

SPEC_VERSION: Final = 1
LIMIT_SLACK_US: Final = 5_000_000
"""A time limit is the scheduler's to enforce; supervisors do it so much later, where the scheduler cannot."""
SPARES: Final = 2
"""So many supervisors wait for a task: starting one takes longer than all else that a start needs."""
SEEN_US: Final = 10_000_000
"""So soon after a supervisor was seen alive, the number of its task's session is not given out again."""
BIRTH_US: Final = 15_000_000
"""So long a supervisor may take until it has its folder's lock."""
SUPERVISE: Final = (
    "import sys; sys.path[:0] = [sys.argv[2]]; from muster.agent.supervisor import main; sys.exit(main(sys.argv[1]))"
)
ROOT: Final = str(Path(package.__file__).parents[2])


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all tasks of a node."""

    node: str
    gateway: str = ""
    address: str = "127.0.0.1"
    output_max_bytes: int = 1 << 30


class LocalTask:
    """One task that the node knows."""

    __slots__ = (
        "blame",
        "changed",
        "code",
        "folder",
        "key",
        "launched",
        "phase",
        "port",
        "preparing",
        "reason",
        "seen_us",
        "since",
        "since_us",
        "stopping",
        "task",
        "verdict",
    )

    def __init__(self, key: TaskKey, folder: Path | None, task: AgentTask | None) -> None:
        self.key = key
        self.folder = folder
        """None for a task that never came to have one."""
        self.task = task
        self.since = task.since if task is not None else 0
        """The cycle that placed this member here."""
        self.phase = "preparing"
        self.code = 0
        self.reason = ""
        self.blame = ""
        self.port = 0
        self.preparing = False
        """Whether its runtime is getting what it needs."""
        self.launched = False
        """Whether it was told to run."""
        self.changed = 0
        """The change of its gang's members that it was told last."""
        self.stopping = False
        self.since_us = now_us()
        self.seen_us = -SEEN_US
        """When its supervisor was last known to live."""
        self.verdict: tuple[int, str, str] | None = None
        """The end that this agent decided on; the supervisor's word says only when."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return folder_name(self.key)

    def exited(self, code: int, reason: str = "", blame: str = "") -> None:
        """It is over."""
        self.phase, self.code, self.reason, self.blame = "exited", code, reason[:1000], blame


class Tasks:
    """All tasks of the node. `changed` is called when there is something new to report.

    That a task is being prepared, or forgotten, is no news to who assigned it: it goes with the next report, whenever that is,
    so that no report is on its way when the next phase is reached.
    """

    def __init__(
        self, home: Home, inventory: Inventory, runtime: Runtime, groups: Groups, settings: Settings, changed: Callable[[], None]
    ) -> None:
        self.home = home
        self.inventory = inventory
        self.runtime = runtime
        self.groups = groups
        self.settings = settings
        self.changed = changed
        self.cell = ""
        self.known: dict[TaskKey, LocalTask] = {}
        self.to_prepare: list[LocalTask] = []
        """Tasks whose runtime must get something first; `prepared` is called when it has."""
        self.forgot = False
        """A task was forgotten since this was last set to False."""
        self._by_name: dict[str, LocalTask] = {}
        self._named: dict[TaskKey, None] | None = None
        """The tasks of the assignment that was obeyed last; None before the first."""
        self._supervisors: dict[int, str] = {}
        """Those that this agent started, and must reap."""
        self._spares: list[tuple[int, int]] = []
        """Supervisors without a task: process, and the pipe on which each waits."""
        self._orphans = False
        """A supervisor died before its task: what it left is below this agent now."""
        self._visible = {device.uuid: name for device, name in zip(inventory.spec.devices, inventory.visible, strict=True)}
        self._load()

    def reports(self) -> tuple[TaskReport, ...]:
        """Every task that the node knows, as it is now."""
        return tuple([_report(local) for local in self.known.values()])

    def obey(self, assigned: tuple[AgentTask, ...], log_now_us: int) -> bool:
        """Make the node hold exactly these, each in its phase. `log_now_us` is the log's time now.

        False when a new task could not be begun because there is no lease: then this is to be obeyed again.
        """
        here_us = now_us()
        whole = True
        named: dict[TaskKey, None] = {}
        for item in assigned:
            key = (item.job, item.instance, item.attempt, item.rank)
            named[key] = None
            kill_us = here_us + max(0, item.kill_at_us - log_now_us)
            whole = self._follow(key, item, kill_us) and whole
        self._named = named
        self._leave_unnamed(here_us)
        return whole

    def prepared(self, local: LocalTask, problem: CannotRun | None) -> None:
        """The runtime has what the task needs, or cannot have it."""
        local.preparing = False
        if local.phase == "exited":
            return
        if problem is not None:
            self._end(local, 125, str(problem), problem.blame)
        else:
            self._supervise(local)

    def look(self, name: str) -> None:
        """A supervisor says that something is new in its task's folder."""
        local = self._by_name.get(name)
        if local is not None:
            self._refresh(local)

    def check(self) -> None:
        """Look at every task that has not ended: a supervisor may have died, or been stopped. Reap those that are done."""
        for local in list(self.known.values()):
            if local.phase != "exited" and local.folder is not None and not local.preparing:
                self._refresh(local)
                if local.phase != "exited":
                    self._check_supervisor(local, local.folder)
        for pid in list(self._supervisors):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    continue
            del self._supervisors[pid]
        if self._orphans:
            self._orphans = self._sweep_orphans()
        self._leave_unnamed(now_us())

    def all_ended(self) -> bool:
        """Whether nothing runs or waits to run here."""
        return all(local.phase == "exited" for local in self.known.values())

    def forget_all(self) -> bool:
        """All has ended, and the scheduler knows it. Whether nothing is known any more: a supervisor may still be leaving."""
        for local in list(self.known.values()):
            self._forget(local)
        self._named = None
        return not self.known

    def _leave_unnamed(self, here_us: int) -> None:
        """What no assignment names any more is over: it ends now, and is forgotten when it has ended."""
        if self._named is None:
            return
        for key, local in list(self.known.items()):
            if key not in self._named:
                if local.phase == "exited":
                    self._forget(local)
                else:
                    self._stop(local, here_us)

    def _add(self, local: LocalTask) -> LocalTask:
        self.known[local.key] = self._by_name[local.name] = local
        return local

    def _follow(self, key: TaskKey, item: AgentTask, kill_us: int) -> bool:
        local = self.known.get(key)
        if local is not None and local.since != item.since:  # the rank was placed here anew: another member
            if local.phase != "exited":
                self._stop(local, kill_us)
                return True
            self._forget(local)
            local = None
        if local is None:
            if item.phase == "stop":
                self._end(self._add(LocalTask(key, None, item)), TERM_CODE, "told to stop before it began", "")
                return True
            if not self.home.has_lease():
                return False  # it would be killed at once
            local = self._create(key, item)
        if local.phase == "exited":
            return True
        local.task = item
        if item.phase == "run":
            self._run(local)
            if item.ranks.changed != local.changed:
                self._tell_members(local, item)
        elif item.phase == "stop":
            self._stop(local, kill_us)
        return True

    def _create(self, key: TaskKey, item: AgentTask) -> LocalTask:
        """Make the task's folder, and its supervisor as soon as it can be."""
        local = self._add(LocalTask(key, self.home.tasks / folder_name(key), item))
        if item.rank == 0:
            local.port = free_port(folder_name(key), {other.port for other in self.known.values() if other is not local})
        try:
            self._make_folder(local, item)
        except (OSError, ValueError) as error:
            local.folder = None
            shutil.rmtree(self.home.tasks / (".new-" + local.name), ignore_errors=True)
            self._end(local, 125, f"the task's folder cannot be made: {error}", "node")
            return local
        if strange := [uuid for uuid in item.device_uuids if uuid not in self._visible]:
            self._end(local, 125, f"the device {strange[0]} is not here", "node")
            return local
        if self.runtime.slow:
            local.preparing = True
            self.to_prepare.append(local)
            return local
        try:
            self.runtime.prepare(item)
        except CannotRun as problem:
            self._end(local, 125, str(problem), problem.blame)
            return local
        self._supervise(local)
        return local

    def _make_folder(self, local: LocalTask, item: AgentTask) -> None:
        assert local.folder is not None
        new = local.folder.with_name(".new-" + local.name)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        (new / "work").mkdir()
        os.mkfifo(new / "poke", 0o600)
        make_slot(str(new / "control"), {})
        group = group_of(item)
        limit_us = item.request.time_limit_us
        spec = {
            "version": SPEC_VERSION,
            "lease": self.home.lease_path,
            "notify": self.home.pipe_path,
            "grace_us": item.request.grace_us,
            "time_limit_us": limit_us and limit_us + LIMIT_SLACK_US,
            "output_max_bytes": self.settings.output_max_bytes,
            "cgroup": self.groups.make(local.name, group.cpu_milli, group.memory_mib),
            "cleanup": self.runtime.cleanup(self._mark(local)),
        }
        (new / "spec.json").write_bytes(msgspec.json.encode(spec))
        kept = msgspec.structs.replace(item, secret="")  # the assignment that starts it says it again
        (new / "task.json").write_bytes(msgspec.json.encode({"port": local.port, "task": kept}))
        new.rename(local.folder)

    def _supervise(self, local: LocalTask) -> None:
        """Give the task a supervisor. It says when it is there."""
        assert local.folder is not None
        local.since_us = now_us()
        words = str(local.folder).encode() + b"\n"
        while True:
            try:
                pid, pipe = self._spares.pop() if self._spares else self._spare()
            except OSError as error:
                self._end(local, 125, f"the supervisor cannot be started: {error}", "node")
                return
            try:
                os.write(pipe, words)
            except BrokenPipeError:
                continue  # somebody killed it while it was waiting
            finally:
                os.close(pipe)
            break
        self._supervisors[pid] = local.name

    def keep_spares(self) -> None:
        """Have supervisors at hand for the next tasks."""
        with contextlib.suppress(OSError):
            while len(self._spares) < SPARES:
                self._spares.append(self._spare())

    def close(self) -> None:
        """Let the supervisors without a task go. The others stay."""
        for _, pipe in self._spares:
            os.close(pipe)
        self._spares = []

    def _spare(self) -> tuple[int, int]:
        """A new supervisor, in a session of its own, and the pipe on which it is told its task's folder."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", SUPERVISE, SPARE, ROOT],
                {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
                file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0), (os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
            )
        except OSError:
            os.close(writer)
            raise
        finally:
            os.close(reader)
            os.close(null)
        self._supervisors[pid] = ""
        return pid, writer

    def _run(self, local: LocalTask) -> None:
        """Tell a ready task to run. One that is not ready is told when it is."""
        if local.phase != "ready" or local.launched or local.stopping or local.task is None or local.folder is None:
            return
        task = local.task
        directory = local.folder / "work" / task.run.directory
        group = group_of(task)
        place = Place(
            node=self.settings.node,
            cell=self.cell,
            gateway=self.settings.gateway,
            address=self.settings.address,
            mark=self._mark(local),
            port=local.port,
            visible=tuple(self._visible[uuid] for uuid in task.device_uuids if uuid in self._visible),
            devices=task.device_uuids if group.gpus or group.gpu_milli or group.gpu_memory_mib else (),
            folder=local.folder,
            credentials=local.folder / credentials.FILE if task.secret else None,
        )
        try:
            stdout, stderr = outputs.prepare(self.home.output, task, self.settings.node, directory)
            write_members(local.folder, task)
            if task.secret:
                credentials.write(local.folder, self.settings.gateway, task)
            launch = self.runtime.launch(task, environment(task, place), directory)
            words: dict[str, Any] = {**msgspec.to_builtins(launch), "stdout": stdout, "stderr": stderr}
            path = local.folder / "launch.json"
            path.with_suffix(".new").write_bytes(msgspec.json.encode(words))
            path.with_suffix(".new").rename(path)
        except CannotRun as problem:
            self._refuse(local, str(problem), problem.blame)
            return
        except OSError as error:
            self._refuse(local, f"the start cannot be prepared: {error}", "job" if task.run.output else "node")
            return
        local.launched, local.changed = True, task.ranks.changed
        self._tell(local, {"run": True, "changed": local.changed})

    def _tell_members(self, local: LocalTask, task: AgentTask) -> None:
        """Its gang gained or lost members since it was told to run: the files say so, and a signal that they do."""
        if local.launched and not local.stopping and local.folder is not None:
            with contextlib.suppress(OSError):  # on a full disk it is told with the next change
                write_members(local.folder, task)
                local.changed = task.ranks.changed
                self._tell(local, {"run": True, "changed": local.changed})

    def _refuse(self, local: LocalTask, reason: str, blame: str) -> None:
        """It cannot be started: its supervisor is told to leave, and the end is this one, not the supervisor's."""
        local.verdict = (125, reason, blame)
        self._stop(local, now_us())

    def _stop(self, local: LocalTask, kill_us: int) -> None:
        """Tell it to end, and when to be killed. A kill that was said before is never put off."""
        local.stopping = True
        if local.preparing:
            self._end(local, TERM_CODE, "told to stop before it began", "")
        if local.folder is None or local.phase == "exited":
            return
        word = read_slot(str(local.folder / "control")) or {}
        if word.get("stop") and word["kill_at_us"] <= kill_us:
            return
        self._tell(local, {"run": local.launched, "stop": True, "kill_at_us": kill_us})

    def _tell(self, local: LocalTask, word: dict[str, Any]) -> None:
        assert local.folder is not None
        write_slot(str(local.folder / "control"), word)
        poke(str(local.folder / "poke"), b"x")

    def _end(self, local: LocalTask, code: int, reason: str, blame: str) -> None:
        """The end of a task that no supervisor writes: write it, or, on a full disk, at least know it."""
        if local.folder is not None and not (local.folder / "exit.json").exists():
            with contextlib.suppress(OSError):
                write_end(str(local.folder), code, reason, blame)
        local.exited(code, reason, blame)
        self.changed()

    def _refresh(self, local: LocalTask) -> None:
        """Read what the supervisor wrote."""
        if local.folder is None or local.phase == "exited":
            return
        before = local.phase
        if end := _read_end(local.folder):
            local.exited(*(local.verdict or (end["code"], end["reason"], end["blame"])))
            self.groups.remove(local.name)
        elif status := read_slot(str(local.folder / "status")):
            local.phase = "ready" if status["phase"] == "waiting" else "running"
        if local.phase != before:
            self.changed()
            if local.phase == "ready" and local.task is not None and local.task.phase == "run":
                self._run(local)

    def _check_supervisor(self, local: LocalTask, folder: Path) -> None:
        """Wake a supervisor that was stopped; do the last duty of one that is dead."""
        status = read_slot(str(folder / "status"))
        if _held(folder / "lock"):
            if status is not None:
                local.seen_us = now_us()
                now = process(status["supervisor"])
                if now is not None and now.state == "T" and now.started == status["began"]:
                    send(now, signal.SIGCONT)
            return
        if status is None and now_us() < local.since_us + BIRTH_US and local.name in self._supervisors.values():
            return
        if _read_end(folder):
            self._refresh(local)
            return
        self._orphans = True
        if self.groups.members(local.name):
            kill_group(str(self.groups.root / local.name) if self.groups.root else "")
        killed = kill_marked(f"MUSTER_TASK={self._mark(local)}".encode(), _session(local, status) if status else 0)
        if not killed and not self.groups.members(local.name):
            self._end(local, KILL_CODE, "the supervisor died", "node")
            self.groups.remove(local.name)

    def _sweep_orphans(self) -> bool:
        """Kill what dead supervisors left below this agent. True while there is something."""
        if self.runtime.leaves_processes:
            return False
        left = False
        for item in _children():
            if item.pid in self._supervisors:
                continue
            left = True
            send(item, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(item.pid, os.WNOHANG)
        return left

    def _forget(self, local: LocalTask) -> None:
        """The scheduler knows the end: nothing of the task is needed any more but its outputs."""
        if local.folder is not None:
            if _held(local.folder / "lock"):
                return  # its supervisor is still writing; the next assignment forgets it
            old = local.folder.with_name(".old-" + local.name)
            with contextlib.suppress(OSError):
                local.folder.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        self.groups.remove(local.name)
        del self.known[local.key]
        self._by_name.pop(local.name, None)
        self.forgot = True

    def _load(self) -> None:
        """Find the tasks of the agent before this one."""
        for folder in sorted(self.home.tasks.iterdir()):
            if folder.name.startswith("."):
                shutil.rmtree(folder, ignore_errors=True)
                continue
            try:
                kept = msgspec.json.decode((folder / "task.json").read_bytes(), type=_Kept)
            except (OSError, msgspec.DecodeError):
                shutil.rmtree(folder, ignore_errors=True)  # no supervisor was ever started in it: the folder appears whole
                continue
            task = msgspec.structs.replace(kept.task, phase="prepare")  # only an assignment may start it
            local = LocalTask((task.job, task.instance, task.attempt, task.rank), folder, task)
            local.port = kept.port
            word = read_slot(str(folder / "control")) or {}
            local.launched, local.stopping = bool(word.get("run")), bool(word.get("stop"))
            local.changed = word.get("changed", 0)
            self._refresh(self._add(local))
            if local.phase == "preparing" and not _held(folder / "lock") and not (folder / "status").exists():
                local.preparing = self.runtime.slow
                if self.runtime.slow:
                    self.to_prepare.append(local)
                else:
                    self._supervise(local)
        self.groups.sweep(self._by_name)

    def _mark(self, local: LocalTask) -> str:
        return f"{local.name}@{self.home.uid}"


class _Kept(msgspec.Struct):
    port: int
    task: AgentTask


def folder_name(key: TaskKey) -> str:
    """Of a task's folder; also what its supervisor calls it."""
    return ".".join(map(str, key))


def _report(local: LocalTask) -> TaskReport:
    job, instance, attempt, rank = local.key
    return TaskReport(
        job=job,
        instance=instance,
        attempt=attempt,
        rank=rank,
        since=local.since,
        phase=local.phase,  # type: ignore[arg-type]  # one of the four phases
        code=local.code,
        port=local.port if local.phase in ("ready", "running") else 0,
        blame=local.blame,  # type: ignore[arg-type]  # "", "job" or "node"
        reason=local.reason,
    )


def _session(local: LocalTask, status: dict[str, Any]) -> int:
    """The session of the task's first process, 0 where that number may mean another session by now."""
    main = int(status["main"])
    leader = process(main) if main else None
    if leader is not None:
        return main if leader.started == status["main_began"] else 0
    return main if now_us() < local.seen_us + SEEN_US else 0


def _read_end(folder: Path) -> dict[str, Any] | None:
    try:
        end: dict[str, Any] = msgspec.json.decode((folder / "exit.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return end


def _held(lock: Path) -> bool:
    """Whether a supervisor lives that holds this lock."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _children() -> list[Process]:
    own = os.getpid()
    return [item for item in processes() if item.parent == own]
