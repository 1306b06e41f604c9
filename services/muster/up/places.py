"""Where `muster up` keeps things: file names, exit codes, and what one process tells another through the data folder."""

import contextlib
import fcntl
import ipaddress
import os
import socket
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

CELL: Final = "main"
PORT: Final = 8470
HOST: Final = "127.0.0.1"
BACKLOG: Final = 2048
LOCK_S: Final = 10.0
"""So long a predecessor that is just ending is waited for."""

SNAPSHOT_EVERY: Final = 2000

EXIT_PORT: Final = 72
"""The address cannot be listened at."""
EXIT_LOCKED: Final = 73
"""Another scheduler holds the folder."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What one `muster up` is told."""

    folder: str
    host: str = HOST
    port: int = PORT
    agents: int = 1
    devices: str = ""
    names: tuple[str, ...] = ()
    """Of the nodes of its own agents."""
    tokens: bool = False
    """Tokens are required on loopback too."""
    metrics: str = ""
    """HOST:PORT of a port of their own for the metrics, which are at the gateway's /metrics anyway."""
    queues: tuple[str, ...] = ()
    """Queues that there are beside `default`; none leaves those of the log."""
    stop_tasks: bool = False
    """At the end what runs is stopped, and runs again after the next start."""
    snapshot_every: int = SNAPSHOT_EVERY
    """A snapshot is written when the log is so many cycles beyond the last."""

    @property
    def data(self) -> Path:
        """The folder of everything."""
        return Path(self.folder)


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What runs in a data folder, for whoever looks: `up.json`."""

    url: str
    pid: int
    """Of `muster up` itself."""
    scheduler: int
    """Of the process with scheduler and gateway."""
    cell: str = CELL
    agents: dict[str, int] = {}
    """Process ids of the agents by node."""


def default_data() -> Path:
    """Where the stack of this user lives, if nobody says otherwise."""
    return platformdirs.user_data_path("muster", appauthor=False) / "up"


def running(data: Path) -> Running | None:
    """What runs there or ran there last, as it said itself."""
    try:
        return msgspec.json.decode((data / "up.json").read_bytes(), type=Running)
    except (OSError, msgspec.DecodeError):
        return None


def say_running(data: Path, what: Running) -> None:
    """Let others know."""
    partial = data / "up.json.partial"
    partial.write_bytes(msgspec.json.encode(what) + b"\n")
    partial.replace(data / "up.json")


def drained(data: Path) -> tuple[str, ...]:
    """The nodes that the last `muster up` drained when it ended."""
    try:
        return msgspec.json.decode((data / "drained.json").read_bytes(), type=tuple[str, ...])
    except (OSError, msgspec.DecodeError):
        return ()


def say_drained(data: Path, names: tuple[str, ...]) -> None:
    """Remember them; nothing if there are none."""
    path = data / "drained.json"
    if names:
        path.write_bytes(msgspec.json.encode(names))
        with path.open("rb") as file:
            os.fsync(file.fileno())
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Who connects before anybody accepts waits.

    Raises:
        OSError: the address is taken or is none of ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def is_locked(data: Path) -> bool:
    """Whether a scheduler lives that writes the log in this folder."""
    try:
        descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def url(host: str, port: int) -> str:
    """Where this machine reaches it."""
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1" if host != "::" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
