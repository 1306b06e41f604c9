"""docs/cluster.md says what is so: the units' programs, with the files of the page, make a cluster that keeps its history."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cell import until
from tests.support.kafka import Brokers, bring_jars
from tests.support.postgres import Postgres
from tests.support.units import Unit, units

TEXT = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
MUSTER = Path(sys.executable).parent / "muster"
PATIENCE_S = 300
ORDER = ("muster-scheduler", "muster-gateway", "muster-agent", "muster-history", "muster-telemetry")


def block(kind: str, beginning: str) -> str:
    """The one block of this kind that begins so."""
    (found,) = [
        text for text in re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE) if text.startswith(beginning)
    ]
    return str(found)


class Place:
    """This machine in the place of those of the page."""

    def __init__(self, folder: Path, broker: str, dsn: str) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.changes = {
            "kafka://10.0.0.1:9092,10.0.0.2:9092,10.0.0.3:9092": broker,
            "http://10.0.0.1:8470,http://10.0.0.2:8470": f"http://127.0.0.1:{self.port}",
            "http://10.0.0.1:8470": f"http://127.0.0.1:{self.port}",
            "postgresql://muster:PASSWORD@10.0.0.4:5432/muster": dsn,
            "runuser -u muster -- /opt/muster/bin/muster": str(MUSTER),
            "/opt/muster/bin/muster": str(MUSTER),
            "/var/lib/muster": str(folder / "lib/muster"),
            "/etc/muster": str(folder / "etc"),
            "$HOME": str(folder),
        }
        self.environment = {
            "PATH": f"{MUSTER.parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONUNBUFFERED": "1",
            "LANG": "C.UTF-8",
            "LOGNAME": "ada",
            "USER": "ada",
        }
        for name in ("etc", "lib", "credentials", ".config/muster"):
            (folder / name).mkdir(parents=True)

    def text(self, text: str) -> str:
        """What stands on the page, as it is here."""
        for theirs, ours in self.changes.items():
            text = text.replace(theirs, ours)
        return text

    def run(self, script: str, **environment: str) -> str:
        """What these commands say."""
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", self.text(script)],
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start(self, unit: Unit, files: dict[str, str]) -> "subprocess.Popen[bytes]":
        """Start what the unit starts."""
        for name, path in unit.credentials.items():
            (self.folder / "credentials" / name).write_text(self.text(files[path]))
        told = unit.environment({path: self.text(text) for path, text in files.items()})
        specifiers = {"%S": str(self.folder / "lib"), "%d": str(self.folder / "credentials"), "%H": "here"}
        for name, value in told.items():
            for specifier, meant in specifiers.items():
                value = value.replace(specifier, meant)
            told[name] = value
        words = unit.command(told, specifiers)
        with (self.folder / f"{unit.name}.said").open("ab") as said:
            return subprocess.Popen(
                [str(MUSTER), *words],
                env=self.environment | told,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Brokers]:
    bring_jars()
    with Brokers(tmp_path / "brokers") as started:
        yield started


def test_the_units_make_the_cluster_of_the_page(tmp_path: Path, broker: Brokers, postgres: Postgres) -> None:
    """Reads "cluster.md"."""
    place = Place(tmp_path, broker.address, postgres.database("cluster"))
    place.run(block("console", "export MUSTER_BUS="))
    tokens = block("console", "runuser -u muster").splitlines()
    agent, person = [place.run(f"{command} 2>/dev/null").strip() for command in tokens]
    (tmp_path / ".config/muster/token").write_text(person)
    files = {
        "/etc/muster/muster.env": block("ini", "MUSTER_BUS="),
        "/etc/muster/gateway.env": block("ini", "MUSTER_GATEWAY_HOST=") + f"MUSTER_GATEWAY_PORT={place.port}\n",
        "/etc/muster/agent.env": f"{block('ini', 'MUSTER_AGENT_GATEWAY=').rstrip()} --node n1 --devices 8xH100-80GB\n",
        "/etc/muster/agent-token": agent,
        "/etc/muster/history-dsn": block("ini", "postgresql://"),
    }
    (tmp_path / "etc/history-dsn").write_text(place.text(files["/etc/muster/history-dsn"]))
    by_name = {unit.name: unit for unit in units()}
    assert sorted(by_name) == sorted(ORDER)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in ORDER:
            running[name] = place.start(by_name[name], files)
        token = f"MUSTER_TOKEN_FILE={shlex.quote(str(tmp_path / '.config/muster/token'))}"
        nodes = f"{token} MUSTER_GATEWAY=http://10.0.0.1:8470 muster nodes || true"
        until(lambda: " heard " in place.run(nodes), PATIENCE_S, "the node is heard")
        said = place.run(block("bash", "export MUSTER_GATEWAY="))
        assert "hello from n1" in said
        # The supervisor of systemd, in small: a restart of the agent, and of the workers.
        for name in ("muster-agent", "muster-history"):
            running[name].terminate()
            assert running[name].wait(PATIENCE_S) == 0
            running[name] = place.start(by_name[name], files)
        said = place.run(block("bash", "export MUSTER_BUS="))
        assert "none differs" in said
        assert "every row is as the log says" in said
        assert {name: process.poll() for name, process in running.items()} == dict.fromkeys(ORDER)
        for name in reversed(ORDER):
            running[name].terminate()
        assert {name: process.wait(PATIENCE_S) for name, process in running.items()} == dict.fromkeys(ORDER, 0)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        shown = "".join(path.read_text() for path in tmp_path.glob("*.said"))
        print(shown)
    password = place.changes["postgresql://muster:PASSWORD@10.0.0.4:5432/muster"].split(":")[2].split("@")[0]
    assert password not in shown
    assert agent not in shown
