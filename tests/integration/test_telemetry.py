"""Telemetry on a real broker: samples lead to what a scheduler records of a device, whoever is killed meanwhile."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from muster.cli.main import run
from muster.client import sync
from muster.events.cloudevents import GPU_HEALTH, TELEMETRY, to_message
from muster.events.codec import open_envelope
from muster.events.levels import DeviceReport, NodeReport
from muster.events.nodes import Device, DeviceHealthChanged, NodeRegistered, NodeSpec
from muster.events.telemetry import GpuSample, GpusSampled, XidCount
from muster.log.reader import read_admitted
from muster.telemetry.reducer import Reducer
from tests.support.cell import Cell, Program, cell, until
from tests.support.kafka import Brokers, bus_broker
from tests.unit.telemetry.samples import rules

Worker = Callable[..., Program]


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


@pytest.fixture
def worker(tmp_path: Path, broker: Brokers, made: Cell) -> Worker:
    """Starts a worker of a group; it ends with the cell. Its rules have windows of some seconds."""
    rules(tmp_path)

    def start(group: str) -> Program:
        words = ("telemetry", "worker", "--bus", broker.address, "--rules", str(tmp_path / "rules.toml"))
        program = Program(tmp_path / group, *words, "--group", group, "--instance", f"{group}-1")
        program.start()
        made.programs.append(program)
        return program

    return start


def inputs(broker: Brokers) -> list[Any]:
    """All that was recorded so far."""
    return [event for envelope, _ in read_admitted(broker.address) for event in open_envelope(envelope).inputs]


def healths(broker: Brokers, node: str) -> dict[str, tuple[str, str]]:
    """By device of the node, the health that was recorded last, and why."""
    found = [event for event in inputs(broker) if isinstance(event, DeviceHealthChanged) and event.node == node]
    return {event.device: (event.health, event.reason) for event in found}


def proposed(broker: Brokers, node: str) -> list[str]:
    """The ids of the events about the node's devices on `muster.gpu-health`, as they stand there."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False})
    try:
        at = TopicPartition(GPU_HEALTH, 0, 0)
        _, end = consumer.get_watermark_offsets(at)
        consumer.assign([at])
        messages: list[Any] = []
        while len(messages) < end:
            messages += [each for each in consumer.consume(end - len(messages), timeout=5) if each.error() is None]
        return [dict(each.headers())["ce_id"].decode() for each in messages if each.key() == node.encode()]
    finally:
        consumer.close()


def introduce(broker: Brokers, node: str, *uuids: str) -> None:
    """Let the cell know this node."""
    devices = tuple(Device(uuid=uuid, model="H100", memory_mib=81_920) for uuid in uuids)
    said = tuple(DeviceReport(uuid=uuid, health="healthy") for uuid in uuids)
    spec = NodeSpec(cpu_milli=8000, memory_mib=64_000, devices=devices)
    with sync.Muster(broker.address) as muster:
        muster.report(NodeReport(node=node, uid=f"uid-{node}", boot="b1", sequence=1, spec=spec, devices=said))
    until(lambda: [event for event in inputs(broker) if isinstance(event, NodeRegistered) and event.node == node])


def put(broker: Brokers, messages: list[GpusSampled]) -> None:
    """Put samples on the topic."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "partitioner": "murmur2_random"})
    for number, sampled in enumerate(messages):
        headers, value = to_message(TELEMETRY, sampled, "urn:test", f"s-{number}", sampled.samples[0].at_us)
        producer.produce(TELEMETRY, key=sampled.node, value=value, headers=dict(headers))
    assert producer.flush(30) == 0


def level(device: str, at_us: int, **told: Any) -> GpuSample:
    return GpuSample(device=device, at_us=at_us, **{"xids": (), "temperature_millicelsius": 60_000, **told})


def test_what_samples_tell_becomes_health_in_the_log(
    tmp_path: Path, broker: Brokers, made: Cell, worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    introduce(broker, "sampled", "GPU-79", "GPU-hot", "GPU-well")
    running = worker("becomes")
    begin_us = time.time_ns() // 1000 - 600_000_000
    messages = []
    for second in range(0, 120, 3):
        at_us = begin_us + second * 1_000_000
        samples = (level("GPU-hot", at_us, temperature_millicelsius=95_000), level("GPU-well", at_us))
        messages.append(GpusSampled(node="sampled", uid="uid-sampled", boot="b1", samples=samples))
    with sync.Muster(broker.address) as muster:
        muster.gpus_sampled(messages[0])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(TELEMETRY, key="sampled", value=b"no samples")  # it is passed over
    producer.flush(30)
    put(broker, messages[1:])
    page = tmp_path / "page.prom"
    page.write_text('DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-79",Hostname="sampled"} 79\n')
    told = ["telemetry", "bridge", "--bus", broker.address, "--node", "sampled", "--uid", "uid-sampled", "--once", str(page)]
    assert run(told) == 0
    found = until(lambda: len(healths(broker, "sampled")) == 1 and healths(broker, "sampled"))
    assert found["GPU-hot"][0] == "degraded"
    assert "temperature was never below 95000 in the 20 s from" in found["GPU-hot"][1]
    # The bridge's sample is of now: a window of it ends when a later one comes.
    later_us = time.time_ns() // 1000 + 40_000_000
    put(broker, [GpusSampled(node="sampled", uid="uid-sampled", samples=(level("GPU-79", later_us),))])
    found = until(lambda: len(healths(broker, "sampled")) == 2 and healths(broker, "sampled"))
    assert found["GPU-79"][0] == "failed"
    assert found["GPU-79"][1].startswith("Xid 79: off the bus")
    assert "is passed over: content-type: must be application/json" in running.text
    assert running.stop() == 0


def test_a_worker_that_is_killed_midway_and_started_again_proposes_what_one_that_lived_does(
    tmp_path: Path, broker: Brokers, made: Cell, worker: Worker
) -> None:
    begin_us = time.time_ns() // 1000 - 1200_000_000
    messages = []
    for second in range(0, 900, 3):
        for device in ("GPU-a", "GPU-b"):
            at_us = begin_us + second * 1_000_000
            hot = (second // 60) % 2 == (device == "GPU-a")
            xids = (XidCount(code=95),) if device == "GPU-b" and second > 700 else ()
            told = {
                "temperature_millicelsius": 95_000 if hot else 50_000,
                "pcie_replays": second * (second // 100 % 3),
                "xids": xids,
            }
            messages.append(GpusSampled(node="killed", uid="uid-killed", boot="b1", samples=(level(device, at_us, **told),)))
    reducer = Reducer(rules(tmp_path))
    expected = [proposal.id for sampled in messages for proposal in reducer.take(sampled)]
    assert len(expected) > 60
    half = len(messages) // 2

    first = worker("killed")
    put(broker, messages[:half])
    until(lambda: len(proposed(broker, "killed")) > 5, say="some proposals stand on the topic")
    first.kill()
    before = proposed(broker, "killed")
    put(broker, messages[half:])
    again = worker("killed")
    until(lambda: set(expected) <= set(proposed(broker, "killed")), say="every proposal stands on the topic")
    after = proposed(broker, "killed")
    assert after[: len(before)] == before
    assert set(after) == set(expected)
    print(json.dumps({"proposals": len(expected), "before": len(before), "repeated": len(after) - len(set(after))}))
    assert again.stop() == 0
