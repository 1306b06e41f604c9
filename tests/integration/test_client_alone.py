"""The wheel with the extra `client` alone, in an environment of its own: the programs of docs/client.md run there.

And docs/producing-events.md: what it says to send is sent, to a real broker, and recorded.
"""

import inspect
import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from muster.cli.main import run
from muster.client import Muster, sync
from muster.events.cloudevents import KINDS, to_data, type_of
from muster.events.codec import decode_input, open_envelope
from muster.events.jobs import JobSubmitted
from muster.events.nodes import DeviceHealthChanged
from muster.events.operations import NodeCordoned
from muster.events.schema.asyncapi import EXAMPLES, topic_of
from muster.log.reader import read_admitted
from tests.support.cell import Cell, Gateway, cell, until
from tests.support.kafka import Brokers, bus_broker

ROOT = Path(__file__).parents[2]
CLIENT = (ROOT / "docs/client.md").read_text()
PRODUCING = (ROOT / "docs" / "producing-events.md").read_text()
BROUGHT = {"aiokafka", "cramjam", "httpx", "msgspec", "muster-scheduler"}
NOT_BROUGHT = {"faust-streaming", "litestar", "numpy", "platformdirs", "pyyaml", "rich", "typer", "uvicorn"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel with its extra `client`, and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    _done([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("muster_scheduler-*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    _done([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[client]"])
    return python


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with bus_broker(tmp_path_factory.mktemp("brokers")) as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, broker: Brokers) -> Iterator[Cell]:
    """A cell with a scheduler that leads."""
    with cell(tmp_path_factory.mktemp("cell"), broker.address) as made:
        made.leader(made.scheduler("scheduler"))
        yield made
        made.check()


@pytest.fixture(scope="module")
def gateway(made: Cell) -> Gateway:
    """A gateway with an agent that really runs tasks."""
    gateway = made.gateway()
    made.agent(gateway)
    return gateway


def _done(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def inputs(broker: Brokers) -> list[Any]:
    """All that were recorded so far."""
    return [event for envelope, _ in read_admitted(broker.address) for event in open_envelope(envelope).inputs]


def test_the_extra_brings_what_the_client_needs_and_nothing_that_schedules(alone: Path) -> None:
    listed = json.loads(_done([str(alone), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]))
    names = {each["name"].lower() for each in listed}
    assert names >= BROUGHT
    assert not names & NOT_BROUGHT
    modules = [f"muster.client.{path.stem}" for path in (ROOT / "events/muster/client").glob("*.py") if path.stem != "__init__"]
    assert len(modules) > 8
    _done([str(alone), "-c", f"import {', '.join(sorted(modules))}, muster.client"], cwd=alone.parent)


@pytest.mark.parametrize("number", range(3))
def test_the_programs_of_the_page_run_there(alone: Path, broker: Brokers, gateway: Gateway, tmp_path: Path, number: int) -> None:
    programs = blocks(CLIENT, "python")
    assert len(programs) == 3
    text = programs[number].replace("http://127.0.0.1:8470", gateway.url).replace("kafka://127.0.0.1:9092", broker.address)
    (tmp_path / "program.py").write_text(text)
    said = _done([str(alone), "program.py"], cwd=tmp_path).splitlines()
    if number == 0:
        assert re.fullmatch(r"\d+ JobSubmitted pending", said[0])
        assert said[-1].split()[:2] == ["finished", "0"]
    else:
        assert said == [["['finished', 'finished', 'finished']"], ["finished"]][number - 1]


def test_the_command_says_there_what_is_missing(alone: Path) -> None:
    done = subprocess.run([alone.parent / "muster", "jobs"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "muster: the commands need typer, which is not installed: pip install 'muster-scheduler[scheduler]' brings it\n"
    )


@pytest.mark.parametrize(("package", "address"), [("httpx", "http://127.0.0.1:9"), ("aiokafka", "kafka://127.0.0.1:9")])
def test_without_the_extra_a_client_says_what_is_missing(alone: Path, package: str, address: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from muster.client import Muster, NotInstalled\n"
        f"try: Muster({address!r})\nexcept NotInstalled as error: print(error)"
    )
    said = _done([str(alone), "-c", program], cwd=alone.parent)
    assert said == f"{package} is not installed: pip install 'muster-scheduler[client]' brings it\n"


def test_the_calls_of_the_page_are_those_of_both_clients() -> None:
    calls = {name for row in re.findall(r"^\| (`\w+\(.*?)\|", CLIENT, re.MULTILINE) for name in re.findall(r"`(\w+)\(", row)}
    public = {name for name in vars(Muster) if not name.startswith("_")}
    assert calls == public - {"close"}
    assert {name for name in vars(sync.Muster) if not name.startswith("_")} == public
    for name in (*public, "__init__"):
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Muster, sync.Muster))
        assert ours.parameters == theirs.parameters, name


def test_the_topics_of_the_page_are_those_of_the_bus() -> None:
    rows = re.findall(r"^\| `(muster\.[a-z-]+)` \| .*? \| (.*?) \|$", PRODUCING, re.MULTILINE)
    told = {topic: re.findall(r"`([^`]+)`", types) for topic, types in rows}
    assert told == {topic: [type_of(event) for event in EXAMPLES if topic_of(type(event)) == topic] for topic in KINDS}


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")
def test_the_job_of_the_page_is_handed_in_by_kcat(broker: Brokers, gateway: Gateway) -> None:
    (command,) = blocks(PRODUCING, "bash")
    _done(["bash", "-c", command.replace("127.0.0.1:9092", broker.bootstrap)])
    until(lambda: (gateway.get("/jobs/hello-kcat") or {"job": {"state": ""}})["job"]["state"] == "finished")
    assert [event for event in inputs(broker) if isinstance(event, JobSubmitted) and event.job == "hello-kcat"]


def test_the_health_and_the_cordon_of_the_page_are_recorded(
    broker: Brokers, made: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = blocks(PRODUCING, "python")
    exec(program.replace("127.0.0.1:9092", broker.bootstrap), {})
    (whole,) = blocks(PRODUCING, "json")
    headers = [("content-type", b"application/cloudevents+json")]
    cordon, _ = decode_input(to_data("muster.operations", headers, whole.encode()))
    assert cordon == NodeCordoned(node="gpu-17", by="ada")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in (whole.encode(), b"{}"):
        producer.produce("muster.operations", value, "gpu-17", headers=[*headers])
    assert producer.flush(30) == 0
    health = DeviceHealthChanged(node="gpu-17", uid="4c4c4544-0042", device="GPU-1", health="failed", reason="XID 79")
    until(lambda: {type(event) for event in inputs(broker)} >= {DeviceHealthChanged, NodeCordoned})
    assert health in inputs(broker)
    assert cordon in inputs(broker)
    until(lambda: "InputRefused" in [type(event).__name__ for event in inputs(broker)])
    said = []
    for line in re.findall(r"^muster (.*kafka://.*)$", PRODUCING, re.MULTILINE):
        assert run(line.replace("127.0.0.1:9092", broker.bootstrap).split()) == 0
        said.append(capsys.readouterr().out)
    listed, counted = said
    assert "data: it is missing" in listed
    assert "refused inputs: 1 of muster.operations" in counted
