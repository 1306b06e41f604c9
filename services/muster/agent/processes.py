"""What /proc says about processes, and how to end all of a task's.

A process is known by its id and its start, so that an id that was given out again is never taken for the one before.
Standard library only, as supervisors load this.
"""

import contextlib
import os
import signal
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

STOP_ROUNDS = 50
"""So often a family is looked through for children that were born while it was being stopped."""


class Process(NamedTuple):
    """One line of /proc."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    started: int
    """In clock ticks since this boot."""


def process(pid: int) -> Process | None:
    """The process that has this id now, if any."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0].decode(), int(fields[19]))


def processes() -> list[Process]:
    """Every process that can be seen."""
    found = [process(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return [item for item in found if item is not None]


def descendants(root: int) -> list[Process]:
    """Every process below this one, zombies too."""
    children: dict[int, list[Process]] = {}
    for item in processes():
        children.setdefault(item.parent, []).append(item)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        for item in children.get(waiting.pop(), []):
            found.append(item)
            waiting.append(item.pid)
    return found


def send(target: Process, number: int) -> bool:
    """Send a signal to exactly this process. False when it is gone."""
    try:
        handle = os.pidfd_open(target.pid)
    except OSError:
        return False
    try:
        now = process(target.pid)
        if now is None or now.started != target.started:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def kill_below(root: int) -> int:
    """SIGKILL to everything below this process; how many there were. They are stopped first, so that none forks away."""
    stopped: set[tuple[int, int]] = set()
    family: list[Process] = []
    for _ in range(STOP_ROUNDS):
        family = [item for item in descendants(root) if item.state != "Z"]
        born = [item for item in family if (item.pid, item.started) not in stopped]
        if not born:
            break
        for item in born:
            send(item, signal.SIGSTOP)
            stopped.add((item.pid, item.started))
    for item in family:
        send(item, signal.SIGKILL)
    return len(family)


def marked(mark: bytes, session: int = 0) -> list[Process]:
    """Processes that carry this mark in their environment, or are in this session, and everything below them."""
    found: dict[int, Process] = {}
    for item in processes():
        if item.state == "Z" or item.pid == os.getpid():
            continue
        if (session and item.session == session) or mark in _environment(item.pid):
            found[item.pid] = item
    for root in list(found):
        for item in descendants(root):
            if item.state != "Z":
                found[item.pid] = item
    return list(found.values())


def kill_marked(mark: bytes, session: int = 0) -> int:
    """SIGKILL to all of them; how many there were. What was born meanwhile is found by asking again."""
    family = marked(mark, session)
    for item in family:
        send(item, signal.SIGSTOP)
    for item in family:
        send(item, signal.SIGKILL)
    return len(family)


def kill_group(folder: str) -> None:
    """SIGKILL to everything in a cgroup (v2), where its kernel can do that (5.14 and later)."""
    with contextlib.suppress(OSError), open(os.path.join(folder, "cgroup.kill"), "r+") as file:
        file.write("1")


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
