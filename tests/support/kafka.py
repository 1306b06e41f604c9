"""For tests on a real Kafka broker: where it comes from, and brokers that a test may break.

`kafka` is one broker for the whole run, to be shared: a test makes topics of its own and breaks nothing. It is, in this order,
the one that `MUSTER_TEST_KAFKA=HOST:PORT` names, one in a container where a Docker engine answers, or one from the jars that
`infra/kafka/broker` brings. `brokers` starts brokers of the test's own, from the jars always: they may be killed, paused,
reached through a proxy. Without a broker these tests are skipped, and say why; where `MUSTER_REQUIRE` names `kafka` they fail.
"""

import asyncio
import contextlib
import functools
import json
import os
import re
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn, Self

import pytest
from aiokafka.errors import KafkaError

from muster.log.bus import Bus
from muster.log.topics import create
from tests.support.disks import small_disk
from tests.support.topics import administrator
from tests.support.wrong_clock import Clocks

BROKER = Path(__file__).parents[2] / "infra/kafka/broker"
IMAGE = "apache/kafka:4.4.0"
CONTAINER_START_S = 120
PULL_S = 300
AWAIT_S = 60


class Kafka:
    """A broker that somebody else started and ends."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        """HOST:PORT, or several with commas between."""

    @property
    def address(self) -> str:
        """As `--bus` takes it."""
        return f"kafka://{self.bootstrap}"

    def topic(self, name: str = "test") -> str:
        """A name that no other test has; nobody makes it here."""
        return f"{name}.{secrets.token_hex(6)}"


class Node:
    """One broker of several: its ports on 127.0.0.1, and its process."""

    def __init__(self, told: dict[str, int]) -> None:
        self.id = told["id"]
        self.pid = told["pid"]
        self.port = told["port"]
        self.secure_port = told["secure_port"]
        """Of TLS and SASL; 0 without `secure`."""
        self.proxied_port = told["proxied_port"]
        """Where a proxy connects to; 0 without `proxied`."""
        self.advertised_port = told["advertised_port"]
        """Where a proxy listens: clients that came through it are told to come back there; 0 without `proxied`."""


class Brokers(Kafka):
    """One broker or three of the test's own, from the jars, in a folder. Ends with the test, and with its process."""

    def __init__(self, folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is added to that of every node, also when it is started again."""
        self.folder = folder
        self.small: Path | None = None
        """The folder of node 2, where that is a file system of its own."""
        self.clocks: Clocks | None = None
        """The nodes' clocks, where they have some that may be set."""
        self._environment = {**os.environ, **(environment or {})}
        self._process = subprocess.Popen(
            [sys.executable, str(BROKER), "run", "--brief", "--folder", str(folder), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            start_new_session=True,  # a Ctrl-C meant for the tests must not take the brokers first
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline().strip()
        if not line:
            said = self._process.stderr.read()
            self.close()
            raise AssertionError(f"the broker did not start: {said}")
        super().__init__(line)

    @property
    def nodes(self) -> list[Node]:
        """As they are now."""
        return [Node(told) for told in json.loads((self.folder / "brokers.json").read_text())["nodes"]]

    @property
    def client_properties(self) -> Path:
        """What a client needs for `secure_port`."""
        return self.folder / "client.properties"

    @property
    def secure_address(self) -> str:
        """As `--bus` takes it, for the listeners with TLS and SASL."""
        return "kafka://" + ",".join(f"127.0.0.1:{node.secure_port}" for node in self.nodes)

    @property
    def advertised_address(self) -> str:
        """As `--bus` takes it, for clients that come through a proxy."""
        return "kafka://" + ",".join(f"127.0.0.1:{node.advertised_port}" for node in self.nodes)

    def kill(self, *nodes: int) -> None:
        """SIGKILL; returns when they are dead."""
        self._do("kill", *(nodes or (1,)))

    def pause(self, *nodes: int) -> None:
        """SIGSTOP: they keep their connections and answer nothing."""
        self._do("pause", *(nodes or (1,)))

    def resume(self, *nodes: int) -> None:
        """SIGCONT."""
        self._do("resume", *(nodes or (1,)))

    def restart(self, *nodes: int) -> None:
        """Start dead nodes again, living ones are stopped first; returns when they serve."""
        self._do("restart", *(nodes or (1,)))

    def mend(self) -> None:
        """Wake whoever is stopped, start whoever is dead, and return when every node serves."""
        for line in self._told("status").stdout.splitlines():
            if "is paused" in line or "is stopped" in line:
                self._do("resume" if "is paused" in line else "restart", line.split()[1])
        self.await_all()

    def controller(self) -> int:
        """The node that leads the controllers, as they say themselves (Kafka's request DescribeQuorum, version 0)."""
        topic = b"__cluster_metadata"
        asked = b"\x02%c%b\x02" % (len(topic) + 1, topic) + struct.pack(">i", 0) + b"\0\0\0"
        request = struct.pack(">hhih", 55, 0, 1, 0) + b"\0" + asked
        for _ in range(AWAIT_S * 10):
            for node in self.nodes:
                with contextlib.suppress(OSError, struct.error):
                    with socket.create_connection(("127.0.0.1", node.port), timeout=2) as connection:
                        connection.sendall(struct.pack(">i", len(request)) + request)
                        answer = connection.makefile("rb")
                        (size,) = struct.unpack(">i", answer.read(4))
                        # After the request's number, tags, error, how many topics, the name, how many partitions, and which.
                        error, leader = struct.unpack_from(">hi", answer.read(size), 14 + len(topic))
                    if error == 0 and leader > 0:
                        return int(leader)
            time.sleep(0.1)
        raise AssertionError("no controller leads")

    def await_all(self) -> None:
        """Return when every node serves."""
        for _ in range(AWAIT_S * 10):
            if self._told("status").returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError(self._told("status").stdout)

    def close(self) -> None:
        """End every node at once."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, command: str, *nodes: int | str) -> None:
        done = self._told(command, *map(str, nodes))
        assert done.returncode == 0, done.stderr

    def _told(self, *command: str) -> subprocess.CompletedProcess[str]:
        told = [sys.executable, str(BROKER), *command, "--folder", str(self.folder)]
        return subprocess.run(told, capture_output=True, text=True, check=False, env=self._environment)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker for the whole run; see the module."""
    given = os.environ.get("MUSTER_TEST_KAFKA")
    if given:
        yield Kafka(_reached(given))
    elif docker_brings(IMAGE):
        yield from _container()
    else:
        bring_jars()
        with Brokers(tmp_path_factory.mktemp("kafka")) as brokers:
            yield brokers


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A broker with a listener of TLS and SASL, for the whole run; from the jars."""
    bring_jars()
    with Brokers(tmp_path_factory.mktemp("secure"), "--secure") as made:
        yield made


@pytest.fixture(scope="session")
def three_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Three brokers for the whole run, from the jars. A test may kill and pause them, and has all of them serve when it ends.

    Node 2 has a small disk of its own, and each has a clock that can be set, where this machine lets us.
    """
    bring_jars()
    folder = tmp_path_factory.mktemp("three")
    with small_disk(folder / "node-2") as small:
        clocks = Clocks(folder, 3)
        with Brokers(folder, "--nodes=3", "--proxied", environment=clocks.environment) as made:
            made.small, made.clocks = small, clocks
            yield made


@contextlib.contextmanager
def bus_broker(folder: Path, *options: str) -> Iterator[Brokers]:
    """A broker from the jars, which has the topics of a bus. `options` are those of `infra/kafka/broker run`."""
    bring_jars()
    with Brokers(folder, *options) as started:
        asyncio.run(create(Bus.parse(started.address)))
        yield started


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[..., Brokers]]:
    """Starts brokers of the test's own: `brokers(nodes=3, secure=True, proxied=True, set={...})`."""
    bring_jars()
    started: list[Brokers] = []

    def start(*, nodes: int = 1, secure: bool = False, proxied: bool = False, set: dict[str, str] | None = None) -> Brokers:
        options = [f"--nodes={nodes}", *["--secure"] * secure, *["--proxied"] * proxied]
        options += [f"--set={name}={value}" for name, value in (set or {}).items()]
        made = Brokers(tmp_path / f"brokers-{len(started)}", *options)
        started.append(made)
        return made

    yield start
    for each in started:
        each.close()


def unavailable(what: str, reason: str) -> NoReturn:
    """Skip the test, or fail it where `MUSTER_REQUIRE` (names with commas or spaces between) says that `what` must be there."""
    if what in re.split(r"[,\s]+", os.environ.get("MUSTER_REQUIRE", "")):
        pytest.fail(f"{what} is required here: {reason}", pytrace=False)
    pytest.skip(f"without {what}: {reason}")


def _reached(given: str) -> str:
    host, _, port = given.split(",")[0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        unavailable("kafka", f"MUSTER_TEST_KAFKA names {given}, and no broker answers there: {error}")
    return given


@functools.cache
def docker_brings(image: str) -> bool:
    """Whether there is an engine that would run a container of this image: it has it, or gets it from a registry."""
    if not _docker_answers():
        return False
    for told in (("image", "inspect", image), ("pull", "--quiet", image)):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run(["docker", *told], capture_output=True, timeout=PULL_S, check=False).returncode == 0:
                return True
    return False


def do_without_reaper() -> None:
    """Where the image cannot be had that ends the containers of tests that were killed, testcontainers goes without it."""
    from testcontainers.core.config import testcontainers_config  # it asks for the engine when it is imported

    if not docker_brings(testcontainers_config.ryuk_image):
        testcontainers_config.ryuk_disabled = True


def _docker_answers() -> bool:
    try:
        done = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() != b""


def _container() -> Iterator[Kafka]:
    """One KRaft node of the image apache/kafka, at a free port of this host that it also tells its clients."""
    from testcontainers.core.container import DockerContainer  # it asks for the engine when it is imported

    do_without_reaper()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    container = DockerContainer(IMAGE).with_bind_ports(9092, port)
    for name, value in {
        "NODE_ID": "1",
        "PROCESS_ROLES": "broker,controller",
        "CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "LISTENERS": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://localhost:9093",
        "ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "AUTO_CREATE_TOPICS_ENABLE": "false",
        "OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "REPLICA_FETCH_MAX_BYTES": str(32 * 1024 * 1024),
    }.items():
        container = container.with_env(f"KAFKA_{name}", value)
    with container:
        made = Kafka(f"127.0.0.1:{port}")
        end = time.monotonic() + CONTAINER_START_S
        while not asyncio.run(_serves(made.address)):
            if time.monotonic() > end:
                said = b"".join(container.get_logs()).decode(errors="replace")
                raise AssertionError(f"the container of {IMAGE} does not serve after {CONTAINER_START_S} s: {said[-4000:]}")
            time.sleep(0.2)
        yield made


async def _serves(address: str) -> bool:
    """Whether a broker answers there."""
    with contextlib.suppress(KafkaError, OSError):
        async with administrator(Bus.parse(address)) as client:
            await client.list_topics()
            return True
    return False


def bring_jars() -> None:
    done = subprocess.run([sys.executable, str(BROKER), "jars"], capture_output=True, text=True, check=False)
    if done.returncode:
        unavailable("kafka", "there is no MUSTER_TEST_KAFKA and no Docker engine, and " + done.stderr.strip())
