"""The broker that the tests and people start: it starts, dies, comes back, and ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka import BROKER, Brokers, Kafka, unavailable


def _broker(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BROKER), *arguments, "--folder", str(folder)], capture_output=True, text=True, check=False
    )


def test_a_broker_answers_where_the_fixture_says(kafka: Kafka) -> None:
    host, _, port = kafka.bootstrap.rpartition(":")
    assert host
    assert int(port) > 0
    assert kafka.address == f"kafka://{kafka.bootstrap}"


def test_one_of_three_nodes_can_die_pause_and_come_back(three_kafka: Brokers) -> None:
    three = three_kafka
    assert len(three.bootstrap.split(",")) == 3
    assert _broker(three.folder, "status").returncode == 0
    three.kill(2)
    three.pause(3)
    told = _broker(three.folder, "status")
    assert told.returncode == 1
    assert [line.split("  ")[2] for line in told.stdout.splitlines()] == ["runs", "is stopped", "is paused"]
    three.resume(3)
    three.restart(2)
    assert _broker(three.folder, "status").returncode == 0
    assert _broker(three.folder, "kill", "4").stderr == f"broker: there is no node 4 in {three.folder}; there are 1, 2, 3\n"
    assert _broker(three.folder, "start").stderr.startswith("broker: node 1 in ")


def test_no_outgoing_connection_gets_the_port_of_a_broker_that_is_dead_for_a_while(three_kafka: Brokers) -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [port for node in three_kafka.nodes for port in (node.port, node.proxied_port, node.advertised_port)]
    assert len(set(ports)) == 9
    assert first <= 10_000 or all(port < first for port in ports)


def test_a_folder_without_brokers_is_named(tmp_path: Path) -> None:
    told = _broker(tmp_path, "status")
    assert told.returncode == 1
    assert told.stderr == f"broker: no broker was started in {tmp_path}\n"


@pytest.mark.parametrize("named", ["kafka", "postgres, kafka", "kafka postgres"])
def test_where_a_broker_is_required_its_absence_is_a_failure_and_else_a_skip(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("MUSTER_REQUIRE", named)
    with pytest.raises(pytest.fail.Exception, match="kafka is required here: no Java"):
        unavailable("kafka", "no Java")
    monkeypatch.setenv("MUSTER_REQUIRE", "postgres")
    with pytest.raises(pytest.skip.Exception, match="without kafka: no Java"):
        unavailable("kafka", "no Java")


def test_what_runs_the_broker_is_named_where_it_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, str(BROKER), "jars"]
    told = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stderr == "broker: Java 17 runs the broker and was not found: install the package openjdk-17-jre-headless\n"
    (tmp_path / "java").symlink_to("/bin/true")
    environment = {"PATH": str(tmp_path), "MUSTER_KAFKA_JARS": str(tmp_path / "jars")}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.stderr == "broker: Maven brings the broker's jars and was not found: install the package maven\n"
