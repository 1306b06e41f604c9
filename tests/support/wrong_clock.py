"""A wrong wall clock for one process and those that it starts: what Python says of the date is shifted, nothing else.

The shift, in seconds, stands in a file and is read at each question, so that the clock can be set while a process runs. The
monotonic clocks go on as they are, as they do on a machine whose clock is set.
"""

import datetime
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[2])

_time, _time_ns, _gettime, _gettime_ns = time.time, time.time_ns, time.clock_gettime, time.clock_gettime_ns
_localtime, _gmtime = time.localtime, time.gmtime


def start(path: Path) -> str:
    """What Python is to run instead of `muster`, with its clock and that of its supervisors shifted by what the file says."""
    return (
        f"import sys; sys.path.insert(0, {ROOT!r}); from tests.support.wrong_clock import wear, hand_on; "
        f"wear({str(path)!r}, 'agent'); hand_on({str(path)!r}); from muster.cli.main import main; main()"
    )


def wear(path: str, who: str) -> None:
    """From here on this process has the wrong clock. Who it is, and what time it is for it, is written beside the file."""

    right, day = datetime.datetime, datetime.date

    def shift() -> float:
        try:
            with open(path) as file:
                return float(file.read() or 0)
        except OSError:
            return 0.0

    def now() -> float:
        return _time() + shift()

    def now_ns() -> int:
        return _time_ns() + int(shift() * 1e9)

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return right.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return right.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return right.fromtimestamp(now())

    class Date(datetime.date):
        @classmethod
        def today(cls) -> Any:
            return day.fromtimestamp(now())

    replaced: dict[str, Any] = {
        "time": now,
        "time_ns": now_ns,
        "clock_gettime": lambda clock: now() if clock == time.CLOCK_REALTIME else _gettime(clock),
        "clock_gettime_ns": lambda clock: now_ns() if clock == time.CLOCK_REALTIME else _gettime_ns(clock),
        "localtime": lambda seconds=None: _localtime(now() if seconds is None else seconds),
        "gmtime": lambda seconds=None: _gmtime(now() if seconds is None else seconds),
    }
    for name, function in replaced.items():
        setattr(time, name, function)
    datetime.datetime, datetime.date = Datetime, Date  # type: ignore[misc]
    with open(path + ".seen", "a") as file:
        file.write(f"{who} {os.getpid()} {time.time() - _time():.0f}\n")


def worn(path: Path) -> dict[str, str]:
    """The environment in which every Python that is started wears it, whatever it runs."""
    folder = path.with_suffix(".site")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(0, {ROOT!r}); from tests.support.wrong_clock import wear; "
        f"wear({str(path)!r}, next((word for word in sys.orig_argv if word.startswith('muster.')), 'parent')); del sys.path[0]\n"
    )
    path.write_text("0")
    return {"PYTHONPATH": str(folder)}


def hand_on(path: str) -> None:
    """Let the supervisors that this agent starts wear it too."""
    from muster.agent import tasks

    wearing = f"from tests.support.wrong_clock import wear; wear({path!r}, 'supervisor'); "
    assert "muster.agent.supervisor" in tasks.SUPERVISE
    setattr(tasks, "SUPERVISE", f"import sys; sys.path.insert(0, {ROOT!r}); {wearing}{tasks.SUPERVISE}")  # noqa: B010  # a constant for everybody else


class Clocks:
    """Clocks of brokers, which are not Python: by a library that wrong_clock.c is made into, where there is a C compiler."""

    def __init__(self, folder: Path, count: int) -> None:
        """Of the brokers 1 to `count` that are to be started in this folder."""
        self.missing = ""
        """Why there are none."""
        self.environment: dict[str, str] = {}
        """With which they are to be started."""
        self._folder = folder
        library = folder / "wrong_clock.so"
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(Path(__file__).with_suffix(".c")), "-ldl"]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except OSError:
            self.missing = "there is no C compiler cc, which makes the library that shifts it"
        except subprocess.CalledProcessError as error:
            self.missing = f"cc does not make the library that shifts it: {error.stderr}"
        else:
            self.environment = {"LD_PRELOAD": str(library)}
            for node in range(1, count + 1):
                self._path(node).write_bytes(bytes(8))

    def set(self, node: int, shift_s: int) -> None:
        """From here on it is so many seconds off."""
        with self._path(node).open("r+b") as file:
            file.write(struct.pack("=q", shift_s))

    def _path(self, node: int) -> Path:
        return self._folder / f"node-{node}.properties.clock"


def seen(path: Path) -> dict[str, set[int]]:
    """By who it was, the shifts with which processes began."""
    found: dict[str, set[int]] = {}
    for line in Path(f"{path}.seen").read_text().splitlines():
        who, _, shift = line.split()
        found.setdefault(who, set()).add(int(shift))
    return found
