"""A Docker engine for a while: the one that answers here, or one of our own that leaves nothing behind but its cache of images.

Our own needs root, Debian's docker.io, and that nobody else runs one. Its images stay in the cache, because building them
takes minutes; containers, networks, bridges, firewall rules and its processes go when it is closed.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("MUSTER_COMPOSE_CACHE", Path.home() / ".cache" / "muster" / "compose"))
START_S = 60
STOP_S = 60
PACKAGES = {"dockerd": "docker.io", "iptables": "iptables", "ip": "iproute2"}
FORWARD = (Path("/proc/sys/net/ipv4/ip_forward"), Path("/proc/sys/net/ipv6/conf/all/forwarding"))
TABLES = (("iptables-save", "iptables-restore"), ("ip6tables-save", "ip6tables-restore"))
DANGLING_MAX = 60
"""More images without a name than this, and the builder's cache is emptied."""

Say = Callable[[str], None]


class Trouble(Exception):
    """What is wrong, in one sentence, and what was said of it."""


class NoEngine(Trouble):
    """No Docker engine can be had on this machine."""


class Engine:
    """Something that `docker` and Compose talk to."""

    def __init__(self, environment: dict[str, str], compose: Sequence[str], *, own: bool) -> None:
        self.environment = environment
        self.compose_command = list(compose)
        self.own = own

    def docker(self, *arguments: str | Path, **options: Any) -> str:
        """What `docker ARGUMENTS` prints. Raises Trouble where it fails."""
        return run(["docker", *arguments], environment=self.environment, **options)

    def compose(self, *arguments: str | Path, **options: Any) -> str:
        """What Compose prints. Raises Trouble where it fails."""
        return run([*self.compose_command, *arguments], environment=self.environment, **options)

    def has(self, *arguments: str) -> bool:
        """Whether `docker ARGUMENTS` succeeds."""
        with contextlib.suppress(Trouble):
            self.docker(*arguments)
            return True
        return False


def run(
    command: Sequence[str | Path],
    *,
    environment: dict[str, str] | None = None,
    within_s: float = 120,
    both: bool = False,
    **options: Any,
) -> str:
    """What the command prints on standard output, or on both.

    Raises:
        Trouble: it fails, cannot be found, or takes too long.
    """
    shown = " ".join(map(str, command[:6]))
    try:
        done = subprocess.run(
            command, env=environment, text=True, timeout=within_s, check=False, stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if both else subprocess.PIPE, **options,
        )  # fmt: skip
    except FileNotFoundError:
        raise Trouble(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired as error:
        said = b"".join(text if isinstance(text, bytes) else text.encode() for text in (error.output, error.stderr) if text)
        raise Trouble(f"`{shown}` took longer than {within_s:.0f} s:\n{said.decode(errors='replace')}") from None
    if done.returncode:
        raise Trouble(f"`{shown}` ended with {done.returncode}:\n{done.stdout}{done.stderr or ''}")
    return str(done.stdout)


@contextlib.contextmanager
def engine(say: Say) -> Iterator[Engine]:
    """The engine that answers here, or one of our own.

    Raises:
        NoEngine: there is none, and none can be started.
    """
    environment = {**os.environ, "DOCKER_BUILDKIT": os.environ.get("DOCKER_BUILDKIT", "0"), "DOCKER_CLI_HINTS": "false"}
    found = Engine(environment, [], own=False)
    if found.has("version"):
        found.environment.pop("DOCKER_BUILDKIT")
        found.compose_command = _compose(found, say)
        say("an engine answers here, and is used")
        yield found
        return
    if os.geteuid():
        raise NoEngine("no Docker engine answers here, and only root can start one")
    install([package for program, package in PACKAGES.items() if not shutil.which(program)], say)
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _network_as_it_was(), tempfile.TemporaryDirectory(prefix="muster-engine-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            own = Engine({**environment, "DOCKER_HOST": f"unix://{folder}/socket"}, [], own=True)
            process = _start(own, folder, say)
            try:
                own.compose_command = _compose(own, say)
                _tidy(own)
                yield own
            finally:
                _end(process, folder)


def install(packages: Sequence[str], say: Say) -> None:
    """Bring these Debian packages, without what they only recommend."""
    if not packages:
        return
    say(f"installs {', '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], environment=environment, within_s=300)
    run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages], environment=environment, within_s=600)


def _compose(engine: Engine, say: Say) -> list[str]:
    """How Compose is called here: MUSTER_COMPOSE, the plugin, docker-compose, or Debian's package of it."""
    if told := os.environ.get("MUSTER_COMPOSE"):
        return told.split()
    if engine.has("compose", "version"):
        return ["docker", "compose"]
    if not shutil.which("docker-compose"):
        if os.geteuid():
            raise Trouble("neither `docker compose` nor docker-compose is here")
        install(["docker-compose"], say)
    return ["docker-compose"]


def _start(engine: Engine, folder: Path, say: Say) -> subprocess.Popen[bytes]:
    """Start it on the cache; where it does not start on what is there, on an empty one."""
    for again in (False, True):
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                ["dockerd", "--data-root", CACHE / "engine", "--exec-root", folder / "exec", "--pidfile", folder / "pid",
                 "--host", engine.environment["DOCKER_HOST"], "--log-level", "warn"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=_end_with_parent,
            )  # fmt: skip
        end = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < end:
            if engine.has("version"):
                return process
            time.sleep(0.2)
        _end(process, folder)
        words = (folder / "log").read_text(errors="replace")[-4000:]
        if again:
            raise NoEngine(f"dockerd does not start here:\n{words}")
        say("the engine does not start on what it left, and begins anew")
        shutil.rmtree(CACHE / "engine", ignore_errors=True)
    raise AssertionError


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Stop it, with the processes that it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for mounted in reversed([line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]):
        if mounted.startswith((str(folder), str(CACHE / "engine"))):
            subprocess.run(["umount", "--lazy", mounted], check=False, capture_output=True)
    for group in Path("/sys/fs/cgroup").glob("*/docker"):
        with contextlib.suppress(OSError):
            group.rmdir()


def _tidy(engine: Engine) -> None:
    """Nothing of an earlier run goes on, and the cache stays bounded."""
    if left := engine.docker("ps", "--all", "--quiet").split():
        engine.docker("rm", "--force", "--volumes", *left)
    engine.docker("network", "prune", "--force")
    engine.docker("volume", "prune", "--force")
    if len(engine.docker("images", "--quiet", "--filter", "dangling=true").split()) > DANGLING_MAX:
        engine.docker("image", "prune", "--force", within_s=300)


@contextlib.contextmanager
def _network_as_it_was() -> Iterator[None]:
    """Bridges, firewall rules and forwarding are afterwards what they were."""
    links = _links()
    forward = {path: path.read_text() for path in FORWARD if path.exists()}
    tables = [run([save]) for save, _ in TABLES]
    try:
        yield
    finally:
        for link in _links() - links:
            subprocess.run(["ip", "link", "delete", link], check=False, capture_output=True)
        for (_, restore), text in zip(TABLES, tables, strict=True):
            # A table that was not there is left empty: what restores cannot remove one.
            subprocess.run([restore], input=text or _empty(), text=True, check=False, capture_output=True)
        for path, text in forward.items():
            path.write_text(text)


def _empty() -> str:
    nat = "*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n"
    return nat + "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n"


def _links() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def _end_with_parent() -> None:
    """In the child: the kernel ends it when whoever proves something with it is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
