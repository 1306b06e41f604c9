"""The Compose file says what there is, gives nobody more than is needed, and agrees with what is beside it."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose import FILE, METRICS, ROOT, faults, loaded, parsed, variables

TEXT = FILE.read_text()
COMPOSE = loaded(TEXT)
DOCKERFILE = (ROOT / "infra" / "Dockerfile").read_text()
DOCS = (ROOT / "docs" / "compose.md").read_text()

PLANTS = [
    ("${MUSTER_QUEUES:-gpu}", "${MUSTER_QUEUES}", "MUSTER_QUEUES has no default"),
    ("${MUSTER_QUEUES:-gpu}", "$MUSTER_QUEUES", "without braces"),
    ("      - --keys", "      - --key-folder", "No such option"),
    ('"bus", "create"', '"bus", "make"', "No such command"),
    ('"secrets"]', '"passwords"]', "nothing that can be prepared"),
    ("  MUSTER_BUS: kafka", "  MUSTER_BROKER: kafka", "Missing parameter: bus"),
    ("    user: postgres", "    user: root", "postgres: it may become root"),
    ('    user: postgres\n    restart: unless-stopped', "    user: postgres", "postgres: nobody starts it again"),
    ("  cap_drop: [ALL]\n  pids", "  pids", "it may do what it need not"),
    ("POSTGRES_PASSWORD_FILE: /run/muster-database/password", "POSTGRES_PASSWORD: well-known", "a secret in the environment"),
    ("${MUSTER_BIND:-127.0.0.1}:${MUSTER_POSTGRES", "${MUSTER_POSTGRES", "is open to others by default"),
    ("topics: {condition: service_completed_successfully}", "topics: {condition: service_healthy}", "never comes"),
    ("    mem_limit: ${MUSTER_KAFKA_MEMORY:-1g}\n", "", "kafka: it may take all of the memory"),
    ("  postgres:\n  scheduler:\n", "  scheduler:\n", "the volume postgres is not declared"),
    ("  work:\n", "  work:\n  play:\n", "the volume play is used by nobody"),
    ("    logging: *logging\n\n  # Makes", "\n  # Makes", "kafka: what it says is kept without a bound"),
    ("    healthcheck: {disable: true}\n\n  scheduler", "\n  scheduler", "topics: what goes on has a health check"),
]  # fmt: skip


def test_nothing_is_wrong_with_the_file() -> None:
    assert faults(TEXT) == []


@pytest.mark.parametrize(("good", "planted", "said"), PLANTS, ids=[said for _, _, said in PLANTS])
def test_what_is_planted_is_found(good: str, planted: str, said: str) -> None:
    assert good in TEXT
    assert any(said in fault for fault in faults(TEXT.replace(good, planted))), faults(TEXT.replace(good, planted))


def test_all_that_a_cluster_has_is_there() -> None:
    ours = {name for name, service in COMPOSE["services"].items() if service["image"] == "muster:local"}
    others = COMPOSE["services"].keys() - ours
    assert others == {"kafka", "postgres", "prometheus", "grafana"}
    assert {"scheduler", "standby", "gateway-1", "gateway-2", "history", "telemetry", "node-1", "node-2"} <= ours


def test_the_image_runs_as_a_user_that_is_not_root_and_says_how_it_is_looked_after() -> None:
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.M) == ["muster"]
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "USER muster" in final
    assert "HEALTHCHECK" in final
    assert "pip" not in final


def test_the_versions_are_those_that_are_tested() -> None:
    pom = (ROOT / "infra/kafka/pom.xml").read_text()
    (version,) = re.findall(r"<artifactId>kafka_2.13</artifactId>\s*<version>([^<]+)</version>", pom)
    said = variables(TEXT)
    assert said["MUSTER_KAFKA_IMAGE"] == f"apache/kafka:{version}"
    assert re.findall(r"^ARG BASE=(\S+)", DOCKERFILE, re.M) == [said["MUSTER_BASE_IMAGE"]]
    for image in (one for name, one in said.items() if name.endswith("_IMAGE")):
        assert re.fullmatch(r"[a-z/-]+:[\w.-]+", image), f"{image} has no tag"
        assert not image.endswith(":latest")


def test_prometheus_asks_every_program_where_it_answers() -> None:
    prometheus: dict[str, Any] = yaml.safe_load((ROOT / "infra/prometheus/prometheus.yml").read_text())
    asked = {
        target for job in prometheus["scrape_configs"] for group in job["static_configs"] for target in group["targets"]
    }  # fmt: skip
    answers = set()
    for name, service in COMPOSE["services"].items():
        if service["image"] == "muster:local" and service["restart"] != "no":
            assert parsed(list(service["command"]), service.get("environment", {}))["metrics"] == METRICS, name
            answers.add(f"{name}:{METRICS.rpartition(':')[2]}")
            assert service["hostname"] == name
    assert asked == answers


def test_every_variable_is_explained_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(MUSTER_\w+)` \| `([^`]*)` \|", DOCS, re.M))
    assert rows == variables(TEXT)


def test_every_port_of_this_machine_is_explained() -> None:
    ports = {port.split(":")[1] for service in COMPOSE["services"].values() for port in service.get("ports", ())}
    assert set(re.findall(r"^\| (\d+) \|", DOCS, re.M)) == ports


def test_what_is_sent_to_the_builder_is_what_the_dockerfile_copies() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for words in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M):
        copied |= set(words.split())
    assert sent == copied
    assert all((ROOT / path).exists() for path in copied)


def test_the_extras_that_the_image_has_bring_what_every_program_of_the_stack_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)", DOCKERFILE, re.M)
    told = " ".join(project[extras])
    for name in ("scheduler", "history", "telemetry"):
        assert name in told or name not in project, f"the extra {name} is not in {extras}"


def test_grafana_finds_the_dashboard_and_the_prometheus_of_the_stack() -> None:
    mounts = dict(one.split(":")[:2] for one in COMPOSE["services"]["grafana"]["volumes"])
    provisioning = FILE.parent / Path("compose/grafana")
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/muster.yml").read_text())["providers"]
    assert provider["options"]["path"] == mounts["./grafana"]
    assert (FILE.parent / "grafana" / "dashboard.json").is_file()
