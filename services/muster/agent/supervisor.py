"""The supervisor of one task: starts it, ends it in time, and writes down how it ended. Needs neither agent nor network.

Its folder says everything (see `muster.agent.tasks`):

- `spec.json`    what never changes: time limit, grace, bounds, where the lease is (written by the agent, once)
- `launch.json`  what to run (written by the agent before it says `run`)
- `control`      the agent's word: run; stop, and kill at an instant (a slot file)
- `poke`         a pipe: a byte in it says that `control` is new
- `lock`         held by the supervisor as long as it lives: there is never a second one
- `status`       the supervisor's word: waiting or running, and the ids of its processes (a slot file)
- `started`      exists once the task's process was about to be made: a task with this mark is never started again
- `exit.json`    how it ended; the task's processes are gone when this file is there

The task gets a session and a process group of its own. What leaves them stays below the supervisor, which adopts orphans
(PR_SET_CHILD_SUBREAPER), so when the task's first process has ended, or must, everything below is killed and reaped before
the end is written. The room for `exit.json` is taken at the start: a full disk does not hide an end. Only that file is
synced: the others matter to processes of this boot, and those go with the boot.

Standard library only, and little of it, because every task pays for it. Times are microseconds of `slots.now_us`.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any, Final

from muster.agent.processes import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, kill_below, kill_group, process
from muster.agent.slots import make_slot, now_us, poke, read_slot, sync_folder, write_slot

PR_SET_NAME: Final = 15
RESERVED_BYTES: Final = 4096
READ_BYTES: Final = 1 << 20
SWEEP_US: Final = 20_000
SWEEPS_SOON: Final = 100
SWEEP_LATE_US: Final = 1_000_000
"""A process that no signal ends (it waits for a broken disk, say) is looked for more slowly."""
CLEANUP_US: Final = 60_000_000
NEVER: Final = 1 << 62
LOCK_TRIES: Final = 20
"""The agent takes the lock for a moment to see whether it is held."""

SPARE: Final = "-"

TERM_CODE: Final = -signal.SIGTERM
KILL_CODE: Final = -signal.SIGKILL
NOT_STARTED: Final = 127
"""The exit code of a command that cannot be started, as a shell has it."""


class Stream:
    """One output of the task, from a pipe to a file of bounded size. What does not fit is dropped, and counted."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        self.room = max_bytes
        self.lost = 0
        self.cut = False
        self.why = ""
        os.set_blocking(self.reader, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.reader, fcntl.F_SETPIPE_SZ, READ_BYTES)

    def pump(self) -> bool:
        """Move what is there. False at the end of the output."""
        try:
            data = os.read(self.reader, READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if data:
            self._keep(data)
        return bool(data)

    def _keep(self, data: bytes) -> None:
        if len(data) > self.room:
            self.lost += len(data) - self.room
            data = data[: self.room]
            self.why = "more than the bound"
        self.room -= len(data)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.file, view) :]
        except OSError as error:
            self.lost += len(view)
            self.why = error.strerror or "cannot be written"
        if self.lost and not self.room and not self.cut:
            self.cut = True
            with contextlib.suppress(OSError):
                os.write(self.file, b"\nmuster: the output is cut here, it has reached its bound\n")


class Supervisor:
    """The life of one task."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(self._path("spec.json"), "rb") as file:
            self.spec: dict[str, Any] = json.load(file)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.main = 0
        """The task's first process, until it is reaped."""
        self.launched = False
        self.report_pipe = -1
        """Until exec has succeeded: where the new process says why it could not."""
        self.streams: dict[int, Stream] = {}
        self.every_stream: list[Stream] = []
        self.code: int | None = None
        """How it ended, as soon as that is known."""
        self.reason = ""
        self.blame = ""
        self.asked_code = 0
        self.asked_reason = ""
        """Why it was told to end: what the end is put down to, if it ends by that."""
        self.lease_us = 0
        self.limit_us = NEVER
        self.kill_us = NEVER
        self.sweep_us = NEVER
        """When to look again whether everything is gone; NEVER unless the end has come."""
        self.sweeps = 0
        self.changed = 0
        """The change of the gang's members of which the task knows."""
        self.terminated = False
        self.told_to_end = False

    def run(self) -> int:
        """Live until the task has ended and its end is written."""
        wake = self._prepare()
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        control = os.open(self._path("poke"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        poller.register(control, select.POLLIN)
        self._say("waiting")
        self._obey()
        while True:
            self._judge(now_us())
            if self._reap() and self._drained():
                break
            watched = [*self.streams, *([self.report_pipe] if self.report_pipe >= 0 else [])]
            for reader in watched:
                poller.register(reader, select.POLLIN)
            wait_us = min(self.lease_us, self.limit_us, self.kill_us, self.sweep_us) - now_us()
            ready = poller.poll(max(0, min(wait_us // 1000 + 1, 3_600_000)))
            for reader in watched:
                poller.unregister(reader)
            for reader, _ in ready:
                if reader == wake:
                    _empty(reader)
                elif reader == control:
                    _empty(reader)
                    self._obey()
                elif reader == self.report_pipe:
                    self._read_start()
                elif reader in self.streams and not self.streams[reader].pump():
                    self._close(reader)
        self._clean_up()
        self._write_end()
        return 0

    def _prepare(self) -> int:
        """Adopt orphans, take the room for the end, and hear signals through a pipe, which is returned."""
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.libc.prctl(PR_SET_NAME, b"muster-task", 0, 0, 0)
        reserve = os.open(self._path("reserve"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.write(reserve, b" " * RESERVED_BYTES) < RESERVED_BYTES:
            raise OSError(errno.ENOSPC, "no room for the end of the task", self.folder)
        os.close(reserve)
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._hear)
        for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(ignored, signal.SIG_IGN)
        return wake

    def _hear(self, *_: object) -> None:
        """SIGTERM: the machine goes down. The loop does what follows."""
        self.told_to_end = True

    def _obey(self) -> None:
        """Read the agent's word and do it. A word that was obeyed already changes nothing."""
        self._judge(now_us())  # nothing begins when the lease is over
        word = read_slot(self._path("control")) or {}
        if word.get("stop"):
            self._terminate(word["kill_at_us"], "told to stop")
        elif word.get("run") and not self.launched and self.code is None:
            self.changed = word.get("changed", 0)
            self._launch()
        elif word.get("changed", 0) > self.changed:
            self.changed = word["changed"]
            if self.main and self.code is None:
                with contextlib.suppress(OSError):  # SIGWINCH: who does not care about it is not ended by it
                    os.killpg(self.main, signal.SIGWINCH)

    def _judge(self, at_us: int) -> None:
        """Do what is due."""
        if self.code is not None:
            if at_us >= self.sweep_us:
                self._sweep(at_us)
            return
        if self.told_to_end and not self.terminated:
            self._terminate(at_us + self.spec["grace_us"], "the supervisor was told to end")
        if at_us >= self.lease_us:
            lease = read_slot(self.spec["lease"])
            self.lease_us = int(lease["until_us"]) if lease else self.lease_us
            if at_us >= self.lease_us:
                self._kill("the lease ended: the scheduler was not heard for too long")
                return
        if at_us >= self.limit_us:
            self.limit_us = NEVER
            self._terminate(at_us + self.spec["grace_us"], "the time limit has passed")
        if at_us >= self.kill_us:
            self._kill(self.asked_reason)

    def _terminate(self, kill_at_us: int, reason: str) -> None:
        """SIGTERM to the task's group, once; SIGKILL at the instant, or at an earlier one that was said before."""
        if self.code is not None:
            return
        self.kill_us = min(self.kill_us, kill_at_us)
        if self.terminated:
            return
        self.terminated = True
        self.asked_reason = reason
        if not self.main:
            self._end(TERM_CODE, f"{reason} before it began")
            return
        for number in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(OSError):
                os.killpg(self.main, number)

    def _kill(self, reason: str) -> None:
        self.asked_reason = reason
        self._end(KILL_CODE, reason)

    def _end(self, code: int, reason: str = "", blame: str = "") -> None:
        """The end has come, with this outcome: from here on everything below is killed until nothing is there."""
        self.code = code
        self.reason = reason
        self.blame = blame
        self.lease_us = self.limit_us = self.kill_us = NEVER
        self.sweep_us = 0

    def _sweep(self, at_us: int) -> None:
        """Kill what is there; soon look again."""
        if self.spec.get("cgroup"):
            kill_group(self.spec["cgroup"])
        kill_below(os.getpid())
        self.sweeps += 1
        self.sweep_us = at_us + (SWEEP_US if self.sweeps < SWEEPS_SOON else SWEEP_LATE_US)

    def _reap(self) -> bool:
        """Take leave of the dead. True when the end has come and nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self.code is not None
            if not pid:
                return False
            if pid == self.main:
                self.main = 0
                if self.report_pipe >= 0:
                    self._read_start()
                if self.code is None:
                    code = os.waitstatus_to_exitcode(status)
                    self._end(code, self.asked_reason if code < 0 else "")

    def _launch(self) -> None:
        """Make the task's process. It says through a pipe if it cannot become the command."""
        try:
            with open(self._path("launch.json"), "rb") as file:
                launch = json.load(file)
        except (OSError, ValueError) as error:
            self._end(NOT_STARTED, f"what to run cannot be read: {error}", "node")
            return
        try:
            outputs = self._outputs(launch)
        except OSError as error:
            self._end(NOT_STARTED, f"the output cannot be written to {error.filename}: {error.strerror}", "job")
            return
        try:
            os.close(os.open(self._path("started"), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except OSError as error:
            self._end(NOT_STARTED, f"the start cannot be written down: {error}", "node")
            return
        self.launched = True
        self.report_pipe, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.report_pipe, False)
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(launch, outputs, writer, supervisor)
        self.main = pid
        os.close(writer)
        for stream in self.every_stream:
            os.close(stream.writer)
        if limit_us := self.spec.get("time_limit_us"):
            self.limit_us = now_us() + limit_us

    def _outputs(self, launch: dict[str, Any]) -> tuple[int, int]:
        """Open the files of the task's outputs. Raises OSError, with the file's name."""
        max_bytes = self.spec["output_max_bytes"]
        out = Stream(launch["stdout"], max_bytes)
        self.every_stream.append(out)
        error = out
        if launch["stderr"] != launch["stdout"]:
            error = Stream(launch["stderr"], max_bytes)
            self.every_stream.append(error)
        self.streams = {stream.reader: stream for stream in self.every_stream}
        return out.writer, error.writer

    def _become(self, launch: dict[str, Any], outputs: tuple[int, int], writer: int, supervisor: int) -> None:
        """In the new process: leave everything of the supervisor's and become the command. Never returns."""
        what = ""
        try:
            os.setsid()
            self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(NOT_STARTED)
            signal.set_wakeup_fd(-1)
            for number in range(1, signal.NSIG):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            if self.spec.get("cgroup"):
                with contextlib.suppress(OSError), open(os.path.join(self.spec["cgroup"], "cgroup.procs"), "w") as file:
                    file.write("0")
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(outputs[0], 1)
            os.dup2(outputs[1], 2)
            what = launch["directory"]
            os.chdir(what)
            what = launch["argv"][0]
            os.umask(0o022)
            os.execvpe(what, launch["argv"], launch["environment"])
        except BaseException as error:
            sentence = getattr(error, "strerror", None) or str(error)
            with contextlib.suppress(BaseException):
                os.write(writer, f"{what[:300]}: {sentence}"[:900].encode())
        finally:
            os._exit(NOT_STARTED)

    def _read_start(self) -> None:
        """The pipe closes when the command runs; what comes before says why it does not."""
        try:
            words = os.read(self.report_pipe, 1024)
        except BlockingIOError:
            return
        os.close(self.report_pipe)
        self.report_pipe = -1
        if words:
            if self.code is None:
                self._end(NOT_STARTED, f"cannot start {words.decode(errors='replace')}", "job")
        elif self.main:
            self._say("running")

    def _drained(self) -> bool:
        """Read what is left in the pipes; nobody writes any more. Always True."""
        for reader in list(self.streams):
            while self.streams[reader].pump() and select.select([reader], [], [], 0)[0]:
                pass
            self._close(reader)
        return True

    def _close(self, reader: int) -> None:
        stream = self.streams.pop(reader)
        os.close(reader)
        os.close(stream.file)

    def _clean_up(self) -> None:
        """Run what the runtime wants run when a task is over (a container's removal), for a minute at most."""
        for argv in self.spec.get("cleanup", ()):
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    os.setsid()
                    null = os.open("/dev/null", os.O_RDWR)
                    for standard in (0, 1, 2):
                        os.dup2(null, standard)
                    os.execvp(argv[0], argv)
                os._exit(NOT_STARTED)
            until_us = now_us() + CLEANUP_US
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if now_us() > until_us:
                    kill_below(os.getpid())
                time.sleep(0.01)

    def _say(self, phase: str) -> None:
        here = process(os.getpid())
        first = process(self.main) if self.main else None
        value = {
            "phase": phase,
            "supervisor": os.getpid(),
            "began": here.started if here else 0,
            "main": self.main,
            "main_began": first.started if first else 0,
        }
        path = self._path("status")
        if os.path.exists(path):
            write_slot(path, value)
        else:
            make_slot(path, value)
        self._tell()

    def _tell(self) -> None:
        poke(self.spec["notify"], os.path.basename(self.folder).encode() + b"\n")

    def _write_end(self) -> None:
        if self.code == KILL_CODE and not self.reason and self._out_of_memory():
            self.reason = "out of memory: it took more than it asked for"
        lost = sum(stream.lost for stream in self.every_stream)
        if lost:
            why = next(stream.why for stream in self.every_stream if stream.lost)
            self.reason = "; ".join(filter(None, [self.reason, f"{lost} bytes of output are lost: {why}"]))
        write_end(self.folder, self.code or 0, self.reason, self.blame)
        self._tell()

    def _out_of_memory(self) -> bool:
        """Whether the kernel killed something because of the task's own limit of memory."""
        try:
            with open(os.path.join(self.spec.get("cgroup") or "/nowhere", "memory.events")) as file:
                return any(line.startswith("oom_kill ") and int(line.split()[1]) for line in file)
        except OSError:
            return False

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def write_end(folder: str, code: int, reason: str, blame: str) -> None:
    """Write how the task ended, durably and whole, in the room that was taken for it if there is one."""
    reserve = os.path.join(folder, "reserve")
    end = {"code": code, "reason": reason[:1000], "blame": blame, "at_us": now_us()}
    descriptor = os.open(reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.pwrite(descriptor, json.dumps(end).encode().ljust(RESERVED_BYTES), 0)
    os.fsync(descriptor)
    os.close(descriptor)
    os.rename(reserve, os.path.join(folder, "exit.json"))
    sync_folder(folder)


def main(folder: str) -> int:
    """Supervise the task of this folder. 0 when its end is written, 3 when that is somebody else's to do.

    `-` stands for a folder that will be read from standard input: such a supervisor was started before there was a task
    for it, because starting takes longer than many a task. It leaves when its agent does without naming one.
    """
    if folder == SPARE:
        folder = _await_folder()
        if not folder:
            return 0
    os.chdir(folder)
    log = os.open("supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for tries in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if tries == LOCK_TRIES - 1:
                return 3
            time.sleep(0.05)
    if os.path.exists(os.path.join(folder, "started")) or os.path.exists(os.path.join(folder, "exit.json")):
        return 3
    return Supervisor(folder).run()


def _await_folder() -> str:
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(0, 4096)
        if not piece:
            return ""
        text += piece
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    return text[:-1].decode()


def _empty(reader: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while len(os.read(reader, 4096)) == 4096:
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
